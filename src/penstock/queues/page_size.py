"""Pages of jobs and letters that are bounded by bytes as well as by number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["PageSize"]

_FIRST: Final = 8
_MOST: Final = 100
_BYTES: Final = 4 * 1024 * 1024


class PageSize:
    """How many to read next: the first few tell how large they are."""

    def __init__(self) -> None:
        self.count = _FIRST

    def note(self, entries: Iterable[bytes]) -> None:
        """Learn from what was read. Pages grow slowly: the next ones may be larger."""
        sizes = [len(entry) for entry in entries]
        if sizes:
            fitting = max(1, _BYTES * len(sizes) // max(1, sum(sizes)))
            self.count = min(_MOST, fitting, 4 * self.count)
