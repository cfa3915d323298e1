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
    "LimitsKeys",
    "RunKeys",
    "RunsKeys",
    "SlotKeys",
    "SlotsKeys",
    "WindowIndexKeys",
    "WindowKeys",
    "WindowsKeys",
]


class DedupeKeys(FamilyKeys):
    """The mark of something that is to happen once."""

    __slots__ = ()

    @property
    def mark(self) -> str:
        """STRING: the path (or other origin) of what was seen."""
        return f"{self.root}dedupe:{self.home}"

    @property
    def holder(self) -> str:
        """STRING: the token of whoever is at work on it."""
        return f"{self.root}penstock:once:{self.home}"


class LimitsKeys(FamilyKeys):
    """Keys of all limits together."""

    __slots__ = ()

    @property
    def registry(self) -> str:
        """HASH: from a limit's name to how it is set, as JSON."""
        return f"{self.root}penstock:{self.home}:registry"


class LimitKeys(FamilyKeys):
    """Keys of the limit of one client at one endpoint."""

    __slots__ = ()

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


class HourlyLimitKeys(FamilyKeys):
    """Counters of a limit per clock hour; on a cluster all hours share a slot.

    So the script that reads the server's clock may go to the counter of the hour it finds.
    """

    __slots__ = ()

    def count(self, hour: str) -> str:
        """STRING: the number of calls in an hour such as `2024-09-17_14` (UTC)."""
        return f"{self.root}courtlistener:{self.home}:{check_hour(hour)}"


class WindowsKeys(FamilyKeys):
    """Keys of all aggregation windows together."""

    __slots__ = ()

    @property
    def registry(self) -> str:
        """HASH: from a window's name to how it is set, as JSON."""
        return f"{self.root}penstock:{self.home}:registry"


class WindowKeys(FamilyKeys):
    """Keys of one aggregation window, in the vision pipeline of one camera.

    On a cluster they are in the slot of the queue or partition that gets its batches.
    """

    __slots__ = ()

    @property
    def current(self) -> str:
        """STRING: the id of the open batch."""
        return f"{self.root}batch:{self.home}:current"

    @property
    def seen(self) -> str:
        """ZSET: ids of items by the time they were added."""
        return f"{self.root}batch:{self.home}:seen"


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

    @property
    def bytes(self) -> str:
        """STRING: the bytes of its items."""
        return f"{self.root}batch:{self.home}:bytes"


class WindowIndexKeys(FamilyKeys):
    """Keys of all windows of one name that close into the same queue or partition."""

    __slots__ = ()

    @property
    def due(self) -> str:
        """ZSET: windows with an open batch by the time it is due to close, in server ms."""
        return f"{self.root}penstock:window:{self.home}:due"

    @property
    def events(self) -> str:
        """STREAM: what opened, grew and closed, capped."""
        return f"{self.root}penstock:window:{self.home}:events"

    @property
    def state(self) -> str:
        """HASH: the number of the latest event, and counts."""
        return f"{self.root}penstock:window:{self.home}:state"


class RunsKeys(FamilyKeys):
    """Keys of all runs together."""

    __slots__ = ()

    @property
    def registry(self) -> str:
        """ZSET: ids of runs by the time they began."""
        return f"{self.root}penstock:{self.home}:registry"


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


class SlotsKeys(FamilyKeys):
    """Keys of all named concurrency limits together."""

    __slots__ = ()

    @property
    def registry(self) -> str:
        """HASH: from a name to how it is set, as JSON."""
        return f"{self.root}penstock:{self.home}:registry"


class SlotKeys(FamilyKeys):
    """Keys of one named concurrency limit."""

    __slots__ = ()

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


class FeedKeys(FamilyKeys):
    """Keys of one feed of numbered events."""

    __slots__ = ()

    @property
    def events(self) -> str:
        """STREAM: the latest events, capped."""
        return f"{self.root}penstock:feed:{self.home}"

    @property
    def state(self) -> str:
        """HASH: the number of the latest event, the snapshot, and the final event."""
        return f"{self.events}:state"


class CacheKeys(FamilyKeys):
    """Keys of one cached value."""

    __slots__ = ()

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
