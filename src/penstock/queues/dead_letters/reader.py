"""Selecting letters of a list while others add to it and remove from it.

`LetterWalk` reads the list page by page. `LetterPicks` serves letters that the server has found by
the ids of their jobs, so that a few among very many cost little traffic.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, Protocol, cast

from penstock.queues.dead_letters.filters import LetterMatcher
from penstock.queues.dead_letters.letter import QueueLetter, read_letter
from penstock.queues.storage.admin_scripts import QueueAdminScripts
from penstock.queues.storage.pages import PageSize
from penstock.redis.client import Client

__all__ = [
    "LetterList",
    "LetterPicks",
    "LetterWalk",
    "PlacedLetter",
    "can_search",
    "newest_letter",
    "oldest_letters",
]

MAX_SEARCHED_IDS: Final = 20
"""Ids per search: the script compares each with every letter."""
_LETTERS_PER_CALL: Final = 1_000
"""Letters that one call of the script examines; fewer if they are large."""
_GENERATED_ID: Final = "letter-"
"""Prefix of ids that are derived from a letter's bytes, and so are not part of them."""
# Every JSON encoder writes these as they are; other characters may be escaped.
_is_plain = re.compile(r"[A-Za-z0-9_.@=+-]+").fullmatch

PlacedLetter = tuple[int, QueueLetter]
"""Index in the list, and the letter."""


class LetterList(Protocol):
    """A list of letters."""

    async def page(self, start: int, count: int) -> list[QueueLetter]:
        """Letters from an index on."""
        ...

    async def find(self, data: bytes, within: int) -> int | None:
        """Index of a letter among the first `within`."""
        ...


class LetterWalk:
    """Selects letters among the first `total`; those added later are ignored.

    `wanted` are ids, each for the oldest of its letters; ids leave the set once they are found.
    """

    def __init__(
        self, source: LetterList, total: int, matcher: LetterMatcher, wanted: set[str] | None
    ) -> None:
        self._source, self._total, self._matcher, self.wanted = source, total, matcher, wanted
        self._kept = self._taken = self._found = 0
        self._last_kept: bytes | None = None
        """The letter before the place to continue at, if it is known."""
        self._last_seen: bytes | None = None
        self._size = PageSize()

    @property
    def is_over(self) -> bool:
        return self._left <= 0 or (self.wanted is not None and not self.wanted)

    @property
    def _left(self) -> int:
        return self._total - self._kept - self._taken - self._found

    async def next(self, limit: int) -> list[PlacedLetter]:
        """Return up to `limit` letters, none at the end; then report with `stayed` how many stay.

        One round trip per 100 letters examined, plus one where others have removed letters.
        """
        found: list[PlacedLetter] = []
        self._last_seen = self._last_kept
        while len(found) < limit and not self.is_over:
            for letter in await self._page():
                if len(found) == limit:
                    break
                self._last_seen = letter.data
                if self._matcher.matches(letter) and self._is_wanted(letter):
                    found.append((self._kept + self._found, letter))
                    self._found += 1
                else:
                    self._kept += 1
                    self._last_kept = letter.data
        return found

    def stayed(self, count: int) -> None:
        """Report how many of the letters returned last are still in their places."""
        if count:
            self._last_kept = self._last_seen if count == self._found else None
        self._kept += count
        self._taken += self._found - count
        self._found = 0

    async def _page(self) -> list[QueueLetter]:
        """Read the next page; if letters before it were removed, find the place again."""
        place, count = self._kept + self._found, min(self._size.count, self._left)
        if self._last_seen is None or place == 0:
            page = await self._source.page(place, count)
        else:
            page = await self._source.page(place - 1, count + 1)
            if page and page[0].data == self._last_seen:
                page = page[1:]
            else:
                # If that letter is gone as well, some are read twice rather than skipped.
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


class LetterPicks:
    """Letters found by their ids, with the interface of a `LetterWalk`."""

    def __init__(self, found: Sequence[PlacedLetter]) -> None:
        self._left = list(found)
        self._returned = self._taken = 0

    @property
    def is_over(self) -> bool:
        return not self._left

    async def next(self, limit: int) -> list[PlacedLetter]:
        """Return the next letters, each with its index by now."""
        some, self._left = self._left[:limit], self._left[limit:]
        self._returned = len(some)
        return [(place - self._taken, letter) for place, letter in some]

    def stayed(self, count: int) -> None:
        """Report how many of the letters returned last are still in their places."""
        self._taken += self._returned - count
        self._returned = 0


def can_search(ids: Iterable[str]) -> bool:
    """Whether the server can find the letters of these jobs: few ids, each plain in the bytes."""
    each = list(ids)
    return len(each) <= MAX_SEARCHED_IDS and all(
        _is_plain(one) and not one.startswith(_GENERATED_ID) for one in each
    )


async def newest_letter(client: Client, letters: str, job_id: str) -> PlacedLetter | None:
    """Return the newest letter of a job, or None. One round trip per 1,000 letters or 256 KiB.

    An id that the server cannot search for costs reading all letters.
    """
    async for place, letter in _candidates(client, letters, [job_id]):
        if letter.id == job_id:
            return place, letter
    return None


async def oldest_letters(
    client: Client, letters: str, ids: set[str], matcher: LetterMatcher
) -> list[PlacedLetter]:
    """Return the oldest matching letter of each job, in list order. Examines all letters."""
    found: dict[str, PlacedLetter] = {}
    async for place, letter in _candidates(client, letters, sorted(ids)):
        if letter.id in ids and matcher.matches(letter):
            found[letter.id] = (place, letter)
    return sorted(found.values(), key=lambda placed: placed[0])


async def _candidates(
    client: Client, letters: str, ids: Sequence[str]
) -> AsyncIterator[PlacedLetter]:
    """Letters that may belong to the jobs, the newest first."""
    needles = ids if can_search(ids) else [""]
    end = cast("int", await client.call("LLEN", letters))
    while end > 0:
        first = max(0, end - _LETTERS_PER_CALL)
        examined, *found = await QueueAdminScripts.of(client).find_letters(
            letters=letters, first=first, count=end - first, ids=needles
        )
        for place, data in cast(
            "Iterable[tuple[int, bytes]]", zip(found[::2], found[1::2], strict=True)
        ):
            yield place, read_letter(data)
        # Removals in between shift the rest towards the oldest end: none is missed.
        end -= cast("int", examined)
