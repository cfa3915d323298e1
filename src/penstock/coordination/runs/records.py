"""Runs, their failures, starts and events, as read from the server."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from penstock.coordination.stored_names import RUN_ID, RUN_PROCESSED

__all__ = [
    "FINAL",
    "OWN_FIELDS",
    "STATUSES",
    "FailurePage",
    "RunEvent",
    "RunFailure",
    "RunRecord",
    "RunStatus",
    "TaskStart",
    "read_events",
    "read_failures",
    "read_starts",
]

RunStatus = Literal["created", "running", "paused", "completed", "failed", "cancelled"]

STATUSES: Final[tuple[RunStatus, ...]] = (
    *("created", "running", "paused"),
    *("completed", "failed", "cancelled"),
)
FINAL: Final[frozenset[str]] = frozenset({"completed", "failed", "cancelled"})
"""Statuses that a run leaves only by being reopened."""

OWN_FIELDS: Final = frozenset(
    {
        *(RUN_ID, "kind", "status", "version", "start_time", "started_ms", "updated_ms"),
        *("ended_ms", "ends_ms", "checkpoint", "watermark"),
        # Not stored: see `Run.contract_view`.
        *("current_hour", "api_calls_this_hour", RUN_PROCESSED, "redis_keys"),
    }
)
"""Fields of a run's hash that Penstock uses; all others are facts of the caller."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run as it was when it was read. Times are epoch ms by the server's clock."""

    id: str
    kind: str = ""
    status: str = ""
    """created, running, paused, completed, failed or cancelled."""
    version: int = 0
    """Rises with every change of status, facts or checkpoint."""
    started_ms: int | None = None
    updated_ms: int | None = None
    ended_ms: int | None = None
    """When it came to its final status."""
    ends_ms: int | None = None
    """When its keys go; None while it is not final or a failure in it is open."""
    start_time: str = ""
    checkpoint: Any = None
    """The cursor that was saved last."""
    watermark: int | float | str | None = None
    facts: dict[str, str] = {}
    processed: int = 0
    """How many items were processed."""
    failures: int = 0
    """How many failures are open."""
    events: int = 0
    """The number of its latest event."""

    @property
    def is_final(self) -> bool:
        """Whether it has ended, one way or another."""
        return self.status in FINAL

    @classmethod
    def of(
        cls, run: str, stored: Sequence[bytes], processed: int, failures: int, events: bytes | None
    ) -> RunRecord:
        """Read a hash, as `HGETALL` gives it. What is not as it should be counts as missing."""
        texts = _texts(stored)
        get = texts.get
        return cls(
            id=run,  # not that of the hash: by this it is found
            kind=get("kind", ""),
            status=get("status", ""),
            version=_int(get("version")) or 0,
            started_ms=_int(get("started_ms")),
            updated_ms=_int(get("updated_ms")),
            ended_ms=_int(get("ended_ms")),
            ends_ms=_int(get("ends_ms")),
            start_time=get("start_time", ""),
            checkpoint=_json(get("checkpoint")),
            watermark=_watermark(get("watermark")),
            facts={name: value for name, value in texts.items() if name not in OWN_FIELDS},
            processed=processed,
            failures=failures,
            events=_int((events or b"").decode(errors="replace")) or 0,
        )


class RunFailure(msgspec.Struct, frozen=True, kw_only=True):
    """An item that failed in a run and is not resolved. Times are epoch ms."""

    item: str
    """Its id; bytes that are not UTF-8 are shown as `\\xHH`."""
    attempts: int = 0
    """How often it failed."""
    error_type: str = ""
    error: str = ""
    first_ms: int | None = None
    last_ms: int | None = None
    due_ms: int | None = None
    """When it is retried; None for never."""
    api_calls: int = 0
    """Calls that its attempts made, all together."""
    raw: bytes = b""
    """The id's bytes where they are not UTF-8, for `Run.resolve`; else empty."""


class FailurePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of failures."""

    failures: list[RunFailure]
    cursor: str | None = None
    """For the next page; None if this is the last."""


class TaskStart(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a task of a run."""

    task: str
    map_index: int | None = None
    attempt: int = 1
    started_ms: int = 0


class RunEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a run; numbered from 1."""

    number: int
    type: str
    """started, status, facts, progress, failed, resolved, checkpoint or finished."""
    data: Any = None
    ms: int = 0


_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""What decoding JSON may raise: ValueError for bytes that are no UTF-8 and for endless numbers."""


class _FailureInfo(msgspec.Struct, frozen=True):
    """As stored: numbers are those of Lua, which knows no whole ones."""

    attempts: float = 0
    error_type: str = ""
    error: str = ""
    first_ms: float | None = None
    last_ms: float | None = None
    api_calls: float = 0


def read_failures(rows: Sequence[bytes]) -> list[RunFailure]:
    """Read rows of id, score and facts."""
    return [
        _failure(item, score, info)
        for item, score, info in zip(rows[::3], rows[1::3], rows[2::3], strict=True)
    ]


def _failure(item: bytes, score: bytes, stored: bytes) -> RunFailure:
    try:
        info = msgspec.json.decode(stored, type=_FailureInfo)
    except _UNREADABLE:
        info = _FailureInfo()
    due = float(score)
    name = item.decode(errors="backslashreplace")
    return RunFailure(
        item=name,
        raw=b"" if name.encode() == item else item,
        attempts=int(info.attempts),
        error_type=info.error_type,
        error=info.error,
        first_ms=None if info.first_ms is None else int(info.first_ms),
        last_ms=None if info.last_ms is None else int(info.last_ms),
        due_ms=None if due == math.inf else int(due) if due > -math.inf else 0,
        api_calls=int(info.api_calls),
    )


def read_starts(stored: Sequence[bytes]) -> list[TaskStart]:
    """Read the hash of starts, the earliest first."""
    starts: list[TaskStart] = []
    for name, ms in zip(stored[::2], stored[1::2], strict=True):
        try:
            task, map_index, attempt = msgspec.json.decode(name, type=tuple[str, int | None, int])
        except _UNREADABLE:
            continue  # that of a task's first start, which has no attempt
        started_ms = _int(ms.decode(errors="replace")) or 0
        started = TaskStart(task=task, map_index=map_index, attempt=attempt, started_ms=started_ms)
        starts.append(started)
    return sorted(starts, key=_order)


def _order(start: TaskStart) -> tuple[int, str, int, int]:
    index = -1 if start.map_index is None else start.map_index
    return (start.started_ms, start.task, index, start.attempt)


def read_events(entries: Iterable[Sequence[Any]]) -> list[RunEvent]:
    """Read entries of the stream of events."""
    events: list[RunEvent] = []
    for id_, fields in entries:
        texts = _texts(fields)
        events.append(
            RunEvent(
                number=int(id_.partition(b"-")[0]),
                type=texts.get("type", ""),
                data=_json(texts.get("data")),
                ms=_int(texts.get("ms")) or 0,
            )
        )
    return events


def _texts(stored: Sequence[bytes]) -> dict[str, str]:
    return {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in zip(stored[::2], stored[1::2], strict=True)
    }


def _int(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _json(text: str | None) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except _UNREADABLE:
        return None


def _watermark(text: str | None) -> int | float | str | None:
    value = _json(text)
    return value if isinstance(value, int | float | str) else None
