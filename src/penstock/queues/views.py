"""What looking at queues, jobs and dead letters returns."""

from __future__ import annotations

import msgspec

from penstock.delivery.foreign_keys import ForeignKey
from penstock.delivery.payloads import PayloadView
from penstock.queues.items import Trouble
from penstock.queues.records import JobRecord

__all__ = [
    "ClaimView",
    "JobPage",
    "JobView",
    "LaneView",
    "QueueFacts",
    "QueueLetterKind",
    "QueueLetterKinds",
    "QueueLetterPage",
    "QueueLetterView",
    "QueueLine",
    "QueueWorkerView",
    "Requeued",
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
    """Jobs in hand, counted only where the places of lanes are limited."""
    paused: bool = False
    parked_ms: int = 0
    """How long it is kept out of its turns."""
    at_limit: bool = False
    """It waits for one of its own jobs to end."""


class QueueWorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of a queue."""

    name: str
    silent_ms: int
    """Since its last sign of life, or since it was given up."""
    claims: int
    """Jobs that it has in hand."""
    alive: bool
    """False: it was given up as dead, and its jobs are being returned."""


class ClaimView(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a worker has in hand."""

    claim: str
    worker: str
    job: JobView


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue stands."""

    name: str
    at_ms: int
    """When, in the server's time."""
    known: bool
    """False: nothing is stored under this name, and nobody has registered it."""
    side: str = "right"
    """Where jobs are pushed."""
    waiting: int = 0
    """Jobs of all lanes listed here."""
    lanes: list[LaneView] = []
    more_lanes: bool = False
    """There are fair lanes that are not listed, and not counted in `waiting`."""
    delayed: int = 0
    next_due_ms: int | None = None
    """Until the next delayed job is due; 0 or less: as soon as a worker looks."""
    claimed: int = 0
    workers: list[QueueWorkerView] = []
    dead_letters: int = 0
    overflow: int = 0
    paused: bool = False
    limit: int = 0
    """Most jobs in hand at once; 0 for any number."""
    lane_limit: int = 0
    levels: str = "strict"
    bytes: int | None = None
    """Of the waiting jobs, where they are limited."""
    oldest_ms: int | None = None
    """Age of the job that is next in the plain list, where its id tells."""
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
    """A job where it stands: in a lane, or in a worker's hand."""

    id: str
    """Empty for a job that nobody has named yet."""
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
    """When its id was made, where that can be told."""
    last_error: str = ""
    fault: str = ""
    """Why it cannot be read."""


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs with a record, state by state, the newest first. `cursor` continues after them.

    A page may be short, even empty, before the end: a search looks at a limited number at a time.
    """

    jobs: list[JobRecord]
    cursor: str | None = None
    """None at the end."""


# --- dead letters -------------------------------------------------------------------------------


class QueueLetterView(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter. What it does not tell is "" or 0."""

    id: str
    """The job's id, or a name made of the letter's bytes if the job has none."""
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
    """Why it cannot be read as a letter, or holds no job."""


class QueueLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Letters in their order. `next` is where the following page starts, None at the end.

    A page may be short, even empty, before the end: a search looks at a limited number at a time.
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
    """False: there are older letters than those that were looked at."""


class Requeued(msgspec.Struct, frozen=True, kw_only=True):
    """What a requeue did, or would do."""

    matched: int = 0
    requeued: int = 0
    missing: int = 0
    """Asked for by id but not there, or taken by somebody else at this moment."""
    skipped: dict[str, str] = {}
    """Letters that hold no job, with the reason; they stay."""
    complete: bool = True
    """False: `most` was reached, and there are more."""
