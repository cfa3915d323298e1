"""A limit per clock hour, in counters that other programs read and write as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from penstock.errors import SettingError
from penstock.redis.client import Client

__all__ = ["HourlyCount", "HourlyLimit"]

_HOUR_MS: Final = 3_600_000
_ANY_HOUR: Final = "1970-01-01_00"


@dataclass(frozen=True, slots=True)
class HourlyCount:
    """How an hour stands; unpacked, what the original script answers.

    count, allowed = await limit.increment()
    """

    count: int
    """Calls in this hour, the ones just counted among them."""
    allowed: bool
    """Whether these calls were counted, and so may be made."""
    limit: int
    """Calls that an hour has, those never given out included."""
    remaining: int
    """Calls still to be had in this hour."""
    hour: str
    """`2024-09-17_14`, in UTC and by the server's clock."""
    reset_s: float
    """Until the next hour begins."""
    max_grantable: int
    """The most that any hour gives out: asking for more in one go is an error."""

    def __iter__(self) -> Iterator[int | bool]:
        yield self.count
        yield self.allowed

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def retry_after_s(self) -> float:
        """After how long to ask again; 0 if allowed."""
        return 0.0 if self.allowed else self.reset_s


class HourlyLimit:
    """So many calls per clock hour, for all processes together.

        limit = HourlyLimit(app.redis)
        if await limit.increment():
            ...  # make the call

    `settings.hourly` (`CALL_LIMIT_PER_HOUR`, `COURTLISTENER_SAFETY_BUFFER`,
    `REDIS_COUNTER_TTL_HOURS`) says how many. The counters are the keys
    `courtlistener:rate_limit:<hour>`, plain numbers that any program may read.

    A clock hour is not what providers count: up to twice the limit fits around the turn of an hour.
    `Limit` holds for every hour, whenever it begins; this is for programs that share the counters.
    """

    def __init__(self, client: Client) -> None:
        settings = client.settings.hourly
        if settings.buffer >= settings.limit:
            raise SettingError("hourly.buffer", settings.buffer, f"less than {settings.limit}")
        self._client = client
        self._settings = settings
        counter = client.keys.hourly_limit().count(_ANY_HOUR)
        self._counters = counter.removesuffix(_ANY_HOUR)

    async def increment(self, n: int = 1) -> HourlyCount:
        """Count `n` calls, all or none; before they are made, and each repeat again.

        Whether there is room and in which hour is decided by the server. `OutcomeUnknown` means
        that they may be counted: take them for spent.
        """
        if type(n) is not int or not 1 <= n <= self._most:
            raise SettingError("n", n, f"a whole number from 1 to {self._most}")
        return await self._count(n)

    async def status(self) -> HourlyCount:
        """How this hour stands; `allowed` says whether one more call could be had."""
        return await self._count(0)

    @property
    def _most(self) -> int:
        return self._settings.limit - self._settings.buffer

    async def _count(self, calls: int) -> HourlyCount:
        settings = self._settings
        count, allowed, now_ms = await self._client.scripts.count_hour(
            counters=self._counters,
            calls=calls,
            limit=settings.limit,
            buffer=settings.buffer,
            keep_ms=round(settings.ttl_hours * _HOUR_MS),
        )
        remaining = max(0, self._most - count)
        return HourlyCount(
            count=count,
            allowed=allowed if calls else remaining > 0,
            limit=settings.limit,
            remaining=remaining,
            hour=f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y-%m-%d_%H}",
            reset_s=(_HOUR_MS - now_ms % _HOUR_MS) / 1000,
            max_grantable=self._most,
        )
