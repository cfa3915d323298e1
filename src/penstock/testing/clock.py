"""A clock that a test moves by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools

__all__ = ["ManualClock"]

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
DEFAULT_WALL_MS = 1_700_000_000_000
SETTLE_TURNS = 40
"""Turns of the event loop after each wake-up: more than any chain of tasks in the runtime needs."""


class ManualClock:
    """A clock that moves only when it is advanced.

        clock = ManualClock()
        duty = Duty("sweep", sweep, every_s=60, clock=clock)
        async with duty:
            await clock.advance(120)      # two more rounds have been run and have ended

    Time is kept in whole nanoseconds, so ten steps of 0.1 s are exactly one of 1 s.
    """

    def __init__(self, *, wall_ms: int = DEFAULT_WALL_MS) -> None:
        self._now_ns = 0
        self._wall_offset_ns = wall_ms * NS_PER_MS
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self._now_ns / NS_PER_S

    def wall_ms(self) -> int:
        return (self._wall_offset_ns + self._now_ns) // NS_PER_MS

    def set_wall_ms(self, wall_ms: int) -> None:
        """Let the wall clock jump, forwards or back; sleepers and `monotonic()` take no notice."""
        self._wall_offset_ns = wall_ms * NS_PER_MS - self._now_ns

    @property
    def sleepers(self) -> int:
        """How many calls of `sleep` are waiting."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def sleep(self, delay_s: float) -> None:
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        due_ns = self._now_ns + round(delay_s * NS_PER_S)
        heapq.heappush(self._sleepers, (due_ns, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move on, waking every sleeper at its own time, the earliest first.

        After each one the event loop runs until what was woken has settled, so a loop that sleeps
        again within the span is woken again. What waits for a socket or a thread is not waited for.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot be moved by {seconds} s; use set_wall_ms to go back")
        target_ns = self._now_ns + round(seconds * NS_PER_S)
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= target_ns:
            due_ns, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                self._now_ns = due_ns
                woken.set_result(None)
                await self.settle()
        self._now_ns = target_ns

    async def settle(self) -> None:
        """Let everything run that can run without time passing."""
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
