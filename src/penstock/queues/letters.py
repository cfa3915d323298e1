"""A dead letter of a queue: a JSON object on the list `dlq:<queue>`.

    original_job error attempt_count first_failed_at last_failed_at queue_name
    id task lane group reason error_type error_code suggestions stack_trace fingerprint history
    max_attempts buried_ms replays
    raw                the job as base64, if it is no text or has blanks around it
    _penstock          what Penstock remembers about the job, for when it is queued again

The first six are those of the security pipeline, whose letters have no others. `original_job` is
the job itself: an object as it was pushed, anything else as text. Letters of jobs that were moved
aside when a queue was full have the same shape, and stand on `dlq:overflow:<queue>`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from penstock.delivery.failures import Failure
from penstock.delivery.retries import DeathReason
from penstock.delivery.times import iso_time
from penstock.queues.items import LATEST_MS, UNREADABLE, Item, Trouble, encode_meta
from penstock.queues.letter_reading import QueueLetter, fingerprint_of, read_letter

__all__ = [
    "HISTORY",
    "QueueLetter",
    "build_letter",
    "job_fields",
    "read_letter",
    "unread_letter_end",
]

HISTORY: Final = 20
"""Failed attempts that a letter tells of, the last ones."""
_LONGEST_STACK: Final = 4_096
_encode = msgspec.json.Encoder().encode


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
    """Return a letter without its job, which the server puts in front, so that no one reads it."""
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
    """Return the fields of a letter that hold the job."""
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
        # Blanks around a value are lost to those who read the letter.
        exactly = {} if job == job.strip() else {"raw": b64encode(job).decode()}
        return {"original_job": Raw(job), **exactly}
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


def _as_ms(ms: int) -> int:
    return min(max(ms, 0), LATEST_MS)


def _text(value: str) -> str:
    """Escape halves of surrogate pairs, which cannot be stored."""
    return value.encode(errors="backslashreplace").decode()
