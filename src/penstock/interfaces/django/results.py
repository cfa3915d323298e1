"""Jobs as `TaskResult`s of Django."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.interfaces.django import framework
from penstock.queues.storage.job_record import JobRecord
from penstock.redis.codec import Codec

__all__ = ["as_result", "error_of", "moment", "new_result", "workers_of"]

_STATUS = {
    "submitted": "READY",
    "queued": "READY",
    "retrying": "READY",
    "processing": "RUNNING",
    "done": "SUCCESSFUL",
}
"""Every other state is a failure."""


def new_result(
    alias: str, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], **facts: Any
) -> Any:
    """A result of which nothing is known but what was asked for, and `facts`."""
    fields: dict[str, Any] = {
        "id": "",
        "status": framework.TaskResultStatus.READY,
        "enqueued_at": None,
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
        "errors": [],
        "worker_ids": [],
    }
    return framework.TaskResult(
        task=task, args=list(args), kwargs=dict(kwargs), backend=alias, **(fields | facts)
    )


def as_result(alias: str, task: Any, record: JobRecord, codec: Codec) -> Any:
    """A result of a task, read from the record of its job."""
    result = new_result(
        alias,
        task.using(queue_name=record.queue, backend=alias),
        _stored(record, "args", []),
        _stored(record, "kwargs", {}),
        id=record.job_id,
        status=framework.TaskResultStatus[_STATUS.get(record.status, "FAILED")],
        enqueued_at=moment(record.submitted_ms),
        started_at=moment(record.started_ms),
        finished_at=moment(record.ended_ms),
        last_attempted_at=moment(record.started_ms),
        errors=_errors(record),
        worker_ids=workers_of(record.attempt, record.worker),
    )
    if record.status == "done" and record.result is not None:
        object.__setattr__(result, "_return_value", codec.decode(record.result, Any))
    return result


def moment(ms: int | None) -> datetime | None:
    """A time as the project keeps its own: aware, unless it uses no time zones."""
    if ms is None:
        return None
    aware = datetime.fromtimestamp(ms / 1000, UTC)
    return aware if framework.settings.USE_TZ else framework.timezone.make_naive(aware)


def workers_of(attempt: int, last: str) -> list[str]:
    """One for each attempt, as Django counts them; only the last one is known."""
    return ["unknown"] * (attempt - 1) + [last or "unknown"] if attempt else []


def error_of(error_class: str, traceback: str) -> Any:
    path = error_class if "." in error_class else f"builtins.{error_class}"
    return framework.TaskError(exception_class_path=path, traceback=traceback)


def _errors(record: JobRecord) -> list[Any]:
    if record.error_type:
        return [error_of(record.error_type, record.traceback or record.error)]
    if record.status in {"cancelled", "expired"}:
        return [error_of("penstock.errors.JobFailed", f"the task was {record.status}")]
    return []


def _stored(record: JobRecord, name: str, otherwise: Any) -> Any:
    try:
        return msgspec.json.decode(record.fields.get(name, ""))
    except msgspec.DecodeError:
        return otherwise
