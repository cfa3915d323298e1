"""Messages of one partition that wait behind others of their key, on the server instead of here.

A key that fails, or whose handler takes long, delays its own messages alone: the payloads of what
waits behind it are dropped, so that more can be read for the other keys, and fetched again when it
is their turn.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Final

from penstock.topics.consumer.message_processor import MessageProcessor
from penstock.topics.consumer.owned_partition import Item, OwnedPartition, PendingMessage
from penstock.topics.message import Message

__all__ = ["MOST_PARKED", "KeyBacklog", "ParkedIds", "Parking"]

MOST_PARKED: Final = 1_000_000
"""Messages of one partition that may be parked: 16 MB of ids. Above that nothing more is read."""
_PAGE = 16
"""Messages of a key that are fetched again at once, if they are not large."""
_PAGE_BYTES = 256 * 1024
_WORTH_A_CALL = 64
_SEEN_BEFORE_SHRINKING = 1_024


class ParkedIds:
    """Messages of one key, in their order: 16 bytes each, whatever their size.

    They stay pending in the group, so that they are neither trimmed nor counted as done. Those that
    were attempted before are `charged`: they come back with their attempts. All others count as not
    delivered, and come back as first deliveries.
    """

    __slots__ = ("_head", "_numbers", "_start", "charged")

    def __init__(self) -> None:
        self._head: deque[bytes] = deque()
        """Those that were put back, before all others: few."""
        self._numbers = array("Q")
        self._start = 0
        self.charged: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._head) + (len(self._numbers) - self._start) // 2

    def __iter__(self) -> Iterator[bytes]:
        yield from self._head
        numbers = self._numbers
        for place in range(self._start, len(numbers), 2):
            yield b"%d-%d" % (numbers[place], numbers[place + 1])

    def copy(self) -> ParkedIds:
        """Return what is parked now; it does not change any more."""
        copied = ParkedIds()
        copied._head = self._head.copy()
        copied._numbers = self._numbers[self._start :]
        return copied

    def append(self, id_: bytes) -> None:
        ms, _, sequence = id_.partition(b"-")
        self._numbers.append(int(ms))
        self._numbers.append(int(sequence))

    def put_back(self, ids: list[bytes]) -> None:
        """Let these come before all others."""
        self._head.extendleft(reversed(ids))

    def next_ids(self, most: int) -> list[bytes]:
        """Ids that come next: one that was attempted before comes alone."""
        ids: list[bytes] = []
        for id_ in self:
            if len(ids) == most or (ids and id_ in self.charged):
                break
            ids.append(id_)
            if id_ in self.charged:
                break
        return ids

    def remove_first(self, count: int) -> None:
        """Forget those that `next_ids` named."""
        while count and self._head:
            self.charged.discard(self._head.popleft())
            count -= 1
        if self.charged:
            numbers = self._numbers
            for place in range(self._start, self._start + 2 * count, 2):
                self.charged.discard(b"%d-%d" % (numbers[place], numbers[place + 1]))
        self._start += 2 * count
        if self._start > _SEEN_BEFORE_SHRINKING and self._start * 2 > len(self._numbers):
            del self._numbers[: self._start]
            self._start = 0


class KeyBacklog:
    """Messages of one key that wait for each other; the first is under way, or waits to be."""

    __slots__ = ("first", "is_held_up", "key", "owned", "parked", "rest")

    def __init__(self, owned: OwnedPartition, key: bytes | None, first: Item) -> None:
        self.owned, self.key = owned, key
        self.first: Item | None = first
        """None while all of them are parked."""
        self.rest: deque[Item] | None = None
        """Most keys have one message at a time, so this is made when there is a second."""
        self.parked: ParkedIds | None = None
        """What comes after `rest`. While there is any, none of it counts as read ahead."""
        self.is_held_up = False
        """Whether some of it is parked, or all of it waits for a retry."""

    @property
    def items(self) -> list[Item]:
        """Messages in memory."""
        return [] if self.first is None else [self.first, *(self.rest or ())]


class Parking:
    """The backlogs of one partition that have parked messages."""

    def __init__(self, owned: OwnedPartition, processor: MessageProcessor) -> None:
        self.backlogs: dict[KeyBacklog, None] = {}
        self.count = 0
        """Messages that are parked."""
        self._stalled: dict[KeyBacklog, None] = {}
        self.stalled = 0
        """Messages in memory that wait for a retry, their own or that of another one."""
        self._owned, self._processor = owned, processor
        self._delivered: dict[bytes, None] = {}
        """Parked here, while the server still counts them as delivered."""
        self._calling = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        return self.count >= MOST_PARKED

    def snapshot(self) -> list[ParkedIds]:
        """What is parked now."""
        return [backlog.parked.copy() for backlog in self.backlogs if backlog.parked is not None]

    def delivered(self) -> list[Item]:
        """First deliveries that are parked here, and on the server not yet: without fields."""
        return [[id_, []] for id_ in self._delivered]

    # ---- backlogs that wait for a retry

    def stall(self, backlog: KeyBacklog) -> None:
        """A backlog waits for a retry; one that was parked has nothing in memory meanwhile."""
        if backlog.parked is not None:
            self.park(backlog, from_first=True)
        else:
            backlog.is_held_up = True
            self._stalled[backlog] = None
            self.stalled += len(backlog.items)

    def resume(self, backlog: KeyBacklog) -> None:
        """A backlog does not wait any more."""
        if backlog in self._stalled:
            backlog.is_held_up = False
            del self._stalled[backlog]
            self.stalled -= len(backlog.items)

    def park_stalled(self) -> None:
        for backlog in list(self._stalled):
            self.resume(backlog)
            self.park(backlog, from_first=True)

    # ---- in

    def park(self, backlog: KeyBacklog, *, from_first: bool) -> None:
        """Drop the messages that a backlog has in memory; the first may be under way."""
        items = backlog.items
        if backlog.parked is None:
            backlog.parked, backlog.is_held_up = ParkedIds(), True
            self.backlogs[backlog] = None
            self._owned.budget.drop(len(items))
        if not from_first:
            del items[0]
        ids = [self._drop(backlog.parked, item) for item in items]
        if backlog.parked:
            backlog.parked.put_back(ids)
        else:
            for id_ in ids:
                backlog.parked.append(id_)
        self.count += len(ids)
        backlog.rest = None
        if from_first:
            backlog.first = None

    def add(self, backlog: KeyBacklog, item: Item) -> bool:
        """Append a message that was just read; whether it was parked."""
        if backlog.parked is None:
            if backlog.rest is None:
                backlog.rest = deque((item,))
            else:
                backlog.rest.append(item)
            self.stalled += backlog in self._stalled
            return False
        backlog.parked.append(self._drop(backlog.parked, item))
        self.count += 1
        self._owned.budget.drop(1)
        return True

    def _drop(self, parked: ParkedIds, item: Item) -> bytes:
        if not isinstance(item, Message):
            self._delivered[item[0]] = None
            return item[0]
        id_ = item.entry_id
        if self._owned.attempts.set_aside(id_, item.attempt):
            parked.charged.add(id_)
        return id_

    async def flush(self) -> None:
        """Park messages on the server, once there are enough of them for a call."""
        if len(self._delivered) < _WORTH_A_CALL:
            return
        async with self._calling:
            ids = list(self._delivered)
            await self._owned.park(ids)
            self._forget_deliveries(ids)

    # ---- out

    async def load(self, backlog: KeyBacklog, parked: ParkedIds) -> int:
        """Fetch the next messages of a backlog; returns how many of them were trimmed."""
        async with self._calling:
            ids = parked.next_ids(min(_PAGE, self._owned.budget.fitting(_PAGE_BYTES)))
            items = await (self._attempted if ids[0] in parked.charged else self._fresh)(ids)
            self._forget_deliveries(ids)
        parked.remove_first(len(ids))
        self.count -= len(ids)
        backlog.first = items[0] if items else None
        backlog.rest = deque(items[1:]) if items[1:] else None
        if not parked:
            backlog.parked, backlog.is_held_up = None, False
            del self.backlogs[backlog]
            self._owned.take_back(items)
        return len(ids) - len(items)

    def _forget_deliveries(self, ids: list[bytes]) -> None:
        """The server has noted them, unless the partition is lost: then they are uncharged."""
        if not self._owned.lost:
            for id_ in ids:
                self._delivered.pop(id_, None)

    async def _attempted(self, ids: list[bytes]) -> list[Item]:
        return [
            message
            for one in await self._owned.pending(ids[0].decode(), 1)
            if one.id == ids[0] and (message := self._processor.recovered(self._owned, one))
        ]

    async def _fresh(self, ids: list[bytes]) -> list[Item]:
        entries = await self._owned.unpark(ids)
        if entries is None:  # the partition is lost
            return []
        there = {id_ for id_, _ in entries}
        for id_ in ids:
            if id_ not in there:  # records that it was trimmed
                self._processor.recovered(self._owned, PendingMessage(id_, 1, 0, (), []))
        return [*entries]

    def abandon(self, backlog: KeyBacklog) -> int:
        """Leave what is parked to the next owner of the partition; returns how many."""
        if backlog.parked is None:
            return 0
        count = len(backlog.parked)
        self.count -= count
        backlog.parked, backlog.is_held_up = None, False
        del self.backlogs[backlog]
        self._owned.take_back(backlog.items)
        return count
