"""Keys by which worker processes and the server itself are watched."""

from __future__ import annotations

from penstock.redis.keys.base import FamilyKeys
from penstock.redis.keys.names import encode_id

__all__ = ["ProbeKeys", "WorkersKeys"]


class WorkersKeys(FamilyKeys):
    """Keys of all workers; on a cluster they share a slot, so one script beats and lists."""

    __slots__ = ()

    @property
    def heartbeats(self) -> str:
        """ZSET: worker ids by last heartbeat in server ms."""
        return f"{self.root}penstock:{self.home}:heartbeats"

    def info(self, worker: str) -> str:
        """HASH: what one worker says about itself."""
        return f"{self.root}penstock:{self.home}:info:{encode_id('worker', worker)}"


class ProbeKeys(FamilyKeys):
    """The key of a health probe; on a cluster its tag chooses the slot, and so the node."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """STRING: written to learn whether the server takes writes."""
        return f"{self.root}penstock:probe:{self.home}"
