"""Permits taken in advance: many calls for one question to the server, and never one too many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.coordination.limits.answer import Answer
from penstock.coordination.limits.asking import Question
from penstock.errors import ServerError
from penstock.redis.wire import Argument

if TYPE_CHECKING:
    from penstock.coordination.hints import Hints
    from penstock.coordination.limits.limit import Limit

__all__ = ["LeasedPermits"]

# Permits in advance count from the end of their time. More of a period than this would be lost.
_PART_OF_PERIOD: Final = 0.02
_MOST_LISTENED: Final = 100
# Of more keys, those without permits are forgotten.
_MOST_KEPT: Final = 1_000


class _Held:
    """Permits in hand for one key."""

    __slots__ = ("answer", "door", "drops", "left", "size", "timer", "until", "wake")

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.size = self.left = self.drops = 0
        self.until = 0.0
        self.door = asyncio.Lock()
        self.timer: asyncio.TimerHandle | None = None
        self.wake: Callable[[], None] | None = None


class LeasedPermits:
    """Holds up to `size` permits of a limit for each key, and gives back what is not used.

    The server counts them as used at the end of their time, so that a call at any moment before is
    inside what it has counted. Permits that come back, or are used up, count as of then.
    """

    def __init__(self, limit: Limit, size: int, hints: Hints | None) -> None:
        self._limit, self._size, self._hints = limit, size, hints
        self._held: dict[str, _Held] = {}
        self._returning: set[asyncio.Task[None]] = set()
        self._settings = limit.client.settings.limits

    def take(self, key: str, cost: int) -> Answer | None:
        """Use permits in hand; None if there are not enough."""
        held = self._held.get(key)
        if held is None or type(cost) is not int or not 1 <= cost <= held.left:
            return None
        if time.monotonic() >= held.until:
            return None
        held.left -= cost
        answer = held.answer
        return answer if cost == 1 and answer is not None else Answer(allowed=True, granted=cost)

    async def refill(self, key: str, cost: int, priority: int) -> Answer:
        """Ask the server for more, one caller at a time, and use some of them."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held()
            await self._listen(key, held)
        async with held.door:
            if (answer := self.take(key, cost)) is not None:
                return answer
            if cost > self._size:
                return await self._limit.ask(Question(key, cost, priority))
            asked_at, back, drops = time.monotonic(), self._used_up(held), held.drops
            hold_s = self._hold_s()
            answer = await self._limit.ask(
                Question(
                    key,
                    self._size,
                    priority,
                    fewest=cost,
                    share=self._settings.lease_share,
                    hold_ms=round(hold_s * 1000),
                    given_back=back,
                )
            )
            if not answer.allowed or answer.permit is None:
                return answer
            told = Answer(
                allowed=True, granted=1, rates=answer.rates, told=answer.told, permit=answer.permit
            )
            # What was heard meanwhile came after the grant.
            held.answer, held.until = told, asked_at + hold_s if held.drops == drops else 0.0
            held.size, held.left = answer.granted, answer.granted - cost
            self._watch(key, held)
            return told if cost == 1 else Answer(allowed=True, granted=cost)

    def drop(self, key: str) -> None:
        """Use nothing of what is in hand any more; what is unused goes back when its time ends."""
        held = self._held.get(key)
        if held is not None:
            held.until = 0.0
            held.drops += 1

    async def close(self) -> None:
        """Give everything back."""
        while self._held:  # others may still come meanwhile
            key, held = self._held.popitem()
            await self._return(key, held)
            if self._hints is not None and held.wake is not None:
                await self._hints.unwatch(self._limit.keys(key).state, held.wake)
        await asyncio.gather(*self._returning)

    async def _listen(self, key: str, held: _Held) -> None:
        """Hear of a penalty at once, not only when what is in hand is used up."""
        if self._hints is not None and len(self._held) <= _MOST_LISTENED:
            held.wake = partial(self.drop, key)
            await self._hints.watch(self._limit.keys(key).state, held.wake)

    def _hold_s(self) -> float:
        shortest_s = self._limit.setting.rates[0].period_s
        return min(self._settings.lease_s, shortest_s * _PART_OF_PERIOD)

    def _used_up(self, held: _Held) -> tuple[Argument, ...]:
        """What is told of the permits held so far, which nobody uses from here on."""
        answer, left, held.answer = held.answer, held.left, None
        held.left = 0
        if answer is None or answer.permit is None:
            return ("", 0, 0, 0)
        permit, logged_ms = answer.permit
        return (permit, held.size, held.size - left, logged_ms)

    def _watch(self, key: str, held: _Held) -> None:
        """See to it that what is not used in time goes back."""
        if held.timer is not None:
            held.timer.cancel()
        loop = asyncio.get_running_loop()
        held.timer = loop.call_later(
            max(0.0, held.until - time.monotonic()), self._return_later, key, held
        )

    def _return_later(self, key: str, held: _Held) -> None:
        task = asyncio.create_task(self._return(key, held), name=f"permits of {key}")
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, key: str, held: _Held) -> None:
        if held.timer is not None:
            held.timer.cancel()
        if len(self._held) > _MOST_KEPT and held.wake is None and self._held.get(key) is held:
            del self._held[key]
        async with held.door:
            permits = self._used_up(held)
            if permits[0]:
                try:
                    await self._limit.settle(key, permits, as_of_now=True)
                except ServerError:
                    return  # they stay counted as used: less is admitted, never more
