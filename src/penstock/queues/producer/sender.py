"""Sending calls of a task: encoded, then pushed or submitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from penstock.errors import InvalidJob
from penstock.queues.declared_queue import DeclaredQueue
from penstock.queues.job import Job
from penstock.queues.options import SendOptions
from penstock.queues.producer.enqueuer import Enqueuer, JobSubmission
from penstock.queues.signature import NO_ARGS, NO_KWARGS, encode_value
from penstock.queues.storage.job_record import (
    NO_FIELDS,
    RecordFields,
    shared_fields,
    split_fields,
)
from penstock.queues.storage.stored_job import Meta, new_id, new_ids
from penstock.redis.codec import Form, Unpacked

__all__ = ["Call", "JobSender", "meta_of"]

PLAIN: Final = SendOptions()
_PAIR: Final = 2
_encode_meta = msgspec.json.Encoder().encode
_TRACKED: Final = b',"_penstock":%b}' % _encode_meta(Meta(tracked=True))

Check = Callable[[tuple[Any, ...], Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one job; made by `task.call(…)`, which type checkers verify."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


class JobSender:
    """Encodes calls of one task, and sends each by the cheapest script that does what it needs."""

    def __init__(
        self,
        queue: DeclaredQueue,
        enqueuer: Enqueuer,
        task: str,
        *,
        check: Check | None = None,
        result_type: Any = Any,
        status: Callable[[], bool] = lambda: False,
        max_attempts: Callable[[], int] = lambda: 0,
    ) -> None:
        self._queue, self._enqueuer, self._task, self._type = queue, enqueuer, task, result_type
        self._status, self._max_attempts = status, max_attempts
        self._item, self._items = _compiled(task, check)
        max_job_bytes = queue.client.settings.queues.max_job_bytes
        self._uncompressed = min(queue.codec.compress_above, max_job_bytes)

    async def send(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: SendOptions = PLAIN
    ) -> Job[Any]:
        """Send one call."""
        queue = self._queue
        if options is PLAIN and not queue.options.status_fields and queue.signatures is None:
            job_id = new_id()  # hex digits: no escapes in JSON
            item = self._item(b'"%b"' % job_id.encode(), args, kwargs)
            tracked = self._status()
            if tracked:
                item = item[:-1] + _TRACKED
            if len(item) > self._uncompressed:
                item = await self._finish(item)
            if tracked:
                submission = _tracked(job_id, item, self._shared_fields())
                await self._enqueuer.submit(submission, queue.plain_target)
            else:
                await self._enqueuer.push(queue.plain_target, item)
            return Job(queue, job_id, True, self._type)
        job_id = options.id or new_id()
        target = queue.target(options)
        now_ms = await queue.server_ms() if options.expires is not None else 0
        item, fields = await self._encode(job_id, args, kwargs, options, now_ms)
        if not (options.needs_submit or fields.shared):
            await self._enqueuer.push(target, item)
            return Job(queue, job_id, True, self._type)
        submission = JobSubmission.of(queue.keyring, job_id, item, options, fields)
        submitted = await self._enqueuer.submit(submission, target)
        return Job(queue, submitted.id, submitted.created, self._type)

    async def send_many(
        self,
        calls: Iterable[tuple[Any, ...] | Mapping[str, Any] | Call],
        options: SendOptions | Callable[[tuple[Any, ...], Mapping[str, Any]], SendOptions] = PLAIN,
    ) -> list[Job[Any]]:
        """Send calls; all are encoded before the first is sent."""
        queue, each = self._queue, list(calls)
        ids = new_ids(len(each))
        if options is PLAIN and not queue.options.status_fields and queue.signatures is None:
            items, uncompressed = self._items(ids, each), self._uncompressed
            tracked = self._status()
            if tracked:
                items = [item[:-1] + _TRACKED for item in items]
            if max(map(len, items), default=0) > uncompressed:
                items = [
                    item if len(item) <= uncompressed else await self._finish(item)
                    for item in items
                ]
            if tracked:
                fields = self._shared_fields()
                jobs = [_tracked(*job, fields) for job in zip(ids, items, strict=True)]
                await self._enqueuer.submit_many(jobs, queue.plain_target)
            else:
                await self._enqueuer.push_many(items, ids, queue.plain_target)
            return [Job(queue, job_id, True, self._type) for job_id in ids]
        arguments = [_call_of(call) for call in each]
        if len(each) > 1 and isinstance(options, SendOptions) and options.id is not None:
            raise InvalidJob("many jobs cannot share one job_id or idempotency_key")
        return await self._send_with_options(arguments, ids, options)

    async def _send_with_options(
        self,
        calls: list[tuple[tuple[Any, ...], Mapping[str, Any]]],
        ids: list[str],
        options: SendOptions | Callable[[tuple[Any, ...], Mapping[str, Any]], SendOptions],
    ) -> list[Job[Any]]:
        queue = self._queue
        now_ms = await queue.server_ms()
        jobs: list[tuple[str, bytes, RecordFields, SendOptions]] = []
        needs_submit = False
        for new, (args, kwargs) in zip(ids, calls, strict=True):
            own = options if isinstance(options, SendOptions) else options(args, kwargs)
            job_id = own.id or new
            item, fields = await self._encode(job_id, args, kwargs, own, now_ms)
            jobs.append((job_id, item, fields, own))
            needs_submit = needs_submit or own.needs_submit or bool(fields.shared)
        if not jobs:
            return []
        target = queue.target(jobs[0][3])
        if not needs_submit:
            names = [job_id for job_id, *_ in jobs]
            await self._enqueuer.push_many([item for _, item, *_ in jobs], names, target)
            return [Job(queue, job_id, True, self._type) for job_id in names]
        submitted = await self._enqueuer.submit_many(
            [
                JobSubmission.of(queue.keyring, job_id, item, own, fields)
                for job_id, item, fields, own in jobs
            ],
            target,
        )
        return [Job(queue, one.id, one.created, self._type) for one in submitted]

    def _shared_fields(self) -> bytes:
        return shared_fields(self._queue.name, self._task, self._max_attempts())

    async def _encode(
        self,
        job_id: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: SendOptions,
        now_ms: int,
    ) -> tuple[bytes, RecordFields]:
        """Return the job with its metadata, and the fields of its record, if it has one."""
        queue = self._queue
        tracked = self._status() or options.idempotency_key is not None
        meta = meta_of(options, tracked=tracked, now_ms=now_ms)
        data = self._item(_encode_meta(job_id), args, kwargs)
        if queue.signatures is not None:
            meta = queue.signatures.signed_call(job_id, self._task, data, meta)
        if meta is not None:
            data = b'%b,"_penstock":%b}' % (data[:-1], _encode_meta(meta))
        fields = NO_FIELDS
        if tracked:
            fields = split_fields(
                job_id=job_id,
                name=queue.keyring.record_name(job_id),
                queue=queue.name,
                task=self._task,
                max_attempts=options.max_attempts or self._max_attempts(),
                group=options.group or "",
                lane=queue.lane_of(options),
                unique=queue.held_key(options),
                copied=_copied(queue.options.status_fields, args, kwargs),
            )
        return data if len(data) <= self._uncompressed else await self._finish(data), fields

    async def _finish(self, data: bytes) -> bytes:
        """Compress a large job, very large ones in a thread."""
        codec = self._queue.codec
        if len(data) > codec.compress_above:
            stored = codec.begin(data, Form.TEXT)
            data = await codec.finish(stored) if isinstance(stored, Unpacked) else stored
        return self._enqueuer.check_size(data)


def _tracked(job_id: str, item: bytes, fields: bytes) -> JobSubmission:
    """A new job with a record and no options: `JobSubmission.of` in fewer steps."""
    return JobSubmission(job_id, b"%b\n%b" % (job_id.encode(), item), fields, repeatable=True)


def meta_of(options: SendOptions, *, tracked: bool, now_ms: int, id: str = "") -> Meta | None:  # noqa: A002
    """Metadata that a job needs for its options; None if it needs none.

    A unique key with `unique_for` is left out: the job's end does not free it.
    """
    unique = options.unique if options.unique_for is None else None
    if not (
        tracked
        or id
        or unique
        or options.group
        or options.max_attempts
        or options.headers
        or options.expires is not None
    ):
        return None
    return Meta(
        id=id,
        unique=unique or "",
        expires_ms=options.expires_ms(now_ms),
        max_attempts=options.max_attempts or 0,
        group=options.group or "",
        tracked=tracked,
        headers=dict(options.headers or {}),
    )


def _copied(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, object]:
    """Arguments that are copied into the record."""
    copied: dict[str, object] = {}
    if "args" in names:
        copied["args"] = encode_value(args).decode()
    if "kwargs" in names:
        copied["kwargs"] = encode_value(kwargs).decode()
    return copied


def _compiled(
    task: str, check: Check | None
) -> tuple[
    Callable[[bytes, tuple[Any, ...], Mapping[str, Any]], bytes],
    Callable[[Sequence[str], Sequence[object]], list[bytes]],
]:
    """Return the encoders of one call and of many; bulk sends depend on their speed."""
    middle = b',"task":%b,"args":' % _encode_meta(task)

    def item(quoted_id: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        if check is not None:
            check(args, kwargs)
        positional = encode_value(args) if args else NO_ARGS
        named = encode_value(kwargs) if kwargs else NO_KWARGS
        return b'{"id":%b%b%b,"kwargs":%b}' % (quoted_id, middle, positional, named)

    def items(ids: Sequence[str], calls: Sequence[object]) -> list[bytes]:
        made: list[bytes] = []
        add, begin, nothing = made.append, b'"' + middle, dict[str, Any]()
        for job_id, call in zip(ids, calls, strict=True):
            if type(call) is tuple:
                args = cast("tuple[Any, ...]", call)
                if len(args) == _PAIR and type(args[0]) is tuple and type(args[1]) is dict:
                    raise _ambiguous()
                if check is not None:
                    check(args, nothing)
                add(b'{"id":"%b%b%b,"kwargs":{}}' % (job_id.encode(), begin, encode_value(args)))
            else:
                add(item(b'"%b"' % job_id.encode(), *_call_of(call)))
        return made

    return item, items


def _call_of(call: object) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(call, Call):
        return call.args, call.kwargs
    if isinstance(call, tuple):
        args = tuple(cast("tuple[Any, ...]", call))
        if len(args) == _PAIR and type(args[0]) is tuple and type(args[1]) is dict:
            raise _ambiguous()
        return args, {}
    if isinstance(call, Mapping):
        return (), dict(cast("Mapping[str, Any]", call))
    raise InvalidJob(
        f"a call given as {type(call).__name__}: expected a tuple of positional arguments, a "
        "mapping of named ones, or task.call(…)"
    )


def _ambiguous() -> InvalidJob:
    return InvalidJob(
        "a call given as (tuple, dict): two positional arguments, or positional and named ones? "
        "use task.call(3, lang='fr')"
    )
