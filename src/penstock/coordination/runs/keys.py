"""Keys of runs."""

from __future__ import annotations

from typing import Self

from penstock.coordination.stored_names import AREA, RUN_RECORD
from penstock.redis.keys.family import FamilyKeys
from penstock.redis.keys.names import check_hour, encode_id
from penstock.redis.keys.space import KeySpace

__all__ = ["RunKeys", "RunsKeys"]


class RunsKeys(FamilyKeys):
    """Keys of all runs together."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace) -> Self:
        return cls(keys.prefix, keys.tag("runs"))

    @property
    def registry(self) -> str:
        """ZSET: ids of runs by the time they began."""
        return f"{self.root}penstock:{self.home}:registry"


class RunKeys(FamilyKeys):
    """Keys of one run; on a cluster they share a hash slot."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, run: str) -> Self:
        return cls(keys.prefix, keys.tag(encode_id("run", run)))

    @property
    def record(self) -> str:
        """HASH: the run's status and facts, the raw run id among them."""
        return f"{self.root}{AREA}:{RUN_RECORD}:{self.home}"

    def task_start(self, task: str) -> str:
        """STRING: the time at which a task of the run began."""
        return f"{self.root}{AREA}:task_start:{self.home}:{encode_id('task', task)}"

    def failed(self, hour: str) -> str:
        """LIST: items that failed in an hour; on one server of all runs together."""
        return f"{self.failed_prefix}{check_hour(hour)}"

    @property
    def failed_prefix(self) -> str:
        """What the lists of failed items of all hours begin with."""
        tag = f"{self.home}:" if self._is_tagged else ""
        return f"{self.root}{AREA}:failed:{tag}"

    @property
    def processed(self) -> str:
        """SET: ids of what was processed."""
        return self._own("processed")

    @property
    def failures(self) -> str:
        """ZSET: ids of what failed and is not resolved, by the time of the next attempt."""
        return self._own("failures")

    @property
    def failure_info(self) -> str:
        """HASH: from the id of what failed to attempts, error and times, as JSON."""
        return self._own("failure_info")

    @property
    def starts(self) -> str:
        """HASH: from a task, its map index and its attempt to the time at which it began."""
        return self._own("starts")

    @property
    def events(self) -> str:
        """STREAM: the run's feed."""
        return self._own("events")

    @property
    def feed(self) -> str:
        """HASH: the number of the latest event, and the snapshot."""
        return self._own("feed")

    def _own(self, field: str) -> str:
        return f"{self.root}penstock:run:{self.home}:{field}"
