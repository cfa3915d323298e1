"""A dead letter of a queue: a JSON object on the list `dlq:<queue>`.

    original_job error attempt_count first_failed_at last_failed_at queue_name
    id task lane group reason error_type error_code suggestions stack_trace fingerprint history
    max_attempts buried_ms replays
    raw                the job as base64, if it is no text
    _penstock          what Penstock remembers about the job, for when it is queued again

The first six are those of the security pipeline, whose letters have no others. `original_job` is
the job itself: an object as it was pushed, anything else as text. Letters of jobs that were moved
aside when a queue was full have the same shape, and stand on `dlq:overflow:<queue>`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final, cast

import msgspec
from msgspec import Raw, Struct, field

from penstock.delivery.retries import DeathReason, Failure
from penstock.delivery.times import iso_time
from penstock.queues.items import MOST_ATTEMPTS, Item, Meta, Trouble, read_item
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings

__all__ = [
    "HISTORY",
    "OVERFLOW",
    "QueueLetter",
    "build_letter",
    "job_fields",
    "read_letter",
]

HISTORY: Final = 20
"""Failed attempts that a letter tells of, the last ones."""
OVERFLOW: Final = "overflow"
"""Why a job is a letter that was moved aside when its queue was full."""
_OVERFLOW_HEAD: Final = b'{"original_job":'
_OVERFLOW_ERROR: Final = b',"error":"the queue was full","attempt_count":0,'
"""As `lua/parts/overflow.lua` writes them."""
_LONGEST_STACK: Final = 4_096
_LATEST_MS: Final = 253_402_300_799_999  # the end of the year 9999
_NONE = Raw(b"")


class QueueLetter(Struct, frozen=True, kw_only=True):
    """A letter as it was read. What it does not tell is "" or 0."""

    data: bytes
    """As it stands on the list."""
    id: str
    """The job's id, or a name made of the letter's bytes if it has none."""
    job: bytes = b""
    """The job itself; with what Penstock remembers in it if it was moved aside."""
    job_id: str = ""
    task: str = ""
    queue: str = ""
    lane: str = ""
    group: str = ""
    reason: str = ""
    error: str = ""
    error_type: str = ""
    error_code: str = ""
    suggestions: tuple[str, ...] = ()
    stack: str = ""
    fingerprint: str = ""
    history: tuple[Trouble, ...] = ()
    attempts: int = 0
    max_attempts: int = 0
    replays: int = 0
    first_failed_at: str = ""
    last_failed_at: str = ""
    buried_ms: int = 0
    meta: Meta | None = None
    """What Penstock remembers about the job; None where that stands in the job, or nowhere."""
    fault: str = ""
    """Why it cannot be read as a letter."""


class _Stored(Struct):
    """A letter on its list. Other programs write it, so nothing is taken for granted."""

    original_job: Raw = _NONE
    data: Raw = _NONE
    error: Any = ""
    attempt_count: Any = 0
    first_failed_at: Any = ""
    last_failed_at: Any = ""
    queue_name: Any = ""
    original_queue: Any = ""
    id: Any = ""
    task: Any = ""
    lane: Any = ""
    group: Any = ""
    reason: Any = ""
    error_type: Any = ""
    error_code: Any = ""
    suggestions: Any = ()
    stack_trace: Any = ""
    fingerprint: Any = ""
    history: Raw = _NONE
    max_attempts: Any = 0
    buried_ms: Any = 0
    replays: Any = 0
    raw: Any = ""
    meta: Raw = field(default=_NONE, name="_penstock")


_decode = msgspec.json.Decoder(_Stored).decode
_decode_meta = msgspec.json.Decoder(Meta).decode
_decode_history = msgspec.json.Decoder(tuple[Trouble, ...]).decode
_encode = msgspec.json.Encoder().encode
_USUAL_CODEC = Codec(CodecSettings())
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)


def build_letter(
    item: Item,
    *,
    queue: str,
    lane: str,
    reason: DeathReason | str,
    attempts: int,
    max_attempts: int,
    failures: Sequence[Failure],
    now_ms: int,
    crash: str = "",
    error_code: str = "",
    suggestions: Sequence[str] = (),
) -> bytes:
    """Return the letter of a job, as it is stored. Never raises.

    `failures` are those that `item.meta.history` does not tell of yet, the oldest first. `crash`
    says what became of the process, where no error was seen.
    """
    last = failures[-1] if failures else None
    history = _history(item.meta.history, failures)
    told = _told(last, crash, str(reason), history)
    first_ms = item.meta.first_failed_ms or (history[0].at_ms if history else now_ms)
    letter: dict[str, object] = {
        **job_fields(item.body),
        "error": _text(told),
        "attempt_count": attempts,
        "first_failed_at": iso_time(_as_ms(first_ms)),
        "last_failed_at": iso_time(_as_ms(last.at_ms if last else now_ms)),
        "queue_name": queue,
        "id": item.id,
        "task": item.task,
        "lane": lane,
        "group": item.meta.group,
        "reason": str(reason),
        "error_type": _text(last.error_class if last else _type_of(crash)),
        "error_code": _text(error_code),
        "suggestions": [_text(one) for one in suggestions],
        "stack_trace": _text(last.stack if last else "")[-_LONGEST_STACK:],
        "fingerprint": last.fingerprint if last else _fingerprint(str(reason), item.task),
        "history": history,
        "max_attempts": max_attempts,
        "buried_ms": now_ms,
        "replays": item.meta.replays,
    }
    letter["_penstock"] = msgspec.structs.replace(
        item.meta, id=item.id, history=(), raw="", begun=False, first_failed_ms=first_ms
    )
    return _encode(letter)


def read_letter(data: bytes) -> QueueLetter:
    """Read what stands on a list of letters: ours, the seed's, or anything. Never raises."""
    try:
        stored = _decode(data)
    except _UNREADABLE:
        stored = _salvaged(data)
    if stored is None:
        return QueueLetter(
            data=data, id=_name(data), job=data, fault="it is no JSON object", reason="unreadable"
        )
    job, fault = _job_of(stored)
    item = read_item(job, _USUAL_CODEC)
    reason = _str(stored.reason)
    job_id = _str(stored.id) or item.id
    return QueueLetter(
        data=data,
        id=job_id or _name(data),
        job=job,
        job_id=job_id,
        task=_str(stored.task) or item.task,
        queue=_str(stored.queue_name) or _str(stored.original_queue),
        lane=_str(stored.lane),
        group=_str(stored.group) or item.meta.group,
        reason=reason,
        error=_str(stored.error),
        error_type=_str(stored.error_type),
        error_code=_str(stored.error_code),
        suggestions=_strs(stored.suggestions),
        stack=_str(stored.stack_trace),
        fingerprint=_str(stored.fingerprint) or _fingerprint(reason, _str(stored.error)),
        history=_history_of(stored.history),
        attempts=_count(stored.attempt_count),
        max_attempts=_count(stored.max_attempts),
        replays=_count(stored.replays) or item.meta.replays,
        first_failed_at=_str(stored.first_failed_at),
        last_failed_at=_str(stored.last_failed_at),
        buried_ms=_buried_ms(stored),
        meta=_meta_of(stored.meta),
        fault=fault,
    )


