"""Keys of worker processes, and what is promised about them."""

from __future__ import annotations

from typing import Final, Self

from penstock.redis.keys.family import Family, FamilyKeys, RedisType, Ttl
from penstock.redis.keys.names import encode_id
from penstock.redis.keys.space import KeySpace

__all__ = ["WORKER_FAMILIES", "WorkersKeys"]


class WorkersKeys(FamilyKeys):
    """Keys of all workers; on a cluster they share a slot, so one script beats and lists."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace) -> Self:
        return cls(keys.prefix, keys.tag("workers"))

    @property
    def heartbeats(self) -> str:
        """ZSET: worker ids by last heartbeat in server ms."""
        return f"{self.root}penstock:{self.home}:heartbeats"

    def info(self, worker: str) -> str:
        """HASH: description of one worker."""
        return f"{self.root}penstock:{self.home}:info:{encode_id('worker', worker)}"


WORKER_FAMILIES: Final = (
    Family(
        "workers.heartbeats", "penstock:workers:heartbeats", "penstock:{workers}:heartbeats",
        RedisType.ZSET, Ttl.NEVER, "kept; dead workers are swept out of it", "runtime", "Penstock",
    ),
    Family(
        "workers.info", "penstock:workers:info:<worker>", "penstock:{workers}:info:<worker>",
        RedisType.HASH, Ttl.ALWAYS, "renewed with each heartbeat", "runtime", "Penstock",
    ),
)  # fmt: skip
