"""Adding encoded jobs to a queue: chunks, batches, waiting for room, repeated calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar, cast

from penstock.delivery.queries import text
from penstock.errors import (
    InvalidJob,
    OutcomeUnknown,
    PenstockError,
    QueueFull,
    Rejected,
    SendBatchFailed,
    ServerError,
)
from penstock.queues.declared_queue import DeclaredQueue, LaneTarget
from penstock.queues.options import QueueOptions, SendOptions, WaitForRoom
from penstock.queues.producer.call_batching import CallBatcher
from penstock.queues.storage.dropped_jobs import note_losses
from penstock.queues.storage.job_record import NO_FIELDS, RecordFields
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.scripts import PushReply, PushStatus, QueueScripts, SubmitStatus
from penstock.redis.keys.hash_slot import key_slot
from penstock.redis.keys.names import decode_id
from penstock.redis.prepared_call import Prepared, SharedLink
from penstock.redis.retry import backoff_s
from penstock.redis.wire import Reply

__all__ = ["Enqueuer", "JobSubmission", "SubmissionResult", "UniqueMark"]

CHUNK: Final = 500
"""Jobs that one call of `push_jobs` adds."""
SUBMITTED_AT_ONCE: Final = 50
"""Jobs that one call of `submit_jobs` adds: less than a millisecond of the server's time."""
_CHUNK_BYTES: Final = 1024 * 1024
_LARGE: Final = _CHUNK_BYTES // SUBMITTED_AT_ONCE
"""A larger job is not batched with others."""
# Chunks in flight at once: a slow link stays busy, the server answers other clients in between.
_IN_FLIGHT: Final = 4
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1
REPEAT_WITHIN_S: Final = 10.0
"""Retry window of a repeatable submission whose outcome is unknown."""
_REPEAT_BASE_S, _REPEAT_MAX_S = 0.05, 1.0
_MOST_PREPARED: Final = 64
_STORED: Final = PushStatus.STORED  # Python 3.11 finds members of enums slowly

E = TypeVar("E")
T = TypeVar("T")

_CallKey = tuple[str, str, str, int, int, bytes | None]
"""Lane, side, policy, max_size, max_bytes and, for `submit_jobs`, shared record fields."""
BatchKey = tuple[LaneTarget, bytes, bool]
"""What jobs of one `submit_jobs` call have in common: target, shared record fields, repeatable."""


@dataclass(frozen=True, slots=True)
class SubmissionResult:
    """Result of one submitted job. `created` is False if the id or the unique key was taken."""

    created: bool
    length: int
    moved: int = 0
    dropped: int = 0
    id: str = ""
    holder_value: bytes = b""
    """Value of a `UniqueMark` that was taken."""


@dataclass(frozen=True, slots=True)
class UniqueMark:
    """A unique key outside the queue, whose value is not the job's id."""

    key: str
    by: str
    """Key in which `submit_jobs` remembers who has just set it."""
    value: bytes
    """In the form that `submit_jobs` takes, with a token."""
    remember_ms: int


class JobSubmission(NamedTuple):
    """A job as `submit_jobs` takes it."""

    name: str
    """Its id as spelled in keys."""
    argument: bytes
    shared: bytes = b""
    """Part of its record that jobs sent alike have in common; empty without a record."""
    delayed: bool = False
    repeatable: bool = False
    """Whether the server recognises a repeat, so that an unknown outcome may be retried."""
    alone: bool = False
    """Whether it must not be batched with others."""

    @classmethod
    def of(
        cls,
        keys: QueueKeyring,
        job_id: str,
        item: bytes,
        options: SendOptions,
        fields: RecordFields = NO_FIELDS,
        mark: UniqueMark | None = None,
    ) -> JobSubmission:
        """`mark` replaces the queue's own key for `options.unique`."""
        name, wait = keys.record_name(job_id), options.wait()
        head = name
        if wait is not None or options.unique is not None or fields.own:
            unique, unique_ms, by, remember_ms, value = "-", 0, "-", 0, b""
            if options.unique is not None:
                unique, unique_ms = keys.unique(options.unique), options.unique_ms()
            if mark is not None:
                unique, by, remember_ms, value = mark.key, mark.by, mark.remember_ms, mark.value
            head = (
                f"{name} {'-' if wait is None else wait} {unique} {unique_ms} {by} {remember_ms} "
                f"{len(value)} {len(fields.own)}"
            )
            item = b"%b%b%b" % (value, fields.own, item)
        return cls(
            name,
            b"%b\n%b" % (head.encode(), item),
            fields.shared,
            delayed=wait is not None,
            repeatable=bool(fields.shared) or options.unique_for is not None,
            alone=mark is not None,
        )


