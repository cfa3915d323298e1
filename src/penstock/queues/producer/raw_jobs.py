"""Raw jobs: any text or JSON that is not a call of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from penstock.errors import InvalidJob
from penstock.queues.declared_queue import DeclaredQueue, LaneTarget
from penstock.queues.options import SendOptions
from penstock.queues.producer.enqueuer import (
    Enqueuer,
    JobSubmission,
    SubmissionResult,
    UniqueMark,
)
from penstock.queues.producer.sender import meta_of
from penstock.queues.storage.job_record import (
    NO_FIELDS,
    RecordFields,
    first_fields,
    split_fields,
)
from penstock.queues.storage.stored_job import (
    NO_META,
    UNREADABLE,
    Item,
    new_id,
    read_item,
    trimmed,
    write_item,
)
from penstock.queues.worker.attempts import limit_of
from penstock.redis.codec import Form, Unpacked
from penstock.redis.codec.off_loop import off_loop
from penstock.redis.wire import Argument

__all__ = ["RawJob", "RawJobs"]

_members = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(frozen=True, slots=True)
class RawJob:
    """An encoded raw job."""

    item: bytes
    options: SendOptions
    id: str = ""
    fields: RecordFields = NO_FIELDS

    @property
    def needs_submit(self) -> bool:
        """Whether it takes `submit_jobs` to add it."""
        return bool(self.fields.shared) or self.options.needs_submit


class RawJobs:
    """Encodes the raw jobs of one queue."""

    def __init__(self, queue: DeclaredQueue, enqueuer: Enqueuer) -> None:
        self._queue, self._enqueuer, self._codec = queue, enqueuer, queue.codec
        type_ = queue.options.type
        self._encode: Callable[[Any], bytes | Unpacked]
        if type_ is Any:
            self._encode = lambda data: queue.codec.begin(data, Form.TEXT)
        else:
            self._encode = queue.codec.beginner(type_, Form.TEXT)

    async def encode(self, data: Any, options: SendOptions, now_ms: int) -> RawJob:
        """Encode a job with its metadata."""
        stored = self._encode(data)
        if not isinstance(stored, Unpacked):
            return self._with_options(stored, options, now_ms)
        packed = await self._codec.finish(stored)
        return await off_loop(self._with_options, packed, options, now_ms)

    def _with_options(self, stored: bytes, options: SendOptions, now_ms: int) -> RawJob:
        """Add metadata. For a large job this runs in a thread."""
        tracked, signatures = self._queue.options.status, self._queue.signatures
        if (
            not tracked
            and signatures is None
            and meta_of(options, tracked=False, now_ms=now_ms) is None
            and (not options.needs_submit and options.job_id is None)
        ):
            return RawJob(self._enqueuer.check_size(stored), options)
        item = read_item(stored, self._codec)
        if options.job_id is not None and item.id and item.id != options.job_id:
            raise InvalidJob(f"job_id = {options.job_id!r}, but the job's own id is {item.id!r}")
        job_id = options.job_id or item.id or new_id()
        meta = meta_of(
            options, tracked=tracked, now_ms=now_ms, id="" if item.id == job_id else job_id
        )
        if signatures is not None:
            item = msgspec.structs.replace(item, id=job_id, body=trimmed(item.body))
            meta = signatures.signed_item(item, meta or NO_META)
        if meta is not None:
            # Metadata that the job brings along stays, such as the count of its attempts.
            kept = {
                name: value
                for name in ("attempts", "first_failed_ms", "history", "replays")
                if (value := getattr(item.meta, name))
            }
            stored = write_item(item, msgspec.structs.replace(meta, **kept), self._codec)
        fields = self._fields(item, job_id, options) if tracked else NO_FIELDS
        return RawJob(self._enqueuer.check_size(stored), options, job_id, fields)

    async def submit(
        self, job: RawJob, target: LaneTarget, mark: UniqueMark | None = None
    ) -> SubmissionResult:
        """Add a job with `Enqueuer.submit`."""
        return await self._enqueuer.submit(self.submission(job, mark), target)

    def submission(self, job: RawJob, mark: UniqueMark | None = None) -> JobSubmission:
        """The job as `Enqueuer.submit_many` takes it."""
        return JobSubmission.of(
            self._queue.keyring, job.id, job.item, job.options, job.fields, mark
        )

    def _fields(self, item: Item, job_id: str, options: SendOptions) -> RecordFields:
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
        """First record of a job that another program pushed, written when a worker claims it."""
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
        values = {name: _value(members[name]) for name in names if name in members}
        return {name: value for name, value in values.items() if value is not None}


def _value(stored: Raw) -> object:
    """Text decoded, other values as written; None if it cannot be read."""
    try:
        value: object = msgspec.json.decode(stored)
    except UNREADABLE:
        return None
    return value if value is None or isinstance(value, str) else stored
