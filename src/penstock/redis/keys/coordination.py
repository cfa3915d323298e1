"""Keys of the coordination primitives: once, limits, windows, runs, slots, feeds, cache."""

from __future__ import annotations

from penstock.redis.keys.base import FamilyKeys
from penstock.redis.keys.names import check_hour, encode_id

__all__ = [
    "BatchKeys",
    "CacheKeys",
    "DedupeKeys",
    "FeedKeys",
    "HourlyLimitKeys",
    "LimitKeys",
    "RunKeys",
    "SlotKeys",
    "WindowKeys",
]


class DedupeKeys(FamilyKeys):
    """The mark of something that is to happen once."""

    __slots__ = ()

    @property
    def mark(self) -> str:
        """STRING: the path (or other origin) of what was seen."""
        return f"{self.root}dedupe:{self.home}"


class LimitKeys(FamilyKeys):
    """Keys of the limit of one client at one endpoint."""

    __slots__ = ()

    @property
    def log(self) -> str:
        """ZSET: admitted requests by time in server ms."""
        return f"{self.root}ratelimit:{self.home}"


class HourlyLimitKeys(FamilyKeys):
    """Counters of a limit per clock hour; on a cluster all hours share a slot.

    So the script that reads the server's clock may go to the counter of the hour it finds.
    """

    __slots__ = ()

    def count(self, hour: str) -> str:
        """STRING: the number of calls in an hour such as `2024-09-17_14` (UTC)."""
        return f"{self.root}courtlistener:{self.home}:{check_hour(hour)}"


class WindowKeys(FamilyKeys):
    """Keys of one aggregation window, in the vision pipeline of one camera."""

    __slots__ = ()

    @property
    def current(self) -> str:
        """STRING: the id of the open batch."""
        return f"{self.root}batch:{self.home}:current"


class BatchKeys(FamilyKeys):
    """Keys of one batch; on a cluster in the slot of its window."""

    __slots__ = ()

    @property
    def camera_id(self) -> str:
        """STRING: name of the window (the camera) of the batch."""
        return f"{self.root}batch:{self.home}:camera_id"

    @property
    def detections(self) -> str:
        """LIST: the items (the detection ids) in order of arrival."""
        return f"{self.root}batch:{self.home}:detections"

    @property
    def started_at(self) -> str:
        """STRING: the time of the first item."""
        return f"{self.root}batch:{self.home}:started_at"

    @property
    def last_activity(self) -> str:
        """STRING: the time of the latest item."""
        return f"{self.root}batch:{self.home}:last_activity"


class RunKeys(FamilyKeys):
    """Keys of one run of the harvest; on a cluster they share a slot."""

    __slots__ = ()

    @property
    def pipeline(self) -> str:
        """HASH: the run's status and facts, the raw run id among them."""
        return f"{self.root}courtlistener:pipeline:{self.home}"

    def task_start(self, task: str) -> str:
        """STRING: the time at which a task of the run began."""
        return f"{self.root}courtlistener:task_start:{self.home}:{encode_id('task', task)}"

    def failed(self, hour: str) -> str:
        """LIST: dockets that failed in an hour; on one server of all runs together."""
        tag = f"{self.home}:" if self._is_tagged else ""
        return f"{self.root}courtlistener:failed:{tag}{check_hour(hour)}"


class SlotKeys(FamilyKeys):
    """Keys of one named concurrency limit."""

    __slots__ = ()

    @property
    def holders(self) -> str:
        """ZSET: holders by the end of their lease in server ms."""
        return f"{self.root}penstock:slot:{self.home}"


class FeedKeys(FamilyKeys):
    """Keys of one feed of numbered events."""

    __slots__ = ()

    @property
    def events(self) -> str:
        """STREAM: the latest events, capped."""
        return f"{self.root}penstock:feed:{self.home}"


class CacheKeys(FamilyKeys):
    """Keys of one cached value."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """STRING: the value as JSON."""
        return f"{self.root}cache:{self.home}"
