"""Sending calls of one task: by its own function's signature, or by name alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from penstock.errors import InvalidJob
from penstock.queues.adding import Submission
from penstock.queues.items import Meta, new_id, new_ids
from penstock.queues.job import Job
from penstock.queues.options import SendOptions
from penstock.queues.records import NO_FIELDS, Fields, shared_fields, split_fields
from penstock.queues.signature import NO_ARGS, NO_KWARGS, encode_value
from penstock.redis.codec import Form, Unpacked

if TYPE_CHECKING:
    from penstock.queues.queue import Queue

__all__ = ["Call", "Dispatch", "meta_of"]

PLAIN: Final = SendOptions()
_PAIR: Final = 2
_encode_meta = msgspec.json.Encoder().encode
_TRACKED: Final = b',"_penstock":%b}' % _encode_meta(Meta(tracked=True))

Check = Callable[[tuple[Any, ...], Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one job; `task.call(…)` makes it with the types checked."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Dispatch:
    """Encodes calls of one task, and sends each the shortest way that keeps its promise."""

    def __init__(
        self,
        queue: Queue,
        task: str,
        *,
        check: Check | None = None,
        result_type: Any = Any,
        status: Callable[[], bool] = lambda: False,
        max_attempts: Callable[[], int] = lambda: 0,
    ) -> None:
        self._queue, self._task, self._type = queue, task, result_type
        self._status, self._max_attempts = status, max_attempts
        self._item, self._items = _compiled(task, check)
        largest = queue.client.settings.queues.max_job_bytes
        self._as_it_is = min(queue.codec.compress_above, largest)

    async def send(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: SendOptions = PLAIN
    ) -> Job[Any]:
        """Send one call."""
        queue = self._queue
        if options is PLAIN and not queue.options.status_fields:
            job_id = new_id()
            item = self._item(_quoted(job_id), args, kwargs)
            tracked = self._status()
            if tracked:
                item = item[:-1] + _TRACKED
            if len(item) > self._as_it_is:
                item = await self._finish(item)
            if tracked:
                submission = _tracked(job_id, item, self._shared_fields())
                await queue.adder.submit(submission, queue.plain_target)
            else:
                await queue.adder.add_one(item, queue.plain_target)
            return Job(queue, job_id, True, self._type)
        job_id = options.id or new_id()
        target = queue.target(options)
        now_ms = await queue.server_ms() if options.expires is not None else 0
        item, fields = await self._optioned(job_id, args, kwargs, options, now_ms)
        if not (options.alone or fields.shared):
            await queue.adder.add_one(item, target)
            return Job(queue, job_id, True, self._type)
        submission = Submission.of(queue.keyring, job_id, item, options, fields)
        added = await queue.adder.submit(submission, target)
        return Job(queue, added.id, added.created, self._type)

    async def send_many(
        self,
        calls: Iterable[tuple[Any, ...] | Mapping[str, Any] | Call],
        options: SendOptions | Callable[[tuple[Any, ...], Mapping[str, Any]], SendOptions] = PLAIN,
    ) -> list[Job[Any]]:
        """Send calls; all are encoded before the first is sent."""
        queue, said = self._queue, list(calls)
        ids = new_ids(len(said))
        if options is PLAIN and not queue.options.status_fields:
            items, as_it_is = self._items(ids, said), self._as_it_is
            tracked = self._status()
            if tracked:
                items = [item[:-1] + _TRACKED for item in items]
            if max(map(len, items), default=0) > as_it_is:
                items = [
                    item if len(item) <= as_it_is else await self._finish(item) for item in items
                ]
            if tracked:
                fields = self._shared_fields()
                jobs = [_tracked(*job, fields) for job in zip(ids, items, strict=True)]
                await queue.adder.submit_many(jobs, queue.plain_target)
            else:
                await queue.adder.add_many(items, ids, queue.plain_target)
            return [Job(queue, job_id, True, self._type) for job_id in ids]
        each = [_call_of(call) for call in said]
        if len(each) > 1 and isinstance(options, SendOptions) and options.id is not None:
            raise InvalidJob("many jobs cannot share one job_id or idempotency_key")
        return await self._send_optioned(each, ids, options)

    async def _send_optioned(
        self,
        each: list[tuple[tuple[Any, ...], Mapping[str, Any]]],
        ids: list[str],
        options: SendOptions | Callable[[tuple[Any, ...], Mapping[str, Any]], SendOptions],
    ) -> list[Job[Any]]:
        queue = self._queue
        now_ms = await queue.server_ms()
        made: list[tuple[str, bytes, Fields, SendOptions]] = []
        alone = False
        for new, (args, kwargs) in zip(ids, each, strict=True):
            said = options if isinstance(options, SendOptions) else options(args, kwargs)
            job_id = said.id or new
            item, fields = await self._optioned(job_id, args, kwargs, said, now_ms)
            made.append((job_id, item, fields, said))
            alone = alone or said.alone or bool(fields.shared)
        if not made:
            return []
        target = queue.target(made[0][3])
        if not alone:
            names = [job_id for job_id, *_ in made]
            await queue.adder.add_many([item for _, item, *_ in made], names, target)
            return [Job(queue, job_id, True, self._type) for job_id in names]
        added = await queue.adder.submit_many(
            [
                Submission.of(queue.keyring, job_id, item, said, fields)
                for job_id, item, fields, said in made
            ],
            target,
        )
        return [Job(queue, one.id, one.created, self._type) for one in added]

    def _shared_fields(self) -> bytes:
        return shared_fields(self._queue.name, self._task, self._max_attempts())

    async def _optioned(
        self,
        job_id: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: SendOptions,
        now_ms: int,
    ) -> tuple[bytes, Fields]:
        """The job with what is to be remembered about it, and the fields of its record, if any."""
        queue = self._queue
        tracked = self._status() or options.idempotency_key is not None
        meta = meta_of(options, tracked=tracked, now_ms=now_ms)
        data = self._item(_encode_meta(job_id), args, kwargs)
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
        return data if len(data) <= self._as_it_is else await self._finish(data), fields

    async def _finish(self, data: bytes) -> bytes:
        """Compress a job that is not small, if need be in a thread."""
        codec = self._queue.codec
        if len(data) > codec.compress_above:
            stored = codec.begin(data, Form.TEXT)
            data = await codec.finish(stored) if isinstance(stored, Unpacked) else stored
        return self._queue.adder.check_size(data)


def _tracked(job_id: str, item: bytes, fields: bytes) -> Submission:
    """A new job with a record and nothing else, in fewer steps than `Submission.of` takes."""
    return Submission(job_id, b"%b\n%b" % (job_id.encode(), item), fields, repeatable=True)


def meta_of(options: SendOptions, *, tracked: bool, now_ms: int, id: str = "") -> Meta | None:  # noqa: A002
    """What travels with a job because of its options; None if nothing has to.

    A unique key of a window is not told: nobody is to free it when the job ends.
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
    """Which parts of a task's job stand in its record as well."""
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
    """Return what makes a task's item, and many: written without detours, bulk sends live by it."""
    middle = b',"task":%b,"args":' % _encode_meta(task)

    def item(quoted_id: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        if check is not None:
            check(args, kwargs)
        told = encode_value(args) if args else NO_ARGS
        named = encode_value(kwargs) if kwargs else NO_KWARGS
        return b'{"id":%b%b%b,"kwargs":%b}' % (quoted_id, middle, told, named)

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
                add(item(_quoted(job_id), *_call_of(call)))
        return made

    return item, items


def _quoted(new_id: str) -> bytes:
    """An id that we made, as JSON: its hex digits need no escapes."""
    return b'"%b"' % new_id.encode()


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
        "task.call(3, lang='fr') says it"
    )
