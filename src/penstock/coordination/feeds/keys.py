"""Keys of feeds."""

from __future__ import annotations

from typing import Self

from penstock.redis.keys.family import FamilyKeys
from penstock.redis.keys.names import encode_id
from penstock.redis.keys.space import KeySpace

__all__ = ["FeedKeys", "FeedsKeys"]


class FeedsKeys(FamilyKeys):
    """Keys of all feeds together."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace) -> Self:
        return cls(keys.prefix, keys.tag("feeds"))

    @property
    def registry(self) -> str:
        """ZSET: names of feeds, as spelled in keys, by the time they were made."""
        return f"{self.root}penstock:{self.home}:registry"


class FeedKeys(FamilyKeys):
    """Keys of one feed of numbered events."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, feed: str) -> Self:
        return cls(keys.prefix, keys.tag(encode_id("feed", feed)))

    @property
    def events(self) -> str:
        """STREAM: the latest events, capped."""
        return f"{self.root}penstock:feed:{self.home}"

    @property
    def state(self) -> str:
        """HASH: the number of the latest event, the snapshot, and the final event."""
        return f"{self.events}:state"
