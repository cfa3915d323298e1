"""A member of a queue: it claims jobs for its slots, and leaves in good order."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, Rejected, ServerError
from penstock.queues.storage.scripts import BeginVerdict
from penstock.queues.storage.stored_job import Item
from penstock.queues.worker.arrival_watcher import ArrivalWakeups
from penstock.queues.worker.claimed_jobs import ClaimedJob, ClaimedJobs
from penstock.queues.worker.concurrency import JobSlots
from penstock.queues.worker.job_ends import flush_ended
from penstock.queues.worker.job_processor import JobProcessor
from penstock.queues.worker.membership import MemberState
from penstock.queues.worker.reaper import Reaper
from penstock.queues.worker.running_records import RunningRecords
from penstock.queues.worker.task_limits import TaskLimits
from penstock.queues.worker.tender import Tender
from penstock.queues.worker.upkeep import QueueUpkeep
from penstock.runtime.progress import LoopProgress, LoopSilent, WatchedBlock
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog

if TYPE_CHECKING:
    from penstock.queues.options import Gate
    from penstock.queues.queue import Queue
    from penstock.queues.worker.performer import Performer

__all__ = ["QueueMember"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# A member that is cut short has this long to report what it has done, and to give back the rest.
_LAST_CALLS_S = 2.0
_FIRST_PAUSE_S = 0.02
_FULL_PAUSE_S = 0.25
_MOST_ASIDE = 250
# A gate that grants nothing is asked again after this, then after twice as long each time.
_REFUSED_S, _LONGEST_REFUSED_S = 0.001, 0.1
# Enough to keep a quick function busy while replies are on their way.
_MOST_CALLS = 4
# Finished jobs are acknowledged after this, if no claim comes before because enough are kept here.
_ACKNOWLEDGE_WITHIN_S = 0.02


# What a call sends within this time after a step belongs to it, as far as can be known.
_SENT_WITHIN_S = 0.1


@dataclass(slots=True)
class _Call:
    """A claim under way."""

    most: int
    step_at: float
    """When its present step began, by the loop's time."""
    at_gate: bool = False


_call_of_task: ContextVar[_Call | None] = ContextVar("call of a queue's member", default=None)


class _ClaimPace:
    """When the claim loop may claim, and when it has to without being woken."""

    def __init__(self) -> None:
        self.hint = True
        """Whether there may be jobs to claim."""
        self.wakes = 0
        """How often jobs were reported: a claim under way may have come too early for them."""
        self.claim_at = math.inf
        """When to claim without being woken, as the gate allows."""
        self.acknowledge_at = 0.0
        """When to acknowledge at the latest, if jobs of tasks at their limits are kept."""
        self.paused_until = 0.0
        self.failures = 0
        self._refusals = 0
        """How often in a row the gate has granted less than was asked for."""

    def failed(self) -> None:
        """Pause after a failure; calls that fail together are one."""
        if time.monotonic() >= self.paused_until:
            self.failures += 1
            # The first is repeated at once: most often a connection was lost.
            more = self.failures - 1
            self.paused_until = time.monotonic() + (retry_delay_s(more) if more else _FIRST_PAUSE_S)

    def gate_asked(self, *, granted_nothing: bool) -> None:
        self._refusals = self._refusals + 1 if granted_nothing else 0

    def gate_is_closed(self) -> None:
        """Claim again after a pause that doubles while the gate grants nothing."""
        self.hint = False
        pause_s = min(_LONGEST_REFUSED_S, _REFUSED_S * 2 ** min(self._refusals, 10))
        self.claim_at = time.monotonic() + pause_s

    def look_now(self) -> None:
        self.hint, self.claim_at = True, math.inf

    def jobs_wait(self) -> None:
        self.hint = True
        self.wakes += 1


