"""Keys of slots."""

from __future__ import annotations

from typing import Self

from penstock.redis.keys.family import FamilyKeys
from penstock.redis.keys.names import encode_id
from penstock.redis.keys.space import KeySpace

__all__ = ["SlotKeys", "SlotsKeys"]


class SlotsKeys(FamilyKeys):
    """Keys of all named concurrency limits together."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace) -> Self:
        return cls(keys.prefix, keys.tag("slots"))

    @property
    def registry(self) -> str:
        """HASH: from a name to how it is set, as JSON."""
        return f"{self.root}penstock:{self.home}:registry"


class SlotKeys(FamilyKeys):
    """Keys of one named concurrency limit."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, slot: str) -> Self:
        return cls(keys.prefix, keys.tag(encode_id("slot", slot)))

    @property
    def holders(self) -> str:
        """ZSET: holders by the end of their lease in server ms."""
        return f"{self.root}penstock:slot:{self.home}"

    @property
    def waiting(self) -> str:
        """ZSET: tickets of processes whose callers wait, by when the first came, in server ms."""
        return f"{self.holders}:waiting"

    @property
    def tickets(self) -> str:
        """HASH: from a ticket to the time until which it counts, and how many wait with it."""
        return f"{self.holders}:tickets"

    @property
    def state(self) -> str:
        """HASH: the latest fence."""
        return f"{self.holders}:state"
