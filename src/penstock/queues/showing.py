"""Jobs and letters as people read them."""

from __future__ import annotations

from penstock.delivery.payloads import SHOWN_BYTES, show_bytes
from penstock.queues.items import Item, id_ms, read_item
from penstock.queues.lanes import shown_lane
from penstock.queues.letters import QueueLetter
from penstock.queues.views import JobView, QueueLetterView
from penstock.redis.codec import Codec

__all__ = ["show_job", "show_letter"]


def show_job(
    item: Item, *, lane: str = "", place: int = 0, most_bytes: int = SHOWN_BYTES
) -> JobView:
    """Return a job as people read it."""
    history = item.meta.history
    return JobView(
        id=item.id,
        task=item.task,
        payload=show_bytes(item.body, most_bytes),
        lane=lane,
        place=place,
        attempts=item.meta.attempts,
        replays=item.meta.replays,
        group=item.meta.group,
        unique=item.meta.unique,
        made_ms=id_ms(item.id),
        last_error=history[-1].message or history[-1].error_class if history else "",
        fault=str(item.fault or ""),
    )


def show_letter(
    letter: QueueLetter, codec: Codec, most_bytes: int = SHOWN_BYTES
) -> QueueLetterView:
    """Return a letter as people read it."""
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
        job=show_bytes(job, most_bytes),
        fault=letter.fault,
    )
