"""Size of messages: bounds reads and messages in memory by bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["MessageSizes", "entries_bytes"]

# Of what is known of earlier messages, so much counts after each read. Large ones are remembered
# for about ten reads.
_REMEMBERED = 0.8


class MessageSizes:
    """Learns from replies how many messages of a kind fit into `most` bytes.

    `first` is how many to ask for as long as nothing is known of them.
    """

    __slots__ = ("_each", "_most")

    def __init__(self, most: int, first: int | None = None) -> None:
        self._most = most
        # Bytes that one message is expected to have.
        self._each = most / first if first else 1.0

    def note(self, size: int, count: int) -> None:
        """Learn from a reply of `size` bytes with `count` messages."""
        if count:
            self._each = max(size / count, _REMEMBERED * self._each, 1.0)

    def note_entries(self, entries: Sequence[Any]) -> None:
        """Learn from entries as they were read."""
        self.note(entries_bytes(entries), len(entries))

    def fitting(self, left: int | None = None) -> int:
        """How many messages may be asked for at once, at least one; `left` bytes are free."""
        most = self._most if left is None else min(self._most, left)
        return max(1, int(most / self._each))


def entries_bytes(entries: Iterable[Any]) -> int:
    """Bytes of the names and values of stream entries, as they were read."""
    return sum(sum(map(len, fields)) for _, fields in entries if fields)