class Enqueuer:
    """Adds encoded jobs to one queue."""

    def __init__(self, queue: DeclaredQueue) -> None:
        client, self._queue, self._keys = queue.client, queue, queue.keyring
        slot = key_slot(queue.keyring.waiting) if client.keys.cluster else None
        self._link = SharedLink(client, slot=slot)
        self._prepared: dict[_CallKey, Prepared] = {}
        # Most pushes are alike; comparing these by identity is quicker than hashing a key.
        self._last_push: tuple[LaneTarget | None, str, QueueOptions | None, Prepared | None]
        self._last_push = (None, "", None, None)
        self._max_job_bytes = client.settings.queues.max_job_bytes
        self._batcher: CallBatcher[BatchKey, JobSubmission, SubmissionResult] = CallBatcher(
            self._submit_batch, SUBMITTED_AT_ONCE
        )

    async def close(self) -> None:
        """Wait for the batches in flight; they fail once the client is closed."""
        await self._batcher.close()

    def check_size(self, item: bytes) -> bytes:
        """Return the job unchanged; InvalidJob if it is too large to be stored."""
        if len(item) <= self._max_job_bytes:
            return item
        raise InvalidJob(
            f"a job of {len(item)} bytes as stored: queues.max_job_bytes allows "
            f"{self._max_job_bytes}; put the data elsewhere and queue its address"
        )

    # ---- plain jobs

    async def push(self, target: LaneTarget, *items: bytes) -> PushReply:
        """Add jobs by one call, all or none; QueueFull if there is no room."""
        queue = self._queue
        if time.monotonic() >= queue.declared_until:
            await queue.declared()
        last_target, last_side, last_options, call = self._last_push
        if (
            call is None
            or target is not last_target
            or queue.side is not last_side
            or queue.options is not last_options
        ):
            call = self._call(target, target.policy)
            self._last_push = (target, queue.side, queue.options, call)
        reply = PushReply._make(await call.send(*items))
        if reply.status == _STORED and not reply.packed:
            return reply
        return await self._push_on(call, items, target, reply)

    async def push_many(
        self, items: Sequence[bytes], ids: Sequence[str], target: LaneTarget
    ) -> PushReply:
        """Add jobs in chunks, each completely or not at all; the reply sums up all chunks.

        QueueFull if there was no room for any; SendBatchFailed if not all were stored.
        """
        if not items:
            return PushReply(PushStatus.STORED, 0, 0, 0, [])
        await self._queue.declared()
        chunks = _chunks(items, CHUNK)

        async def push(chunk: slice) -> PushReply | PenstockError:
            try:
                return await self.push(target, *items[chunk])
            except (ServerError, QueueFull) as error:
                return error

        replies = [await push(chunks[0])]
        if isinstance(replies[0], ServerError):
            # The other chunks would meet the same error.
            unsent = Rejected(f"not sent, after: {replies[0]}")
            replies += [unsent] * (len(chunks) - 1)
        elif isinstance(target.overflow, WaitForRoom):
            for chunk in chunks[1:]:
                replies.append(await push(chunk))
        else:
            replies += await _some_at_once(push, chunks[1:])
        return _summary(replies, chunks, ids)

    async def _push_on(
        self, call: Prepared, items: Sequence[bytes], target: LaneTarget, reply: PushReply
    ) -> PushReply:
        """Note losses, repeat the call while it makes more room, wait for room if allowed."""
        waits = target.overflow if isinstance(target.overflow, WaitForRoom) else None
        retries = _retries(waits) if waits else iter(())
        moved, dropped = 0, 0
        while True:
            moved, dropped = moved + reply.moved, dropped + reply.dropped
            if reply.packed:
                await self.note_losses(reply.packed)
            if reply.status == _STORED:
                return reply._replace(moved=moved, dropped=dropped)
            if reply.status != PushStatus.MORE_ROOM:
                pause_s, policy = next(retries, (0.0, None))
                if policy is None:
                    raise self._full(reply.length, target, SubmitStatus(reply.status))
                await asyncio.sleep(pause_s)
                call = self._call(target, policy)
            reply = PushReply._make(await call.send(*items))

    # ---- jobs with a record, a unique key or a due time

    async def submit(self, job: JobSubmission, target: LaneTarget) -> SubmissionResult:
        """Add one job by `submit_jobs`, batched with others of the same moment.

        QueueFull if there is no room.
        """
        key = (target, job.shared, job.repeatable)
        if job.alone or len(job.argument) > _LARGE or isinstance(target.overflow, WaitForRoom):
            (result,) = await self._submit_batch(key, (job,))
        else:
            result = await self._batcher.add(key, job)
        if isinstance(result, PenstockError):
            raise result
        return result

    async def submit_many(
        self, jobs: Sequence[JobSubmission], target: LaneTarget
    ) -> list[SubmissionResult]:
        """Add jobs in their order, each decided by itself; SendBatchFailed if not all succeed.

        Neighbours that have a `BatchKey` in common share a call.
        """
        chunks = _chunks([job.argument for job in jobs], SUBMITTED_AT_ONCE)
        batches = [batch for chunk in chunks for batch in _alike(jobs[chunk])]

        async def submit(batch: Sequence[JobSubmission]) -> list[SubmissionResult | PenstockError]:
            return await self._submit_batch((target, batch[0].shared, batch[0].repeatable), batch)

        results: list[SubmissionResult | PenstockError] = []
        for batch in batches[:1]:
            # The first goes alone: it may have to declare the queue, connect and load the script,
            # and others would overtake it meanwhile.
            results += await submit(batch)
        if isinstance(target.overflow, WaitForRoom):
            for batch in batches[1:]:
                results += await submit(batch)
        else:
            for some in await _some_at_once(submit, batches[1:]):
                results += some
        failures = [one for one in results if isinstance(one, PenstockError)]
        if not failures:
            return cast("list[SubmissionResult]", results)
        if len(results) == 1:
            raise failures[0]
        raise SendBatchFailed(
            [one.id if isinstance(one, SubmissionResult) else one for one in results]
        )

    async def _submit_batch(
        self, key: BatchKey, jobs: Sequence[JobSubmission]
    ) -> list[SubmissionResult | PenstockError]:
        """Call `submit_jobs`; with `WaitForRoom` until there is room or its time is over.

        Errors of the server are results of the jobs.
        """
        target = key[0]
        try:
            await self._queue.declared()
            results = await self._submit_once(jobs, target, target.policy)
        except ServerError as error:
            return [error] * len(jobs)
        if not isinstance(target.overflow, WaitForRoom) or not _full_at(results):
            return results
        for pause_s, policy in _retries(target.overflow):
            await asyncio.sleep(pause_s)
            full = _full_at(results)
            some = [jobs[at] for at in full]
            try:
                again = await self._submit_once(some, target, policy)
            except ServerError as error:
                again = [error] * len(some)
            for at, one in zip(full, again, strict=True):
                results[at] = one
            if not _full_at(again):
                break
        return results

    async def _submit_once(
        self, jobs: Sequence[JobSubmission], target: LaneTarget, policy: str
    ) -> list[SubmissionResult | PenstockError]:
        """Repeat a call of unknown outcome; an id that is taken is then the job's own."""
        call, doubt = self._call(target, policy, jobs[0].shared), None
        arguments = [job.argument for job in jobs]
        deadline, attempt = time.monotonic() + REPEAT_WITHIN_S, 0
        while True:
            attempt += 1
            try:
                length, delayed, packed, *replies = await call.send(*arguments)
                break
            except ServerError as error:
                if isinstance(error, OutcomeUnknown):
                    doubt = error
                if doubt is None or not jobs[0].repeatable:
                    raise
                if not error.transient or time.monotonic() > deadline:
                    raise doubt from error
            await asyncio.sleep(backoff_s(attempt, base_s=_REPEAT_BASE_S, max_s=_REPEAT_MAX_S))
        if packed:
            await self.note_losses(packed)
        repeated = doubt is not None
        return [
            self._result(job, reply, delayed if job.delayed else length, target, repeated)
            for job, reply in zip(jobs, replies, strict=True)
        ]

    def _result(
        self, job: JobSubmission, reply: Reply, length: int, target: LaneTarget, repeated: bool
    ) -> SubmissionResult | PenstockError:
        """Read what `submit_jobs` returns for one job."""
        if reply == SubmitStatus.STORED:
            return SubmissionResult(True, length, id=decode_id(job.name))
        if isinstance(reply, int):
            return self._full(length, target, SubmitStatus(reply))
        if isinstance(reply, PenstockError):
            return reply
        if reply[0] != SubmitStatus.TAKEN:
            return SubmissionResult(True, length, reply[1], reply[2], decode_id(job.name))
        holder = text(reply[1])
        created = repeated and holder == job.name
        value = reply[2] if len(reply) > 2 else b""  # noqa: PLR2004  a `UniqueMark`'s value
        return SubmissionResult(created, length, id=decode_id(holder), holder_value=value)

    # ---- shared

    def _call(self, target: LaneTarget, policy: str, shared: bytes | None = None) -> Prepared:
        """The call of `push_jobs`, or of `submit_jobs` with shared fields, but for the jobs."""
        queue = self._queue
        key = (target.lane, queue.side, policy, target.max_size, queue.options.max_bytes, shared)
        call = self._prepared.get(key)
        if call is None:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            scripts, settings = QueueScripts.of(queue.client), queue.client.settings.queues
            if shared is None:
                make = partial(scripts.push_jobs, items=())
            else:
                delayed = settings.max_delayed
                make = partial(scripts.submit_jobs, max_delayed=delayed, fields=shared, jobs=())
            made = make(
                keys=self._keys,
                lane=target.lane,
                side=queue.side,
                policy=policy,
                max_size=target.max_size,
                max_bytes=queue.options.max_bytes,
                max_overflow=settings.max_overflow,
                max_lanes=settings.max_lanes,
            )
            call = self._prepared[key] = made.prepared(self._link)
        return call

    async def note_losses(self, packed: Sequence[bytes]) -> None:
        """Close the records of dropped or moved jobs that the script could not read."""
        await note_losses(self._queue.client, self._queue.codec, self._keys, packed)

    def _full(self, length: int, target: LaneTarget, status: SubmitStatus) -> QueueFull:
        settings = self._queue.client.settings.queues
        limits = (target.max_size, self._queue.options.max_bytes)
        if status == SubmitStatus.TOO_MANY_LANES:
            return QueueFull(
                self._keys.queue, length, *limits, "fair lanes with jobs", settings.max_lanes
            )
        if status == SubmitStatus.TOO_MANY_DELAYED:
            return QueueFull(
                self._keys.queue, length, *limits, "delayed jobs", settings.max_delayed
            )
        return QueueFull(self._keys.queue, length, *limits)


