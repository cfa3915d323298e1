"""Jobs that a member of a queue has claimed: claiming, giving back, finding lost claims."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.delivery.queries import text
from penstock.errors import ClaimLost, OutcomeUnknown, ServerError
from penstock.queues.storage.pages import read_jobs
from penstock.queues.storage.scripts import (
    BeginVerdict,
    ClaimFlag,
    ClaimReply,
    ProgressVerdict,
    SetAsideReply,
)
from penstock.queues.storage.stored_job import Item, new_id, read_claimed
from penstock.queues.worker.attempts import begun_item
from penstock.queues.worker.job_context import JobContext
from penstock.queues.worker.membership import Membership
from penstock.redis.client import Client
from penstock.redis.codec import SURELY_SMALL, Codec, Form
from penstock.redis.codec.off_loop import LARGE, off_loop
from penstock.redis.retry import repeat_until_known
from penstock.redis.wire import Argument, Reply
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog

if TYPE_CHECKING:
    from penstock.queues.worker.job_ends import JobEnd

__all__ = ["ClaimedJob", "ClaimedJobs", "StopReason", "WorkerCounts", "claim_number"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

T = TypeVar("T")

MOST_DONE = 1_000
"""Claims acknowledged by one call. More would block the server for too long."""
MOST_JOBS = 100
"""Per call that begins or ends jobs with records."""
_SOON_S = 0.2
_LOOK_AGAIN_AFTER_S = (0.5, 2.0, 10.0)
"""When to look for claims of a lost call, once more each: it may have been held up on its way."""
_SURPLUS_S = 1.0
_LONGEST_NUMBER = 19


@dataclass(slots=True)
class WorkerCounts:
    """What a consumer has done since it began."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    stale: int = 0
    """Outcomes that the server refused, because the job had passed to another worker."""
    reaped: int = 0
    """Jobs of dead workers that this one returned."""
    strays: int = 0
    """Jobs whose claim was lost on its way here, found again and run."""


class StopReason(StrEnum):
    """Why a job is to stop before its function has returned."""

    CANCELLED = "cancelled"
    ENDED = "ended"
    """By its record it has ended: it was cancelled before it began."""
    LOST = "lost"
    """It has passed to another worker."""


class ClaimedJob:
    """One attempt of a job, from its claim to its end. Its function sees a `JobContext`."""

    __slots__ = (
        "_context", "_id", "abandoned", "attempt", "attempt_noted", "began", "claim", "claims",
        "interrupted", "item", "max_attempts", "run_noted", "running_in", "stop_reason", "tracked",
    )  # fmt: skip

    def __init__(self, claims: ClaimedJobs, claim: str | bytes, item: Item) -> None:
        self.claims, self.claim, self.item = claims, claim, item
        self._id = item.id
        self._context: JobContext | None = None
        self.attempt = item.meta.attempts + 1
        self.max_attempts = 0
        self.tracked = item.meta.tracked
        """Whether the job has a record."""
        self.began = 0.0
        """When its function was called, on the monotonic clock."""
        self.attempt_noted = False
        """Whether the attempt is marked as begun in the claim on the server."""
        self.run_noted = False
        """Whether its record is marked as running. That of a quick job never is."""
        self.stop_reason: StopReason | None = None
        self.running_in: asyncio.Task[None] | None = None
        """The task of the slot that awaits its function now."""
        self.interrupted = False
        """Whether that task was cancelled, once, to stop the job."""
        self.abandoned: asyncio.Future[Any] | None = None
        """Done when the function has returned, if its attempt ended while it ran in a thread."""

    @property
    def context(self) -> JobContext:
        if self._context is None:
            self._context = JobContext(self)
        return self._context

    @property
    def id(self) -> str:
        if not self._id:
            self._id = new_id()
        return self._id

    @property
    def queue(self) -> str:
        return self.claims.keys.queue

    @property
    def worker(self) -> str:
        return self.claims.worker

    @property
    def task(self) -> str:
        return self.item.task

    @property
    def headers(self) -> Mapping[str, str]:
        return self.item.meta.headers

    @property
    def lane(self) -> str:
        claim = self.claim if isinstance(self.claim, str) else text(self.claim)
        return claim.partition(":")[2]

    @property
    def record_name(self) -> str:
        """Its id as it is part of a key."""
        return self.claims.keys.record_name(self.id)

    @property
    def unique_key(self) -> str:
        """Key of what the job holds until its end; empty if it holds nothing."""
        unique = self.item.meta.unique
        return self.claims.keys.unique(unique) if unique else ""

    @property
    def number(self) -> int:
        """Its place in the order of claims."""
        claim = self.claim
        return claim_number(claim if isinstance(claim, bytes) else claim.encode())

    @property
    def is_stopping(self) -> bool:
        return self.stop_reason is not None or self.abandoned is not None

    def stop(self, reason: StopReason) -> None:
        """Stop the job: its coroutine is cancelled, a thread may check `cancelled`."""
        if self.stop_reason is None:
            self.stop_reason = reason
            if self.running_in is not None:
                self.interrupted = self.running_in.cancel()


