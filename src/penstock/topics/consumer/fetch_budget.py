"""How much may be fetched: by messages and bytes in flight, by size and by pace of the handler."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary, WeakSet

from penstock.delivery.message_sizes import MessageSizes
from penstock.redis.client import Client

__all__ = [
    "ActiveConsumers",
    "FetchBudget",
    "FetchPacing",
    "InflightBytes",
    "PartitionBudget",
    "active_consumers",
    "inflight_bytes",
]

_SHARE, _MOST_TOGETHER = 256, 32
# The budget need not learn at once that messages of up to this many bytes have ended.
_SMALL = 1024
# What is fetched is about this much work: long enough to hide a round trip many times over, short
# enough that a consumer which stops, or a partition which moves, leaves little behind.
_AHEAD_S = 0.1
_FIRST_COUNT = 32


class ActiveConsumers:
    """Running consumers of one client: the more there are, the less often each one polls."""

    def __init__(self) -> None:
        self._consumers: WeakSet[object] = WeakSet()

    def add(self, consumer: object) -> None:
        self._consumers.add(consumer)

    def discard(self, consumer: object) -> None:
        self._consumers.discard(consumer)

    def interval_s(self, least_s: float, each_s: float) -> float:
        """Interval at which each of them polls: `least_s` alone, one every `each_s` of many."""
        return max(least_s, len(self._consumers) * each_s)


_active: WeakKeyDictionary[Client, ActiveConsumers] = WeakKeyDictionary()


def active_consumers(client: Client) -> ActiveConsumers:
    """Return the consumers that share this client."""
    if client not in _active:
        _active[client] = ActiveConsumers()
    return _active[client]


class InflightBytes:
    """Bytes that all consumers of a process may have in flight together."""

    __slots__ = ("left", "waiting")

    def __init__(self, most: int) -> None:
        self.left = most
        self.waiting: set[FetchBudget] = set()
        """Budgets whose readers wait until there are some again."""

    def give_back(self, size: int) -> None:
        self.left += size
        if self.waiting and self.left > 0:
            for budget in self.waiting:
                budget.notify()
            self.waiting.clear()


_inflight: WeakKeyDictionary[Client, InflightBytes] = WeakKeyDictionary()


def inflight_bytes(client: Client) -> InflightBytes:
    """Return the bytes that the consumers of this client share."""
    if client not in _inflight:
        _inflight[client] = InflightBytes(client.settings.topics.max_inflight_bytes)
    return _inflight[client]


class FetchBudget:
    """How much more a consumer may fetch, over all its partitions; readers wait for it."""

    __slots__ = ("_bytes", "_changed", "_inflight", "left", "sizes", "together", "waiting")

    def __init__(self, most: int, sizes: MessageSizes, inflight: InflightBytes) -> None:
        self.left = most
        self.sizes = sizes
        self._inflight = inflight
        self.together = max(1, min(most // _SHARE, _MOST_TOGETHER))
        """Messages of one partition that may be given back together, unless a reader waits."""
        self._bytes = 0
        self.waiting = 0
        """Readers that wait."""
        self._changed = asyncio.Event()

    @property
    def fitting(self) -> int:
        """How many messages may be requested at once, if they are as large as those before."""
        return max(1, min(self.left, self.sizes.fitting(self._inflight.left)))

    @property
    def has_bytes(self) -> bool:
        """Whether bytes are left for more messages, over all consumers of the process."""
        return self._inflight.left > 0

    @property
    def is_open(self) -> bool:
        """Whether anything may be fetched.

        A consumer with nothing in flight may always fetch a little, whatever others hold.
        """
        return self.left > 0 and (self.has_bytes or not self._bytes)

    def take(self, count: int, size: int) -> None:
        """Count messages that were fetched, and their bytes."""
        self.sizes.note(size, count)
        self.left -= count
        self._bytes += size
        self._inflight.left -= size

    def give_back(self, count: int, size: int) -> None:
        """Count messages that have ended."""
        self.left += count
        self._bytes -= size
        self._inflight.give_back(size)
        if self.waiting:
            self._changed.set()

    def notify(self) -> None:
        """Wake the readers: something else has changed."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait until messages have ended, or something else has changed."""
        self.waiting += 1
        if not self.has_bytes:
            self._inflight.waiting.add(self)
        self._changed.clear()
        try:
            await self._changed.wait()
        finally:
            self.waiting -= 1


class PartitionBudget:
    """Messages of one partition that were fetched and have not ended."""

    __slots__ = ("_budget", "_bytes", "_dropped", "_dropped_together", "buffered", "sized")

    def __init__(self, budget: FetchBudget) -> None:
        self._budget = budget
        self.buffered = 0
        self._bytes = 0
        self._dropped, self._dropped_together = 0, 1
        """Messages that have ended and were not given back yet, and how many may be."""
        self.sized = False
        """Whether messages have been read, so that their size is known."""

    def read(self, count: int, size: int) -> None:
        """Count messages that a read brought."""
        self.sized = True
        self._dropped_together = self._budget.together if size <= _SMALL * count else 1
        self.take(count, size)

    def note_empty(self) -> None:
        """A read brought nothing: there is no size to learn."""
        self.sized = True

    def take(self, count: int, size: int) -> None:
        """Count messages that are in memory again."""
        self.buffered += count
        self._bytes += size
        self._budget.take(count, size)

    def drop(self, count: int) -> None:
        """Count messages that have ended; many are given back together."""
        self.buffered -= count
        self._dropped += count
        if self._dropped >= self._dropped_together or self._budget.waiting or not self.buffered:
            self.give_back()

    def give_back(self) -> None:
        """Give back all that has ended."""
        count, self._dropped = self._dropped, 0
        if count:
            size = self._bytes * count // (self.buffered + count)
            self._bytes -= size
            self._budget.give_back(count, size)

    def is_full(self, most: int) -> bool:
        """Whether there are more than `most` messages, or no bytes are left for others.

        A partition with nothing in flight is never full.
        """
        return self.buffered > most or (self.buffered > 0 and not self._budget.has_bytes)

    def fitting(self, size: int) -> int:
        """How many messages of the recent size fit into `size` bytes, at least one."""
        return self._budget.sizes.fitting(size)


class FetchPacing:
    """How many messages to fetch at once: learns from how long chunks take."""

    def __init__(self, most: int, least: int = 1) -> None:
        self._most, self.least = most, least
        self.count = max(min(_FIRST_COUNT, most), least)
        """Messages worth fetching at once from each partition."""
        self.each_s = 0.0
        """How long one message took recently, in its partition."""
        self.hop = 1
        """Messages worth passing to a thread at once."""

    def note(self, handled: int, took_s: float) -> None:
        """Learn from a chunk."""
        if handled:
            self.each_s = took_s / handled
            self.count = max(self.least, _fitting(self.count, handled, took_s, self._most))

    def note_hop(self, handled: int, took_s: float) -> None:
        """Learn from a visit to a thread."""
        if handled:
            self.hop = _fitting(self.hop, handled, took_s, self._most)

    def at_least(self, count: int) -> None:
        """Fetch this many at once for now, however long handlers take."""
        self.count = max(self.count, count)


def _fitting(present: int, handled: int, took_s: float, most: int) -> int:
    """How many fit the time ahead; at most twice as many as now, since one chunk proves little."""
    fitting = _AHEAD_S * handled / took_s if took_s > 0 else most
    return max(1, min(int(fitting), present * 2, most))
