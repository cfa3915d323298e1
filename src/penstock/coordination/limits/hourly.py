"""A limit per clock hour, in counters that other programs share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from penstock.coordination.limits.keys import HourlyLimitKeys
from penstock.coordination.limits.scripts import LimitScripts
from penstock.errors import SettingError
from penstock.redis.client import Client

__all__ = ["HourlyCount", "HourlyLimit"]

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class HourlyCount:
    """The count of an hour; unpacks into count and allowed.

    count, allowed = await limit.increment()
    """

    count: int
    """Calls in this hour, including those just counted."""
    allowed: bool
    """Whether these calls were counted, and so may be made."""
    limit: int
    """Calls per hour, including the buffer that is never granted."""
    remaining: int
    """Calls left in this hour."""
    hour: str
    """`2024-09-17_14`, in UTC and by the server's clock."""
    reset_s: float
    """Until the next hour begins."""
    max_grantable: int
    """The most that any hour grants: asking for more at once is an error."""

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

    `settings.hourly` has the limit. The counters (the key family `hourly_limit.count`) are plain
    numbers that any program may read and increment.

    Providers do not count by clock hours: up to twice the limit fits around the turn of an hour.
    `Limit` holds for every hour, whenever it begins; this is for programs that share the counters.
    """

    def __init__(self, client: Client) -> None:
        settings = client.settings.hourly
        if settings.buffer >= settings.limit:
            raise SettingError("hourly.buffer", settings.buffer, f"less than {settings.limit}")
        self._client = client
        self._settings = settings
        self._keys = HourlyLimitKeys.of(client.keys)

    async def increment(self, n: int = 1) -> HourlyCount:
        """Count `n` calls, all or none; before they are made, and each repeat again.

        The server's clock decides the hour. After `OutcomeUnknown` they may be counted: treat
        them as spent.
        """
        if type(n) is not int or not 1 <= n <= self._most:
            raise SettingError("n", n, f"a whole number from 1 to {self._most}")
        return await self._count(n)

    async def status(self) -> HourlyCount:
        """The count of this hour; `allowed` is whether one more call would be."""
        return await self._count(0)

    @property
    def _most(self) -> int:
        return self._settings.limit - self._settings.buffer

    async def _count(self, calls: int) -> HourlyCount:
        settings = self._settings
        count, allowed, now_ms = await LimitScripts.of(self._client).count_hour(
            counters=self._keys.prefix,
            calls=calls,
            limit=settings.limit,
            buffer=settings.buffer,
            keep_ms=round(settings.ttl_hours * _HOUR_MS),
        )
        remaining = max(0, self._most - count)
        return HourlyCount(
            count=count,
            allowed=bool(allowed) if calls else remaining > 0,
            limit=settings.limit,
            remaining=remaining,
            hour=f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y-%m-%d_%H}",
            reset_s=(_HOUR_MS - now_ms % _HOUR_MS) / 1000,
            max_grantable=self._most,
        )