class QueueMember:
    """What a consumer does from joining its queue to leaving it.

    Calls go one way: member → slots → processor → claimed jobs. Callbacks to the member only wake
    its claim loop, or report a failure that ends it.
    """

    def __init__(
        self,
        queue: Queue,
        claims: ClaimedJobs,
        processor: JobProcessor,
        reaper: Reaper,
        *,
        places: int,
        tracks: bool,
        only_task: bool,
        tender: Tender,
        wakeups: ArrivalWakeups,
        watched: Callable[[str], WatchedBlock],
        stop_asked: asyncio.Event,
    ) -> None:
        self._queue, self._claims, self._processor = queue, claims, processor
        settings = queue.client.settings
        self._membership, self._settings = claims.membership, settings.queues
        self._tracks, self._stop_asked = tracks, stop_asked
        self.trouble: str | None = None
        """Why jobs are not claimed at present."""
        self._watched = watched
        self._tender, self._wakeups, self._keys = tender, wakeups, claims.keys
        self._news, self._ended, self._surplus, self._place = (asyncio.Event() for _ in range(4))
        self._pace = _ClaimPace()
        self._failure: Exception | None = None
        """What ends the member, although nothing should."""
        self._group: asyncio.TaskGroup | None = None
        self._calls: dict[asyncio.Task[None], _Call] = {}
        """Claims without a reply yet, the oldest first."""
        claims.when_step = self._note_step
        # A step that takes longer, without a reply that is due, is frozen.
        self._overdue_s = settings.timeouts.command_s + settings.worker.poll_s
        self._asked = 0
        """How many jobs they may bring."""
        # A gate is asked for each claim, one after the other.
        self._most_calls = 1 if queue.options.gate is not None else _MOST_CALLS
        # What is claimed without running would count against the limits of the queue.
        self._has_limit = queue.options.limit is not None
        is_limited = bool(queue.options.limit or queue.options.lane_limit)
        ahead = 0 if is_limited else _MOST_CALLS * self._settings.prefetch
        self.limits = TaskLimits(
            keep=ahead,
            keep_bytes=self._settings.prefetch_bytes,
            most_aside=queue.plain_target.max_size,
            only_task=only_task,
        )
        self.limits.when_surplus, self.limits.when_place = self._surplus.set, self._place.set
        self.slots = JobSlots(
            processor,
            places=places,
            ahead=ahead,
            ahead_bytes=self._settings.prefetch_bytes,
            limits=self.limits,
            liveness=self._membership.liveness,
            when_changed=self._job_ended,
            when_failed=self._fail,
        )
        self._records = RunningRecords(claims, self.slots, beat_s=self._settings.beat_s)
        self.upkeep = QueueUpkeep(
            self._membership,
            reaper,
            self.slots.exclusive,
            tender,
            when_jobs_wait=self._jobs_wait,
            when_troubled=self._note,
        )

    async def run(self) -> None:
        """Run jobs until the member is to stop, has failed, or was given up as dead."""
        self._tender.add(self.upkeep)
        self._membership.when_lost.append(self._news.set)
        try:
            async with asyncio.TaskGroup() as group:
                await self._run_in(group)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _run_in(self, group: asyncio.TaskGroup) -> None:
        """Run, with helpers in a group.

        No task of it raises: a group that fails cancels all of its tasks at once, and claims under
        way must arrive so that their jobs can be given back.
        """
        self._group, name = group, f"queue {self._queue.name}"
        self.slots.open(group)
        helpers = [
            group.create_task(self._guarded(helper), name=f"{name} {duty}")
            for duty, helper in (
                ("stop", self._wake_to_stop()),
                ("cancelled", self._records.stop_cancelled(self.upkeep.troubled)),
                ("running", self._records.note_running()),
                ("ends", self._write_ends()),
                ("set aside", self._set_aside_surplus()),
                ("recall", self._recall_jobs()),
                ("late", self.upkeep.look_when_late()),
            )
        ]
        try:
            claiming = self._guarded(self._claim_until_stopped())
            await group.create_task(claiming, name=f"{name} claims")
            self._raise_failure()
            await self._rely_on_others()
            await self._drain()
        except BaseException:
            await self._last_calls(self._cut_short)
            raise
        else:
            lost = self._membership.lost
            await self._last_calls(self._return_unharmed if lost else self._membership.leave)
        finally:
            self._records.close()
            for task in (*helpers, *self._calls):
                task.cancel()
            await self._rely_on_others()
            await self.slots.close()

    async def _guarded(self, helper: Coroutine[Any, Any, None]) -> None:
        try:
            await helper
        except Exception as error:  # noqa: BLE001  it ends the member
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._news.set()

    def _note(self, error: PenstockError | None) -> None:
        self.trouble = error and str(error)
        if error is not None:
            name = f"queue {self._queue.name}"
            quiet.warning(f"{name} {type(error).__name__}", "%s: %s", name, error)

    def _raise_failure(self) -> None:
        if self._failure is not None and not self._membership.lost:
            raise self._failure

    async def _wake_to_stop(self) -> None:
        await self._stop_asked.wait()
        self._news.set()

    async def _rely_on_others(self) -> None:
        """Claim no more jobs: others are woken for them, and look after the queue."""
        self._wakeups.forget(self._keys.wakeup, self._woken)
        await self._tender.remove(self.upkeep)

    # ---- the claim loop

    @property
    def _is_claiming(self) -> bool:
        return not (self._stop_asked.is_set() or self._membership.lost or self._failure)

    async def _claim_until_stopped(self) -> None:
        """Keep the slots supplied. If the loop hangs, the watchdog has it restarted.

        Jobs that run are not affected; those that a call without a reply may have claimed are found
        by the next one.
        """
        while self._is_claiming:
            try:
                async with self._watched(f"claims of queue {self._queue.name}") as progress:
                    await self._claim_jobs(progress)
            except LoopSilent:
                await self._cancel_calls()
                self._pace.hint = True
        if self._calls:
            await asyncio.wait(self._calls)

    async def _claim_jobs(self, progress: LoopProgress) -> None:
        """Supply the slots, with several calls under way if that takes it."""
        while self._is_claiming:
            if self.slots.is_stuck:
                with progress.waiting("jobs to be given back"):
                    await self._give_back_unbegun()  # others may have places for them
            if self._supply():
                continue
            if self._is_overdue():
                await self._rest()
            else:
                progress.beat()
                with progress.waiting("jobs, room for more, or a reply", self._has_no_frozen_call):
                    await self._rest()

    def _is_overdue(self) -> bool:
        before = asyncio.get_running_loop().time() - self._overdue_s
        return any(call.step_at < before and self._is_frozen(call) for call in self._calls.values())

    def _has_no_frozen_call(self) -> bool:
        return not any(map(self._is_frozen, self._calls.values()))

    def _is_frozen(self, call: _Call) -> bool:
        """Whether a call waits for something that may never come.

        A gate may take any time, and replies have time limits of their own, which a slow link
        extends.
        """
        return not (call.at_gate or self._membership.client.owes(call.step_at + _SENT_WITHIN_S))

    def _note_step(self) -> None:
        """Note in the call of this task that a step of it has ended."""
        if (call := _call_of_task.get()) is not None:
            call.step_at = asyncio.get_running_loop().time()

    async def _cancel_calls(self) -> None:
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)
        for call in calls:  # those that had not run yet
            self._forget(call)

    def _supply(self) -> bool:
        """Begin a call if there is something to claim or to acknowledge; whether there was."""
        most = self._next_claim() if self._is_claiming else None
        if most is None or self._group is None:
            return False
        self._asked += most
        self._pace.acknowledge_at = time.monotonic() + _ACKNOWLEDGE_WITHIN_S
        if most:
            self.slots.exclusive.begin_reading()
        call = _Call(most, asyncio.get_running_loop().time())
        name = f"queue {self._queue.name} claim"
        self._calls[self._group.create_task(self._call(call), name=name)] = call
        return True

    def _forget(self, task: asyncio.Task[None] | None) -> None:
        """Note the end of a call."""
        if task is not None and (call := self._calls.pop(task, None)) is not None:
            self._asked -= call.most
            if call.most:
                self.slots.exclusive.end_reading()
            self._news.set()

    def _next_claim(self) -> int | None:
        """How many jobs to ask for now; None if there is nothing to claim or to acknowledge."""
        claims, slots, wanted = self._claims, self.slots, 0
        if len(self._calls) >= self._most_calls or time.monotonic() < self._pace.paused_until:
            return None
        is_alone = slots.exclusive.is_alone
        if self._pace.hint and not is_alone:
            wanted = slots.room(self._asked + len(claims.ended), claims.each_bytes)
        prefetch = self._settings.prefetch
        # What is done is acknowledged with the next claim, unless none is to come soon.
        if wanted or (
            not self._calls
            and claims.done
            and (
                slots.is_empty
                or is_alone
                or len(claims.done) >= prefetch
                or (self.limits.kept and time.monotonic() >= self._pace.acknowledge_at)
            )
        ):
            return min(wanted, prefetch)
        return None

    async def _call(self, call: _Call) -> None:
        _call_of_task.set(call)
        try:
            await self._claim(call)
            self._pace.failures = 0
            self.trouble = None
        except ServerError as error:
            if error.transient:
                self._pace.failed()
                self.upkeep.troubled(error)
            else:
                self._fail(error)
        except Exception as error:  # noqa: BLE001  it ends the member
            self._fail(error)
        finally:
            self._forget(asyncio.current_task())

    async def _claim(self, call: _Call) -> None:
        gate, wakes, claims = self._queue.options.gate, self._pace.wakes, self._claims
        wanted, retry_after_s = call.most, 0.0
        granted = wanted
        if gate is not None and wanted:
            call.at_gate = True
            admission = await gate.admit(self._queue.name, wanted)
            call.at_gate = False
            self._note_step()
            granted, retry_after_s = min(wanted, admission.granted), admission.retry_after_s
        try:
            jobs = await claims.claim(granted)
        except Rejected:
            await self._return_permits(gate, granted)
            raise
        has_more = claims.has_more
        try:
            call.at_gate = gate is not None
            await self._return_permits(gate, granted - len(jobs))
            call.at_gate = False
            if jobs:
                self._note_step()
                await self._accept(jobs)
        except BaseException:  # of the watchdog, or of a call that was refused
            claims.claim_again([job for job in jobs if job.claim in claims.jobs])
            raise
        self._pace.gate_asked(granted_nothing=retry_after_s > 0 and not jobs)
        if len(jobs) == granted < wanted and retry_after_s > 0:
            self._pace.gate_is_closed()
        elif len(jobs) < wanted and wakes == self._pace.wakes and not has_more:
            self._pace.hint = False
            self._wakeups.wait_for(self._keys.wakeup, self._woken)

    async def _return_permits(self, gate: Gate | None, unused: int) -> None:
        """Return permits that a gate has granted for nothing; if that fails, they stay used."""
        if gate is None or unused <= 0:
            return
        try:
            await gate.give_back(self._queue.name, unused)
        except ServerError as error:
            logger.warning("queue %s: permits not given back: %s", self._queue.name, error)

    async def _accept(self, jobs: Sequence[ClaimedJob]) -> None:
        """Put claimed jobs into the slots.

        The records of some are read first: another program may have queued one of the same id, an
        earlier attempt may have failed, or one of them may have been cancelled. Those of the others
        are marked as running when they have been for a while.
        """
        tracked = [job for job in jobs if job.tracked]
        if self._tracks:
            tracked = [job for job in jobs if self._is_tracked(job)]
        for job in tracked:
            job.tracked = True
        first = [job for job in tracked if self._claims.has_cancelled or not _is_new(job.item)]
        if len(first) < len(tracked):
            self._records.note_soon()
        if not first:
            self.slots.put(jobs)
            return
        verdicts = await self._claims.begin(first)
        over = {
            job.claim
            for job, verdict in zip(first, verdicts, strict=True)
            if verdict != BeginVerdict.RUN
        }
        for job in first:
            if job.claim in over and not self._membership.lost:
                self._processor.passed_over(job)
        self._job_ended()
        self.slots.put(job for job in jobs if job.claim not in over)

    def _is_tracked(self, job: ClaimedJob) -> bool:
        performer = self._processor.performer_of(job.item)
        return job.tracked or (performer is not None and performer.tracked)

    # ---- when to claim

    def _job_ended(self) -> None:
        claims = self._claims
        # The place of one may be free for another job, and a suspect may be claimed now.
        if self._has_limit or claims.meets_suspects:
            self._pace.hint = True
        self._news.set()
        if claims.ended:
            self._ended.set()

    async def _rest(self) -> None:
        """Wait for jobs on the server, for room, for something done; or until the next look."""
        self._news.clear()
        timer, next_at = None, self._next_look()
        if next_at is not None:
            timer = asyncio.get_running_loop().call_at(next_at, self._look_now)
        try:
            await self._news.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _look_now(self) -> None:
        self._pace.look_now()
        self._news.set()

    def _next_look(self) -> float | None:
        """When to look for jobs unless woken before; None if there is no need to."""
        now = time.monotonic()
        if self._pace.failures or self._pace.paused_until > now:
            return max(self._pace.paused_until, now + 0.001)
        must_acknowledge = self.limits.kept and self._claims.done and not self._calls
        next_at = self._pace.acknowledge_at if must_acknowledge else math.inf
        if self._pace.hint:  # it is for want of room
            next_at = min(next_at, self.limits.next_look or math.inf)
            return next_at if next_at < math.inf else None
        next_at = min(next_at, self._pace.claim_at, self._claims.look_again_at)
        if self._wakeups.is_deaf:
            next_at = min(next_at, now + self._settings.poll_s)
        return next_at if next_at < math.inf else None

    def _woken(self) -> bool:
        """Act on a token: there may be jobs; False if others had better claim them."""
        self._jobs_wait()
        return self._asked > 0

    def _jobs_wait(self) -> None:
        """Claim now if there is room for jobs, else as soon as there is."""
        self._pace.jobs_wait()
        self._supply()

    # ---- beside it

    async def _write_ends(self) -> None:
        """Write the ends of jobs with records, beside the claims. Endless."""
        while True:
            await self._ended.wait()
            self._ended.clear()
            if self._claims.ended:
                await flush_ended(self._claims)
                self._news.set()

    async def _set_aside_surplus(self) -> None:
        """Let go of claimed jobs over the limits of their tasks: see `task_limits`. Endless."""
        while True:
            await self._surplus.wait()
            self._surplus.clear()
            while (surplus := self.limits.next_surplus(_MOST_ASIDE)) is not None:
                await self._set_aside(*surplus)
                self._news.set()

    async def _set_aside(self, performer: Performer, jobs: list[ClaimedJob]) -> None:
        waits = self.limits.waits_s(performer, len(jobs))
        if waits is None or self._membership.state is not MemberState.CLAIMING:
            # As many are set aside as the queue may hold: from now on they fill the queue, so that
            # its producers notice.
            self._pace.paused_until = time.monotonic() + _FULL_PAUSE_S
            await self._claims.give_back(jobs)
        else:
            reply = await self._claims.set_aside(jobs, *waits)
            if reply is None:
                return
            self.limits.set_aside(performer, sum(reply.moved), waits, reply.workers)
            for job, moved in zip(jobs, reply.moved, strict=True):
                if not moved:
                    self._processor.passed_over(job)
            self._job_ended()
        await self._return_permits(self._queue.options.gate, len(jobs))

    async def _recall_jobs(self) -> None:
        """Let jobs that were set aside be claimed as soon as there is a place for them. Endless."""
        while True:
            await self._place.wait()
            self._place.clear()
            try:
                if most := self.limits.recallable():
                    recall = self._membership.scripts.recall_jobs
                    self.limits.recalled(await recall(keys=self._keys, most=most))
            except ServerError as error:
                self.upkeep.troubled(error)  # they come back by themselves
            self._jobs_wait()

    # ---- the end

    async def _drain(self) -> None:
        """Give back what was not begun, and let what was finish.

        It is over when nothing is claimed: an end that is still on its way may not arrive.
        """
        claims, membership = self._claims, self._membership
        if membership.lost:
            return
        membership.drain()
        await self._give_back_unbegun()
        while not membership.lost:
            self._raise_failure()
            if claims.ended:
                await flush_ended(claims)
            if claims.done or claims.in_doubt:
                with suppress(ServerError):
                    await claims.give_back(await claims.claim(0))
                    continue
                await asyncio.sleep(retry_delay_s(1))
            elif not claims.jobs:
                return
            else:
                self._news.clear()
                if claims.jobs and not claims.done and not claims.ended:
                    await self._news.wait()

    async def _give_back_unbegun(self) -> None:
        await self._claims.give_back(self.slots.take_back())

    async def _cut_short(self) -> None:
        """Report what is done; what was cut runs elsewhere, and is not charged for it."""
        claims, membership = self._claims, self._membership
        membership.close()
        if self._calls:
            await asyncio.wait(self._calls)
        await self.slots.close()
        await flush_ended(claims)
        while claims.done and not membership.lost:
            await claims.claim(0)
        if not membership.lost:
            await claims.give_back(list(claims.jobs.values()))
            await membership.leave()

    async def _return_unharmed(self) -> None:
        """Give back what no other has returned since the member was given up, not charged.

        What still runs in a thread stays: perhaps it ends this process yet.
        """
        claims = self._claims
        await self.slots.close()
        await claims.give_back([job for job in claims.jobs.values() if job.abandoned is None])
        await self._membership.leave()

    async def _last_calls(self, calls: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_LAST_CALLS_S):
                await calls()
        except (TimeoutError, PenstockError) as error:
            logger.warning(
                "queue %s: others take over when its silence is noticed: %s",
                self._queue.name,
                error or "no answer",
            )


def _is_new(item: Item) -> bool:
    """Whether it was queued with its record, and no attempt has been made yet."""
    meta = item.meta
    return meta.tracked and not (meta.attempts or meta.crashes or meta.replays or meta.parked_ms)
