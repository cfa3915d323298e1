"""Jobs on their way into the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from penstock.app import Penstock
from penstock.delivery.retries import RetryPolicy
from penstock.errors import DocumentRefused
from penstock.pipelines.documents.ids import unique_key
from penstock.pipelines.documents.message import STATUS_FIELDS, JobMessage
from penstock.queues.options import Gate
from penstock.queues.queue import Queue
from penstock.redis.keys.queues import Priority

__all__ = ["QUEUE", "Sent", "ingest_queue", "send"]

QUEUE = "rag:ingest:queue"
RETRY = RetryPolicy(max_attempts=4, backoff=(5, 10, 30), give_up_on=(DocumentRefused,))
"""The table of seed 002: three retries after 5, 10 and 30 seconds."""

_AT_ONCE = 100


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One job that was asked for."""

    job_id: str
    document: str
    created: bool
    """False if the same file waits or is being taken in already; `job_id` is of that job."""


def ingest_queue(app: Penstock, gate: Gate) -> Queue:
    """The queue of seed 002, as its producers and monitors know it."""
    if QUEUE in app.registry.queues:
        return app.registry.queues[QUEUE]
    return app.queue(
        QUEUE,
        push="left",
        status=True,
        status_fields=STATUS_FIELDS,
        retry=RETRY,
        concurrency=app.settings.documents.concurrency,
        max_size=0,
        gate=gate,
    )


async def send(
    queue: Queue, messages: Sequence[JobMessage], priority: Priority | None = None
) -> list[Sent]:
    """Queue jobs; each RAG has a lane of its own, unless a priority says otherwise."""
    sent: list[Sent] = []
    for first in range(0, len(messages), _AT_ONCE):
        some = messages[first : first + _AT_ONCE]
        sent += await asyncio.gather(*(_send_one(queue, message, priority) for message in some))
    return sent


async def _send_one(queue: Queue, message: JobMessage, priority: Priority | None) -> Sent:
    result = await queue.push(
        msgspec.to_builtins(message),
        job_id=message.job_id,
        priority=priority,
        group=message.rag_id if priority is None else None,
        unique=unique_key(message.rag_id, message.target, message.document, message.digest),
    )
    return Sent(job_id=result.job_id, document=message.document, created=result.created)
