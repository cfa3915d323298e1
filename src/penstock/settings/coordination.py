"""Defaults of the coordination primitives."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from penstock.settings.group import Bytes, Group, Seconds, Share

__all__ = [
    "FOREIGN_VARIABLES",
    "CacheSettings",
    "FeedSettings",
    "HourlySettings",
    "LimitSettings",
    "OnceSettings",
    "RunSettings",
    "SlotSettings",
    "WindowSettings",
]

FOREIGN_VARIABLES: Final = {
    "CALL_LIMIT_PER_HOUR": "hourly.limit",
    "COURTLISTENER_SAFETY_BUFFER": "hourly.buffer",
    "DEDUPE_TTL_SECONDS": "once.ttl_s",
    "REDIS_COUNTER_TTL_HOURS": "hourly.ttl_hours",
    "REDIS_STATE_TTL_HOURS": "runs.keep_hours",
}
"""Variables that existing deployments set. One of ours for the same setting wins."""

Hours = Annotated[float, Meta(gt=0, le=8_760)]
MaxNumber = Annotated[int, Meta(ge=0, le=1_000_000_000)]
"""How many there may be; 0 for any number."""
LongSeconds = Annotated[float, Meta(gt=0, le=3_650 * 86_400)]


class OnceSettings(Group):
    """Marks of `once`."""

    section: ClassVar[str] = "once"
    ttl_s: LongSeconds = 300.0
    """Time to live of a mark, from the end of the work."""
    hold_s: Annotated[float, Meta(ge=0.2, le=86_400)] = 60.0
    """Lease of a reservation; renewed three times as often."""


class LimitSettings(Group):
    """Rate limits."""

    section: ClassVar[str] = "limits"
    refresh_s: Annotated[float, Meta(gt=0, le=60)] = 0.5
    """How often a process reads the settings of a limit."""
    recheck_s: Annotated[float, Meta(gt=0, le=60)] = 0.5
    """Maximum time between two checks of a waiting caller: the limit may have been raised."""
    ticket_s: Annotated[float, Meta(ge=0.2, le=600)] = 3.0
    """A process silent for this long after its wake time loses its place in line."""
    lease_s: Annotated[float, Meta(gt=0, le=60)] = 0.25
    """How long prefetched permits may be used."""
    lease_share: Share = 0.25
    """Maximum share of the remaining permits that one process prefetches."""
    buckets: Annotated[int, Meta(ge=10, le=1_000)] = 100
    """Buckets per window of the compact algorithm; it admits 1/n less."""
    blocked_s: Seconds = 60.0
    """Penalty after a refusal without a Retry-After."""
    longest_penalty_s: LongSeconds = 3_600.0
    """Longest penalty that headers of an answer can ask for; `penalise` in code may be longer."""


class HourlySettings(Group):
    """The limit per clock hour."""

    section: ClassVar[str] = "hourly"
    limit: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 5_000
    buffer: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 25
    """Calls of the limit that are never used."""
    ttl_hours: Hours = 2.0
    """How long the count of an hour is kept."""


class WindowSettings(Group):
    """Aggregation windows."""

    section: ClassVar[str] = "windows"
    max_age_s: LongSeconds = 90.0
    """Time from its first item after which a batch is closed."""
    idle_s: LongSeconds = 30.0
    """Time from its latest item after which a batch is closed."""
    max_items: Annotated[int, Meta(ge=1, le=10_000)] = 500
    max_bytes: Bytes = 256 * 1024
    """Maximum size of a batch, which must fit into one job or message."""
    look_s: Annotated[float, Meta(gt=0, le=60)] = 0.25
    """How often a worker closes due batches."""
    remember_s: LongSeconds = 3_600.0
    """How long ids of items are remembered."""
    events: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Approximate number of events that are kept."""
    max_open: MaxNumber = 100_000
    """Maximum number of open batches of a window, in each partition if it closes into a topic."""


class RunSettings(Group):
    """Records of runs."""

    section: ClassVar[str] = "runs"
    keep_hours: Hours = 25.0
    """How long a run's keys stay after its final state."""
    failed_hours: Hours = 2.0
    """How long the hourly list of failures stays. The failures themselves stay until resolved."""
    max_runs: MaxNumber = 100_000
    """Maximum number of runs that have a record: open ones, and others for `runs.keep_hours`."""


class SlotSettings(Group):
    """Named concurrency limits."""

    section: ClassVar[str] = "slots"
    lease_s: Annotated[float, Meta(ge=0.2, le=86_400)] = 10.0
    """Lease of a slot; renewed three times as often."""
    recheck_s: Annotated[float, Meta(gt=0, le=60)] = 0.5
    """Maximum time between two checks of a waiting caller: a wake-up may be lost."""


class FeedSettings(Group):
    """Feeds of numbered events."""

    section: ClassVar[str] = "feeds"
    cap: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    """Approximate number of events that are kept."""
    keep_s: LongSeconds = 86_400.0
    """How long a feed stays after its final event."""
    buffer: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """Maximum number of events queued for a reader; beyond it the reader is cut off."""
    poll_s: Annotated[float, Meta(gt=0, le=60)] = 1.0
    """How often feeds are read without a wake-up, which may be lost."""
    max_feeds: MaxNumber = 100_000
    """Maximum number of feeds."""


class CacheSettings(Group):
    """Cached values."""

    section: ClassVar[str] = "cache"
    ttl_s: LongSeconds = 3_600.0
    flight_s: Annotated[float, Meta(ge=0.2, le=3_600)] = 10.0
    """Lease of the process that makes a value; after it, a waiting process makes it."""
