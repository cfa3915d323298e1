"""Finding letters by their jobs among very many: the server looks and sends only what may fit."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, cast

from penstock.queues.choice import Choice
from penstock.queues.letter_walk import Seen
from penstock.queues.letters import read_letter
from penstock.redis.client import Client

__all__ = ["LetterPicks", "can_search", "newest_letter", "oldest_letters"]

MOST_IDS: Final = 20
"""Ids that one search looks for: each costs a look at every letter."""
_MOST: Final = 1_000
"""Letters that one call of the script looks at, and fewer if they are large."""
_UNNAMED: Final = "letter-"
"""How names begin that are made of a letter's bytes, and so do not stand in it."""
# What every program writes into JSON as it is. Others may be escaped.
_is_plain = re.compile(r"[A-Za-z0-9_.@=+-]+").fullmatch


def can_search(ids: Iterable[str]) -> bool:
    """Whether letters of these jobs, few enough, show their ids in their bytes."""
    each = list(ids)
    return len(each) <= MOST_IDS and all(
        _is_plain(one) and not one.startswith(_UNNAMED) for one in each
    )


async def newest_letter(client: Client, letters: str, job_id: str) -> Seen | None:
    """The newest letter of a job and how many are before it; None without one.

    A round trip per 1,000 letters or 256 KiB. If the server cannot look for it, all are sent.
    """
    async for place, letter in _candidates(client, letters, [job_id]):
        if letter.id == job_id:
            return place, letter
    return None


async def oldest_letters(client: Client, letters: str, ids: set[str], choice: Choice) -> list[Seen]:
    """Of each job its oldest letter that was chosen, in their order. All letters are looked at."""
    found: dict[str, Seen] = {}
    async for place, letter in _candidates(client, letters, sorted(ids)):
        if letter.id in ids and choice.matches(letter):
            found[letter.id] = (place, letter)
    return sorted(found.values(), key=lambda seen: seen[0])


async def _candidates(client: Client, letters: str, ids: Sequence[str]) -> AsyncIterator[Seen]:
    """Letters that may be those of the jobs, the newest first."""
    needles = ids if can_search(ids) else [""]
    end = cast("int", await client.call("LLEN", letters))
    while end > 0:
        first = max(0, end - _MOST)
        looked, *found = await client.scripts.find_letters(
            letters=letters, first=first, count=end - first, ids=needles
        )
        for place, data in cast(
            "Iterable[tuple[int, bytes]]", zip(found[::2], found[1::2], strict=True)
        ):
            yield place, read_letter(data)
        # What is taken away meanwhile lets the others move towards the oldest: none is missed.
        end -= cast("int", looked)


class LetterPicks:
    """Letters that were found by their ids, handed out like those of a `LetterWalk`."""

    def __init__(self, found: Sequence[Seen]) -> None:
        self._left = list(found)
        self._handed = self._taken = 0

    @property
    def is_over(self) -> bool:
        return not self._left

    async def next(self, most: int) -> list[Seen]:
        """The next letters, each with how many are before it by now."""
        some, self._left = self._left[:most], self._left[most:]
        self._handed = len(some)
        return [(place - self._taken, letter) for place, letter in some]

    def stayed(self, count: int) -> None:
        """Note how many of the letters handed out last are still in their places."""
        self._taken += self._handed - count
        self._handed = 0
