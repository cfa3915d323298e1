"""Places, and bytes, for messages that were fetched and are not done yet."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from penstock.redis.client import Client
from penstock.topics.sizes import Sizes

__all__ = ["FetchedBytes", "Room", "fetched_bytes_of"]

_SHARE, _MOST_TOGETHER = 256, 32


class FetchedBytes:
    """Bytes that all consumers of a process may have in hand together."""

    __slots__ = ("left", "waiting")

    def __init__(self, most: int) -> None:
        self.left = most
        self.waiting: set[Room] = set()
        """Whom to tell when there are some again."""

    def give_back(self, size: int) -> None:
        self.left += size
        if self.waiting and self.left > 0:
            for room in self.waiting:
                room.look_again()
            self.waiting.clear()


_fetched: WeakKeyDictionary[Client, FetchedBytes] = WeakKeyDictionary()


def fetched_bytes_of(client: Client) -> FetchedBytes:
    """What the consumers that use this client share."""
    if client not in _fetched:
        _fetched[client] = FetchedBytes(client.settings.topics.max_inflight_bytes)
    return _fetched[client]


class Room:
    """How much more a consumer may fetch, over all its partitions; readers wait for it."""

    __slots__ = ("_bytes", "_changed", "_fetched", "left", "sizes", "together", "waiting")

    def __init__(self, most: int, sizes: Sizes, fetched: FetchedBytes) -> None:
        self.left = most
        self.sizes = sizes
        self._fetched = fetched
        self.together = max(1, min(most // _SHARE, _MOST_TOGETHER))
        """Messages of one partition that may be given back together, unless a reader waits."""
        self._bytes = 0
        self.waiting = 0
        """Readers that wait."""
        self._changed = asyncio.Event()

    @property
    def fitting(self) -> int:
        """How many messages may be asked for at once, if they are as large as those before."""
        return max(1, min(self.left, self.sizes.fitting(self._fetched.left)))

    @property
    def has_bytes(self) -> bool:
        """Whether bytes are left for more messages, over all consumers of the process."""
        return self._fetched.left > 0

    @property
    def is_open(self) -> bool:
        """Whether anything may be fetched.

        Who has nothing in hand may always fetch a little: what others hold on to must not stop it.
        """
        return self.left > 0 and (self.has_bytes or not self._bytes)

    def take(self, count: int, size: int) -> None:
        """Note that messages have come, and how large they are."""
        self.sizes.note(size, count)
        self.left -= count
        self._bytes += size
        self._fetched.left -= size

    def give_back(self, count: int, size: int) -> None:
        self.left += count
        self._bytes -= size
        self._fetched.give_back(size)
        if self.waiting:
            self._changed.set()

    def look_again(self) -> None:
        """Let whoever waits see whether something else has changed."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait until messages have left, or something else has changed."""
        self.waiting += 1
        if not self.has_bytes:
            self._fetched.waiting.add(self)
        self._changed.clear()
        try:
            await self._changed.wait()
        finally:
            self.waiting -= 1
