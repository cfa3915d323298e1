"""Keys of queues and their jobs."""

from __future__ import annotations

from typing import Final, Literal, get_args

from penstock.errors import InvalidName
from penstock.redis.keys.base import FamilyKeys
from penstock.redis.keys.names import QUEUE_WORD, encode_id

__all__ = ["PRIORITIES", "JobKeys", "Priority", "QueueKeys"]

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

    def claimed(self, worker: str) -> str:
        """HASH: from job id to the job, for all jobs that a worker has in hand."""
        return f"{self.root}penstock:queue:{self.home}:claimed:{encode_id('worker', worker)}"

    @property
    def delayed(self) -> str:
        """ZSET: ids of jobs not yet due, by due time in server ms."""
        return f"{self.root}penstock:queue:{self.home}:delayed"

    @property
    def delayed_bodies(self) -> str:
        """HASH: from id to the job not yet due."""
        return f"{self.root}penstock:queue:{self.home}:delayed_bodies"


class JobKeys(FamilyKeys):
    """Keys of one job; on a cluster in the slot of its queue."""

    __slots__ = ()

    @property
    def status(self) -> str:
        """HASH: the job's state, attempts, times, progress and error."""
        return f"{self.root}{self.home}"
