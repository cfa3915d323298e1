"""Status of queues, with the fields of the queue health check."""

from __future__ import annotations

import msgspec

from penstock.coordination.access import Coordination
from penstock.delivery.foreign_keys import ForeignKey
from penstock.errors import QueueError
from penstock.queues.admin.queue_admin import QueueAdmin
from penstock.queues.admin.views import LaneView, QueueFacts

__all__ = ["QueueStatus", "all_statuses", "known_facts", "queue_status"]


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a queue. The first six fields are those of the queue health check."""

    queue_name: str
    connection: str
    """Address of the server, without a password."""
    queue_length: int
    """Waiting jobs of all lanes."""
    processing: int
    """Claimed jobs."""
    queued: int
    """The same as `queue_length`, as claimed jobs are not on the list."""
    worker_connected: bool
    """Whether a worker sent a heartbeat within `queues.silence_s`."""
    workers: int
    """Live ones."""
    delayed: int
    dead_letters: int
    overflow: int
    paused: bool
    lanes: list[LaneView]
    """The fixed ones, and some of the fair ones."""
    fair_lanes: int
    """Fair lanes that have jobs or are parked."""
    max_lanes: int
    """Maximum of those that have jobs (`queues.max_lanes`); 0 for no limit."""
    counters: dict[str, int]
    foreign: list[ForeignKey]
    """Keys of another type under its names; the figures leave them out."""
    at_ms: int
    """Time of the reading, by the server's clock."""
    oldest_ms: int | None = None
    """Age of the next job, if its id has a time."""
    rates: dict[str, float] | None = None
    """Growth of each counter per second; None without an earlier status."""

    def since(self, earlier: QueueStatus) -> QueueStatus:
        """The same with the rates since an earlier status."""
        seconds = (self.at_ms - earlier.at_ms) / 1000
        if seconds <= 0:
            return self
        rates = {
            name: max(0, count - earlier.counters.get(name, 0)) / seconds
            for name, count in self.counters.items()
        }
        return msgspec.structs.replace(self, rates=rates)


async def known_facts(app: Coordination, name: str) -> QueueFacts:
    """Facts of a queue; QueueError if it does not exist. Two round trips."""
    facts = await QueueAdmin(app.redis, app.codec).facts(name)
    if not facts.known:
        raise QueueError(f"there is no queue {name!r}")
    return facts


async def queue_status(app: Coordination, name: str) -> QueueStatus:
    """Status of a queue; QueueError if it does not exist. Two round trips."""
    return _status(app, await known_facts(app, name))


async def all_statuses(app: Coordination) -> list[QueueStatus]:
    """Status of every registered queue, by name. Two round trips per queue."""
    queues = QueueAdmin(app.redis, app.codec)
    all_facts = [await queues.facts(line.name) for line in await queues.list()]
    return [_status(app, facts) for facts in all_facts if facts.known]


def _status(app: Coordination, facts: QueueFacts) -> QueueStatus:
    silence_ms = app.redis.settings.queues.silence_s * 1000
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
        fair_lanes=facts.fair_lanes,
        max_lanes=facts.max_lanes,
        counters=facts.counters,
        foreign=facts.foreign,
        at_ms=facts.at_ms,
        oldest_ms=facts.oldest_ms,
    )
