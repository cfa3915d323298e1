"""One kind of key: how its keys are spelled, and what is promised about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Family", "FamilyKeys", "RedisType", "Ttl"]


class RedisType(StrEnum):
    """Type of a key, spelled as the server's `TYPE` command answers."""

    STRING = "string"
    LIST = "list"
    SET = "set"
    ZSET = "zset"
    HASH = "hash"
    STREAM = "stream"


class Ttl(StrEnum):
    """Whether a key of the family must have a TTL."""

    NEVER = "never"
    """None: its owner removes it. A TTL on it would lose work."""
    ALWAYS = "always"
    """From its first write on. One without a TTL is an orphan."""
    TERMINAL = "terminal"
    """None while the work is under way, one from its final state on."""
    CHOSEN = "chosen"
    """None, or the one that its user has asked for."""
    WRITER = "writer"
    """Another program writes the key as well, and decides."""


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of key. The stored contract: what others may rely on."""

    name: str
    """`partition.stream` is built by `KeySpace(…).partition(…).stream`."""
    pattern: str
    """Its keys on a single server; `<topic>` stands for an argument of that name."""
    cluster: str
    """Its keys on a cluster."""
    redis_type: RedisType
    ttl: Ttl
    lifetime: str
    """How long a key lives, in words."""
    owner: str
    """The part of Penstock that answers for the keys: it removes or expires them."""
    writers: str
    """Who may write them."""
    also: str = ""
    """A second spelling on a single server; `<area>` belongs to a queue `<area>:queue`."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """All spellings, those of a single server first."""
        return tuple(pattern for pattern in (self.pattern, self.also, self.cluster) if pattern)


@dataclass(frozen=True, slots=True)
class FamilyKeys:
    """Keys that belong together; on a cluster they share a hash slot.

    Each kind has a class method `of(space, …)`, which checks names (`InvalidName`).
    """

    root: str
    """What the keys of the namespace begin with, or nothing."""
    home: str
    """What the keys belong to, as spelled in them: `mail`, on a cluster `{mail}`."""

    @property
    def _is_tagged(self) -> bool:
        return self.home.startswith("{")
