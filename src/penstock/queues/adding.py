"""Adding jobs to a queue: room for them, waiting for it, and what is told when there is none."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
from penstock.queues.items import read_item
from penstock.queues.line import Line, Room
from penstock.queues.options import Block, Overflow, SendOptions
from penstock.quiet import RateLimitedLog
from penstock.redis.keys import decode_id
from penstock.redis.retry import backoff_s
from penstock.redis.wire import Argument

if TYPE_CHECKING:
    from penstock.queues.queue import Queue

__all__ = ["Added", "Adder", "Target", "UniqueMark"]

quiet = RateLimitedLog(logging.getLogger(__name__))

CHUNK: Final = 500
"""Jobs that one script adds."""
_CHUNK_BYTES: Final = 1024 * 1024
# So many chunks are on their way at once: a slow link stays busy, the server answers others.
_IN_FLIGHT: Final = 4
_SUBMITS_IN_FLIGHT: Final = 64
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.005, 0.1
REPEAT_WITHIN_S: Final = 10.0
"""How long a submission that may be repeated is repeated while its end is not known."""
_REPEAT_BASE_S, _REPEAT_MAX_S = 0.05, 1.0
_TAKEN: Final = 2


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
    """Key beside it: `submit_job` remembers there who has just set it."""
    says: bytes
    """As `submit_job` wants to have it, with a token."""
    remember_ms: int


class Adder:
    """Adds encoded jobs to one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self._client, self._keys = queue, queue.client, queue.keyring
        self._line = Line(queue.client, queue.keyring)
        settings = queue.client.settings.queues
        self._max_overflow = settings.max_overflow
        self._largest = settings.max_job_bytes
        self._keep_ms = int(settings.keep_s * 1000)
        self._unique_ms = int(settings.unique_s * 1000)

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
        room = self._room(target, await self._queue.declared())
        answer = await self._line.push_one(room, item)
        if answer[0] == 0 and isinstance(target.overflow, Block):
            answer = await self._insist(
                target.overflow, lambda policy: self._line.push_one(_with(room, policy), item)
            )
        if answer[0] == 0:
            raise self._full(answer[1], target)
        if answer[4]:
            await self.note_losses(answer[4])
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
        room = self._room(target, side)
        chunks = list(_chunks(items))
        answers: list[list[Any] | PenstockError] = [
            await self._chunk(items[chunks[0]], room, target)
        ]
        if isinstance(answers[0], ServerError):
            # What the first one met, the others would meet as well.
            unsent = Rejected(f"not sent, after: {answers[0]}")
            answers += [unsent] * (len(chunks) - 1)
        elif isinstance(target.overflow, Block):
            for chunk in chunks[1:]:
                answers.append(await self._chunk(items[chunk], room, target))
        else:
            gate = asyncio.Semaphore(_IN_FLIGHT)

            async def send(chunk: slice) -> list[Any] | PenstockError:
                async with gate:
                    return await self._chunk(items[chunk], room, target)

            answers += await asyncio.gather(*map(send, chunks[1:]))
        return _summary(answers, chunks, ids)

    async def _chunk(
        self, items: Sequence[bytes], room: Room, target: Target
    ) -> list[Any] | PenstockError:
        try:
            answer = await self._line.push(room, items)
            if answer[0] == 0 and isinstance(target.overflow, Block):
                answer = await self._insist(
                    target.overflow, lambda policy: self._line.push(_with(room, policy), items)
                )
        except ServerError as error:
            return error
        if answer[0] == 0:
            return self._full(answer[1], target)
        if answer[4]:
            await self.note_losses(answer[4])
        return answer

    # ---- jobs with a record, a unique key or a time

    async def submit(
        self,
        *,
        job_id: str,
        item: bytes,
        options: SendOptions,
        target: Target,
        fields: Sequence[Argument] = (),
        mark: UniqueMark | None = None,
    ) -> Added:
        """Add one job by `submit_job`; QueueFull if there is no room.

        `mark` is used instead of the queue's own key for `options.unique`.
        """
        side = await self._queue.declared()
        wait = options.wait()
        keys, name = self._keys, self._keys.record_name(job_id)
        unique = keys.unique(options.unique or job_id) if mark is None else mark.key

        async def once(policy: str) -> list[Any]:
            return await self._client.scripts.submit_job(
                keys=keys,
                record=keys.record(job_id),
                unique=unique,
                lane=target.lane,
                queue=keys.queue,
                side=side,
                policy=policy,
                max_size=target.max_size,
                max_bytes=self._queue.options.max_bytes,
                max_overflow=self._max_overflow,
                job_id=name,
                item=item,
                wait="" if wait is None else wait,
                unique_ms=options.unique_ms(self._unique_ms),
                unique_by=unique if mark is None else mark.by,
                unique_says=b"" if mark is None else mark.says,
                remember_ms=0 if mark is None else mark.remember_ms,
                keep_ms=self._keep_ms,
                fields=fields,
            )

        # What the server would know again can be said again.
        known_again = bool(fields) or options.unique_for is not None

        async def attempt(policy: str) -> list[Any]:
            return await (self._until_known(once, policy, name) if known_again else once(policy))

        answer = await attempt(_policy(target.overflow))
        if answer[0] == 0 and isinstance(target.overflow, Block):
            answer = await self._insist(target.overflow, attempt)
        if answer[0] == 0:
            raise self._full(answer[1], target)
        if answer[6:] and answer[6]:
            await self.note_losses(answer[6])
        holder = decode_id(text(answer[4]))
        says = answer[7] if answer[7:] else b""
        return Added(answer[0] != _TAKEN, answer[1], answer[2], answer[3], holder, says)

    async def submit_many(self, submissions: Sequence[Callable[[], Any]]) -> list[Added]:
        """Run submissions side by side, in their order; SendBatchFailed if not all end well."""
        gate = asyncio.Semaphore(_SUBMITS_IN_FLIGHT)

        async def one(submission: Callable[[], Any]) -> Added | PenstockError:
            async with gate:
                try:
                    return await submission()
                except (ServerError, QueueFull) as error:
                    return error

        # The first one goes alone: it may have to declare the queue, connect and load the script,
        # and others would overtake it meanwhile.
        ended = [await one(first) for first in submissions[:1]]
        ended += await asyncio.gather(*map(one, submissions[1:]))
        failures = [one for one in ended if isinstance(one, PenstockError)]
        if not failures:
            return [one for one in ended if isinstance(one, Added)]
        if len(ended) == 1:
            raise failures[0]
        raise SendBatchFailed([one.id if isinstance(one, Added) else one for one in ended])

    async def _until_known(self, once: Callable[[str], Any], policy: str, name: str) -> list[Any]:
        """Repeat a submission of unknown end; what stands there under its name is then its own."""
        doubt: OutcomeUnknown | None = None
        deadline, attempt = time.monotonic() + REPEAT_WITHIN_S, 0
        while True:
            attempt += 1
            try:
                answer = await once(policy)
            except ServerError as error:
                if isinstance(error, OutcomeUnknown):
                    doubt = error
                if doubt is None:
                    raise
                if not error.transient or time.monotonic() > deadline:
                    raise doubt from error
                await asyncio.sleep(backoff_s(attempt, base_s=_REPEAT_BASE_S, max_s=_REPEAT_MAX_S))
                continue
            if doubt is not None and answer[0] == _TAKEN and answer[4] == name.encode():
                answer[0] = 1
            return answer

    async def note_losses(self, packed: Sequence[bytes]) -> None:
        """See to jobs that were dropped or moved aside, where the script could not read them."""
        told: list[Argument] = []
        for item in (read_item(data, self._queue.codec) for data in packed):
            if item.id and (item.meta.tracked or item.meta.unique):
                unique = item.meta.unique
                told += (
                    self._keys.record_name(item.id),
                    self._keys.unique(unique) if unique else "",
                )
        if not told:
            return
        try:
            await self._client.scripts.note_losses(keys=self._keys, jobs=told)
        except ServerError as error:
            # The new jobs are stored, which is what the caller asks.
            quiet.warning(
                f"losses {self._keys.queue}",
                "queue %s: dropped jobs whose records still say they wait: %s",
                self._keys.queue,
                error,
            )

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

    def _room(self, target: Target, side: str) -> Room:
        return (
            *(target.lane, side, _policy(target.overflow), target.max_size),
            *(self._queue.options.max_bytes, self._max_overflow),
        )

    def _full(self, length: int, target: Target) -> QueueFull:
        return QueueFull(self._keys.queue, length, target.max_size, self._queue.options.max_bytes)


def _policy(overflow: Overflow) -> str:
    return "block" if isinstance(overflow, Block) else overflow


def _with(room: Room, policy: str) -> Room:
    return (*room[:2], policy, *room[3:])


def _chunks(items: Sequence[bytes]) -> list[slice]:
    """Cut where a chunk has enough jobs or enough bytes."""
    cuts: list[slice] = []
    for first in range(0, len(items), CHUNK):
        last = min(first + CHUNK, len(items))
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
