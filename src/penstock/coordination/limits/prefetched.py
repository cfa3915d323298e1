"""Permits prefetched from the server: one call for many, and never one permit too many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.coordination.limits.client import AcquireRequest
from penstock.coordination.limits.result import LimitResult
from penstock.coordination.limits.scripts import NO_PERMITS, PermitUse
from penstock.coordination.waiting_callers import BackgroundTasks
from penstock.errors import ServerError

if TYPE_CHECKING:
    from penstock.coordination.limits.limit import Limit
    from penstock.coordination.wakeups import Wakeups

__all__ = ["PrefetchedPermits"]

# Prefetched permits count from the end of their time. More of a period than this would be lost.
_PART_OF_PERIOD: Final = 0.02
_MOST_LISTENED: Final = 100
# Of more keys, those without permits are forgotten.
_MOST_KEPT: Final = 1_000


class _Held:
    """Prefetched permits of one key."""

    __slots__ = ("door", "drops", "grant", "left", "size", "timer", "until", "wake")

    def __init__(self) -> None:
        self.grant: LimitResult | None = None
        self.size = self.left = self.drops = 0
        self.until = 0.0
        self.door = asyncio.Lock()
        self.timer: asyncio.TimerHandle | None = None
        self.wake: Callable[[], None] | None = None


class PrefetchedPermits:
    """Holds up to `size` permits of a limit for each key, and returns what is not used.

    The server counts them as used at the end of their time, so that a call at any moment before is
    covered. Permits that are returned, or used up, count as of then.
    """

    def __init__(self, limit: Limit, size: int, wakeups: Wakeups | None) -> None:
        self._limit, self._size, self._wakeups = limit, size, wakeups
        self._held: dict[str, _Held] = {}
        self._returns = BackgroundTasks()
        self._settings = limit.client.settings.limits

    def take(self, key: str, cost: int) -> LimitResult | None:
        """Use prefetched permits; None if there are not enough."""
        held = self._held.get(key)
        if held is None or type(cost) is not int or not 1 <= cost <= held.left:
            return None
        if time.monotonic() >= held.until:
            return None
        held.left -= cost
        if cost == 1 and held.grant is not None:
            return held.grant
        return LimitResult(allowed=True, granted=cost)

    async def refill(self, key: str, cost: int, priority: int) -> LimitResult:
        """Ask the server for more, one caller at a time, and use some of them."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held()
            await self._listen(key, held)
        async with held.door:
            if (result := self.take(key, cost)) is not None:
                return result
            if cost > self._size:
                return await self._limit.ask(AcquireRequest(key, cost, priority))
            asked_at, returned, drops = time.monotonic(), self._used_up(held), held.drops
            hold_s = self._hold_s()
            result = await self._limit.ask(
                AcquireRequest(
                    key,
                    self._size,
                    priority,
                    fewest=cost,
                    share=self._settings.lease_share,
                    hold_ms=round(hold_s * 1000),
                    returned=returned,
                )
            )
            if not result.allowed or result.permit is None:
                return result
            grant = LimitResult(
                allowed=True,
                granted=1,
                rates=result.rates,
                windows_left=result.windows_left,
                permit=result.permit,
            )
            # A penalty that was announced meanwhile came after the grant.
            held.grant, held.until = grant, asked_at + hold_s if held.drops == drops else 0.0
            held.size, held.left = result.granted, result.granted - cost
            self._watch(key, held)
            return grant if cost == 1 else LimitResult(allowed=True, granted=cost)

    def drop(self, key: str) -> None:
        """Use none of the prefetched permits any more; they are returned when their time ends."""
        held = self._held.get(key)
        if held is not None:
            held.until = 0.0
            held.drops += 1

    async def close(self) -> None:
        """Return all permits."""
        while self._held:  # others may still come meanwhile
            key, held = self._held.popitem()
            await self._return(key, held)
            if self._wakeups is not None and held.wake is not None:
                await self._wakeups.unwatch(self._limit.keys(key).state, held.wake)
        await self._returns.close()

    async def _listen(self, key: str, held: _Held) -> None:
        """Learn of a penalty at once, not only when the prefetched permits are used up."""
        if self._wakeups is not None and len(self._held) <= _MOST_LISTENED:
            held.wake = partial(self.drop, key)
            await self._wakeups.watch(self._limit.keys(key).state, held.wake)

    def _hold_s(self) -> float:
        shortest_s = self._limit.setting.rates[0].period_s
        return min(self._settings.lease_s, shortest_s * _PART_OF_PERIOD)

    def _used_up(self, held: _Held) -> PermitUse:
        """The use of the permits held so far; none of them may be used from here on."""
        grant, left, held.grant = held.grant, held.left, None
        held.left = 0
        if grant is None or grant.permit is None:
            return NO_PERMITS
        permit, logged_ms = grant.permit
        return PermitUse(permit, held.size, held.size - left, logged_ms)

    def _watch(self, key: str, held: _Held) -> None:
        """Return what is not used in time."""
        if held.timer is not None:
            held.timer.cancel()
        loop = asyncio.get_running_loop()
        held.timer = loop.call_later(
            max(0.0, held.until - time.monotonic()), self._return_later, key, held
        )

    def _return_later(self, key: str, held: _Held) -> None:
        self._returns.start(self._return(key, held), f"permits of {key}")

    async def _return(self, key: str, held: _Held) -> None:
        if held.timer is not None:
            held.timer.cancel()
        if len(self._held) > _MOST_KEPT and held.wake is None and self._held.get(key) is held:
            del self._held[key]
        async with held.door:
            permits = self._used_up(held)
            if permits.id:
                try:
                    await self._limit.settle(key, permits, as_of_now=True)
                except ServerError:
                    return  # they stay counted as used: less is admitted, never more
