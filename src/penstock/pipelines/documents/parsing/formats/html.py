"""HTML: its text in blocks, as a reader sees it."""

from __future__ import annotations

import re
from typing import BinaryIO, Final

from penstock.errors import ParseError
from penstock.pipelines.documents.parsing.decoding import clean, decode, no_text, read_bytes
from penstock.pipelines.documents.parsing.formats.blocks import (
    BlockBuilder,
    ParsedDocument,
    ParseLimits,
    TableBuilder,
)
from penstock.pipelines.documents.parsing.formats.lxml_api import MarkupError, html_parser
from penstock.pipelines.documents.parsing.refusal_codes import explained

__all__ = ["parse"]

HEAD_BYTES: Final = 4096
"""Where a declaration of the encoding has to stand."""
FEED: Final = 1 << 20

_CHARSET = re.compile(
    rb"""(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z0-9_.:-]{2,40})""", re.IGNORECASE
)
_SUBSET = re.compile(r"<!doctype[^>\[]{0,2000}\[", re.IGNORECASE)

_DROPPED: Final = frozenset({
    "script", "style", "noscript", "template", "nav", "iframe", "object", "embed", "applet",
    "svg", "canvas", "audio", "video", "select", "datalist",
})  # fmt: skip
_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
_LISTS: Final = frozenset(("ul", "ol", "menu", "dir"))
_BLOCKS: Final = frozenset({
    "address", "article", "aside", "blockquote", "body", "caption", "center", "colgroup", "dd",
    "details", "dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form",
    "header", "hgroup", "hr", "html", "legend", "main", "option", "p", "section", "summary",
    "tbody", "tfoot", "thead",
})  # fmt: skip


def parse(file: BinaryIO, limits: ParseLimits) -> ParsedDocument:
    """Paragraphs, lists, tables and listings with the headings above them.

    Scripts, styles and navigation are left out. Nothing is fetched, and no entity but HTML's own is
    known. Raises `ParseError` as `text.parse` does, ERR_XML_DOCTYPE for a document type of its own.
    """
    data = read_bytes(file, limits.largest_text * 8, limits)  # markup takes room as well
    found = _CHARSET.search(data[:HEAD_BYTES])
    text, warnings = decode(data, found[1].decode() if found else None)
    text = clean(text, warnings)
    del data
    if _SUBSET.search(text):
        reason = "the document declares entities of its own, which are not read"
        raise ParseError(reason, "ERR_XML_DOCTYPE", ("Remove the DOCTYPE from the file",))
    reader = _Reader(limits)
    parser = html_parser(reader)
    try:
        for at in range(0, len(text), FEED):
            parser.feed(text[at : at + FEED].encode(errors="replace"))
        parser.close()
    except MarkupError as error:
        if not reader.gathering.blocks:
            raise explained(ParseError, "ERR_NO_TEXT", "the HTML holds no text") from error
    blocks = reader.gathering.blocks
    if not blocks:
        raise no_text()
    return ParsedDocument(blocks, " ".join("".join(reader.title).split())[:500], tuple(warnings))


