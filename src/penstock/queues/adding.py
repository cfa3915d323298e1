"""Adding jobs to a queue: room for them, waiting for it, and what is told when there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.delivery.looking import text
from penstock.errors import (
    InvalidJob,
    OutcomeUnknown,
    PenstockError,
    QueueFull,
    Rejected,
    SendBatchFailed,
    ServerError,
)
from penstock.queues.gathering import Gatherer
from penstock.queues.line import Line
from penstock.queues.losses import note_losses
from penstock.queues.options import Block, Overflow, SendOptions
from penstock.queues.records import NO_FIELDS, Fields
from penstock.redis.keys import QueueKeyring, decode_id
from penstock.redis.retry import backoff_s
from penstock.redis.wire import Argument, Reply

if TYPE_CHECKING:
    from penstock.queues.queue import Queue

__all__ = ["Added", "Adder", "Submission", "Target", "UniqueMark"]

CHUNK: Final = 500
"""Jobs that one script adds."""
SUBMITTED_AT_ONCE: Final = 50
"""Jobs that one script adds with records, unique keys or times: less than a millisecond's work."""
_CHUNK_BYTES: Final = 1024 * 1024
_LARGE: Final = _CHUNK_BYTES // SUBMITTED_AT_ONCE
"""A job of more bytes is not gathered with others."""
# So many chunks are on their way at once: a slow link stays busy, the server answers others.
_IN_FLIGHT: Final = 4
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.005, 0.1
REPEAT_WITHIN_S: Final = 10.0
"""How long a submission that may be repeated is repeated while its end is not known."""
_REPEAT_BASE_S, _REPEAT_MAX_S = 0.05, 1.0
_TAKEN, _MORE_ROOM = 2, 3

Kind = tuple[bytes, bool]


@dataclass(frozen=True, slots=True)
class Target:
    """Where jobs go, and what happens if there is no room."""

    lane: str
    overflow: Overflow
    max_size: int


@dataclass(frozen=True, slots=True)
class Added:
    """What a script said. `created` is False if the id or the unique key was taken."""

    created: bool
    length: int
    moved: int = 0
    dropped: int = 0
    id: str = ""
    says: bytes = b""
    """What a taken `UniqueMark` says."""


@dataclass(frozen=True, slots=True)
class UniqueMark:
    """A unique key of somebody else's, which says something other than the job's id."""

    key: str
    by: str
    """Key beside it: `submit_jobs` remembers there who has just set it."""
    says: bytes
    """As `submit_jobs` wants to have it, with a token."""
    remember_ms: int


class Submission(NamedTuple):
    """A job as `submit_jobs` adds it."""

    name: str
    """Its id as records are named."""
    argument: bytes
    shared: bytes = b""
    """The part of its record that others have as well; empty if it has no record."""
    waits: bool = False
    repeatable: bool = False
    """Whether the server knows it again, so that it can be sent again if its end is not known."""
    alone: bool = False
    """Whether it must not be gathered with others."""

    @property
    def kind(self) -> Kind:
        """What jobs of one call must have in common."""
        return self.shared, self.repeatable

    @classmethod
    def of(
        cls,
        keys: QueueKeyring,
        job_id: str,
        item: bytes,
        options: SendOptions,
        fields: Fields = NO_FIELDS,
        mark: UniqueMark | None = None,
    ) -> Submission:
        """`mark` is used instead of the queue's own key for `options.unique`."""
        name, wait = keys.record_name(job_id), options.wait()
        head = name
        if wait is not None or options.unique is not None or fields.own:
            unique, unique_ms, by, remember_ms, says = "-", 0, "-", 0, b""
            if options.unique is not None:
                unique, unique_ms = keys.unique(options.unique), options.unique_ms()
            if mark is not None:
                unique, by, remember_ms, says = mark.key, mark.by, mark.remember_ms, mark.says
            head = (
                f"{name} {'-' if wait is None else wait} {unique} {unique_ms} {by} {remember_ms} "
                f"{len(says)} {len(fields.own)}"
            )
            item = b"%b%b%b" % (says, fields.own, item)
        return cls(
            name,
            b"%b\n%b" % (head.encode(), item),
            fields.shared,
            waits=wait is not None,
            repeatable=bool(fields.shared) or options.unique_for is not None,
            alone=mark is not None,
        )


