"""Keys of once."""

from __future__ import annotations

from typing import Self

from penstock.redis.keys.family import FamilyKeys
from penstock.redis.keys.names import encode_id
from penstock.redis.keys.space import KeySpace

__all__ = ["DedupeKeys"]


class DedupeKeys(FamilyKeys):
    """The mark of something that is to happen once."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, key: str) -> Self:
        """Check the key: a SHA-256, or a scope and more."""
        return cls(keys.prefix, keys.tag(encode_id("key", key)))

    @property
    def mark(self) -> str:
        """STRING: the path (or other origin) of what was seen."""
        return f"{self.root}dedupe:{self.home}"

    @property
    def holder(self) -> str:
        """STRING: the token of the caller at work on it."""
        return f"{self.root}penstock:once:{self.home}"
