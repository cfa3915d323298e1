"""Queues, workers and jobs for display."""

from __future__ import annotations

import msgspec

from penstock.delivery.foreign_keys import ForeignKey
from penstock.delivery.payloads import SHOWN_BYTES, PayloadView, show_bytes
from penstock.queues.storage.job_record import JobRecord
from penstock.queues.storage.stored_job import Item, id_ms

__all__ = [
    "ClaimView",
    "JobPage",
    "JobView",
    "LaneView",
    "QueueFacts",
    "QueueLine",
    "QueueWorkerView",
    "show_job",
]


# --- queues -------------------------------------------------------------------------------------


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """One queue in a list. `waiting` counts the plain list and the priorities."""

    name: str
    waiting: int = 0
    fair_lanes: int = 0
    """Fair lanes that have jobs, or are paused or parked; their jobs are not in `waiting`."""
    delayed: int = 0
    dead_letters: int = 0
    overflow: int = 0
    workers: int = 0
    paused: bool = False
    foreign: bool = False
    """Whether keys of another type are in its way: see `QueueAdmin.foreign_keys`."""


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """One lane: "" is the plain list, then the priorities, then fair groups by their names."""

    name: str
    waiting: int
    weight: int = 1
    running: int = 0
    """Running jobs; counted only with a `lane_limit`."""
    paused: bool = False
    parked_ms: int = 0
    """Remaining time for which its turns are skipped."""
    at_limit: bool = False
    """Its `lane_limit` is reached."""


class QueueWorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of a queue."""

    name: str
    silent_ms: int
    """Since its last heartbeat, or since it was declared dead."""
    claims: int
    """Jobs that it has claimed."""
    alive: bool
    """False: it was declared dead, and its jobs are being returned."""


class ClaimView(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a worker has claimed."""

    claim: str
    worker: str
    job: JobView


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a queue."""

    name: str
    at_ms: int
    """Time of the reading, by the server's clock."""
    known: bool
    """False: nothing is stored under this name, and it is not registered."""
    side: str = "right"
    """Where jobs are pushed."""
    waiting: int = 0
    """Jobs of all lanes listed here."""
    lanes: list[LaneView] = []
    more_lanes: bool = False
    """There are fair lanes that are not listed, and not counted in `waiting`."""
    fair_lanes: int = 0
    """Fair lanes that have jobs or are parked, listed or not."""
    max_lanes: int = 0
    """Maximum of fair lanes with jobs, by the settings of this process; 0 for no limit."""
    delayed: int = 0
    next_due_ms: int | None = None
    """Until the next delayed job is due; 0 or less if it is."""
    claimed: int = 0
    workers: list[QueueWorkerView] = []
    dead_letters: int = 0
    overflow: int = 0
    paused: bool = False
    limit: int = 0
    """Maximum of running jobs; 0 for no limit."""
    lane_limit: int = 0
    levels: str = "strict"
    bytes: int | None = None
    """Of the waiting jobs, where they are limited."""
    oldest_ms: int | None = None
    """Age of the next job in the plain list, if its id contains a time."""
    counters: dict[str, int] = {}
    """How many jobs were added, done, retried, dead and so on, since the queue was made."""
    foreign: list[ForeignKey] = []
    """Keys of another type under its names; the figures leave them out."""

    def rates_since(self, earlier: QueueFacts) -> dict[str, float]:
        """How fast each counter has grown, per second."""
        seconds = (self.at_ms - earlier.at_ms) / 1000
        if seconds <= 0:
            return {}
        return {
            name: max(0, count - earlier.counters.get(name, 0)) / seconds
            for name, count in self.counters.items()
        }


# --- jobs ---------------------------------------------------------------------------------------


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting or claimed job."""

    id: str
    """Empty for a raw job without an id."""
    task: str
    """Empty for a raw job."""
    payload: PayloadView
    """Of a task the whole object, of a raw job the job itself."""
    lane: str = ""
    place: int = 0
    """How many are before it."""
    attempts: int = 0
    """That are over."""
    replays: int = 0
    group: str = ""
    unique: str = ""
    made_ms: int | None = None
    """Creation time of its id, if it contains one."""
    last_error: str = ""
    fault: str = ""
    """Why it cannot be read."""


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs with a record, state by state, the newest first. `cursor` continues after them.

    A page may be short, even empty, before the end: a search examines a limited number at a time.
    """

    jobs: list[JobRecord]
    cursor: str | None = None
    """None at the end."""


def show_job(
    item: Item, *, lane: str = "", place: int = 0, max_bytes: int = SHOWN_BYTES
) -> JobView:
    """Return a job for display, its payload truncated to `max_bytes`."""
    history = item.meta.history
    return JobView(
        id=item.id,
        task=item.task,
        payload=show_bytes(item.body, max_bytes),
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