class ClaimedJobs:
    """The jobs that one member of a queue has claimed.

    A member that was given up as dead is lost for good: the server refuses its calls, and the
    consumer joins again under another name. How the ends of jobs are reported is in `job_ends`.

    A claim whose reply is lost may have been made: it is looked for before the next call, and again
    later since the call may have been held up on its way. The same goes if the server counts more
    claims than are known here, for longer than a call takes.
    """

    def __init__(self, membership: Membership, codec: Codec, counts: WorkerCounts) -> None:
        self.membership, self.codec, self.counts = membership, codec, counts
        self.keys, self.worker, self.loop = membership.keys, membership.worker, membership.loop
        self.scripts = membership.scripts
        self.jobs: dict[str | bytes, ClaimedJob] = {}
        """By their claims: what is claimed, as far as is known here."""
        self.done: list[str | bytes] = []
        """Claims that are done, to be acknowledged with the next call."""
        self.ended: list[JobEnd] = []
        """Jobs with records or unique keys that have ended: see `job_ends.flush_ended`."""
        self.when_step: Callable[[], None] = lambda: None
        """Called when a step of a call has ended, well or not: a call may have several."""
        self.has_cancelled = False
        """Whether jobs on the lists were cancelled."""
        self.meets_suspects = False
        """Whether a claim may have stopped at a job that is claimed alone: see `attempts`."""
        self.has_more = False
        """Whether the last claim left jobs on the lists because it had its bytes."""
        self.each_bytes = 0.0
        """Average size of the jobs of the last claim."""
        self.first_fields: Callable[[ClaimedJob], Sequence[Argument]] | None = None
        """Names and values for the record of a job that another program pushed."""
        self.owner = asyncio.current_task()
        """The task of the member: what it runs is cancelled when it is."""
        self._first = 1
        self._retry_at = math.inf
        """When the next job is due, if that is so soon that the queue's tender may not notice."""
        self._soon_s = max(_SOON_S, 2 * membership.client.settings.queues.poll_s)
        self.keep_ms = round(membership.client.settings.queues.keep_s * 1000)
        self._doubt = False
        """Whether to look for lost claims before the next call."""
        self._under_way: list[range] = []
        """Numbers of claims that calls without a reply yet may make."""
        self._looks_due: list[float] = []
        self._surplus_since: float | None = None
        self._looking = asyncio.Lock()
        self._found: list[ClaimedJob] = []
        """Jobs that the next claim returns beside its own."""
        membership.when_lost.append(self._stop_all)

    @property
    def in_doubt(self) -> bool:
        """Whether jobs may be claimed of which nothing is known here, or that nothing runs yet."""
        return self._doubt or bool(self._found)

    @property
    def look_again_at(self) -> float:
        """When to claim at the latest, by the monotonic clock: for what else goes unnoticed."""
        surplus_at = math.inf if self._surplus_since is None else self._surplus_since + _SURPLUS_S
        return min(surplus_at, self._retry_at, self._looks_due[0] if self._looks_due else math.inf)

    @property
    def is_ending(self) -> bool:
        """Whether the member may cancel what runs."""
        cancelled = self.owner is not None and self.owner.cancelling() > 0
        return cancelled or self.membership.gives_up_calls

    async def beat(self, client: Client) -> None:
        """Send a heartbeat, in the heartbeat thread."""
        await self.membership.beat(client, has_jobs=bool(self.jobs))

    # ---- claiming

    async def claim(self, most: int) -> list[ClaimedJob]:
        """Acknowledge what is done and claim up to `most` jobs. One round trip, after errors two.

        Several such calls may be under way, each with numbers of its own for its claims.
        """
        if self._looks_due and time.monotonic() >= self._looks_due[0]:
            self._looks_due.pop(0)
            self._doubt = True
        if self._doubt:
            await self._find_lost_claims()
        done, self.done = self.done[:MOST_DONE], self.done[MOST_DONE:]
        first, self._first = self._first, self._first + most
        numbers, large = range(first, first + most), dict[bytes, Item]()
        if most and time.monotonic() >= self._retry_at:
            self._retry_at = math.inf
        self._under_way.append(numbers)
        try:
            reply = await self.scripts.claim_jobs(
                keys=self.keys, worker=self.worker, first=first, most=most, done=done
            )
            if reply is not None:
                large = await self._read_large(reply.lanes)
        except BaseException as error:
            self.done = done + self.done
            # One that was cancelled may have been made as well.
            may_be_made = isinstance(error, OutcomeUnknown) or not isinstance(error, ServerError)
            if most and may_be_made:
                self._doubt = True
                self._looks_due = [time.monotonic() + wait_s for wait_s in _LOOK_AGAIN_AFTER_S]
            raise
        finally:
            self._under_way.remove(numbers)
        self.when_step()
        if reply is None:
            self.refused(len(done))
            return []
        for claim in done:
            del self.jobs[claim]
        self._note_queue(reply)
        jobs = self._claimed(first, reply.lanes, large)
        self._note_surplus(reply.held)
        if self._found:
            found, self._found = self._found, []
            return found + jobs
        return jobs

    def claim_again(self, jobs: Sequence[ClaimedJob]) -> None:
        """Let the next `claim` return these, since their acceptance was cut short."""
        self._found += jobs

    def _note_queue(self, reply: ClaimReply) -> None:
        self.membership.clock_ahead_ms = reply.now_ms - time.monotonic() * 1000
        flags = reply.flags
        self.has_cancelled = bool(flags & ClaimFlag.CANCELLED)
        self.meets_suspects = bool(flags & ClaimFlag.SUSPECTS)
        self.has_more = bool(flags & ClaimFlag.MORE)
        if flags & ClaimFlag.UNTENDED:
            self.membership.when_untended()
        due_in_ms = reply.due_ms - reply.now_ms
        if self._retry_at == math.inf and 0 < due_in_ms < self._soon_s * 1000:
            self._retry_at = time.monotonic() + due_in_ms / 1000

    async def _read_large(self, lanes: Sequence[Reply]) -> dict[bytes, Item]:
        """Decode jobs in a thread that take long to decompress or to check."""
        codec, read = self.codec, dict[bytes, Item]()
        lists: Sequence[list[bytes]] = lanes[1::2]  # type: ignore[assignment]
        for items in lists:
            if max(map(len, items), default=0) > SURELY_SMALL:
                for data in items:
                    if len(data) > LARGE or codec.is_large(data, Form.TEXT):
                        read[data] = await off_loop(read_claimed, data, codec)
        return read

    def _claimed(
        self, number: int, lanes: Sequence[Reply], large: dict[bytes, Item]
    ) -> list[ClaimedJob]:
        jobs: list[ClaimedJob] = []
        codec, known, size = self.codec, self.jobs, 0
        pairs: Iterable[tuple[bytes, list[bytes]]] = zip(lanes[::2], lanes[1::2], strict=True)  # type: ignore[assignment]
        for lane, items in pairs:
            size += sum(map(len, items))
            ending = b":" + lane if lane else b""
            for data in items:
                claim = claim_text(b"%d%b" % (number, ending)) if lane else str(number)
                item = (large.pop(data, None) if large else None) or read_claimed(data, codec)
                job = known[claim] = ClaimedJob(self, claim, item)
                jobs.append(job)
                number += 1
        if jobs:
            self.each_bytes = size / len(jobs)
        return jobs

    # ---- claims whose reply was lost

    def _note_surplus(self, held: int) -> None:
        """Note that the server counts so many claims."""
        surplus, now = held - len(self.jobs) - sum(map(len, self._under_way)), time.monotonic()
        if surplus <= 0:
            self._surplus_since = None
        elif self._surplus_since is None:
            self._surplus_since = now
        elif now - self._surplus_since >= _SURPLUS_S:
            self._doubt, self._surplus_since = True, None

    async def _find_lost_claims(self) -> None:
        """Find jobs whose claims did not arrive here.

        A claim leaves `jobs` only when the server knows its end. So one that was not known before
        the server was asked, nor is now, and that no call under way can have made, was lost.
        """
        async with self._looking:  # else two could find the same one, before and after its end
            if not self._doubt:
                return
            client, key = self.membership.client, self.keys.claimed(self.worker)
            before, under_way, next_number = set(self.jobs), list(self._under_way), self._first
            names, unknown = await client.call("HKEYS", key), list[bytes]()
            self.when_step()
            self._doubt = False
            for name in names:
                claim, number = claim_text(name), claim_number(name)
                if claim in before or claim in self.jobs or number >= next_number:
                    continue
                if not any(number in numbers for numbers in under_way):
                    unknown.append(name)
            known = len(self._found)
            try:
                async for name, data in read_jobs(client, key, unknown):
                    self.when_step()
                    claim = claim_text(name)
                    job = ClaimedJob(self, claim, read_claimed(data, self.codec))
                    self.jobs[claim] = job
                    self._found.append(job)
            except BaseException:
                self._doubt = True
                raise
            if found := len(self._found) - known:
                self.counts.strays += found
                quiet.warning(
                    f"{self.keys.queue} strays",
                    "queue %s: %d jobs were claimed but did not arrive; they run now",
                    self.keys.queue,
                    found,
                )

    # ---- giving back

    async def give_back(self, jobs: Sequence[ClaimedJob]) -> None:
        """Return jobs to the front, in their order, as if they had not been claimed."""
        arguments: list[Argument] = []
        for job in jobs:
            item = job.item.data if job.attempt_noted else b""
            arguments += (job.claim, job.record_name if job.tracked else "", item)
        # From the last to the first, so that the first ends up in front.
        for end in range(len(arguments), 0, -3 * MOST_DONE):
            part = arguments[max(0, end - 3 * MOST_DONE) : end]
            call = partial(self.scripts.give_back, keys=self.keys, worker=self.worker, jobs=part)
            if await self.repeat("give back", call) is None:
                self.refused(len(part) // 3)
                return
        self.drop(jobs)

    async def set_aside(
        self, jobs: Sequence[ClaimedJob], wait_s: float, step_s: float = 0.0
    ) -> SetAsideReply | None:
        """Let jobs wait among those not yet due, each `step_s` longer than the one before.

        None if the member was given up. Jobs that were not moved have ended, and stay claimed.
        """
        arguments: list[Argument] = []
        for job in jobs:
            arguments += (job.claim, job.record_name, "1" if job.tracked else "")
        wait_ms, step_ms = round(wait_s * 1000), step_s * 1000
        reply = await self.repeat(
            "set aside",
            lambda: self.scripts.set_aside(
                keys=self.keys, worker=self.worker, wait_ms=wait_ms, step_ms=step_ms, jobs=arguments
            ),
        )
        if reply is None:
            self.refused(len(jobs))
        else:
            self.drop(job for job, moved in zip(jobs, reply.moved, strict=True) if moved)
        return reply

    # ---- beginning

    async def begin(self, jobs: Sequence[ClaimedJob], *, exactly: bool = False) -> list[int]:
        """Note that jobs are about to run: a `BeginVerdict` for each.

        `exactly` notes in the claim itself that the attempt has begun, for jobs whose attempts
        would otherwise be charged to them although they never ran.
        """
        calls: list[Awaitable[list[int] | None]] = []
        for first in range(0, len(jobs), MOST_JOBS):
            arguments: list[Argument] = []
            for job in jobs[first : first + MOST_JOBS]:
                item = begun_item(job.item, job.id, self.codec) if exactly else b""
                name = job.record_name if job.tracked else ""
                arguments += (job.claim, name, job.attempt, self._first_fields(job), item)
            begin_jobs = self.scripts.begin_jobs
            call = partial(begin_jobs, keys=self.keys, worker=self.worker, jobs=arguments)
            calls.append(self.repeat("begin", call))
        verdicts: list[int] = []
        for reply in await asyncio.gather(*calls):
            if reply is None:
                self.refused(0)
                return [BeginVerdict.ENDED] * len(jobs)
            verdicts += reply
        for job in jobs:
            job.attempt_noted, job.run_noted = exactly, True
        return verdicts

    def _first_fields(self, job: ClaimedJob) -> bytes:
        """What the record of a job begins with, as JSON; empty if it was written with the push."""
        if job.item.meta.tracked or not job.tracked or self.first_fields is None:
            return b""
        return msgspec.json.encode([_as_text(value) for value in self.first_fields(job)])

    async def note_progress(self, job: ClaimedJob, fields: Mapping[str, object]) -> None:
        """Write fields that are not None into the record; `ClaimLost` if another worker has it."""
        if not job.run_noted and await self.begin([job]) != [BeginVerdict.RUN]:
            job.stop(StopReason.ENDED)
            return
        pairs: list[Argument] = []
        for name, value in fields.items():
            if value is not None:
                pairs += (name, str(value).encode(errors="backslashreplace"))
        verdict = await self.scripts.note_progress(
            keys=self.keys,
            worker=self.worker,
            record=self.keys.record(job.id),
            claim=job.claim,
            fields=pairs,
        )
        if verdict == ProgressVerdict.LOST:
            raise ClaimLost(job.queue, job.id)
        if verdict == ProgressVerdict.CANCELLED:
            job.stop(StopReason.CANCELLED)

    # ---- replies

    async def repeat(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make an idempotent call until its outcome is known, or until the member gives up calls.

        While the server cannot be reached, the member may be given up; the next call that gets
        through learns that.
        """

        def note(error: ServerError) -> None:
            self.when_step()
            quiet.warning(
                f"{self.keys.queue} {what} {type(error).__name__}",
                "queue %s: %s: %s; trying again",
                self.keys.queue,
                what,
                error,
            )

        try:
            return await repeat_until_known(
                call,
                within_s=math.inf,
                insist=True,
                unless=lambda: self.membership.gives_up_calls,
                pause_s=retry_delay_s,
                when_failed=note,
            )
        except OutcomeUnknown as doubt:
            refusal = doubt.__cause__
            if isinstance(refusal, ServerError) and not refusal.transient:
                raise refusal from None  # the member has to end: no repetition helps
            raise

    def expect_due(self, wait_s: float) -> None:
        """Claim when a job is due that waits so shortly that the tender may not notice."""
        if wait_s < self._soon_s:
            self._retry_at = min(self._retry_at, time.monotonic() + wait_s)

    def refused(self, outcomes: int) -> None:
        """Note that the server refused outcomes, since the member was given up as dead."""
        self.counts.stale += outcomes
        self.membership.lose()

    def drop(self, jobs: Iterable[ClaimedJob]) -> None:
        """Forget jobs that the server has, by its reply, in this member's claims no more."""
        for job in jobs:
            self.jobs.pop(job.claim, None)

    def _stop_all(self) -> None:
        logger.warning(
            "queue %s: worker %s was given up as dead; %d jobs have passed to others",
            self.keys.queue,
            self.worker,
            len(self.jobs),
        )
        for job in self.jobs.values():
            job.stop(StopReason.LOST)


def claim_number(claim: bytes) -> int:
    """A claim's place in the order of claims; 0 for one that another program has written."""
    head = claim.partition(b":")[0]
    return int(head) if head.isdigit() and len(head) < _LONGEST_NUMBER else 0


def claim_text(claim: bytes) -> str | bytes:
    """As text, which costs less to send; a lane of another program may have any name."""
    try:
        return claim.decode()
    except UnicodeDecodeError:
        return claim


def _as_text(value: Argument) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
