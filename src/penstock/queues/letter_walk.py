"""Going through letters from the oldest on, while some of them are taken away."""

from __future__ import annotations

from typing import Protocol

from penstock.queues.choice import Choice
from penstock.queues.letters import QueueLetter
from penstock.queues.page_size import PageSize

__all__ = ["LetterSource", "LetterWalk", "Seen"]

Seen = tuple[int, QueueLetter]
"""A letter, and how many were before it."""


class LetterSource(Protocol):
    """A list of letters."""

    async def page(self, start: int, count: int) -> list[QueueLetter]:
        """Letters from a place on."""
        ...

    async def find(self, data: bytes, within: int) -> int | None:
        """The place of a letter among the first so many."""
        ...


class LetterWalk:
    """Finds the letters that were chosen among the first `total`.

    What comes in meanwhile stands behind these, and is left alone. `wanted` are ids, each of which
    names the oldest of its letters; those that were found leave the set.
    """

    def __init__(
        self, source: LetterSource, total: int, choice: Choice, wanted: set[str] | None
    ) -> None:
        self._source, self._total, self._choice, self.wanted = source, total, choice, wanted
        self._kept = self._taken = self._found = 0
        self._last_kept: bytes | None = None
        """The letter before the place where we go on, if it is known."""
        self._last_seen: bytes | None = None
        self._size = PageSize()

    @property
    def is_over(self) -> bool:
        return self._left <= 0 or (self.wanted is not None and not self.wanted)

    @property
    def _left(self) -> int:
        return self._total - self._kept - self._taken - self._found

    async def next(self, most: int) -> list[Seen]:
        """Find up to `most` letters; none at the end. The caller says with `stayed` how many stay.

        A round trip per 100 letters looked at, and one where others have taken letters away.
        """
        found: list[Seen] = []
        self._last_seen = self._last_kept
        while len(found) < most and not self.is_over:
            for letter in await self._page():
                if len(found) == most:
                    break
                self._last_seen = letter.data
                if self._choice.matches(letter) and self._is_wanted(letter):
                    found.append((self._kept + self._found, letter))
                    self._found += 1
                else:
                    self._kept += 1
                    self._last_kept = letter.data
        return found

    def stayed(self, count: int) -> None:
        """Note how many of the letters found last are still in their places."""
        if count:
            self._last_kept = self._last_seen if count == self._found else None
        self._kept += count
        self._taken += self._found - count
        self._found = 0

    async def _page(self) -> list[QueueLetter]:
        """Read on; if somebody has taken letters away before this place, find it again."""
        place, count = self._kept + self._found, min(self._size.count, self._left)
        if self._last_seen is None or place == 0:
            page = await self._source.page(place, count)
        else:
            page = await self._source.page(place - 1, count + 1)
            if page and page[0].data == self._last_seen:
                page = page[1:]
            else:
                # If even that letter is gone, some are looked at twice rather than passed over.
                at = await self._source.find(self._last_seen, place)
                self._kept = max(0, at + 1 - self._found) if at is not None else 0
                page = await self._source.page(self._kept + self._found, count)
        self._size.note(letter.data for letter in page)
        if not page:
            self._total = 0
        return page

    def _is_wanted(self, letter: QueueLetter) -> bool:
        if self.wanted is None:
            return True
        if letter.id not in self.wanted:
            return False
        self.wanted.remove(letter.id)
        return True
