"""Keys of queues and their jobs."""

from __future__ import annotations

from functools import cached_property
from typing import Final, Literal, Self, get_args

from penstock.errors import InvalidName
from penstock.redis.keys.family import FamilyKeys
from penstock.redis.keys.names import QUEUE_WORD, check_queue, encode_id
from penstock.redis.keys.space import KeySpace
from penstock.settings.redis import RESERVED_WORDS

__all__ = [
    "AREA_WORDS",
    "PRIORITIES",
    "JobKeys",
    "Priority",
    "QueueKeyring",
    "QueueKeys",
    "QueuesKeys",
    "job_name",
    "lane_name",
]

Priority = Literal["high", "normal", "low"]
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)

# A fair lane of one of these names would be a priority lane, or the queue `<queue>:queue`.
AREA_WORDS: Final = frozenset({"job", QUEUE_WORD})
"""Parts that names of queues may not have before their last colon."""

# Ids of up to this many letters and digits are spelled in keys as they are.
_PLAIN_ID = 64
_TAKEN = frozenset({*PRIORITIES, QUEUE_WORD})


class QueueKeys(FamilyKeys):
    """Keys of one queue; on a cluster they share a slot, so a script may span them."""

    @classmethod
    def of(cls, keys: KeySpace, queue: str) -> Self:
        return cls(keys.prefix, keys.tag(check_queue(queue, RESERVED_WORDS, AREA_WORDS)))

    @cached_property
    def waiting(self) -> str:
        """LIST: the jobs that wait, as JSON."""
        return f"{self.root}{self.home}"

    def priority(self, priority: Priority) -> str:
        """LIST: the jobs that wait with a priority."""
        if priority not in PRIORITIES:
            raise InvalidName("priority", priority, f"must be one of {', '.join(PRIORITIES)}")
        return f"{self.root}{self.home}:{priority}"

    def lane(self, lane: str) -> str:
        """LIST: the jobs that wait in one fair lane (a tenant, a camera, a RAG)."""
        return f"{self.root}{self.home}:{lane_name(lane)}"

    @cached_property
    def dead_letters(self) -> str:
        """LIST: the jobs that failed for good, each with its reason."""
        return f"{self.root}dlq:{self.home}"

    @cached_property
    def overflow(self) -> str:
        """LIST: the jobs that were moved aside when the queue was full."""
        return f"{self.root}dlq:overflow:{self.home}"

    @cached_property
    def state(self) -> str:
        """HASH: how the queue is used, whether it is paused, whose turn it is."""
        return self._own("state")

    @cached_property
    def counters(self) -> str:
        """HASH: how many jobs were added, done, retried, buried, dropped and so on."""
        return self._own("counters")

    @cached_property
    def workers(self) -> str:
        """ZSET: live workers, by their last sign of life in server ms."""
        return self._own("workers")

    @cached_property
    def dead_workers(self) -> str:
        """ZSET: workers given up as dead, whose claims are to be returned."""
        return self._own("dead_workers")

    @cached_property
    def suspects(self) -> str:
        """HASH: jobs that workers may have died of, and which worker reads or tries which."""
        return self._own("suspects")

    @cached_property
    def claims(self) -> str:
        """Prefix of the keys of claims."""
        return self._own("claimed:")

    def claimed(self, worker: str) -> str:
        """HASH: from claim to job, for all jobs that a worker has claimed."""
        return f"{self.claims}{encode_id('worker', worker)}"

    @cached_property
    def delayed(self) -> str:
        """ZSET: ids of jobs not yet due, by due time in server ms."""
        return self._own("delayed")

    @cached_property
    def delayed_bodies(self) -> str:
        """HASH: from id to the job not yet due, behind `f` or `b`, its lane and a newline."""
        return self._own("delayed_bodies")

    @cached_property
    def aside(self) -> str:
        """ZSET: which of the jobs not yet due were set aside, over the limits of their tasks."""
        return self._own("aside")

    @cached_property
    def ring(self) -> str:
        """LIST: fair lanes that have jobs, in the order of their turns."""
        return self._own("ring")

    @cached_property
    def wakeup(self) -> str:
        """LIST: a token or two while jobs can be claimed; each wakes one idle worker."""
        return self._own("wakeup")

    @cached_property
    def lanes(self) -> str:
        """SET: fair lanes that have jobs; and "" if it names all of them."""
        return self._own("lanes")

    @cached_property
    def busy(self) -> str:
        """ZSET: workers that may have jobs in hand, by their last claim in server ms."""
        return self._own("busy")

    @cached_property
    def parked(self) -> str:
        """ZSET: fair lanes kept out of the ring, by the time in server ms until which."""
        return self._own("parked")

    @cached_property
    def weights(self) -> str:
        """HASH: from fair lane to the jobs it may have in one turn, where that is not one."""
        return self._own("weights")

    @cached_property
    def runnings(self) -> str:
        """Prefix of the keys of running claims by fair lane."""
        return self._own("running:")

    def running(self, lane: str) -> str:
        """SET: claims of a fair lane whose places are limited."""
        return f"{self.runnings}{lane_name(lane)}"

    @cached_property
    def uniques(self) -> str:
        """Prefix of unique keys."""
        return self._own("unique:")

    def unique(self, key: str) -> str:
        """STRING: id of the job that holds a unique key."""
        return f"{self.uniques}{encode_id('unique key', key)}"

    @cached_property
    def indexes(self) -> str:
        """Prefix of the keys of the indexes by state."""
        return self._own("jobs:")

    def jobs(self, state: str) -> str:
        """ZSET: ids of jobs with a record, by the time in server ms at which they took a state."""
        return f"{self.indexes}{encode_id('state', state)}"

    @cached_property
    def cancelled(self) -> str:
        """SET: jobs that were cancelled while they waited on a list, and are passed over there."""
        return self._own("cancelled")

    @cached_property
    def schedule(self) -> str:
        """ZSET: names of what recurs, by the next time in server ms."""
        return self._own("schedule")

    @cached_property
    def audit(self) -> str:
        """STREAM: who did what to the queue and its dead letters."""
        return self._own("audit")

    @cached_property
    def own(self) -> str:
        """Prefix of all its keys but the lists of jobs and letters."""
        return self._own("")

    def _own(self, part: str) -> str:
        return f"{self.root}penstock:queue:{self.home}:{part}"


