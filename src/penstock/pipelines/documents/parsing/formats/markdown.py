"""Markdown: headings, tables and listings as such, all else as it is written."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import BinaryIO

from markdown_it import MarkdownIt

from penstock.pipelines.documents.parsing.chunks import Kind
from penstock.pipelines.documents.parsing.decoding import no_text, read_text
from penstock.pipelines.documents.parsing.formats.blocks import (
    HeadingPath,
    ParsedDocument,
    ParseLimits,
    TextBlock,
)

__all__ = ["parse"]

NESTING = 20
"""Quotes and lists within one another; what is deeper is text of the innermost."""
FRONT_MATTER = 64 * 1024
"""Characters in which the front matter has to end."""

_FRONT = re.compile(r"---[ \t]*\n")
_FRONT_END = re.compile(r"^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE)
_TITLE = re.compile(r"^title[ \t]*:[ \t]*(.+)$", re.MULTILINE | re.IGNORECASE)
_KINDS: dict[str, Kind] = {"fence": "code", "code_block": "code", "table_open": "table"}


def parse(file: BinaryIO, limits: ParseLimits) -> ParsedDocument:
    """Blocks are slices of the source, offsets those in the decoded file.

    Front matter is left out, but for its title; nothing in it is interpreted. Raw HTML is text.
    Raises `ParseError` as `text.parse` does.
    """
    text, warnings = read_text(file, limits)
    title, begin = _front_matter(text)
    source = _Source(text, begin)
    tokens = _PARSER.parse(text[begin:])
    for place, token in enumerate(tokens):
        if token.level or token.map is None or token.nesting < 0:
            continue
        first, end = token.map
        if token.type == "heading_open":
            name = " ".join(tokens[place + 1].content.split())
            title = title or (name if token.tag == "h1" else "")
            source.enter(first, int(token.tag[1:]), name)
        if token.type == "hr":
            source.skip(first, end)
        else:
            source.take(first, end, _KINDS.get(token.type, "text"))
    source.finish()
    if not source.blocks:
        raise no_text()
    return ParsedDocument(source.blocks, title[:500], tuple(warnings))


class _Source:
    """The lines of a document, taken one range after the other."""

    def __init__(self, text: str, begin: int) -> None:
        self.blocks: list[TextBlock] = []
        self._lines = text[begin:].split("\n")
        lengths = (len(line) + 1 for line in self._lines)
        self._starts = list(accumulate(lengths, initial=begin))
        self._outline = HeadingPath()
        self._done = 0

    def enter(self, first: int, level: int, name: str) -> None:
        self._between(first)
        if name:
            self._outline.enter(level, name)

    def take(self, first: int, end: int, kind: Kind) -> None:
        self._between(first)
        self._add(first, end, kind)
        self._done = max(self._done, end)

    def skip(self, first: int, end: int) -> None:
        self._between(first)
        self._done = max(self._done, end)

    def finish(self) -> None:
        self._between(len(self._lines))

    def _between(self, first: int) -> None:
        """Lines that make no token, such as definitions of links."""
        if first > self._done:
            self._add(self._done, first, "text")
            self._done = first

    def _add(self, first: int, end: int, kind: Kind) -> None:
        lines = self._lines
        while first < end and not lines[first].strip():
            first += 1
        while first < end and not lines[end - 1].strip():
            end -= 1
        if first < end:
            text = "\n".join(lines[first:end])
            self.blocks.append(TextBlock(text, kind, None, self._outline.path, self._starts[first]))


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": NESTING}).enable("table")
    # What is within a paragraph stays as it is, so nothing has to look into it.
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


_PARSER = _parser()


def _front_matter(text: str) -> tuple[str, int]:
    """The title in it, and where it ends."""
    opening = _FRONT.match(text)
    if opening is None:
        return "", 0
    end = _FRONT_END.search(text, opening.end(), opening.end() + FRONT_MATTER)
    if end is None:
        return "", 0
    found = _TITLE.search(text, opening.end(), end.start())
    return (found[1].strip().strip("\"'").strip() if found else ""), end.end()
