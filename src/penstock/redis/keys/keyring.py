"""All keys of one queue at hand, for the calls that need most of them every time."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.redis.keys.builder import Keys
from penstock.redis.keys.queues import QueueKeys

__all__ = ["QueueKeyring"]

# Ids of letters and digits that need no look at how they are spelled in keys.
_PLAIN_ID = 64


@dataclass(frozen=True, slots=True)
class QueueKeyring:
    """The keys of one queue, spelled once when it is made.

    Scripts reach the keys of single jobs, lanes and workers by the beginnings of their names:
    `records`, `indexes`, `runnings`, `claims` and `uniques`. Its own keys, but for its lists, all
    begin with `own`.
    """

    queue: str
    waiting: str
    state: str
    counters: str
    overflow: str
    dead_letters: str
    ring: str
    wakeup: str
    lanes: str
    busy: str
    parked: str
    weights: str
    delayed: str
    delayed_bodies: str
    aside: str
    workers: str
    dead_workers: str
    suspects: str
    cancelled: str
    schedule: str
    audit: str
    records: str
    indexes: str
    runnings: str
    claims: str
    uniques: str
    own: str
    _keys: Keys
    _own: QueueKeys

    @classmethod
    def of(cls, keys: Keys, queue: str) -> QueueKeyring:
        """Check the name (`InvalidName`) and spell the keys."""
        own = keys.queue(queue)
        return cls(
            queue=queue,
            waiting=own.waiting,
            state=own.state,
            counters=own.counters,
            overflow=own.overflow,
            dead_letters=own.dead_letters,
            ring=own.ring,
            wakeup=own.wakeup,
            lanes=own.lanes,
            busy=own.busy,
            parked=own.parked,
            weights=own.weights,
            delayed=own.delayed,
            delayed_bodies=own.delayed_bodies,
            aside=own.aside,
            workers=own.workers,
            dead_workers=own.dead_workers,
            suspects=own.suspects,
            cancelled=own.cancelled,
            schedule=own.schedule,
            audit=own.audit,
            records=keys.job(queue, "x").status[:-1],
            indexes=own.jobs("x")[:-1],
            runnings=own.running("x")[:-1],
            claims=own.claimed("x")[:-1],
            uniques=own.unique("x")[:-1],
            own=own.state.removesuffix("state"),
            _keys=keys,
            _own=own,
        )

    def list_of(self, lane: str) -> str:
        """LIST of a lane, whose name is encoded already; "" is the plain list."""
        return f"{self.waiting}:{lane}" if lane else self.waiting

    def lane(self, group: str) -> str:
        """Name of a group's lane, encoded."""
        return self._own.lane(group)[len(self.waiting) + 1 :]

    def claimed(self, worker: str) -> str:
        return self._own.claimed(worker)

    def record(self, job_id: str) -> str:
        return self._keys.job(self.queue, job_id).status

    def record_name(self, job_id: str) -> str:
        """How scripts are to name a job: its id as it stands in keys."""
        if job_id.isascii() and job_id.isalnum() and len(job_id) <= _PLAIN_ID:
            return job_id
        return self.record(job_id)[len(self.records) :]

    def unique(self, key: str) -> str:
        return self._own.unique(key)

    def jobs(self, state: str) -> str:
        return self._own.jobs(state)