def job_fields(job: bytes) -> dict[str, object]:
    """Return the fields of a letter that hold the job."""
    try:
        text = job.decode()
    except UnicodeDecodeError:
        shown = job.decode(errors="backslashreplace")
        return {"original_job": shown, "raw": b64encode(job).decode()}
    if job.lstrip()[:1] == b"{":
        try:
            msgspec.json.decode(job)
        except _UNREADABLE:
            pass
        else:
            return {"original_job": Raw(job)}
    return {"original_job": text}


def _told(last: Failure | None, crash: str, reason: str, history: Sequence[Trouble]) -> str:
    if last is not None:
        return last.message or last.error_class
    if crash:
        return crash
    return (history[-1].message or history[-1].error_class) if history else reason


def _type_of(crash: str) -> str:
    return "Crashed" if crash else ""


def _history(known: Sequence[Trouble], failures: Sequence[Failure]) -> tuple[Trouble, ...]:
    seen = {(trouble.attempt, trouble.at_ms) for trouble in known}
    new = [
        Trouble(
            attempt=failure.attempt,
            at_ms=failure.at_ms,
            error_class=failure.error_class,
            message=failure.message,
            fingerprint=failure.fingerprint,
        )
        for failure in failures
        if (failure.attempt, failure.at_ms) not in seen
    ]
    return (*known, *new)[-HISTORY:]


def _salvaged(data: bytes) -> _Stored | None:
    """Read the letter of a job moved aside that only the server takes for JSON (`NaN`, `0x1F`)."""
    head, error, tail = data.rpartition(_OVERFLOW_ERROR)
    if not error or not head.startswith(_OVERFLOW_HEAD):
        return None
    try:
        stored = _decode(b"{" + error[1:] + tail)
    except _UNREADABLE:
        return None
    stored.original_job = Raw(head[len(_OVERFLOW_HEAD) :])
    return stored


def _job_of(stored: _Stored) -> tuple[bytes, str]:
    """Return the job in a letter, and why there is none."""
    if isinstance(stored.raw, str) and stored.raw:
        try:
            return b64decode(stored.raw, validate=True), ""
        except ValueError:
            return b"", "its raw job is no base64"
    job = bytes(stored.original_job) or bytes(stored.data)
    if job[:1] != b'"':
        return job, "" if job else "it holds no job"
    try:
        return msgspec.json.decode(job, type=str).encode(), ""
    except _UNREADABLE:
        pass
    try:
        # The script that moves jobs aside keeps bytes that are no UTF-8 as they are.
        text = cast("str", json.loads(job.decode("latin-1"), strict=False))
        return text.encode("latin-1"), ""
    except ValueError:
        return job, "its job is no text"


def _meta_of(told: Raw) -> Meta | None:
    try:
        return _decode_meta(bytes(told)) if told is not _NONE else None
    except _UNREADABLE:
        return None


def _history_of(told: Raw) -> tuple[Trouble, ...]:
    try:
        return _decode_history(bytes(told)) if told is not _NONE else ()
    except _UNREADABLE:
        return ()


def _buried_ms(stored: _Stored) -> int:
    if type(stored.buried_ms) is int and 0 < stored.buried_ms <= _LATEST_MS:
        return stored.buried_ms
    try:
        moment = datetime.fromisoformat(_str(stored.last_failed_at))
        return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0


def _as_ms(ms: int) -> int:
    return min(max(ms, 0), _LATEST_MS)


def _fingerprint(*traits: str) -> str:
    return blake2b("\n".join(traits).encode(errors="replace"), digest_size=8).hexdigest()


def _name(data: bytes) -> str:
    return f"letter-{blake2b(data, digest_size=10).hexdigest()}"


def _text(value: str) -> str:
    """Escape halves of surrogate pairs, which cannot be stored."""
    return value.encode(errors="backslashreplace").decode()


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _strs(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(one for one in cast("list[object]", value) if isinstance(one, str))


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value <= MOST_ATTEMPTS else 0