class _Reader:
    """Takes tags and text in the order in which the parser meets them.

    No tree is built, so neither depth nor size of the document matters.
    """

    def __init__(self, limits: ParseLimits) -> None:
        self.gathering = BlockBuilder(limits)
        self.title: list[str] = []
        self._text: list[str] = []
        self._dropped = self._titles = self._pre = self._lists = self._tables = 0
        self._items: list[str] = []
        self._bullet = ""
        self._rows = TableBuilder(limits)
        self._cells: list[str] = []
        self._span = 1
        self._cell = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in _DROPPED:
            self._dropped += 1
        elif self._dropped:
            return
        elif tag == "title":
            self._titles += 1
        elif tag == "br":
            self._text.append("\n")
        elif self._tables:
            self._start_in_table(tag, attributes)
        else:
            self._start_block(tag)

    def end(self, tag: str) -> None:
        if tag in _DROPPED:
            self._dropped = max(0, self._dropped - 1)
        elif self._dropped:
            return
        elif tag == "title":
            self._titles = max(0, self._titles - 1)
        elif self._tables:
            self._end_in_table(tag)
        elif tag in _HEADINGS:
            self._heading(_HEADINGS[tag])
        elif tag == "pre" and self._pre:
            self._listing()
        elif tag in _LISTS:
            self._paragraph()
            self._lists = max(0, self._lists - 1)
            if not self._lists:
                self._end_list()
        elif tag in _BLOCKS or tag == "li":
            self._paragraph()

    def data(self, data: str) -> None:
        if self._dropped:
            return
        if self._titles:
            self.title.append(data)
        else:
            self._text.append(data if self._pre else _WHITE.sub(" ", data))

    def comment(self, text: str) -> None:
        pass

    def close(self) -> None:
        if self._tables:
            self._end_table()
        self._paragraph()
        self._end_list()

    def _taken(self) -> str:
        text = "".join(self._text)
        self._text.clear()
        return "\n".join(line.strip() for line in _SPACES.sub(" ", text).split("\n")).strip()

    def _paragraph(self) -> None:
        if self._pre:
            return
        text = self._taken()
        if not text:
            return
        if self._lists:
            bullet, self._bullet = self._bullet, " " * len(self._bullet)
            self._items.append(bullet + text)
        else:
            self._end_list()
            self.gathering.add(text)

    def _end_list(self) -> None:
        self._bullet = ""
        if self._items:
            items, self._items = self._items, []
            self.gathering.add("\n".join(items))

    def _heading(self, level: int) -> None:
        text = self._taken()
        self._end_list()
        self.gathering.heading(level, text)

    def _listing(self) -> None:
        self._pre -= 1
        if not self._pre:
            self._end_list()
            text = "".join(self._text)
            self._text.clear()
            self.gathering.add(text, "code")

    def _start_block(self, tag: str) -> None:
        if tag in _HEADINGS or tag in _BLOCKS:
            self._paragraph()
        elif tag == "li":
            self._paragraph()
            self._bullet = "  " * min(self._lists - 1, 8) + "- "
        elif tag in _LISTS:
            self._paragraph()
            self._lists += 1
        elif tag == "pre":
            self._paragraph()
            self._pre += 1
        elif tag == "table":
            self._paragraph()
            self._end_list()
            self._tables = 1

    def _start_in_table(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "table":
            self._tables += 1
        elif self._tables > 1:
            self._text.append(" ")
        elif tag in {"td", "th"}:
            self._end_cell()
            self._cell = True
            self._span = _number(attributes.get("colspan"))
        elif tag == "tr":
            self._end_row()
        elif tag in _BLOCKS or tag in _HEADINGS or tag in _LISTS or tag in {"li", "pre"}:
            self._text.append("\n")

    def _end_in_table(self, tag: str) -> None:
        if tag == "table":
            self._tables -= 1
            if not self._tables:
                self._tables = 1
                self._end_table()
        elif self._tables == 1 and tag in {"td", "th"}:
            self._end_cell()
        elif self._tables == 1 and tag == "tr":
            self._end_row()
        elif tag == "caption":
            self.gathering.add(self._taken())
        elif tag in _BLOCKS or tag in _HEADINGS or tag in {"li", "tr", "td"}:
            self._text.append("\n")

    def _end_cell(self) -> None:
        text = self._taken()
        if self._cell or text:
            self._cells.append(text)
            self._cells += [""] * (self._span - 1)
        self._cell, self._span = False, 1

    def _end_row(self) -> None:
        self._end_cell()
        cells, self._cells = self._cells, []
        self._rows.add(cells)

    def _end_table(self) -> None:
        self._end_row()
        self._tables = 0
        self._rows.end(self.gathering)


_WHITE = re.compile(r"[\s\u200b]+")
_SPACES = re.compile(r"[^\S\n]+")


def _number(written: str | None) -> int:
    if written is None or not written.isdecimal() or len(written) > 4:  # noqa: PLR2004
        return 1
    return min(max(int(written), 1), TableBuilder.MOST_COLUMNS)
