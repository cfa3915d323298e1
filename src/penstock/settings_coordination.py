"""Defaults of the coordination primitives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from penstock.settings_group import Bytes, Group, Seconds, Share

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
LongSeconds = Annotated[float, Meta(gt=0, le=3_650 * 86_400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceSettings(Group):
    """What is to happen once."""

    section: ClassVar[str] = "once"
    ttl_s: LongSeconds = 300.0
    """How long a mark lasts, from the end of the work on."""
    hold_s: Annotated[float, Meta(ge=0.2, le=86_400)] = 60.0
    """A process silent for this long loses what it has reserved; renewed three times as often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings(Group):
    """Rate limits."""

    section: ClassVar[str] = "limits"
    refresh_s: Annotated[float, Meta(gt=0, le=60)] = 0.5
    """How old a process's knowledge of a limit that was edited may be."""
    recheck_s: Annotated[float, Meta(gt=0, le=60)] = 0.5
    """Longest sleep of a caller that waits: the limit may have been raised meanwhile."""
    ticket_s: Annotated[float, Meta(ge=0.2, le=600)] = 3.0
    """A process silent for this long after its wake time loses its place in line."""
    lease_s: Annotated[float, Meta(gt=0, le=60)] = 0.25
    """How long permits taken in advance may be used."""
    lease_share: Share = 0.25
    """Largest part of what is left that one process takes in advance."""
    buckets: Annotated[int, Meta(ge=10, le=1_000)] = 100
    """Parts of a window that the compact algorithm counts apart; it admits 1/n less."""
    blocked_s: Seconds = 60.0
    """How long to stop after a refusal that does not say how long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlySettings(Group):
    """The limit per clock hour."""

    section: ClassVar[str] = "hourly"
    limit: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 5_000
    buffer: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 25
    """Calls of the limit that are never given out."""
    ttl_hours: Hours = 2.0
    """How long the count of an hour is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings(Group):
    """Aggregation windows."""

    section: ClassVar[str] = "windows"
    max_age_s: LongSeconds = 90.0
    """A batch is closed so long after its first item."""
    idle_s: LongSeconds = 30.0
    """A batch is closed so long after its latest item."""
    max_items: Annotated[int, Meta(ge=1, le=10_000)] = 500
    max_bytes: Bytes = 256 * 1024
    """Largest batch. It becomes one job or message, so it must fit into one."""
    look_s: Annotated[float, Meta(gt=0, le=60)] = 0.25
    """How often a worker looks for batches that are due."""
    remember_s: LongSeconds = 3_600.0
    """How long the repeat of an item's id is recognised."""
    events: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """About so many of the latest events are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(Group):
    """Records of runs."""

    section: ClassVar[str] = "runs"
    keep_hours: Hours = 25.0
    """How long a run's keys stay after its final state."""
    failed_hours: Hours = 2.0
    """How long the hourly list of failures stays. The failures themselves stay until resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings(Group):
    """Named concurrency limits."""

    section: ClassVar[str] = "slots"
    lease_s: Annotated[float, Meta(ge=0.2, le=86_400)] = 10.0
    """A holder silent for this long loses its slot; renewed three times as often."""
    recheck_s: Annotated[float, Meta(gt=0, le=60)] = 0.5
    """Longest sleep of a caller that waits: the hint that a slot is free may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings(Group):
    """Feeds of numbered events."""

    section: ClassVar[str] = "feeds"
    cap: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    """About so many of the latest events are kept."""
    keep_s: LongSeconds = 86_400.0
    """How long a feed stays after its final event."""
    buffer: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """Events that wait for a reader, above which it is cut off; it may resume."""
    poll_s: Annotated[float, Meta(gt=0, le=60)] = 1.0
    """How often feeds are looked at without a hint: one may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings(Group):
    """Cached values."""

    section: ClassVar[str] = "cache"
    ttl_s: LongSeconds = 3_600.0
    flight_s: Annotated[float, Meta(ge=0.2, le=3_600)] = 10.0
    """A process silent for this long while it makes a value is given up by those who wait."""
