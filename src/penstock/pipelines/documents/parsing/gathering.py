"""Collects the blocks of a document whose file has no text of its own to point into."""

from __future__ import annotations

from penstock.errors import ParseError
from penstock.pipelines.documents.chunks import Kind
from penstock.pipelines.documents.parsing.blocks import Block, Limits
from penstock.pipelines.documents.parsing.codes import explained

__all__ = ["LONGEST_HEADING", "Gathering", "Outline", "Rows", "too_much_text"]

LONGEST_HEADING = 200
"""Characters of a heading in the path of headings, which every chunk below it carries."""


def too_much_text(most: int) -> ParseError:
    reason = f"the document has more than {most:,} characters of text"
    return explained(ParseError, "ERR_TOO_MUCH_TEXT", reason)


class Outline:
    """The headings above the place that is being read."""

    def __init__(self) -> None:
        self._levels: list[tuple[int, str]] = []
        self.path: tuple[str, ...] = ()

    def enter(self, level: int, name: str) -> None:
        while self._levels and self._levels[-1][0] >= level:
            self._levels.pop()
        self._levels.append((level, name[:LONGEST_HEADING]))
        self.path = tuple(name for _, name in self._levels)

    def leave(self) -> None:
        """Go out of all of them."""
        self._levels.clear()
        self.path = ()


class Gathering:
    """The document's text is that of its blocks, with an empty line between two of them."""

    def __init__(self, limits: Limits) -> None:
        self.blocks: list[Block] = []
        self.outline = Outline()
        self._limits, self._at = limits, 0

    def heading(self, level: int, text: str) -> None:
        name = " ".join(text.split())
        if name:
            self.outline.enter(level, name)
            self.add(name)

    def add(self, text: str, kind: Kind = "text") -> None:
        text = text.strip("\n").rstrip() if kind == "code" else text.strip()
        if not text:
            return
        self.blocks.append(Block(text, kind, None, self.outline.path, self._at))
        self._at += len(text) + 2
        if self._at > self._limits.largest_text + 2:
            raise too_much_text(self._limits.largest_text)


class Rows:
    """A table in the making; it ends as a table in Markdown.

    The first row is its head. What has one column only, or a cell as long as a page, was a table
    for the sake of layout: it ends as paragraphs.
    """

    MOST_COLUMNS = 1_000
    LONG_CELL = 2_000

    def __init__(self, limits: Limits) -> None:
        self._rows: list[list[str]] = []
        self._limits, self._size = limits, 0

    def add(self, cells: list[str]) -> None:
        del cells[self.MOST_COLUMNS :]
        if not any(cells):
            return
        self._rows.append(cells)
        self._size += sum(len(cell) + 3 for cell in cells)
        if self._size > self._limits.largest_text + 3 * self.MOST_COLUMNS:
            raise too_much_text(self._limits.largest_text)

    def end(self, gathering: Gathering) -> None:
        rows, self._rows, self._size = self._rows, [], 0
        width = max((len(row) for row in rows), default=0)
        if width <= 1 or any(len(cell) > self.LONG_CELL for row in rows for cell in row):
            for row in rows:
                for cell in row:
                    gathering.add(cell)
            return
        gathering.add("\n".join(_markdown(rows, width)), "table")


def _markdown(rows: list[list[str]], width: int) -> list[str]:
    lines = [_line(row) for row in rows]
    lines.insert(1, "|" + " --- |" * width)
    return lines


def _line(cells: list[str]) -> str:
    shown = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(shown)} |"
