"""A worker's life as a member of a queue: claiming, running, and leaving in good order."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, Rejected, ServerError
from penstock.queues.context import OVER, JobContext
from penstock.queues.foreign_keys import ask_typed, foreign_among, type_commands
from penstock.queues.hand import Hand
from penstock.queues.items import Item
from penstock.queues.lanes import FIXED
from penstock.queues.reaper import Reaper
from penstock.queues.slots import Slots
from penstock.queues.task_limits import TaskLimits
from penstock.queues.tending import Tender
from penstock.queues.wakeups import Wakeups
from penstock.queues.work import Work
from penstock.quiet import RateLimitedLog
from penstock.redis.keys.family import RedisType
from penstock.runtime.backoff import retry_delay_s

if TYPE_CHECKING:
    from penstock.queues.options import Gate
    from penstock.queues.performer import Performer
    from penstock.queues.queue import Queue

__all__ = ["Life"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# A worker that is cut short has this long to tell the server what it has done.
_LAST_WORDS_S = 2.0
_CANCELLED_S = 0.5
# After this a time of trouble is over, if nobody was silent in the end: the next one is another.
_OVER_S = 1.0
# Beats that the others get before a worker that has just joined gives any of them up.
_BEATS_FIRST = 2
_TYPES_S = 5.0
# Calls in a row by which jobs whose records have gone leave the indexes.
_MOST_SWEEPS = 50
_MOST_WATCHED = 500
_FIRST_PAUSE_S = 0.02
_FULL_PAUSE_S = 0.25
_MOST_ASIDE = 250
# A gate that grants nothing is asked again after this, then after twice as long each time.
_REFUSED_S, _LONGEST_REFUSED_S = 0.001, 0.1
# Enough to keep a quick function busy while answers are on their way.
_MOST_CALLS = 4
# What is done is told after this, if no claim comes before because enough jobs are kept here.
_TELL_WITHIN_S = 0.02
# The record of a job that takes less than this never says that it runs.
_NOTE_AFTER_S = 0.02


class Life:
    """What a consumer does from joining its queue to leaving it."""

    def __init__(
        self,
        queue: Queue,
        hand: Hand,
        work: Work,
        reaper: Reaper,
        *,
        places: int,
        tracks: bool,
        only_task: bool,
        tender: Tender,
        wakeups: Wakeups,
        stop_asked: asyncio.Event,
        note: Callable[[PenstockError | None], None],
    ) -> None:
        self._queue, self._hand, self._work, self._reaper = queue, hand, work, reaper
        self._client, self._settings = queue.client, queue.client.settings.queues
        self._tracks, self._stop_asked, self._note = tracks, stop_asked, note
        self._tender, self._wakeups, self.keys = tender, wakeups, hand.keys
        self._news, self._ended, self._must_note, self._surplus, self._place = (
            asyncio.Event() for _ in range(5)
        )
        self._hint = True
        """Whether there may be jobs to claim."""
        self._wakes = 0
        """How often jobs were said to wait: a claim under way may have come too early for them."""
        self._refusals = 0
        """How often in a row the gate has granted less than was asked for."""
        self._look_at = math.inf
        """When to look for jobs without being woken, because the gate said so."""
        self._tell_at = 0.0
        """When to tell at the latest what is done, if jobs of tasks at their limits are kept."""
        self._reap_after = self._paused_until = self._types_after = 0.0
        # All may be silent because the server was away, which a newcomer has not seen.
        beats_s = _BEATS_FIRST * self._settings.beat_s
        self._reap_from = time.monotonic() + min(beats_s, self._settings.silence_s)
        self.foreign = ""
        """Which of the queue's keys hold something of another type."""
        self._failures = 0
        self._fatal: BaseException | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._under_way = self._asked = 0
        """Calls without an answer yet, and how many jobs they may bring."""
        # A gate is asked for each claim, one after the other.
        self._most_calls = 1 if queue.options.gate is not None else _MOST_CALLS
        self._noting: asyncio.TimerHandle | None = None
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
        self._must_look, self._reaping = asyncio.Event(), asyncio.Lock()
        hand.pulse.when_late = self._must_look.set
        if hand.pulse.stood_still:
            self._must_look.set()
        self.slots = Slots(
            work,
            places=places,
            ahead=ahead,
            ahead_bytes=self._settings.prefetch_bytes,
            limits=self.limits,
            when_news=self._something_ended,
            pulse=hand.pulse,
        )

    async def run(self) -> None:
        name = f"queue {self._queue.name}"
        stopping_jobs = asyncio.create_task(self._stop_cancelled_for_ever(), name=f"{name} cancel")
        settling = asyncio.create_task(self._settle_for_ever(), name=f"{name} settle")
        noting = asyncio.create_task(self._note_for_ever(), name=f"{name} note")
        setting_aside = asyncio.create_task(self._set_aside_for_ever(), name=f"{name} set aside")
        recalling = asyncio.create_task(self._recall_for_ever(), name=f"{name} recall")
        looking = asyncio.create_task(self._look_when_late_for_ever(), name=f"{name} late")
        self._beside = (stopping_jobs, settling, noting, setting_aside, recalling, looking)
        for beside in self._beside:
            beside.add_done_callback(lambda _: self._news.set())
        stopping = asyncio.create_task(self._stop_asked.wait())
        stopping.add_done_callback(lambda _: self._news.set())
        self._tender.add(self)
        self._hand.when_lost = self._news.set
        self._hand.when_untended = self._tender.take_over
        self._hand.when_foreign = partial(self._tender.note_foreign, self._queue.name)
        try:
            await self._fetch()
            await self._rely_on_others()
            await self._drain()
        except BaseException:
            await self._last_words(self._cut_short)
            raise
        else:
            await self._last_words(self._return_unharmed if self._hand.lost else self._hand.leave)
        finally:
            if self._noting is not None:
                self._noting.cancel()
            left: list[asyncio.Task[Any]] = [*self._beside, *self._calls, stopping]
            for task in left:
                task.cancel()
            await self._rely_on_others()
            await self.slots.close()
            await asyncio.gather(*left, return_exceptions=True)

    async def _rely_on_others(self) -> None:
        """Take no more jobs: others are woken for them, and look after the queue."""
        self._wakeups.forget(self.keys.wakeup, self._woken)
        await self._tender.remove(self)

    # ---- claiming

    async def _fetch(self) -> None:
        """Keep the slots supplied, with several calls under way if that takes it."""
        while not self._stop_asked.is_set() and not self._hand.lost:
            error = self.slots.failure() or self._failure()
            if error is not None:
                raise error
            if self.slots.is_stuck:
                await self._give_back(self.slots.take_back())  # others may have places for them
            if not self._supply():
                await self._rest()
        if self._calls:
            await asyncio.wait(self._calls)

    def _supply(self) -> bool:
        """Begin a call if there is something to ask or to tell; whether there was."""
        most = None if self._stop_asked.is_set() or self._hand.lost else self._next_claim()
        if most is None:
            return False
        self._under_way += 1
        self._asked += most
        self._tell_at = time.monotonic() + _TELL_WITHIN_S
        if most:
            self.slots.begin_reading()
        call = asyncio.create_task(self._call(most), name=f"queue {self._queue.name} claim")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return True

    def _next_claim(self) -> int | None:
        """How many jobs to ask for now; None if there is nothing to ask or to tell."""
        hand = self._hand
        if self._under_way >= self._most_calls or time.monotonic() < self._paused_until:
            return None
        slots, wanted = self.slots, 0
        if self._hint and not slots.is_alone:
            wanted = slots.room(self._asked + len(hand.ended), hand.each_bytes)
        prefetch = self._settings.prefetch
        # What is done is told with the next claim, unless none is to come soon.
        if wanted or (
            not self._under_way
            and hand.done
            and (
                slots.is_empty
                or slots.is_alone
                or len(hand.done) >= prefetch
                or (self.limits.kept and time.monotonic() >= self._tell_at)
            )
        ):
            return min(wanted, prefetch)
        return None

    async def _call(self, most: int) -> None:
        try:
            await self._claim(most)
            self._failures = 0
            self._note(None)
        except ServerError as error:
            if error.transient:
                if time.monotonic() >= self._paused_until:  # calls that fail together are one
                    self._failures += 1
                    # The first is repeated at once: most often a connection was lost.
                    more = self._failures - 1
                    pause_s = retry_delay_s(more) if more else _FIRST_PAUSE_S
                    self._paused_until = time.monotonic() + pause_s
                self.troubled(error)
            else:
                self._fatal = error
        except Exception as error:  # noqa: BLE001  it ends the consumer
            self._fatal = error
        finally:
            self._under_way -= 1
            self._asked -= most
            if most:
                self.slots.end_reading()
            self._news.set()

    async def _claim(self, wanted: int) -> None:
        gate, wakes = self._queue.options.gate, self._wakes
        granted, retry_after_s = wanted, 0.0
        if gate is not None and wanted:
            admission = await gate.admit(self._queue.name, wanted)
            granted, retry_after_s = min(wanted, admission.granted), admission.retry_after_s
        try:
            jobs = await self._hand.exchange(granted)
        except Rejected:
            await self._return_permits(gate, granted)
            raise
        has_more = self._hand.has_more
        await self._return_permits(gate, granted - len(jobs))
        if jobs:
            await self._accept(jobs)
        self._refusals = self._refusals + 1 if retry_after_s > 0 and not jobs else 0
        if len(jobs) == granted < wanted and retry_after_s > 0:
            self._hint = False
            pause_s = min(_LONGEST_REFUSED_S, _REFUSED_S * 2 ** min(self._refusals, 10))
            self._look_at = time.monotonic() + pause_s
        elif len(jobs) < wanted and wakes == self._wakes and not has_more:
            self._hint = False
            self._wakeups.wait_for(self.keys.wakeup, self._woken)

    async def _return_permits(self, gate: Gate | None, unused: int) -> None:
        """Return what a gate has granted for nothing; if that fails, it stays used."""
        if gate is None or unused <= 0:
            return
        try:
            await gate.give_back(self._queue.name, unused)
        except ServerError as error:
            logger.warning("queue %s: permits not given back: %s", self._queue.name, error)

    async def _accept(self, jobs: Sequence[JobContext]) -> None:
        """Hand claimed jobs to the slots.

        The records of some are looked at first: another program may have queued one of the same
        id, an earlier attempt may have failed, or one of them may have been cancelled. Those of the
        others say that they run when they have done so for a while.
        """
        tracked = [job for job in jobs if job.tracked]
        if self._tracks:
            tracked = [job for job in jobs if self._is_tracked(job)]
        for job in tracked:
            job.tracked = True
        first = [job for job in tracked if self._hand.has_cancelled or not _is_new(job.item)]
        if len(first) < len(tracked):
            self._note_soon()
        if not first:
            self.slots.put(jobs)
            return
        verdicts = await self._hand.begin(first)
        over = {job.claim for job, verdict in zip(first, verdicts, strict=True) if verdict != 1}
        for job in first:
            if job.claim in over and not self._hand.lost:
                self._work.passed_over(job)
        self._something_ended()
        self.slots.put(job for job in jobs if job.claim not in over)

    def _note_soon(self) -> None:
        if self._noting is None:
            self._noting = asyncio.get_running_loop().call_later(_NOTE_AFTER_S, self._must_note.set)

    async def _note_for_ever(self) -> None:
        """Write into records that their jobs run, where that was put off and they still do."""
        while True:
            await self._must_note.wait()
            self._must_note.clear()
            self._noting = None
            old = time.monotonic() - _NOTE_AFTER_S / 2
            tracked = [job for job in self.slots.running if job.tracked and not job.noted]
            jobs = [job for job in tracked if job.began and job.began <= old]
            if len(jobs) < len(tracked) or not self.slots.is_empty:
                self._note_soon()
            for job, verdict in zip(jobs, await self._hand.begin(jobs), strict=True):
                if verdict != 1 and job in self.slots.running:
                    job.stop(OVER)

    def _is_tracked(self, job: JobContext) -> bool:
        performer = self._work.performer_of(job.item)
        return job.tracked or (performer is not None and performer.tracked)

    async def _settle_for_ever(self) -> None:
        """Write the ends of jobs with records, beside the claims."""
        while True:
            await self._ended.wait()
            self._ended.clear()
            if self._hand.ended:
                await self._hand.flush_ended()
                self._news.set()

    async def _set_aside_for_ever(self) -> None:
        """Let go of claimed jobs over the limits of their tasks: see `task_limits`."""
        while True:
            await self._surplus.wait()
            self._surplus.clear()
            while (found := self.limits.next_surplus(_MOST_ASIDE)) is not None:
                await self._set_aside(*found)
                self._news.set()

    async def _set_aside(self, performer: Performer, jobs: list[JobContext]) -> None:
        waits = self.limits.waits_s(performer, len(jobs))
        if waits is None or self._hand.draining:
            # As many are set aside as the queue may hold: from now on they fill the queue, so that
            # its producers notice.
            self._paused_until = time.monotonic() + _FULL_PAUSE_S
            await self._hand.give_back(jobs)
        else:
            reply = await self._hand.set_aside(jobs, *waits)
            if not reply:
                return
            self.limits.set_aside(performer, sum(reply[1:]), waits, reply[0])
            for job, moved in zip(jobs, reply[1:], strict=True):
                if not moved:
                    self._work.passed_over(job)
            self._something_ended()
        await self._return_permits(self._queue.options.gate, len(jobs))

    async def _recall_for_ever(self) -> None:
        """Let jobs that were set aside be claimed as soon as there is a place for them."""
        while True:
            await self._place.wait()
            self._place.clear()
            try:
                if most := self.limits.recallable():
                    recall = self._client.scripts.recall_jobs
                    self.limits.recalled(await recall(keys=self.keys, most=most))
            except ServerError as error:
                self.troubled(error)  # they come back by themselves
            self.jobs_wait()

    def _something_ended(self) -> None:
        hand = self._hand
        # The place of one may be free for another job, and a suspect may be claimed now.
        if self._has_limit or hand.meets_suspects:
            self._hint = True
        self._news.set()
        if hand.ended:
            self._ended.set()

    async def _rest(self) -> None:
        """Wait for jobs on the server, for room, for something done; or until the next look."""
        self._news.clear()
        timer, next_at = None, self._next_look()
        if next_at is not None:
            # A timeout would cancel this task: slots would take it for the end of the worker.
            timer = asyncio.get_running_loop().call_at(next_at, self._look_now)
        try:
            await self._news.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _look_now(self) -> None:
        self._hint, self._look_at = True, math.inf
        self._news.set()

    def _next_look(self) -> float | None:
        """When to look for jobs unless woken before; None if there is no need to."""
        now = time.monotonic()
        if self._failures or self._paused_until > now:
            return max(self._paused_until, now + 0.001)
        must_tell = self.limits.kept and self._hand.done and not self._under_way
        next_at = self._tell_at if must_tell else math.inf
        if self._hint:  # it is for want of room
            next_at = min(next_at, self.limits.next_look or math.inf)
            return next_at if next_at < math.inf else None
        next_at = min(next_at, self._look_at, self._hand.look_again_at)
        if self._wakeups.is_deaf:
            next_at = min(next_at, now + self._settings.poll_s)
        return next_at if next_at < math.inf else None

    def _woken(self) -> bool:
        """A token says that there may be jobs; False if others had better take them."""
        self.jobs_wait()
        return self._asked > 0

    def jobs_wait(self) -> None:
        """Look for jobs now if there is room for any, else as soon as there is."""
        self._hint = True
        self._wakes += 1
        self._supply()

    # ---- beside it

    async def return_claims_of_the_dead(self) -> None:
        """See `Tender`.

        When the server could not be reached, others could not either: before anybody is given up,
        they get the time to say that they live. More trouble within that time does not extend it.
        """
        async with self._reaping:
            try:
                # A job that runs alone must not be charged for what is read beside it.
                if time.monotonic() >= max(self._reap_after, self._reap_from):
                    await self.slots.shared()
                    await self._reap()
            except ServerError as error:
                if not error.transient:
                    logger.exception("queue %s: cannot look after it", self._queue.name)
                self.troubled(error)
            finally:
                self._hand.pulse.release()

    async def _reap(self) -> None:
        """Return what dead workers had. No job begins meanwhile: it might block the event loop."""
        hand, self._reap_after = self._hand, 0.0
        self.slots.begin_reading()
        try:
            dead = await self._reaper.find_dead(hand.worker, hand.pulse.paused_ms)
            if dead:
                hand.pulse.hold()
                await self._reaper.return_jobs(dead, hand.now_ms, hand.worker)
        finally:
            self.slots.end_reading()

    async def _look_when_late_for_ever(self) -> None:
        """Look after the others before anything is started, having been silent for too long."""
        while True:
            await self._must_look.wait()
            self._must_look.clear()
            self._tender.look_soon(self._queue.name)
            try:
                await self.return_claims_of_the_dead()
                await self._watch_silent_ones()
            finally:
                self._hand.pulse.resume()

    async def _watch_silent_ones(self) -> None:
        """See what becomes of others that are silent, if this worker stands still again and again.

        What it starts next may stop this process for as long as what it ran last, so if nothing
        else can notice that one of them is dead, it is waited for: a sign of life, or its end. One
        that was given up looks for the dead in any case, as soon as it may.
        """
        hand, settings = self._hand, self._settings
        stood_still, hand.pulse.stood_still = hand.pulse.stood_still, False
        until = time.monotonic() + 2 * settings.silence_s
        while stood_still and not hand.lost and time.monotonic() < until:
            has_looked = time.monotonic() >= self._reap_from
            try:
                if has_looked and not await self._reaper.alone_can_notice(hand.worker, hand.now_ms):
                    return
            except ServerError as error:
                self.troubled(error)
                return
            await asyncio.sleep(settings.beat_s)
            await self.return_claims_of_the_dead()

    async def sweep_records(self) -> None:
        """Forget jobs whose records have gone; while jobs end, their own scripts do so."""
        try:
            for _ in range(_MOST_SWEEPS):
                if not await self._client.scripts.sweep_records(keys=self.keys):
                    return
        except ServerError as error:
            if not error.transient:
                logger.exception("queue %s: cannot look after it", self._queue.name)
            self.troubled(error)

    async def _stop_cancelled_for_ever(self) -> None:
        """Stop jobs that were cancelled while they run."""
        while True:
            await asyncio.sleep(min(_CANCELLED_S, self._settings.beat_s))
            try:
                await self._look_for_cancelled()
            except ServerError as error:
                self.troubled(error)

    async def report_foreign_keys(self, *, found: bool) -> None:
        """Report keys of the queue that another program has made something else of.

        What can be claimed is; jobs that belong there wait until somebody moves the key away.
        """
        if found and time.monotonic() < self._types_after:
            return
        self._types_after = time.monotonic() + _TYPES_S
        keys = self._hand.keys
        expected = {
            **dict.fromkeys((*map(keys.list_of, FIXED), keys.ring), RedisType.LIST),
            **dict.fromkeys((keys.delayed, keys.parked), RedisType.ZSET),
            keys.state: RedisType.HASH,
        }
        try:
            kinds = await ask_typed(self._client, type_commands(expected))
        except ServerError as error:
            self.troubled(error)
            return
        self.foreign = "; ".join(map(str, foreign_among(expected, kinds)))
        if self.foreign:
            quiet.error(
                f"foreign {keys.queue}",
                "queue %s: %s; see `penstock queue repair %s`",
                keys.queue,
                self.foreign,
                keys.queue,
            )

    def troubled(self, error: ServerError) -> None:
        """Give nobody up for a while: others may have had the same trouble with the server."""
        now = time.monotonic()
        if self._reap_after < now - _OVER_S:
            self._reap_after = now + self._settings.silence_s
        self._note(error)

    async def _look_for_cancelled(self) -> None:
        jobs = [job for job in self.slots.running if job.tracked and not job.cut][:_MOST_WATCHED]
        if not jobs:
            return
        asked = await self._client.pipeline(
            [("HGET", self._hand.keys.record(job.id), "cancel_asked") for job in jobs]
        )
        for job, answer in zip(jobs, asked, strict=True):
            if isinstance(answer, bytes) and job in self.slots.running:
                job.stop("cancelled")

    # ---- the end

    async def _drain(self) -> None:
        """Give back what was not begun, and let what was finish.

        It is over when nothing is in hand: an end that is still on its way may not arrive.
        """
        hand = self._hand
        if hand.lost:
            return
        hand.draining = True
        await self._give_back(self.slots.take_back())
        while not hand.lost:
            if (error := self._failure()) is not None:
                raise error
            if hand.ended:
                await hand.flush_ended()
            if hand.done or hand.in_doubt:
                with suppress(ServerError):
                    await self._give_back(await hand.exchange(0))
                    continue
                await asyncio.sleep(retry_delay_s(1))
            elif not hand.jobs:
                return
            else:
                self._news.clear()
                if hand.jobs and not hand.done and not hand.ended:
                    await self._news.wait()

    async def _give_back(self, jobs: Sequence[JobContext]) -> None:
        if jobs:
            await self._hand.give_back(jobs)

    async def _cut_short(self) -> None:
        """Tell what is done; what was cut runs elsewhere, and is not charged for it."""
        hand = self._hand
        hand.closing = True
        if self._calls:
            await asyncio.wait(self._calls)
        await self.slots.close()
        await hand.flush_ended()
        while hand.done and not hand.lost:
            await hand.exchange(0)
        if not hand.lost:
            await hand.give_back(list(hand.jobs.values()))
            await hand.leave()

    async def _return_unharmed(self) -> None:
        """Give back what nobody has returned since we were given up: no process has died of it.

        What still runs in a thread stays: perhaps it ends this process yet.
        """
        hand = self._hand
        hand.closing = True
        await self.slots.close()
        await hand.give_back([job for job in hand.jobs.values() if job.thread is None])
        await hand.leave()

    def _failure(self) -> BaseException | None:
        """What one of the helpers failed with, which none should."""
        if self._fatal is not None:
            return self._fatal
        for helper in self._beside:
            if helper.done() and not helper.cancelled() and (error := helper.exception()):
                return error
        return None

    async def _last_words(self, say: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await say()
        except (TimeoutError, PenstockError) as error:
            logger.warning(
                "queue %s: others take over when its silence is noticed: %s",
                self._queue.name,
                error or "no answer",
            )


def _is_new(item: Item) -> bool:
    """Whether we queued it with its record, and nothing has come of it yet."""
    meta = item.meta
    return meta.tracked and not (meta.attempts or meta.crashes or meta.replays or meta.parked_ms)
