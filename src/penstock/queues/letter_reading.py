"""Reading dead letters of queues: ours, those of the old programs, or anything."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final, cast

import msgspec
from msgspec import Raw, Struct, field

from penstock.delivery.retries import MOST_ATTEMPTS
from penstock.queues.items import (
    LATEST_MS,
    LONGEST_ID,
    UNREADABLE,
    Meta,
    Trouble,
    read_item,
    read_meta,
)
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings

__all__ = ["QueueLetter", "fingerprint_of", "read_letter"]

_OVERFLOW_HEAD: Final = b'{"original_job":'
_OVERFLOW_ERROR: Final = b',"error":"the queue was full","attempt_count":0,'
"""As `lua/parts/overflow.lua` writes them."""
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
    later: bytes = b""
    """As `Item.later`."""
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
_decode_history = msgspec.json.Decoder(tuple[Trouble, ...]).decode
_USUAL_CODEC = Codec(CodecSettings())


def read_letter(data: bytes) -> QueueLetter:
    """Read what stands on a list of letters: ours, another program's, or anything. Never raises."""
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
    # A longer one cannot be an id of ours, and nobody could ask for the letter by it.
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
    """Read the letter of a job moved aside that only the server takes for JSON (`NaN`, `0x1F`)."""
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
    except UNREADABLE:
        pass
    try:
        # The script that moves jobs aside keeps bytes that are no UTF-8 as they are.
        text = cast("str", json.loads(job.decode("latin-1"), strict=False))
        return text.encode("latin-1"), ""
    except ValueError:
        return job, "its job is no text"


def _history_of(told: Raw) -> tuple[Trouble, ...]:
    try:
        return _decode_history(bytes(told)) if told is not _NONE else ()
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
    """Name a cause that no error tells of."""
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
