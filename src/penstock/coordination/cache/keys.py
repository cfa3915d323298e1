"""Keys of cache."""

from __future__ import annotations

from typing import Self

from penstock.redis.keys.family import FamilyKeys
from penstock.redis.keys.names import encode_id
from penstock.redis.keys.space import KeySpace

__all__ = ["CacheKeys"]


class CacheKeys(FamilyKeys):
    """Keys of one cached value."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, space: str, key: str) -> Self:
        """`space` keeps the keys of different users apart."""
        home = f"{encode_id('cache space', space)}:{encode_id('cache key', key)}"
        return cls(keys.prefix, keys.tag(home))

    @property
    def value(self) -> str:
        """STRING: the value as JSON."""
        return f"{self.root}cache:{self.home}"

    @property
    def sorted(self) -> str:
        """ZSET: members by their score."""
        if self._is_tagged:
            return f"{self.value}:sorted"
        space, _, key = self.home.partition(":")
        return f"{self.root}cache:{space}:sorted:{key}"

    @property
    def flight(self) -> str:
        """STRING: the token of the process that makes the value."""
        return f"{self.root}penstock:flight:{self.home}"
