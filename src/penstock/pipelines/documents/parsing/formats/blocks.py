"""Blocks of text as format readers produce them, and the limits that readers apply."""

from __future__ import annotations

import msgspec

from penstock.errors import ParseError
from penstock.pipelines.documents.parsing.chunks import Kind
from penstock.pipelines.documents.parsing.refusal_codes import explained

__all__ = ["LONGEST_HEADING", "BlockBuilder", "HeadingPath", "ParseLimits", "ParsedDocument"]
__all__ += ["TableBuilder", "TextBlock", "too_much_text"]


class TextBlock(msgspec.Struct, frozen=True):
    """A run of text of one kind, on one page and below one set of headings."""

    text: str
    kind: Kind = "text"
    page: int | None = None
    """From 1; None for what has no pages."""
    headings: tuple[str, ...] = ()
    """Outermost first."""
    start: int = 0
    """Offset of `text` in the document's whole text, in characters."""


class ParseLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one file; a file beyond them is refused."""

    largest_text: int
    """Characters of the whole text."""
    zip_entries: int = 10_000
    """Entries of an archive."""
    zip_bytes: int = 1 << 30
    """All entries together, unpacked."""
    zip_ratio: int = 250
    """Unpacked to packed size of an entry that is larger than `zip_ratio_from`."""
    zip_ratio_from: int = 1 << 20
    xml_bytes: int = 256 << 20
    """One XML part, unpacked."""
    xml_tags: int = 4_000_000
    """Tags of one XML part; a page of a DOCX has some hundred."""
    xml_depth: int = 256
    """Elements within elements."""


class ParsedDocument(msgspec.Struct):
    """A document, or some pages of one."""

    blocks: list[TextBlock]
    title: str = ""
    warnings: tuple[str, ...] = ()
    """For the status of the job."""


LONGEST_HEADING = 200
"""Characters of a heading in the path of headings, which every chunk below it carries."""


def too_much_text(most: int) -> ParseError:
    reason = f"the document has more than {most:,} characters of text"
    return explained(ParseError, "ERR_TOO_MUCH_TEXT", reason)


class HeadingPath:
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


class BlockBuilder:
    """The document's text is that of its blocks, with an empty line between two of them."""

    def __init__(self, limits: ParseLimits) -> None:
        self.blocks: list[TextBlock] = []
        self.outline = HeadingPath()
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
        self.blocks.append(TextBlock(text, kind, None, self.outline.path, self._at))
        self._at += len(text) + 2
        if self._at > self._limits.largest_text + 2:
            raise too_much_text(self._limits.largest_text)


class TableBuilder:
    """A table in the making; it ends as a table in Markdown.

    The first row is its head. What has one column only, or a cell as long as a page, was a table
    for the sake of layout: it ends as paragraphs.
    """

    MOST_COLUMNS = 1_000
    LONG_CELL = 2_000

    def __init__(self, limits: ParseLimits) -> None:
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

    def end(self, gathering: BlockBuilder) -> None:
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
