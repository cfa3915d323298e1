"""The record of a job: one hash, with the field names of the contract for documents.

It is written by scripts at every step of the job, and read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Self, get_args

import msgspec

from penstock.queues.storage.stored_job import LATEST_MS, UNREADABLE
from penstock.redis.wire import Argument

__all__ = [
    "FINAL",
    "NO_FIELDS",
    "OWN_FIELDS",
    "STATES",
    "JobProgress",
    "JobRecord",
    "JobState",
    "RecordFields",
    "first_fields",
    "shared_fields",
    "split_fields",
]

JobState = Literal[
    "processing", "retrying", "queued", "submitted", "failed", "done", "cancelled", "expired"
]
STATES: Final[tuple[JobState, ...]] = get_args(JobState)
"""In the order of a search that names none."""
FINAL: Final = frozenset({"done", "failed", "cancelled", "expired"})
"""States that no job leaves."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_EARLIEST_MS: Final = -62_135_596_800_000
"""The beginning of the year 1."""
OWN_FIELDS: Final = frozenset(
    {
        *("job_id", "queue", "task", "status", "attempt", "max_attempts", "submitted_at"),
        *("started_at", "completed_at", "failed_at", "duration_seconds", "worker", "claim"),
        *("error", "error_type", "error_code", "suggestions", "traceback", "reason", "result"),
        *("retry_count", "max_retries", "group", "lane", "unique", "cancel_asked", "waited"),
        *("progress_done", "progress_total", "progress_note"),
    }
)
"""What Penstock writes into a record; everything else is the job's."""


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress that a job reports with `JobContext.progress`."""

    done: int | None = None
    total: int | None = None
    note: str = ""
    counts: dict[str, float] = {}
    """What it counts under names of its own, such as `chunks_created`."""

    @property
    def ratio(self) -> float | None:
        """From 0 to 1; None if the job does not say."""
        if self.done is None or not self.total:
            return None
        return min(max(self.done / self.total, 0.0), 1.0)


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded record of a job. Times are epoch ms by the server's clock."""

    job_id: str
    queue: str = ""
    task: str = ""
    status: str = ""
    """submitted, queued, processing, retrying, done, failed, cancelled or expired."""
    attempt: int = 0
    """Of the attempt that began last; 0 if none has begun."""
    max_attempts: int = 0
    """0 if the worker decides."""
    submitted_ms: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    duration_s: float | None = None
    worker: str = ""
    group: str = ""
    progress: JobProgress = JobProgress()
    error: str = ""
    error_type: str = ""
    error_code: str = ""
    suggestions: tuple[str, ...] = ()
    traceback: str = ""
    reason: str = ""
    """Why it is among the dead letters."""
    cancel_asked: bool = False
    retry_count: int = 0
    max_retries: int | None = None
    result: bytes | None = None
    """As stored: `Job.result()` reads it."""
    fields: dict[str, str] = {}
    """Everything else: what was copied from the job, and what the job counts."""

    @classmethod
    def of(cls, queue: str, job_id: str, stored: Mapping[bytes, bytes] | Sequence[bytes]) -> Self:
        """Read a hash, as `HGETALL` gives it. What is not as it should be counts as missing."""
        texts, result = _texts(stored)
        others = {name: value for name, value in texts.items() if name not in OWN_FIELDS}
        get = texts.get
        return cls(
            job_id=get("job_id") or job_id,
            queue=get("queue") or queue,
            task=get("task", ""),
            status=get("status", ""),
            attempt=_int(get("attempt")) or 0,
            max_attempts=_int(get("max_attempts")) or 0,
            submitted_ms=_ms(get("submitted_at")),
            started_ms=_ms(get("started_at")),
            ended_ms=_ms(get("failed_at") or get("completed_at")),
            duration_s=_float(get("duration_seconds")),
            worker=get("worker", ""),
            group=get("group", ""),
            progress=_progress(texts, others),
            error=get("error", ""),
            error_type=get("error_type", ""),
            error_code=get("error_code", ""),
            suggestions=_suggestions(get("suggestions", "")),
            traceback=get("traceback", ""),
            reason=get("reason", ""),
            cancel_asked="cancel_asked" in texts,
            retry_count=_int(get("retry_count")) or 0,
            max_retries=_int(get("max_retries")),
            result=result,
            fields=others,
        )

    @property
    def is_final(self) -> bool:
        """Whether the job has ended, one way or another."""
        return self.status in FINAL

    def contract_view(self) -> dict[str, Any]:
        """The JSON of the contract for documents, with that of a failed job."""
        view: dict[str, Any] = {"job_id": self.job_id, "status": self.status}
        view.update({name: _number_or_text(value) for name, value in self.fields.items()})
        view |= {
            "submitted_at": _iso(self.submitted_ms),
            "started_at": _iso(self.started_ms),
            "completed_at": _iso(self.ended_ms) if self.status != "failed" else None,
            "duration_seconds": self.duration_s,
            # What failed before it succeeded is no error of the job.
            "error": (self.error or None) if self.status != "done" else None,
            "error_type": (self.error_type or None) if self.status != "done" else None,
            "retry_count": self.retry_count,
        }
        if self.status == "failed":
            view |= {
                "failed_at": _iso(self.ended_ms),
                "error_code": self.error_code or None,
                "suggestions": list(self.suggestions),
                "traceback": self.traceback or None,
                "max_retries": self.max_retries,
            }
        return view