async def _some_at_once(call: Callable[[E], Awaitable[T]], entries: Iterable[E]) -> list[T]:
    """Results of a call for each entry, `_IN_FLIGHT` at once."""
    gate = asyncio.Semaphore(_IN_FLIGHT)

    async def gated(entry: E) -> T:
        async with gate:
            return await call(entry)

    return await asyncio.gather(*map(gated, entries))


def _retries(wait: WaitForRoom) -> Iterator[tuple[float, str]]:
    """Yield pause and policy of each further attempt; only the last one counts as refused."""
    deadline, pause_s = time.monotonic() + wait.timeout_s, _FIRST_PAUSE_S
    while (left_s := deadline - time.monotonic()) > 0:
        yield min(pause_s, left_s), "block"
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
    yield 0.0, "reject"


def _full_at(results: Sequence[SubmissionResult | PenstockError]) -> list[int]:
    return [at for at, one in enumerate(results) if isinstance(one, QueueFull)]


def _alike(jobs: Sequence[JobSubmission]) -> Iterator[Sequence[JobSubmission]]:
    """Cut where jobs cannot share a call."""
    first = 0
    for place in range(1, len(jobs)):
        one, other = jobs[place], jobs[first]
        if one.shared != other.shared or one.repeatable != other.repeatable:
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
    replies: Sequence[PushReply | PenstockError], chunks: Sequence[slice], ids: Sequence[str]
) -> PushReply:
    stored = [reply for reply in replies if isinstance(reply, PushReply)]
    if len(stored) == len(replies):
        return PushReply(
            PushStatus.STORED,
            max(reply.length for reply in stored),
            sum(reply.moved for reply in stored),
            sum(reply.dropped for reply in stored),
            [],
        )
    failures = [reply for reply in replies if isinstance(reply, PenstockError)]
    if not stored and (len(chunks) == 1 or all(isinstance(one, QueueFull) for one in failures)):
        raise failures[0]
    outcomes: list[str | PenstockError] = []
    for reply, chunk in zip(replies, chunks, strict=True):
        these = ids[chunk]
        outcomes += these if isinstance(reply, PushReply) else [reply] * len(these)
    raise SendBatchFailed(outcomes)
