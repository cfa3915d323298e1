"""Dead letters of queues for display, and the results of acting on them."""

from __future__ import annotations

import msgspec

from penstock.delivery.payloads import SHOWN_BYTES, PayloadView, show_bytes
from penstock.queues.dead_letters.letter import QueueLetter
from penstock.queues.storage.lanes import shown_lane
from penstock.queues.storage.stored_job import Trouble, read_item
from penstock.redis.codec import Codec

__all__ = [
    "QueueLetterKind",
    "QueueLetterKinds",
    "QueueLetterPage",
    "QueueLetterView",
    "QueueReplayed",
    "show_letter",
]


class QueueLetterView(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter. Fields that it lacks are "" or 0."""

    id: str
    """The job's id, or one derived from the letter's bytes."""
    job_id: str
    task: str
    queue: str
    lane: str
    group: str
    reason: str
    error: str
    error_type: str
    error_code: str
    suggestions: tuple[str, ...]
    stack: str
    fingerprint: str
    history: tuple[Trouble, ...]
    attempts: int
    max_attempts: int
    replays: int
    first_failed_at: str
    last_failed_at: str
    buried_ms: int
    job: PayloadView
    fault: str = ""
    """Why it is not a letter or holds no job; empty if it does."""


class QueueLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Letters in list order. `next` is the index of the following page, None at the end.

    A page may be short, even empty, before the end: a search examines a limited number at a time.
    """

    letters: list[QueueLetterView]
    total: int
    next: int | None = None


class QueueLetterKind(msgspec.Struct, frozen=True, kw_only=True):
    """Letters of one cause."""

    fingerprint: str
    count: int
    first_ms: int
    last_ms: int
    tasks: list[str]
    sample: QueueLetterView
    """The newest of them."""


class QueueLetterKinds(msgspec.Struct, frozen=True, kw_only=True):
    """Letters by cause, the most frequent first."""

    kinds: list[QueueLetterKind]
    examined: int
    complete: bool
    """False: older letters were not examined."""


class QueueReplayed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay, or of its dry run."""

    matched: int = 0
    replayed: int = 0
    missing: int = 0
    """Requested by id but absent, or removed by another call at the same moment."""
    skipped: dict[str, str] = {}
    """Ids of letters that hold no job, with the reason; they stay."""
    complete: bool = True
    """False: `limit` was reached, and more letters match."""


def show_letter(letter: QueueLetter, codec: Codec, max_bytes: int = SHOWN_BYTES) -> QueueLetterView:
    """Return a letter for display, its job truncated to `max_bytes`."""
    job = letter.job
    if job.startswith(b"Z:") and letter.meta is None:
        job = read_item(job, codec).body
    return QueueLetterView(
        id=letter.id,
        job_id=letter.job_id,
        task=letter.task,
        queue=letter.queue,
        lane=shown_lane(letter.lane),
        group=letter.group,
        reason=letter.reason,
        error=letter.error,
        error_type=letter.error_type,
        error_code=letter.error_code,
        suggestions=letter.suggestions,
        stack=letter.stack,
        fingerprint=letter.fingerprint,
        history=letter.history,
        attempts=letter.attempts,
        max_attempts=letter.max_attempts,
        replays=letter.replays,
        first_failed_at=letter.first_failed_at,
        last_failed_at=letter.last_failed_at,
        buried_ms=letter.buried_ms,
        job=show_bytes(job, max_bytes),
        fault=letter.fault,
    )