def first_fields(
    *,
    job_id: str,
    queue: str,
    task: str,
    max_attempts: int,
    group: str,
    lane: str,
    unique: str,
    copied: Mapping[str, object],
) -> list[Argument]:
    """Names and values of a record when its job is submitted."""
    # Copied fields first: they cannot overwrite those of Penstock.
    fields: list[Argument] = []
    for name, value in copied.items():
        if name not in OWN_FIELDS:
            fields += (name, _stored(value))
    fields += ("job_id", job_id, "queue", queue, "retry_count", 0)
    fields += ("max_attempts", max_attempts, "max_retries", max_attempts - 1)
    for name, value in (("task", task), ("group", group), ("lane", lane), ("unique", unique)):
        if value:
            fields += (name, value)
    return fields


class RecordFields(NamedTuple):
    """Names and values of a record when its job is submitted, each as a JSON list."""

    shared: bytes
    """What jobs that are sent alike have in common."""
    own: bytes = b""


NO_FIELDS: Final = RecordFields(b"")
"""Of a job without a record."""


def split_fields(
    *,
    job_id: str,
    name: str,
    queue: str,
    task: str,
    max_attempts: int,
    group: str,
    lane: str,
    unique: str,
    copied: Mapping[str, object],
) -> RecordFields:
    """The same as `first_fields`, for jobs that are submitted together.

    `name` is the id as records are named, which is what the script writes as `job_id`.
    """
    own: list[str] = []
    for field, value in copied.items():
        if field not in OWN_FIELDS:
            own += (field, _text(_stored(value)))
    if name != job_id:
        own += ("job_id", job_id)
    if unique:
        own += ("unique", unique)
    shared = shared_fields(queue, task, max_attempts, group, lane)
    return RecordFields(shared, msgspec.json.encode(own) if own else b"")


@lru_cache(256)
def shared_fields(
    queue: str, task: str, max_attempts: int, group: str = "", lane: str = ""
) -> bytes:
    """What the records of such jobs have in common when they are submitted, as a JSON list."""
    fields = first_fields(
        job_id="", queue=queue, task=task, max_attempts=max_attempts, group=group, lane=lane,
        unique="", copied={},
    )  # fmt: skip
    return msgspec.json.encode([_text(value) for value in fields[2:]])  # each has an id of its own


def _text(value: Argument) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _stored(value: object) -> str | bytes:
    return value if isinstance(value, str) else msgspec.json.encode(value)


def _texts(stored: Mapping[bytes, bytes] | Sequence[bytes]) -> tuple[dict[str, str], bytes | None]:
    if not isinstance(stored, Mapping):
        stored = dict(zip(stored[::2], stored[1::2], strict=False))
    result = stored.get(b"result")
    texts = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in stored.items()
        if name != b"result"
    }
    return texts, result


def _progress(texts: Mapping[str, str], others: Mapping[str, str]) -> JobProgress:
    counts = {
        name: number for name, value in others.items() if (number := _float(value)) is not None
    }
    return JobProgress(
        done=_int(texts.get("progress_done")),
        total=_int(texts.get("progress_total")),
        note=texts.get("progress_note", ""),
        counts=counts,
    )


def _suggestions(text: str) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[str, ...]) if text else ()
    except UNREADABLE:
        return ()


def _number_or_text(value: str) -> int | float | str:
    whole = _int(value)
    if whole is not None and str(whole) == value:
        return whole
    number = _float(value)
    return value if number is None or not value[-1:].isdigit() else number


def _int(text: str | None) -> int | None:
    try:
        return msgspec.convert(text, int, strict=False) if text else None
    except UNREADABLE:
        return None


def _float(text: str | None) -> float | None:
    try:
        number = msgspec.convert(text, float, strict=False) if text else None
    except UNREADABLE:
        return None
    return number if number is not None and abs(number) < float("inf") else None


def _ms(text: str | None) -> int | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    ms = (moment - _EPOCH) // _MS
    return ms if _EARLIEST_MS <= ms <= LATEST_MS else None  # no datetime in UTC otherwise


def _iso(ms: int | None) -> str | None:
    if ms is None:
        return None
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
