"""Ids of messages that wait on the server for the turn of their key, without their bodies."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator

__all__ = ["Parked"]

_SEEN_BEFORE_SHRINKING = 1_024


class Parked:
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

    def copy(self) -> Parked:
        """Return what is parked now; it does not change any more."""
        copied = Parked()
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
