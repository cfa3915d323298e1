"""How queues are, in the words of the queue health check."""

from __future__ import annotations

import msgspec

from penstock.app import Penstock
from penstock.delivery.foreign_keys import ForeignKey
from penstock.errors import QueueError
from penstock.queues.views import LaneView, QueueFacts

__all__ = ["QueueStatus", "all_statuses", "known_facts", "queue_status"]


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue is. The first six are those of seed 002's health check."""

    queue_name: str
    connection: str
    """Address of the server, without a password."""
    queue_length: int
    """Jobs that wait, in all lanes."""
    processing: int
    """Jobs that workers have in hand."""
    queued: int
    """Jobs that wait for a worker. The same as the length: what a worker takes leaves the list."""
    worker_connected: bool
    """Whether a worker gave a sign of life within `queues.silence_s`."""
    workers: int
    """Live ones."""
    delayed: int
    dead_letters: int
    overflow: int
    paused: bool
    lanes: list[LaneView]
    counters: dict[str, int]
    foreign: list[ForeignKey]
    """Keys of another type under its names; the figures leave them out."""
    at_ms: int
    """When this was so, by the server's clock."""
    oldest_ms: int | None = None
    """Age of the next job, where its id tells."""
    rates: dict[str, float] | None = None
    """How fast each counter grows, per second; None unless there is an earlier look."""

    def since(self, earlier: QueueStatus) -> QueueStatus:
        """Return the same with the rates since an earlier look."""
        seconds = (self.at_ms - earlier.at_ms) / 1000
        if seconds <= 0:
            return self
        rates = {
            name: max(0, count - earlier.counters.get(name, 0)) / seconds
            for name, count in self.counters.items()
        }
        return msgspec.structs.replace(self, rates=rates)


async def known_facts(app: Penstock, name: str) -> QueueFacts:
    """Return the facts of a queue; QueueError if there is none of this name. Two round trips."""
    facts = await app.queues.facts(name)
    if not facts.known:
        raise QueueError(f"there is no queue {name!r}")
    return facts


async def queue_status(app: Penstock, name: str) -> QueueStatus:
    """Show one queue; QueueError if there is none of this name. Two round trips."""
    return _status(app, await known_facts(app, name))


async def all_statuses(app: Penstock) -> list[QueueStatus]:
    """Show every registered queue, by name. Two round trips for each."""
    found = [await app.queues.facts(line.name) for line in await app.queues.list()]
    return [_status(app, facts) for facts in found if facts.known]


def _status(app: Penstock, facts: QueueFacts) -> QueueStatus:
    silence_ms = app.settings.queues.silence_s * 1000
    living = [worker for worker in facts.workers if worker.alive]
    return QueueStatus(
        queue_name=facts.name,
        connection=str(app.redis.address),
        queue_length=facts.waiting,
        processing=facts.claimed,
        queued=facts.waiting,
        worker_connected=any(worker.silent_ms < silence_ms for worker in living),
        workers=len(living),
        delayed=facts.delayed,
        dead_letters=facts.dead_letters,
        overflow=facts.overflow,
        paused=facts.paused,
        lanes=facts.lanes,
        counters=facts.counters,
        foreign=facts.foreign,
        at_ms=facts.at_ms,
        oldest_ms=facts.oldest_ms,
    )
