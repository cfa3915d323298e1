"""Places for messages that were fetched and are not done yet."""

from __future__ import annotations

import asyncio

__all__ = ["Room"]


class Room:
    """How much more a consumer may fetch, over all its partitions; readers wait for it."""

    __slots__ = ("_changed", "_waiting", "left")

    def __init__(self, most: int) -> None:
        self.left = most
        self._waiting = 0
        self._changed = asyncio.Event()

    def take(self, count: int) -> None:
        self.left -= count

    def give_back(self, count: int) -> None:
        self.left += count
        if self._waiting:
            self._changed.set()

    def look_again(self) -> None:
        """Let whoever waits see whether something else has changed."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait until messages have left, or something else has changed."""
        self._waiting += 1
        self._changed.clear()
        try:
            await self._changed.wait()
        finally:
            self._waiting -= 1
