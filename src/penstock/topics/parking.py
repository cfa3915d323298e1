"""Messages of one partition that wait behind others of their key, on the server instead of here.

A key that fails, or whose handler takes long, holds up its own messages alone: the bodies of what
waits behind it are let go, so that more can be read for the other keys, and fetched again when it
is their turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from penstock.topics.claim import Left
from penstock.topics.held import Held, Item
from penstock.topics.message import Message
from penstock.topics.parked import Parked
from penstock.topics.work import Work

__all__ = ["MOST_PARKED", "Line", "Parking"]

MOST_PARKED: Final = 1_000_000
"""Messages of one partition that may be parked: 16 MB of ids. Above that nothing more is read."""
_PAGE = 16
"""Messages of a key that are fetched again at once, if they are not large."""
_PAGE_BYTES = 256 * 1024
_WORTH_A_CALL = 64


class Line:
    """Messages of one key that wait for each other; the first is under way, or waits to be."""

    __slots__ = ("first", "held", "is_held_up", "key", "parked", "rest")

    def __init__(self, held: Held, key: bytes | None, first: Item) -> None:
        self.held, self.key = held, key
        self.first: Item | None = first
        """None while all of them are parked."""
        self.rest: deque[Item] | None = None
        """Most keys have one message at a time, so this is made when there is a second."""
        self.parked: Parked | None = None
        """What comes after `rest`. While there is any, nothing of the line counts as read ahead."""
        self.is_held_up = False
        """Whether some of it is parked, or all of it waits for a retry."""

    @property
    def items(self) -> list[Item]:
        """Messages in memory."""
        return [] if self.first is None else [self.first, *(self.rest or ())]


class Parking:
    """The lines of one partition of which messages are parked."""

    def __init__(self, held: Held, work: Work) -> None:
        self.lines: dict[Line, None] = {}
        self.count = 0
        """Messages that are parked."""
        self._stalled: dict[Line, None] = {}
        self.stalled = 0
        """Messages in memory that wait for a retry, their own or that of another one."""
        self._held, self._work = held, work
        self._delivered: dict[bytes, None] = {}
        """Parked here, while the server still counts them as delivered."""
        self._asking = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        return self.count >= MOST_PARKED

    def snapshot(self) -> list[Parked]:
        """What is parked now."""
        return [line.parked.copy() for line in self.lines if line.parked is not None]

    def delivered(self) -> list[Item]:
        """First deliveries that are parked here, and on the server not yet: without fields."""
        return [[id_, []] for id_ in self._delivered]

    # ---- lines that wait for a retry

    def stall(self, line: Line) -> None:
        """Note that a line waits. One that was parked has nothing in memory meanwhile."""
        if line.parked is not None:
            self.park(line, from_first=True)
        else:
            line.is_held_up = True
            self._stalled[line] = None
            self.stalled += len(line.items)

    def go_on(self, line: Line) -> None:
        """Note that a line waits no longer."""
        if line in self._stalled:
            line.is_held_up = False
            del self._stalled[line]
            self.stalled -= len(line.items)

    def park_stalled(self) -> None:
        for line in list(self._stalled):
            self.go_on(line)
            self.park(line, from_first=True)

    # ---- in

    def park(self, line: Line, *, from_first: bool) -> None:
        """Let go of the messages that a line has in memory; the first may be under way."""
        items = line.items
        if line.parked is None:
            line.parked, line.is_held_up = Parked(), True
            self.lines[line] = None
            self._held.drop(len(items))
        if not from_first:
            del items[0]
        ids = [self._let_go(line.parked, item) for item in items]
        if line.parked:
            line.parked.put_back(ids)
        else:
            for id_ in ids:
                line.parked.append(id_)
        self.count += len(ids)
        line.rest = None
        if from_first:
            line.first = None

    def add(self, line: Line, item: Item) -> bool:
        """Put a message that has just been read at the end of its line; whether it was parked."""
        if line.parked is None:
            if line.rest is None:
                line.rest = deque((item,))
            else:
                line.rest.append(item)
            self.stalled += line in self._stalled
            return False
        line.parked.append(self._let_go(line.parked, item))
        self.count += 1
        self._held.drop(1)
        return True

    def _let_go(self, parked: Parked, item: Item) -> bytes:
        held = self._held
        if not isinstance(item, Message):
            self._delivered[item[0]] = None
            return item[0]
        id_ = item.entry_id
        failed = held.history.pop(id_, None)
        if item.attempt > 1 or failed or id_ in held.suspects or id_ in held.waits:
            parked.charged.add(id_)
        else:
            held.inherited.discard(id_)
        return id_

    async def tell(self) -> None:
        """Let the server know what was not begun, once that is worth a call."""
        if len(self._delivered) < _WORTH_A_CALL:
            return
        async with self._asking:
            ids = list(self._delivered)
            await self._held.park(ids)
            for id_ in ids:
                self._delivered.pop(id_, None)

    # ---- out

    async def load(self, line: Line, parked: Parked) -> int:
        """Fetch the next messages of a line; how many turned out to be gone."""
        async with self._asking:
            ids = parked.next_ids(min(_PAGE, self._held.fitting(_PAGE_BYTES)))
            items = await (self._attempted if ids[0] in parked.charged else self._fresh)(ids)
            for id_ in ids:
                self._delivered.pop(id_, None)
        parked.remove_first(len(ids))
        self.count -= len(ids)
        line.first = items[0] if items else None
        line.rest = deque(items[1:]) if items[1:] else None
        if not parked:
            line.parked, line.is_held_up = None, False
            del self.lines[line]
            self._held.take(items)
        return len(ids) - len(items)

    async def _attempted(self, ids: list[bytes]) -> list[Item]:
        lefts = await self._held.pending(ids[0].decode(), 1)
        return [
            message
            for left in lefts
            if left.id == ids[0] and (message := self._work.recovered(self._held, left))
        ]

    async def _fresh(self, ids: list[bytes]) -> list[Item]:
        found = await self._held.unpark(ids)
        if found is None:  # the partition is lost
            return []
        there = {id_ for id_, _ in found}
        for id_ in ids:
            if id_ not in there:  # notes that it was trimmed away
                self._work.recovered(self._held, Left(id_, 1, 0, (), []))
        return [*found]

    def abandon(self, line: Line) -> int:
        """Leave what is parked of a line to the next owner of the partition; how many that are."""
        if line.parked is None:
            return 0
        count = len(line.parked)
        self.count -= count
        line.parked, line.is_held_up = None, False
        del self.lines[line]
        self._held.take(line.items)
        return count
