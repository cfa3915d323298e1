"""Keys of queues and their jobs."""

from __future__ import annotations

from typing import Final, Literal, get_args

from penstock.errors import InvalidName
from penstock.redis.keys.base import FamilyKeys
from penstock.redis.keys.names import QUEUE_WORD, encode_id

__all__ = ["PRIORITIES", "JobKeys", "Priority", "QueueKeys", "QueuesKeys"]

Priority = Literal["high", "normal", "low"]
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)

# A fair lane of one of these names would be a priority lane, or the queue `<queue>:queue`.
_TAKEN = frozenset({*PRIORITIES, QUEUE_WORD})


class QueueKeys(FamilyKeys):
    """Keys of one queue; on a cluster they share a slot, so a script may span them."""

    __slots__ = ()

    @property
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
        return f"{self.root}{self.home}:{encode_id('lane', lane, _TAKEN)}"

    @property
    def dead_letters(self) -> str:
        """LIST: the jobs that failed for good, each with its reason."""
        return f"{self.root}dlq:{self.home}"

    @property
    def overflow(self) -> str:
        """LIST: the jobs that were moved aside when the queue was full."""
        return f"{self.root}dlq:overflow:{self.home}"

    @property
    def state(self) -> str:
        """HASH: how the queue is used, whether it is paused, whose turn it is."""
        return self._own("state")

    @property
    def counters(self) -> str:
        """HASH: how many jobs were added, done, retried, buried, dropped and so on."""
        return self._own("counters")

    @property
    def workers(self) -> str:
        """ZSET: live workers, by their last sign of life in server ms."""
        return self._own("workers")

    @property
    def dead_workers(self) -> str:
        """ZSET: workers given up as dead, whose claims are to be returned."""
        return self._own("dead_workers")

    @property
    def suspects(self) -> str:
        """HASH: jobs that workers may have died of, and which worker reads or tries which."""
        return self._own("suspects")

    def claimed(self, worker: str) -> str:
        """HASH: from claim to job, for all jobs that a worker has in hand."""
        return self._own(f"claimed:{encode_id('worker', worker)}")

    @property
    def delayed(self) -> str:
        """ZSET: ids of jobs not yet due, by due time in server ms."""
        return self._own("delayed")

    @property
    def delayed_bodies(self) -> str:
        """HASH: from id to the job not yet due, behind `f` or `b`, its lane and a newline."""
        return self._own("delayed_bodies")

    @property
    def aside(self) -> str:
        """ZSET: which of the jobs not yet due were set aside, over the limits of their tasks."""
        return self._own("aside")

    @property
    def ring(self) -> str:
        """LIST: fair lanes that have jobs, in the order of their turns."""
        return self._own("ring")

    @property
    def wakeup(self) -> str:
        """LIST: a token or two while jobs can be claimed; each wakes one idle worker."""
        return self._own("wakeup")

    @property
    def lanes(self) -> str:
        """SET: fair lanes that have jobs; and "" if it names all of them."""
        return self._own("lanes")

    @property
    def busy(self) -> str:
        """ZSET: workers that may have jobs in hand, by their last claim in server ms."""
        return self._own("busy")

    @property
    def parked(self) -> str:
        """ZSET: fair lanes kept out of the ring, by the time in server ms until which."""
        return self._own("parked")

    @property
    def weights(self) -> str:
        """HASH: from fair lane to the jobs it may have in one turn, where that is not one."""
        return self._own("weights")

    def running(self, lane: str) -> str:
        """SET: claims of a fair lane whose places are limited."""
        return self._own(f"running:{encode_id('lane', lane, _TAKEN)}")

    def unique(self, key: str) -> str:
        """STRING: id of the job that holds a unique key."""
        return self._own(f"unique:{encode_id('unique key', key)}")

    def jobs(self, state: str) -> str:
        """ZSET: ids of jobs with a record, by the time in server ms at which they took a state."""
        return self._own(f"jobs:{encode_id('state', state)}")

    @property
    def cancelled(self) -> str:
        """SET: jobs that were cancelled while they waited on a list, and are passed over there."""
        return self._own("cancelled")

    @property
    def schedule(self) -> str:
        """ZSET: names of what recurs, by the next time in server ms."""
        return self._own("schedule")

    @property
    def audit(self) -> str:
        """STREAM: who did what to the queue and its dead letters."""
        return self._own("audit")

    def _own(self, part: str) -> str:
        return f"{self.root}penstock:queue:{self.home}:{part}"


class QueuesKeys(FamilyKeys):
    """Keys of all queues together."""

    __slots__ = ()

    @property
    def registry(self) -> str:
        """SET: the names of all queues."""
        return f"{self.root}penstock:{self.home}:registry"


class JobKeys(FamilyKeys):
    """Keys of one job; on a cluster in the slot of its queue."""

    __slots__ = ()

    @property
    def status(self) -> str:
        """HASH: the job's state, attempts, times, progress and error."""
        return f"{self.root}{self.home}"