class QueueKeyring(QueueKeys):
    """The keys of one queue, and names and keys of its jobs and lanes.

    Scripts build the keys of single jobs, lanes and workers from prefixes: `records`, `indexes`,
    `runnings`, `claims` and `uniques`.
    """

    @cached_property
    def queue(self) -> str:
        """Name of the queue."""
        return self.home.strip("{}")

    @cached_property
    def records(self) -> str:
        """Prefix of the keys of its jobs' records."""
        return f"{self.root}{_jobs_home(self.queue, self.home)}"

    def list_of(self, lane: str) -> str:
        """LIST of a lane, given its name as spelled in keys; "" is the plain list."""
        return f"{self.waiting}:{lane}" if lane else self.waiting

    def record(self, job_id: str) -> str:
        return f"{self.records}{job_name(job_id)}"

    def record_name(self, job_id: str) -> str:
        """Id of a job as spelled in keys."""
        if job_id.isascii() and job_id.isalnum() and len(job_id) <= _PLAIN_ID:
            return job_id
        return job_name(job_id)


class QueuesKeys(FamilyKeys):
    """Keys of all queues together."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace) -> Self:
        return cls(keys.prefix, keys.tag("queues"))

    @property
    def registry(self) -> str:
        """SET: the names of all queues."""
        return f"{self.root}penstock:{self.home}:registry"


class JobKeys(FamilyKeys):
    """Keys of one job; on a cluster in the slot of its queue."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, queue: str, job: str) -> Self:
        """Those of a queue `<area>:queue` are at `<area>:job:<job>`."""
        check_queue(queue, RESERVED_WORDS, AREA_WORDS)
        return cls(keys.prefix, f"{_jobs_home(queue, keys.tag(queue))}{job_name(job)}")

    @property
    def status(self) -> str:
        """HASH: the job's state, attempts, times, progress and error."""
        return f"{self.root}{self.home}"


def lane_name(group: str) -> str:
    """Name of a group's fair lane as spelled in keys."""
    return encode_id("lane", group, _TAKEN)


def job_name(job_id: str) -> str:
    """Id of a job as spelled in keys."""
    return encode_id("job", job_id)


def _jobs_home(queue: str, home: str) -> str:
    if ":" in queue and home == queue:
        return f"{queue.removesuffix(QUEUE_WORD)}job:"
    return f"penstock:queue:{home}:job:"
