"""Keys of limits."""

from __future__ import annotations

from typing import Self

from penstock.coordination.stored_names import AREA
from penstock.redis.keys.family import FamilyKeys
from penstock.redis.keys.names import check_hour, encode_id
from penstock.redis.keys.space import KeySpace

__all__ = ["HourlyLimitKeys", "LimitKeys", "LimitsKeys"]


class LimitsKeys(FamilyKeys):
    """Keys of all limits together."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace) -> Self:
        return cls(keys.prefix, keys.tag("limits"))

    @property
    def registry(self) -> str:
        """HASH: from a limit's name to how it is set, as JSON."""
        return f"{self.root}penstock:{self.home}:registry"


class LimitKeys(FamilyKeys):
    """Keys of the limit of one client at one endpoint."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, endpoint: str, client: str) -> Self:
        home = f"{encode_id('endpoint', endpoint)}:{encode_id('client', client)}"
        return cls(keys.prefix, keys.tag(home))

    @property
    def log(self) -> str:
        """ZSET: admitted requests by time in server ms."""
        return f"{self.root}ratelimit:{self.home}"

    @property
    def state(self) -> str:
        """STRING: sums, buckets, the penalty and what the provider said, as MessagePack."""
        return f"{self.root}penstock:limit:{self.home}"

    @property
    def waiting(self) -> str:
        """ZSET: tickets of processes whose callers wait, in their order."""
        return f"{self.root}penstock:limit:{self.home}:waiting"

    @property
    def tickets(self) -> str:
        """HASH: from a ticket to what its callers want and when it was renewed."""
        return f"{self.root}penstock:limit:{self.home}:tickets"

    @property
    def penalty(self) -> str:
        """STRING: which answer of a provider the penalty is for, as JSON."""
        return f"{self.root}penstock:limit:{self.home}:penalty"


class HourlyLimitKeys(FamilyKeys):
    """Counters of a limit per clock hour; on a cluster all hours share a slot.

    So the script that reads the server's clock may go to the counter of the hour it finds.
    """

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace) -> Self:
        return cls(keys.prefix, keys.tag("rate_limit"))

    @property
    def prefix(self) -> str:
        """What the counters of all hours begin with."""
        return f"{self.root}{AREA}:{self.home}:"

    def count(self, hour: str) -> str:
        """STRING: the number of calls in an hour such as `2024-09-17_14` (UTC)."""
        return f"{self.prefix}{check_hour(hour)}"
