"""A dead letter of a queue: a JSON object on the list `dlq:<queue>`.

    original_job error attempt_count first_failed_at last_failed_at queue_name
    id task lane group reason error_type error_code suggestions stack_trace fingerprint history
    max_attempts buried_ms replays
    raw                the job as base64, if it is not text or has whitespace around it
    _penstock          metadata of the job, kept for its replay

Letters written by other programs may have the first six fields alone, or be anything.
`original_job` is the job itself: an object as it was pushed, anything else as text. Jobs moved to
`dlq:overflow:<queue>` when the queue was full have the same form.
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

from penstock.delivery.failures import Failure
from penstock.delivery.retries import MOST_ATTEMPTS, DeathReason
from penstock.delivery.times import iso_time
from penstock.queues.storage.stored_job import (
    LATEST_MS,
    LONGEST_ID,
    UNREADABLE,
    Item,
    Meta,
    Trouble,
    encode_meta,
    read_item,
    read_meta,
)
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings

__all__ = [
    "HISTORY",
    "QueueLetter",
    "build_letter",
    "fingerprint_of",
    "job_fields",
    "read_letter",
    "unread_letter_end",
]

HISTORY: Final = 20
"""Failed attempts in a letter, the last ones."""
_LONGEST_STACK: Final = 4_096
_encode = msgspec.json.Encoder().encode
_OVERFLOW_HEAD: Final = b'{"original_job":'
_OVERFLOW_ERROR: Final = b',"error":"the queue was full","attempt_count":0,'
"""As `lua/parts/overflow.lua` writes them."""
_NONE = Raw(b"")


class QueueLetter(Struct, frozen=True, kw_only=True):
    """A decoded letter. Fields that it lacks are "" or 0."""

    data: bytes
    """As stored."""
    id: str
    """The job's id, or one derived from the letter's bytes."""
    job: bytes = b""
    """The job itself; of a job moved aside, with its metadata."""
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
    """Metadata of the job; None if it is part of the job, or absent."""
    later: bytes = b""
    """As `Item.later`."""
    fault: str = ""
    """Why it is not a letter; empty if it is."""


class _Stored(Struct):
    """A letter as stored. Other programs write letters, so any type may occur."""

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
_decode_history = msgspec.json.Decoder(tuple[Trouble, ...]).decode
_USUAL_CODEC = Codec(CodecSettings())


def read_letter(data: bytes) -> QueueLetter:
    """Decode an entry of a list of letters, of whatever origin. Never raises."""
    try:
        stored = _decode(data)
    except UNREADABLE:
        stored = _salvaged(data)
    if stored is None:
        return QueueLetter(
            data=data, id=_name(data), job=data, fault="it is no JSON object", reason="unreadable"
        )
    job, fault = _job_of(stored)
    item = read_item(job, _USUAL_CODEC)
    meta, later = read_meta(bytes(stored.meta)) or (None, b"")
    reason = _str(stored.reason)
    # A longer id is invalid: the letter could not be requested by it.
    job_id = _str(stored.id)[: LONGEST_ID + 1]
    if not 0 < len(job_id) <= LONGEST_ID:
        job_id = item.id
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
        fingerprint=_str(stored.fingerprint) or fingerprint_of(reason, _str(stored.error)),
        history=_history_of(stored.history),
        attempts=_count(stored.attempt_count),
        max_attempts=_count(stored.max_attempts),
        replays=_count(stored.replays) or item.meta.replays,
        first_failed_at=_str(stored.first_failed_at),
        last_failed_at=_str(stored.last_failed_at),
        buried_ms=_buried_ms(stored),
        meta=meta,
        later=later,
        fault=fault,
    )


def _salvaged(data: bytes) -> _Stored | None:
    """Decode the letter of a moved job that only the server accepts as JSON (`NaN`, `0x1F`)."""
    head, error, tail = data.rpartition(_OVERFLOW_ERROR)
    if not error or not head.startswith(_OVERFLOW_HEAD):
        return None
    try:
        stored = _decode(b"{" + error[1:] + tail)
    except UNREADABLE:
        return None
    stored.original_job = Raw(head[len(_OVERFLOW_HEAD) :])
    return stored


def _job_of(stored: _Stored) -> tuple[bytes, str]:
    """Return the job in a letter, or why it has none."""
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
    except UNREADABLE:
        pass
    try:
        # The script that moves jobs aside keeps bytes that are not UTF-8.
        text = cast("str", json.loads(job.decode("latin-1"), strict=False))
        return text.encode("latin-1"), ""
    except ValueError:
        return job, "its job is no text"


def _history_of(stored: Raw) -> tuple[Trouble, ...]:
    try:
        return _decode_history(bytes(stored)) if stored is not _NONE else ()
    except UNREADABLE:
        return ()


def _buried_ms(stored: _Stored) -> int:
    if type(stored.buried_ms) is int and 0 < stored.buried_ms <= LATEST_MS:
        return stored.buried_ms
    try:
        moment = datetime.fromisoformat(_str(stored.last_failed_at))
        ms = int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
    return min(max(ms, 0), LATEST_MS)


def fingerprint_of(*traits: str) -> str:
    """Fingerprint of a cause without an error."""
    return blake2b("\n".join(traits).encode(errors="replace"), digest_size=8).hexdigest()


def _name(data: bytes) -> str:
    return f"letter-{blake2b(data, digest_size=10).hexdigest()}"


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _strs(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(one for one in cast("list[object]", value) if isinstance(one, str))


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value <= MOST_ATTEMPTS else 0


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
    """Return the stored form of a job's letter. Never raises.

    `failures` are those that `item.meta.history` does not have yet, the oldest first. `crash`
    describes the end of the process, where there was no exception.
    """
    last = failures[-1] if failures else None
    history = _history(item.meta.history, failures)
    error = _error_text(last, crash, str(reason), history)
    first_ms = item.meta.first_failed_ms or (history[0].at_ms if history else now_ms)
    letter: dict[str, object] = {
        **job_fields(item.body),
        "error": _text(error),
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
        "fingerprint": last.fingerprint if last else fingerprint_of(str(reason), item.task),
        "history": history,
        "max_attempts": max_attempts,
        "buried_ms": now_ms,
        "replays": item.meta.replays,
    }
    meta = msgspec.structs.replace(
        item.meta, id=item.id, history=(), raw="", begun=False, first_failed_ms=first_ms
    )
    letter["_penstock"] = Raw(encode_meta(meta, item.later))
    return _encode(letter)


def unread_letter_end(
    *, queue: str, lane: str, reason: DeathReason, error: str, attempts: int, now_ms: int
) -> bytes:
    """Return a letter without its job: the script prepends that, so that no client reads it."""
    at = iso_time(_as_ms(now_ms))
    facts: dict[str, object] = {
        "error": _text(error),
        "attempt_count": attempts,
        "first_failed_at": at,
        "last_failed_at": at,
        "queue_name": queue,
        "lane": lane,
        "reason": str(reason),
        "error_type": "Crashed",
        "buried_ms": now_ms,
    }
    return b"," + _encode(facts)[1:]


def job_fields(job: bytes) -> dict[str, object]:
    """Return the fields of a letter that contain the job."""
    try:
        text = job.decode()
    except UnicodeDecodeError:
        shown = job.decode(errors="backslashreplace")
        return {"original_job": shown, "raw": b64encode(job).decode()}
    if job.lstrip()[:1] == b"{":
        try:
            msgspec.json.decode(job)
        except UNREADABLE:
            return {"original_job": text}
        # Decoders drop whitespace around a value.
        exactly = {} if job == job.strip() else {"raw": b64encode(job).decode()}
        return {"original_job": Raw(job), **exactly}
    return {"original_job": text}


def _error_text(last: Failure | None, crash: str, reason: str, history: Sequence[Trouble]) -> str:
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


def _as_ms(ms: int) -> int:
    return min(max(ms, 0), LATEST_MS)


def _text(value: str) -> str:
    """Escape lone surrogates, which cannot be stored."""
    return value.encode(errors="backslashreplace").decode()