class Adder:
    """Adds encoded jobs to one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self._client, self._keys = queue, queue.client, queue.keyring
        keys, settings = queue.keyring, queue.client.settings.queues
        places = (
            *(keys.waiting, keys.state, keys.counters, keys.overflow, keys.ring, keys.parked),
        )
        others = (
            *(keys.delayed, keys.delayed_bodies, keys.workers, keys.dead_workers, keys.aside),
        )
        self._pushes = Line(queue.client, "push_jobs", places)
        self._submits = Line(queue.client, "submit_jobs", (*places, *others))
        self._max_overflow = settings.max_overflow
        self._largest = settings.max_job_bytes
        self._keep_ms = int(settings.keep_s * 1000)
        self._gatherer: Gatherer[tuple[Target, Kind], Submission, Added] = Gatherer(
            self._submit_some, SUBMITTED_AT_ONCE
        )

    def check_size(self, item: bytes) -> bytes:
        """Return the job unchanged, or raise InvalidJob if it is too large to be stored."""
        if len(item) <= self._largest:
            return item
        raise InvalidJob(
            f"a job of {len(item)} bytes as stored: queues.max_job_bytes allows {self._largest}; "
            "put the data elsewhere and queue its address"
        )

    # ---- plain jobs

    async def add_one(self, item: bytes, target: Target) -> list[Any]:
        """Add one job; QueueFull if there is no room."""
        side = await self._queue.declared()
        if isinstance(target.overflow, Block):
            answer = await self._push((item,), target, side)
        else:
            fixed = self._push_arguments(target, side, target.overflow)
            answer = await self._pushes.call(fixed, (item,))
            if answer[4]:
                await self.note_losses(answer[4])
        if answer[0] == 0:
            raise self._full(answer[1], target)
        return answer

    async def add_many(
        self, items: Sequence[bytes], ids: Sequence[str], target: Target
    ) -> list[Any]:
        """Add jobs in chunks, each all or none: 1, length, moved, dropped.

        QueueFull if none was stored for want of room; SendBatchFailed if not all were.
        """
        if not items:
            return [1, 0, 0, 0, []]
        side = await self._queue.declared()
        chunks = _chunks(items, CHUNK)
        answers: list[list[Any] | PenstockError] = [
            await self._chunk(items[chunks[0]], target, side)
        ]
        if isinstance(answers[0], ServerError):
            # What the first one met, the others would meet as well.
            unsent = Rejected(f"not sent, after: {answers[0]}")
            answers += [unsent] * (len(chunks) - 1)
        elif isinstance(target.overflow, Block):
            for chunk in chunks[1:]:
                answers.append(await self._chunk(items[chunk], target, side))
        else:
            gate = asyncio.Semaphore(_IN_FLIGHT)

            async def send(chunk: slice) -> list[Any] | PenstockError:
                async with gate:
                    return await self._chunk(items[chunk], target, side)

            answers += await asyncio.gather(*map(send, chunks[1:]))
        return _summary(answers, chunks, ids)

    async def _chunk(
        self, items: Sequence[bytes], target: Target, side: str
    ) -> list[Any] | PenstockError:
        try:
            answer = await self._push(items, target, side)
        except ServerError as error:
            return error
        return answer if answer[0] else self._full(answer[1], target)

    async def _push(self, items: Sequence[bytes], target: Target, side: str) -> list[Any]:
        """Run `push_jobs`, with patience where the policy has some."""
        answer = await self._push_once(items, target, side, _policy(target.overflow))
        if answer[0] == 0 and isinstance(target.overflow, Block):
            answer = await self._insist(
                target.overflow, lambda policy: self._push_once(items, target, side, policy)
            )
        return answer

    async def _push_once(
        self, items: Sequence[bytes], target: Target, side: str, policy: str
    ) -> list[Any]:
        answer = await self._pushes.call(self._push_arguments(target, side, policy), items)
        if answer[4]:
            await self.note_losses(answer[4])
        if answer[0] != _MORE_ROOM:
            return answer
        again = await self._push_once(items, target, side, policy)
        return [*again[:2], answer[2] + again[2], answer[3] + again[3], again[4]]

    def _push_arguments(self, target: Target, side: str, policy: str) -> tuple[Argument, ...]:
        keys = self._keys
        return (
            target.lane, keys.queue, side, policy, target.max_size, self._queue.options.max_bytes,
            self._max_overflow, keys.records, keys.indexes, keys.uniques, self._keep_ms,
        )  # fmt: skip

    # ---- jobs with a record, a unique key or a time

    async def submit(self, job: Submission, target: Target) -> Added:
        """Add one job by `submit_jobs`, with others that come at the same time.

        QueueFull if there is no room.
        """
        if job.alone or len(job.argument) > _LARGE or isinstance(target.overflow, Block):
            (ended,) = await self._submit_some((target, job.kind), (job,))
        else:
            ended = await self._gatherer.add((target, job.kind), job)
        if isinstance(ended, PenstockError):
            raise ended
        return ended

    async def submit_many(self, jobs: Sequence[Submission], target: Target) -> list[Added]:
        """Add jobs, each by itself, in their order; SendBatchFailed if not all end well.

        Those of one kind that follow each other go together.
        """
        chunks = _chunks([job.argument for job in jobs], SUBMITTED_AT_ONCE)
        together = [part for chunk in chunks for part in _alike(jobs[chunk])]
        ended: list[Added | PenstockError] = []
        for part in together[:1]:
            # The first goes alone: it may have to declare the queue, connect and load the script,
            # and others would overtake it meanwhile.
            ended += await self._submit_some((target, part[0].kind), part)
        if isinstance(target.overflow, Block):
            for part in together[1:]:
                ended += await self._submit_some((target, part[0].kind), part)
        else:
            gate = asyncio.Semaphore(_IN_FLIGHT)

            async def submit(part: Sequence[Submission]) -> list[Added | PenstockError]:
                async with gate:
                    return await self._submit_some((target, part[0].kind), part)

            for some in await asyncio.gather(*map(submit, together[1:])):
                ended += some
        failures = [one for one in ended if isinstance(one, PenstockError)]
        if not failures:
            return [one for one in ended if isinstance(one, Added)]
        if len(ended) == 1:
            raise failures[0]
        raise SendBatchFailed([one.id if isinstance(one, Added) else one for one in ended])

    async def _submit_some(
        self, place: tuple[Target, Kind], jobs: Sequence[Submission]
    ) -> list[Added | PenstockError]:
        """Run `submit_jobs`, with patience where the policy has some. Never raises for one job.

        All jobs of a call have the same target and are of one kind.
        """
        target, _ = place
        try:
            side = await self._queue.declared()
            ended = await self._submit_once(jobs, target, side, _policy(target.overflow))
        except ServerError as error:
            return [error] * len(jobs)
        if not isinstance(target.overflow, Block):
            return ended
        deadline, pause_s = time.monotonic() + target.overflow.timeout_s, _FIRST_LOOK_S
        while full := [at for at, one in enumerate(ended) if isinstance(one, QueueFull)]:
            left_s = deadline - time.monotonic()
            if left_s > 0:
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(pause_s * 2, _LONGEST_LOOK_S)
            some = [jobs[at] for at in full]
            policy = "block" if left_s > 0 else "reject"  # the last try is counted as refused
            try:
                again = await self._submit_once(some, target, side, policy)
            except ServerError as error:
                again = [error] * len(some)
            for at, one in zip(full, again, strict=True):
                ended[at] = one
            if left_s <= 0:
                break
        return ended

    async def _submit_once(
        self, jobs: Sequence[Submission], target: Target, side: str, policy: str
    ) -> list[Added | PenstockError]:
        """Repeat a call of unknown end; what stands there under its own name is then its own."""
        keys, doubt = self._keys, None
        fixed = (
            *(target.lane, keys.queue, side, policy, target.max_size),
            *(self._queue.options.max_bytes, self._max_overflow),
            *(keys.records, keys.indexes, keys.uniques, keys.claims, self._keep_ms),
            jobs[0].shared,
        )
        arguments = [job.argument for job in jobs]
        repeatable = jobs[0].repeatable
        deadline, attempt = time.monotonic() + REPEAT_WITHIN_S, 0
        while True:
            attempt += 1
            try:
                length, waiting, packed, *answers = await self._submits.call(fixed, arguments)
                break
            except ServerError as error:
                if isinstance(error, OutcomeUnknown):
                    doubt = error
                if doubt is None or not repeatable:
                    raise
                if not error.transient or time.monotonic() > deadline:
                    raise doubt from error
            await asyncio.sleep(backoff_s(attempt, base_s=_REPEAT_BASE_S, max_s=_REPEAT_MAX_S))
        if packed:
            await self.note_losses(packed)
        return [
            self._read(job, answer, waiting if job.waits else length, target, doubt is not None)
            for job, answer in zip(jobs, answers, strict=True)
        ]

    def _read(
        self, job: Submission, answer: Reply, length: int, target: Target, repeated: bool
    ) -> Added | PenstockError:
        """What `submit_jobs` says of one job."""
        if answer == 1:
            return Added(True, length, id=decode_id(job.name))
        if answer == 0:
            return self._full(length, target)
        if isinstance(answer, PenstockError):
            return answer
        if answer[0] != _TAKEN:
            return Added(True, length, answer[1], answer[2], decode_id(job.name))
        holder = text(answer[1])
        created = repeated and holder == job.name
        return Added(created, length, id=decode_id(holder), says=(answer[2:] or [b""])[0])

    async def note_losses(self, packed: Sequence[bytes]) -> None:
        """See to jobs that were dropped or moved aside, where the script could not read them."""
        await note_losses(self._client, self._queue.codec, self._keys, packed)

    # ---- room

    async def _insist(self, how: Block, attempt: Callable[[str], Any]) -> list[Any]:
        """Try until there is room or the time is over."""
        deadline, pause_s = time.monotonic() + how.timeout_s, _FIRST_LOOK_S
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return await attempt("reject")  # the last try is counted as refused
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, _LONGEST_LOOK_S)
            answer = await attempt("block")
            if answer[0] != 0:
                return answer

    def _full(self, length: int, target: Target) -> QueueFull:
        return QueueFull(self._keys.queue, length, target.max_size, self._queue.options.max_bytes)


def _policy(overflow: Overflow) -> str:
    return "block" if isinstance(overflow, Block) else overflow


def _alike(jobs: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    """Cut where their kind changes."""
    first = 0
    for place in range(1, len(jobs)):
        if jobs[place].kind != jobs[first].kind:
            yield jobs[first:place]
            first = place
    yield jobs[first:]


def _chunks(items: Sequence[bytes], most: int) -> list[slice]:
    """Cut where a chunk has enough jobs or enough bytes."""
    cuts: list[slice] = []
    for first in range(0, len(items), most):
        last = min(first + most, len(items))
        if sum(map(len, items[first:last])) <= _CHUNK_BYTES:
            cuts.append(slice(first, last))
        else:
            cuts += _smaller_chunks(items, first, last)
    return cuts


def _smaller_chunks(items: Sequence[bytes], first: int, last: int) -> Iterator[slice]:
    size = 0
    for place in range(first, last):
        size += len(items[place])
        if place > first and size > _CHUNK_BYTES:
            yield slice(first, place)
            first, size = place, len(items[place])
    yield slice(first, last)


def _summary(
    answers: Sequence[list[Any] | PenstockError],
    chunks: Sequence[slice],
    ids: Sequence[str],
) -> list[Any]:
    stored = [answer for answer in answers if isinstance(answer, list)]
    if len(stored) == len(answers):
        return [
            1,
            max(answer[1] for answer in stored),
            sum(answer[2] for answer in stored),
            sum(answer[3] for answer in stored),
            [],
        ]
    failures = [answer for answer in answers if isinstance(answer, PenstockError)]
    if not stored and (len(chunks) == 1 or all(isinstance(one, QueueFull) for one in failures)):
        raise failures[0]
    outcomes: list[str | PenstockError] = []
    for answer, chunk in zip(answers, chunks, strict=True):
        these = ids[chunk]
        outcomes += these if isinstance(answer, list) else [answer] * len(these)
    raise SendBatchFailed(outcomes)
