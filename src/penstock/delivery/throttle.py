"""A rate limit for work done in chunks."""

from __future__ import annotations

import asyncio
import math

__all__ = ["Throttle"]

_CHUNKS_PER_S = 10


class Throttle:
    """Limits a caller that works in chunks to `rate` items a second; None for no limit.

    ValueError for a rate that is no number above 0.
    """

    def __init__(self, rate: float | None, most: int) -> None:
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"rate = {rate!r}: expected a number above 0")
        self.chunk = most if rate is None else max(1, min(most, int(rate / _CHUNKS_PER_S)))
        """Size of a chunk."""
        self._rate = rate
        self._started_at = asyncio.get_running_loop().time()

    async def wait(self, done: int) -> None:
        """Wait until the next chunk may begin, after `done` items."""
        if self._rate is not None:
            due = self._started_at + done / self._rate
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
