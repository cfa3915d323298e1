"""Jobs that are no calls of a task: any text, and JSON of any shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from penstock.errors import InvalidJob
from penstock.queues.adding import Added, Submission, Target, UniqueMark
from penstock.queues.attempts import limit_of
from penstock.queues.items import UNREADABLE, Item, new_id, read_item, write_item
from penstock.queues.options import SendOptions
from penstock.queues.records import NO_FIELDS, Fields, first_fields, split_fields
from penstock.queues.sending import meta_of
from penstock.redis.codec import Form, Unpacked
from penstock.redis.off_loop import off_loop
from penstock.redis.wire import Argument

if TYPE_CHECKING:
    from penstock.queues.queue import Queue

__all__ = ["RawJob", "RawJobs"]

_members = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(frozen=True, slots=True)
class RawJob:
    """A raw job as it is to be stored."""

    item: bytes
    options: SendOptions
    id: str = ""
    fields: Fields = NO_FIELDS

    @property
    def needs_script(self) -> bool:
        """Whether `submit_jobs` has to add it."""
        return bool(self.fields.shared) or self.options.alone


class RawJobs:
    """Encodes the raw jobs of one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self._codec = queue, queue.codec
        type_ = queue.options.type
        self._encode: Callable[[Any], bytes | Unpacked]
        if type_ is Any:
            self._encode = lambda data: queue.codec.begin(data, Form.TEXT)
        else:
            self._encode = queue.codec.beginner(type_, Form.TEXT)

    async def made(self, data: Any, options: SendOptions, now_ms: int) -> RawJob:
        """Encode a job, with what is to be remembered about it."""
        stored = self._encode(data)
        if not isinstance(stored, Unpacked):
            return self._with_options(stored, options, now_ms)
        packed = await self._codec.finish(stored)
        return await off_loop(self._with_options, packed, options, now_ms)

    def _with_options(self, stored: bytes, options: SendOptions, now_ms: int) -> RawJob:
        """Add what is to be remembered. Of a large job this runs in a thread."""
        tracked = self._queue.options.status
        if (
            not tracked
            and meta_of(options, tracked=False, now_ms=now_ms) is None
            and (not options.alone and options.job_id is None)
        ):
            return RawJob(self._queue.adder.check_size(stored), options)
        item = read_item(stored, self._codec)
        if options.job_id is not None and item.id and item.id != options.job_id:
            raise InvalidJob(f"job_id = {options.job_id!r}, but the job itself says {item.id!r}")
        job_id = options.job_id or item.id or new_id()
        said = meta_of(
            options, tracked=tracked, now_ms=now_ms, id="" if item.id == job_id else job_id
        )
        if said is not None:
            # What the job brings along stays: a count of its attempts, perhaps.
            kept = {
                name: value
                for name in ("attempts", "first_failed_ms", "history", "replays")
                if (value := getattr(item.meta, name))
            }
            meta = msgspec.structs.replace(said, **kept)
            stored = write_item(item, meta, self._codec)
        fields = self._fields(item, job_id, options) if tracked else NO_FIELDS
        return RawJob(self._queue.adder.check_size(stored), options, job_id, fields)

    async def submit(self, job: RawJob, target: Target, mark: UniqueMark | None = None) -> Added:
        """Add one that a plain push cannot; as `Adder.submit`."""
        return await self._queue.adder.submit(self.submission(job, mark), target)

    def submission(self, job: RawJob, mark: UniqueMark | None = None) -> Submission:
        """How such a job is submitted."""
        return Submission.of(self._queue.keyring, job.id, job.item, job.options, job.fields, mark)

    def _fields(self, item: Item, job_id: str, options: SendOptions) -> Fields:
        queue = self._queue
        return split_fields(
            job_id=job_id,
            name=queue.keyring.record_name(job_id),
            queue=queue.name,
            task=item.task,
            max_attempts=options.max_attempts or limit_of(item, queue.options.retry),
            group=options.group or "",
            lane=queue.lane_of(options),
            unique=queue.held_key(options),
            copied=self._copied(item),
        )

    def found_fields(self, item: Item, job_id: str, lane: str, max_attempts: int) -> list[Argument]:
        """The record of a job that another program pushed, when a worker meets it."""
        return first_fields(
            job_id=job_id,
            queue=self._queue.name,
            task=item.task,
            max_attempts=max_attempts,
            group=item.meta.group,
            lane=lane,
            unique="",
            copied=self._copied(item),
        )

    def _copied(self, item: Item) -> dict[str, object]:
        names = self._queue.options.status_fields
        if not names:
            return {}
        try:
            members = _members(item.body)
        except UNREADABLE:
            return {}
        found = {name: _value(members[name]) for name in names if name in members}
        return {name: value for name, value in found.items() if value is not None}


def _value(stored: Raw) -> object:
    """Text as itself, numbers and the like as they are written; None for what cannot be read."""
    try:
        value: object = msgspec.json.decode(stored)
    except UNREADABLE:
        return None
    return value if value is None or isinstance(value, str) else stored
