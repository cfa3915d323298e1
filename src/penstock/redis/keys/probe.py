"""The key of a health probe, and what is promised about it."""

from __future__ import annotations

from typing import Final, Self

from penstock.redis.keys.family import Family, FamilyKeys, RedisType, Ttl
from penstock.redis.keys.names import encode_id
from penstock.redis.keys.space import KeySpace

__all__ = ["PROBE_FAMILIES", "ProbeKeys"]


class ProbeKeys(FamilyKeys):
    """The key of a health probe; on a cluster its tag chooses the slot, and so the node."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, tag: str = "server") -> Self:
        """On a cluster choose a `tag` whose slot is the node's."""
        return cls(keys.prefix, keys.tag(encode_id("tag", tag)))

    @property
    def value(self) -> str:
        """STRING: written to learn whether the server takes writes."""
        return f"{self.root}penstock:probe:{self.home}"


PROBE_FAMILIES: Final = (
    Family(
        "probe.value", "penstock:probe:<tag>", "penstock:probe:{<tag>}",
        RedisType.STRING, Ttl.ALWAYS, "seconds", "health", "Penstock",
    ),
)  # fmt: skip
