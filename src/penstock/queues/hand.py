"""The jobs that a worker has in hand: what it says about them, and what the server answers."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from penstock.errors import OutcomeUnknown, ServerError
from penstock.queues.attempts import begun_item
from penstock.queues.beats import QueueBeats
from penstock.queues.context import JobContext
from penstock.queues.counts import Counts
from penstock.queues.items import Item, read_item
from penstock.queues.job_pages import read_jobs
from penstock.queues.pulse import Pulse
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.codec import SURELY_SMALL, Codec, Form
from penstock.redis.keys import QueueKeyring
from penstock.redis.off_loop import off_loop
from penstock.redis.scripts import Scripts
from penstock.redis.wire import Argument
from penstock.runtime.backoff import retry_delay_s

__all__ = ["Ended", "Hand", "claim_number"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

T = TypeVar("T")

MOST_DONE = 1_000
"""Claims acknowledged by one call. More would stop the server for too long."""
_MOST_TOLD, _MOST_TOLD_BYTES = 100, 4 * 1024 * 1024
_ENDS_UNDER_WAY = 2
_LOOK_AGAIN_AFTER_S = (0.5, 2.0, 10.0)
_SURPLUS_S = 1.0
_SOON_S = 0.2
# A worker without jobs skips a sign of life if the next one comes in time by this share of
# `queues.silence_s`, or by a second or half of the silence, whichever is less.
_SPARE, _SPARE_S = 0.3, 1.0
_LONGEST_NUMBER = 19
DEAD = -1
_UNTENDED, _FOREIGN = 2, 4
PASSED_OVER = "passed_over"
"""What a job in hand is counted as that had ended before it was begun."""


@dataclass(slots=True)
class Ended:
    """A job with a record or a unique key that has come to its end."""

    job: JobContext
    state: str
    took: str = "0"
    """Seconds for which it ran."""
    result: bytes = b""


class Hand:
    """The jobs in hand of one member of a queue.

    A member that was given up as dead is `lost` for good: every word of it is refused, and the
    consumer begins anew under another name.
    """

    def __init__(
        self,
        client: Client,
        codec: Codec,
        keys: QueueKeyring,
        worker: str,
        counts: Counts,
        beats: QueueBeats | None = None,
    ) -> None:
        self.keys, self.worker, self.codec, self.counts = keys, worker, codec, counts
        self.loop = asyncio.get_running_loop()
        self.lost = False
        self.jobs: dict[str | bytes, JobContext] = {}
        """By their claims: what is in hand, as far as we know."""
        self.done: list[str | bytes] = []
        """Claims that are done, to be acknowledged with the next call."""
        self.ended: list[Ended] = []
        self.when_untended: Callable[[], None] = lambda: None
        """Called when no process seems to tend the queue."""
        self.when_lost: Callable[[], None] = lambda: None
        """Called when it turns out that we were given up as dead."""
        self.when_foreign: Callable[[bool], None] = lambda _: None
        """Called when a key of the queue is of another type, and when that is over."""
        self.has_cancelled = False
        """Whether there are jobs on the lists that were cancelled."""
        self.meets_suspects = False
        """Whether a claim may have stopped at a job that is claimed alone: see `attempts`."""
        self.each_bytes = 0.0
        """How large the jobs of the last claim were on average."""
        self.has_more = False
        """Whether the last claim left jobs on the lists because it had its bytes."""
        self.first_fields: Callable[[JobContext], Sequence[Argument]] | None = None
        """Names and values for the record of a job that another program pushed."""
        self.draining = False
        """Whether nothing more is begun."""
        self.closing = False
        """Whether calls that fail are given up instead of repeated."""
        self.owner = asyncio.current_task()
        """The task that holds it: what it runs is cancelled when it is."""
        self._client, self._scripts = client, client.scripts
        self._first, self._doubt = 1, False
        self._under_way: list[range] = []
        """Numbers of claims that calls without an answer yet may make."""
        self._looks_due: list[float] = []
        """When to look again for claims of a lost call: it may still be on its way."""
        self._surplus_since: float | None = None
        """Since when the server has counted more claims than are known here."""
        self._retry_at = math.inf
        """When the next job is due, if that is so soon that the queue's tender may not notice."""
        self._soon_s = max(_SOON_S, 2 * client.settings.queues.poll_s)
        self._looking = asyncio.Lock()
        self._strays: list[JobContext] = []
        """Jobs in hand that were not known here, found and not yet handed on."""
        self._server_ms, self._as_of, self._was_foreign = 0, time.monotonic(), False
        self._beats = beats or QueueBeats(cluster=client.keys.cluster)
        self._settings = queues = client.settings.queues
        self._keep_ms = round(queues.keep_s * 1000)
        self.pulse = Pulse(queues.silence_s, queues.beat_s)

    @property
    def now_ms(self) -> int:
        """The server's time, as far as it can be told from here."""
        return self._server_ms + round((time.monotonic() - self._as_of) * 1000)

    @property
    def in_doubt(self) -> bool:
        """Whether jobs may be in hand of which we do not know."""
        return self._doubt or bool(self._strays)

    @property
    def look_again_at(self) -> float:
        """When to claim at the latest, by the monotonic clock: what nobody else would notice."""
        surplus_at = math.inf if self._surplus_since is None else self._surplus_since + _SURPLUS_S
        looks_due = self._looks_due[0] if self._looks_due else math.inf
        return min(surplus_at, looks_due, self._retry_at)

    @property
    def is_ending(self) -> bool:
        """Whether what runs may be cancelled by us."""
        return self.closing or (self.owner is not None and self.owner.cancelling() > 0)

    # ---- taking and giving back

    async def join(self) -> None:
        """Become a member. One round trip."""
        sent_at = time.monotonic()
        self._note_time(await self._scripts.join_queue(keys=self.keys, worker=self.worker))
        self.pulse.confirm(sent_at)

    async def beat(self, scripts: Scripts) -> None:
        """Say that we live. Runs in the heartbeat thread, on its connection.

        Without jobs in hand it is said more rarely: there is nothing to return.
        """
        silence_s = self._settings.silence_s
        left_s = self.pulse.alive_until - time.monotonic() - self._settings.beat_s
        if not self.jobs and left_s >= max(_SPARE * silence_s, min(_SPARE_S, silence_s / 2)):
            return

        async def send(paused_ms: int) -> bool:
            answer = await self._beats.give(scripts, self.keys, self.worker, paused_ms)
            if answer & _UNTENDED:
                self.loop.call_soon_threadsafe(self.when_untended)
            if answer & _FOREIGN or self._was_foreign:
                self._was_foreign = bool(answer & _FOREIGN)
                self.loop.call_soon_threadsafe(self.when_foreign, self._was_foreign)
            return bool(answer)

        if not await self.pulse.give(send):
            self.loop.call_soon_threadsafe(self.lose, 0)

    async def exchange(self, most: int) -> list[JobContext]:
        """Acknowledge what is done and take up to `most` jobs. One round trip, after trouble two.

        Several such calls may be under way, each with numbers of its own for its claims. One whose
        answer is lost may have taken jobs: they are looked for before the next one, and again later
        since the call may have been held up. The same goes if the server counts claims, for longer
        than a call takes, that are not known here.
        """
        if self._looks_due and time.monotonic() >= self._looks_due[0]:
            self._looks_due.pop(0)
            self._doubt = True
        if self._doubt:
            await self._find_strays()
        done, self.done = self.done[:MOST_DONE], self.done[MOST_DONE:]
        first, self._first = self._first, self._first + most
        numbers, large = range(first, first + most), dict[bytes, Item]()
        if most and time.monotonic() >= self._retry_at:
            self._retry_at = math.inf
        self._under_way.append(numbers)
        try:
            reply = await self._scripts.claim_jobs(
                keys=self.keys, worker=self.worker, first=first, most=most, done=done
            )
        except ServerError as error:
            self.done = done + self.done
            if isinstance(error, OutcomeUnknown) and most:
                self._doubt = True
                self._looks_due = [time.monotonic() + wait_s for wait_s in _LOOK_AGAIN_AFTER_S]
            raise
        else:
            if not isinstance(reply, int):
                large = await self._read_large(reply[4:])
        finally:
            self._under_way.remove(numbers)
        if isinstance(reply, int):
            self.lose(len(done))
            return []
        for claim in done:
            del self.jobs[claim]
        now_ms, due_ms, held, flags, *taken = reply
        self._note_time(now_ms)
        self._note_queue(due_ms - now_ms, flags)
        jobs = self._taken(first, taken, large)
        self._note_surplus(held - len(self.jobs) - sum(map(len, self._under_way)))
        strays, self._strays = self._strays, []
        return strays + jobs

    def _note_queue(self, due_in_ms: int, flags: int) -> None:
        """Learn what a claim says about the queue."""
        self.has_cancelled, self.meets_suspects = bool(flags & 2), bool(flags & 4)
        self.has_more = bool(flags & 8)
        if flags & 16:
            self.when_untended()
        if self._retry_at == math.inf and 0 < due_in_ms < self._soon_s * 1000:
            self._retry_at = time.monotonic() + due_in_ms / 1000

    async def _read_large(self, taken: Sequence[object]) -> dict[bytes, Item]:
        """Read jobs in a thread that take long to unpack."""
        codec, read = self.codec, dict[bytes, Item]()
        lists: Sequence[list[bytes]] = taken[1::2]  # type: ignore[assignment]
        for items in lists:
            if max(map(len, items), default=0) > SURELY_SMALL:
                for data in items:
                    if codec.is_large(data, Form.TEXT):
                        read[data] = await off_loop(read_item, data, codec)
        return read

    def _taken(
        self, number: int, taken: Sequence[object], large: dict[bytes, Item]
    ) -> list[JobContext]:
        jobs: list[JobContext] = []
        codec, known, size = self.codec, self.jobs, 0
        lanes: Iterable[tuple[bytes, list[bytes]]] = zip(taken[::2], taken[1::2], strict=True)  # type: ignore[assignment]
        for lane, items in lanes:
            size += sum(map(len, items))
            ending = b":" + lane if lane else b""
            for data in items:
                claim = _claim(b"%d%b" % (number, ending)) if lane else str(number)
                item = (large.pop(data, None) if large else None) or read_item(data, codec)
                job = known[claim] = JobContext(self, claim, item)
                jobs.append(job)
                number += 1
        if jobs:
            self.each_bytes = size / len(jobs)
        return jobs

    def _note_surplus(self, surplus: int) -> None:
        now = time.monotonic()
        if surplus <= 0:
            self._surplus_since = None
        elif self._surplus_since is None:
            self._surplus_since = now
        elif now - self._surplus_since >= _SURPLUS_S:
            self._doubt, self._surplus_since = True, None

    async def _find_strays(self) -> None:
        """Find jobs that are ours without our knowledge: the answer to their claim was lost.

        A claim leaves `jobs` only when the server knows its end. So one that was not known before
        the server was asked, nor is now, and that no call under way can have made, is a stray.
        """
        async with (
            self._looking
        ):  # else two looks could find the same one, before and after its end
            if not self._doubt:
                return
            known, under_way, next_ = set(self.jobs), list(self._under_way), self._first
            claimed = self.keys.claimed(self.worker)
            names, unknown = await self._client.call("HKEYS", claimed), list[bytes]()
            self._doubt = False
            for name in names:
                claim, number = _claim(name), claim_number(name)
                if claim in known or claim in self.jobs or number >= next_:
                    continue
                if not any(number in one for one in under_way):
                    unknown.append(name)
            found = len(self._strays)
            try:
                async for name, data in read_jobs(self._client, claimed, unknown):
                    claim = _claim(name)
                    job = self.jobs[claim] = JobContext(self, claim, read_item(data, self.codec))
                    self._strays.append(job)
            except BaseException:
                self._doubt = True
                raise
            if found := len(self._strays) - found:
                self.counts.strays += found
                quiet.warning(
                    f"{self.keys.queue} strays",
                    "queue %s: %d jobs were claimed but did not arrive; they run now",
                    self.keys.queue,
                    found,
                )

    async def give_back(self, jobs: Sequence[JobContext]) -> None:
        """Return jobs to the front, in their order, as if they had not been taken."""
        told: list[Argument] = []
        for job in jobs:
            item = b"" if not job.begun else job.item.data
            told += (job.claim, self._record_name(job), item)
        for place in range(0, len(told), 3 * MOST_DONE):
            part = told[max(0, len(told) - place - 3 * MOST_DONE) : len(told) - place]
            reply = await self.surely("give back", lambda part=part: self._give_back(part))
            if reply == DEAD:
                self.lose(len(part) // 3)
                return
        self._drop(jobs)

    async def _give_back(self, told: Sequence[Argument]) -> int:
        return await self._scripts.give_back(keys=self.keys, worker=self.worker, jobs=told)

    async def set_aside(
        self, jobs: Sequence[JobContext], wait_s: float, step_s: float = 0.0
    ) -> list[int]:
        """Let jobs wait among those not yet due, each `step_s` longer than the one before.

        Returns how many workers the queue has, then for each job 1, or 0 if it has ended and is
        still in hand; nothing if we were given up.
        """
        told: list[Argument] = []
        for job in jobs:
            told += (job.claim, self._name_of(job), "1" if job.tracked else "")
        wait_ms, step_ms = round(wait_s * 1000), step_s * 1000
        reply = await self.surely(
            "set aside",
            lambda: self._scripts.set_aside(
                keys=self.keys, worker=self.worker, wait_ms=wait_ms, step_ms=step_ms, jobs=told
            ),
        )
        if isinstance(reply, int):
            self.lose(len(jobs))
            return []
        self._drop(job for job, moved in zip(jobs, reply[1:], strict=True) if moved)
        return reply

    async def leave(self) -> None:
        """Stop being a member; what is still in hand is for the others at once."""
        await self._scripts.leave_queue(keys=self.keys, worker=self.worker)

    # ---- about single jobs

    async def begin(self, jobs: Sequence[JobContext], *, exactly: bool = False) -> list[int]:
        """Note that jobs are about to run: for each 1 to run it, 2 if cancelled, 0 if ended.

        `exactly` notes in the claim itself that the attempt has begun, for jobs whose attempts
        would otherwise be charged to them although they never ran.
        """
        calls: list[Awaitable[list[int] | int]] = []
        for place in range(0, len(jobs), _MOST_TOLD):
            told: list[Argument] = []
            for job in jobs[place : place + _MOST_TOLD]:
                item = begun_item(job) if exactly else b""
                told += (
                    job.claim,
                    self._record_name(job),
                    job.attempt,
                    self._first_words(job),
                    item,
                )
            calls.append(self.surely("begin", lambda told=told: self._begin(told)))
        verdicts: list[int] = []
        for reply in await asyncio.gather(*calls):
            if isinstance(reply, int):
                self.lose(0)
                return [0] * len(jobs)
            verdicts += reply
        for job in jobs:
            job.begun, job.noted = exactly, True
        return verdicts

    def _first_words(self, job: JobContext) -> bytes:
        """What the record of a job begins with, as JSON; empty if it was written with the push."""
        if job.item.meta.tracked or not job.tracked or self.first_fields is None:
            return b""
        return msgspec.json.encode([_as_text(value) for value in self.first_fields(job)])

    async def _begin(self, told: Sequence[Argument]) -> list[int] | int:
        return await self._scripts.begin_jobs(keys=self.keys, worker=self.worker, jobs=told)

    async def flush_ended(self) -> None:
        """Write the ends of jobs with a record or a unique key, and of those that end meanwhile.

        By few calls at a time: the next claims have to wait behind them.
        """

        async def write() -> None:
            while self.ended:
                await self._end(*self._some_ended())

        await asyncio.gather(*(write() for _ in range(_ENDS_UNDER_WAY)))

    def _some_ended(self) -> tuple[str, list[Ended]]:
        """Take some that have come to the same end."""
        state, count, size = self.ended[0].state, 1, len(self.ended[0].result)
        for one in self.ended[1:_MOST_TOLD]:
            size += len(one.result)
            if one.state != state or size > _MOST_TOLD_BYTES:
                break
            count += 1
        some, self.ended = self.ended[:count], self.ended[count:]
        return state, some

    async def _end(self, state: str, ended: Sequence[Ended]) -> None:
        told: list[Argument] = []
        for one in ended:
            job = one.job
            unique = self.unique_key(job) if job.item.meta.unique else ""
            late = 0 if job.noted or state == "expired" else 1
            told += (job.claim, self._name_of(job), unique, late, one.took, one.result)
        if await self.surely("finish", lambda: self._finish(state, told)) == DEAD:
            self.lose(len(ended))
        else:
            self._drop(one.job for one in ended)

    async def _finish(self, state: str, told: Sequence[Argument]) -> int:
        return await self._scripts.finish_jobs(
            keys=self.keys, worker=self.worker, keep_ms=self._keep_ms, state=state, jobs=told
        )

    async def retry(
        self,
        job: JobContext,
        item: bytes,
        wait_s: float,
        fields: Sequence[Argument],
        counted_as: str = "retried",
    ) -> None:
        """Let a job wait for its next attempt."""
        reply = await self.surely(
            "retry",
            lambda: self._scripts.retry_job(
                keys=self.keys,
                worker=self.worker,
                claim=job.claim,
                job_id=self._name_of(job),
                item=item,
                wait_ms=round(wait_s * 1000),
                counted_as=counted_as,
                fields=fields,
            ),
        )
        if reply == 1 and wait_s < self._soon_s:
            self._retry_at = min(self._retry_at, time.monotonic() + wait_s)
        self._told(job, reply)

    async def bury(self, job: JobContext, letter: bytes, fields: Sequence[Argument]) -> None:
        """Put a job into the dead letters."""
        reply = await self.surely(
            "bury",
            lambda: self._scripts.bury_job(
                keys=self.keys,
                worker=self.worker,
                keep_ms=self._keep_ms,
                claim=job.claim,
                job_id=self._name_of(job),
                unique=self.unique_key(job),
                letter=letter,
                fields=fields,
            ),
        )
        self._told(job, reply)

    async def note_progress(self, job: JobContext, fields: Sequence[Argument]) -> int:
        return await self._scripts.note_progress(
            keys=self.keys,
            worker=self.worker,
            record=self.keys.record(job.id),
            claim=job.claim,
            fields=fields,
        )

    def unique_key(self, job: JobContext) -> str:
        """Key of what the job holds until its end; empty if it holds nothing."""
        unique = job.item.meta.unique
        return self.keys.unique(unique) if unique else ""

    # ---- inside

    async def surely(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Call until it is confirmed: each of these may be repeated.

        While the server cannot be reached, somebody else may give us up; then the next call that
        gets through says so.
        """
        failures = 0
        while True:
            try:
                return await call()
            except ServerError as error:
                if self.closing or not error.transient:
                    raise
                failures += 1
                quiet.warning(
                    f"{self.keys.queue} {what} {type(error).__name__}",
                    "queue %s: %s: %s; trying again",
                    self.keys.queue,
                    what,
                    error,
                )
            await asyncio.sleep(retry_delay_s(failures))

    def lose(self, refused: int) -> None:
        """Learn that we were given up as dead: what is in hand is not ours any more."""
        self.counts.stale += refused
        if not self.lost:
            self.lost = True
            self.pulse.lose()
            logger.warning(
                "queue %s: worker %s was given up as dead; %d jobs have passed to others",
                self.keys.queue,
                self.worker,
                len(self.jobs),
            )
            for job in self.jobs.values():
                job.stop("lost")
            self.when_lost()

    def _told(self, job: JobContext, reply: int) -> None:
        if reply == DEAD:
            self.lose(1)
        else:
            self._drop([job])

    def _drop(self, jobs: Iterable[JobContext]) -> None:
        for job in jobs:
            self.jobs.pop(job.claim, None)

    def _note_time(self, now_ms: int) -> None:
        self._server_ms, self._as_of = now_ms, time.monotonic()

    def _record_name(self, job: JobContext) -> str:
        return self._name_of(job) if job.tracked else ""

    def _name_of(self, job: JobContext) -> str:
        return self.keys.record_name(job.id)


def claim_number(claim: bytes) -> int:
    """Its place in the order of claims; 0 for one that another program has written."""
    head = claim.partition(b":")[0]
    return int(head) if head.isdigit() and len(head) < _LONGEST_NUMBER else 0


def _claim(name: bytes) -> str | bytes:
    """As text, which costs less to send; a lane of another program may have any name."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def _as_text(value: Argument) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
