"""The clock of the process. Stored and shared times are the server's instead."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock"]


class Clock(Protocol):
    """Passed to what needs time, so that tests can advance it."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never jumps."""
        ...

    def wall_ms(self) -> int:
        """Epoch milliseconds UTC, for display only."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds of this clock."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


SYSTEM_CLOCK = SystemClock()
