"""Splits blocks of text into chunks, the units of search.

Boundaries depend on the text around them, not on the length of the text before them: an edit
changes the chunks nearby, and others keep their vectors. Text is therefore first cut into runs of
a few chunks: at a heading or, without headings, behind a paragraph with a certain checksum. Only
within a run chunks are filled one after the other, and overlap.

With the strategy `structure`

- no chunk goes over a heading of the first two levels; sections below them that fit into one chunk
  together are put into one, under the headings that they share;
- a heading stays with what follows it, a table or listing with the heading or caption before it;
- tables and listings stay whole if they fit, a listing of a line or two stays with its text; larger
  ones are cut between rows (the head of the table is repeated) or lines.

With `recursive` every block is text, and size alone counts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple
from zlib import crc32

from semantic_text_splitter import TextSplitter

from penstock.pipelines.documents.config.models import Chunking
from penstock.pipelines.documents.parsing.chunks import Chunk, Kind
from penstock.pipelines.documents.parsing.formats.blocks import TextBlock

__all__ = ["pack", "spans_of", "split"]

RUN_FROM: Final = 2
"""Minimum chunks of a run, if the text has as many."""
RUN_TO: Final = 8
"""Maximum chunks of a run: the splitter's time grows with the square of its input."""
SHORT: Final = 4
"""A piece is short up to the size of a chunk divided by this."""
APART: Final = 8
"""One of so many short sections begins a chunk even if it would fit into the one before."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_RULE = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*+:?-++:?[ \t]*+)*+\|?[ \t]*\n?")


class _Piece(NamedTuple):
    """A chunk in the making."""

    text: str
    start: int
    end: int
    kind: Kind
    page: int | None
    headings: tuple[str, ...]


class _Span(NamedTuple):
    """A block, or as much of it as goes into one run."""

    text: str
    start: int
    block: TextBlock
    goes_on: bool
    """It continues the block of the span before."""


class _Run:
    """Text that is filled into chunks from its beginning."""

    __slots__ = ("headings", "leading", "length", "spans")

    def __init__(self, headings: tuple[str, ...]) -> None:
        self.spans: list[_Span] = []
        self.length = 0
        self.headings = headings
        self.leading = 0
        """Spans at its beginning that are headings."""

    @property
    def only_headings(self) -> bool:
        return self.leading == len(self.spans)

    def add(self, span: _Span) -> None:
        if self.only_headings and _is_heading(span.block):
            self.leading += 1
        self.spans.append(span)
        self.length += len(span.text) + 2

    def pieces(self, size: int, overlap: int) -> list[_Piece]:
        """The run in pieces of at most `size` characters."""
        texts: list[str] = []
        places: list[int] = []  # where each span begins in `text`
        at = end = 0
        for span in self.spans:
            if texts and not span.goes_on:
                # What the document has between two blocks is a line's end, or an empty line.
                between = "\n" if span.start - end == 1 else "\n\n"
                texts.append(between)
                at += len(between)
            places.append(at)
            texts.append(span.text)
            at += len(span.text)
            end = span.start + len(span.text)
        text = "".join(texts)
        if len(text) <= size:
            stripped = text.strip()
            begin = text.find(stripped)
            return [self._piece(places, begin, stripped)] if stripped else []
        head = places[self.leading] if self.leading < len(places) else 0
        if head:
            head = len(text) - len(text[head:].lstrip())
        if not 0 < head <= size // 2:
            parts = _indices(text, size, overlap)
            return [self._piece(places, begin, part) for begin, part in parts]
        # The splitter would rather leave a heading alone than cut the paragraph after it.
        (_, first), *parts = _indices(text[head:], size - head, overlap)
        start = len(text) - len(text.lstrip())
        return [
            self._piece(places, start, text[start : head + len(first)]),
            *(self._piece(places, head + begin, part) for begin, part in parts),
        ]

    def _piece(self, places: list[int], begin: int, text: str) -> _Piece:
        spans = self.spans
        first = spans[bisect_right(places, begin) - 1]
        place = bisect_right(places, begin + len(text) - 1) - 1
        last = spans[place]
        return _Piece(
            text,
            first.start + begin - places[bisect_right(places, begin) - 1],
            last.start + begin + len(text) - places[place],
            "text",
            first.block.page,
            self.headings,
        )


def split(blocks: Iterable[TextBlock], chunking: Chunking) -> list[Chunk]:
    """The chunks of a document in its order; none if there is only white space.

    Each is at most `chunking.size` characters. `start` and `end` are those of its text in the
    document; a part of a table has the place of its rows, not of the head that is repeated.
    The same blocks make the same chunks, always.
    """
    size, overlap = chunking.size, chunking.overlap
    if chunking.strategy == "recursive":
        pieces = [
            piece
            for run in _runs(blocks, size, by_heading=False)
            for piece in run.pieces(size, overlap)
        ]
    else:
        pieces = _structured(blocks, size, overlap)
    return [
        Chunk(text, kind, page, headings, start, end)
        for text, start, end, kind, page, headings in pieces
    ]


def _structured(blocks: Iterable[TextBlock], size: int, overlap: int) -> list[_Piece]:
    joined: list[_Piece] = []
    whole = False  # is the last of `joined` all of its run?
    for group in _groups(blocks, size, overlap):
        if not group:
            continue
        single = len(group) == 1
        both = _join(joined[-1], group[0], size, whole and single) if joined else None
        if both is None:
            joined += group
            whole = single
        else:
            joined[-1] = both
            joined += group[1:]
            whole = single
    return joined


def _groups(blocks: Iterable[TextBlock], size: int, overlap: int) -> Iterator[list[_Piece]]:
    """The pieces of each run of text, each table and each listing."""
    text: list[TextBlock] = []
    for block in blocks:
        if block.kind == "text":
            text.append(block)
            continue
        for run in _runs(text, size, by_heading=True):
            yield run.pieces(size, overlap)
        text = []
        yield _whole_or_lines(block, size)
    for run in _runs(text, size, by_heading=True):
        yield run.pieces(size, overlap)


def _runs(blocks: Iterable[TextBlock], size: int, *, by_heading: bool) -> Iterator[_Run]:
    most, least, spread = RUN_TO * size, RUN_FROM * size, RUN_FROM * size
    run: _Run | None = None
    for block in blocks:
        headings = block.headings
        if run is not None and by_heading and headings != run.headings:
            if run.only_headings and headings[: len(run.headings)] == run.headings:
                run.headings = headings  # a heading right below a heading: both belong to the text
            else:
                yield run
                run = None
        for at, text in spans_of(block.text, most):
            length = len(text)
            if run is not None and run.length + length > most:
                yield run
                run = None
            if run is None:
                run = _Run(headings)
            run.add(_Span(text, block.start + at, block, at > 0))
            # Each character is as likely as any other to end a run, whatever paragraphs are like.
            if run.length >= least and _checksum(text) % spread < length:
                yield run
                run = None
    if run is not None:
        yield run


def _join(first: _Piece, second: _Piece, size: int, singles: bool) -> _Piece | None:
    """Both as one piece, if they are found better together."""
    if first.headings[:2] != second.headings[:2] or second.start < first.end:
        return None
    between = "\n" if second.start - first.end == 1 else "\n\n"
    if len(first.text) + len(between) + len(second.text) > size:
        return None
    kind = _joint_kind(first, second, size // SHORT, singles)
    if kind is None:
        return None
    caption = kind == second.kind != "text"
    headings = second.headings if caption else _shared(first, second)
    text = f"{first.text}{between}{second.text}"
    return _Piece(text, first.start, second.end, kind, first.page, headings)


def _joint_kind(first: _Piece, second: _Piece, short: int, singles: bool) -> Kind | None:
    if first.kind == "text" and second.kind != "text":
        if second.kind == "code" and len(second.text) <= min(short, len(first.text)):
            return "text"
        return second.kind if len(first.text) <= short else None
    if second.kind != "text" or first.kind == "table" or not singles:
        return None
    if first.kind == "code" and len(first.text) > short:
        return None
    apart = first.headings != second.headings and _checksum(second.text) % APART == 0
    return None if apart else "text"


def _shared(first: _Piece, second: _Piece) -> tuple[str, ...]:
    count = 0
    for one, other in zip(first.headings, second.headings, strict=False):
        if one != other:
            break
        count += 1
    return first.headings[:count]


def _whole_or_lines(block: TextBlock, size: int) -> list[_Piece]:
    """A table or a listing: one piece, or several cut between its lines."""
    kind, page, headings = block.kind, block.page, block.headings
    text = block.text.strip("\n").rstrip()
    start = block.start + block.text.find(text)
    if not text:
        return []
    if len(text) <= size:
        return [_Piece(text, start, start + len(text), kind, page, headings)]
    head = _head_of(text, size) if kind == "table" else ""
    room = size - len(head)
    pieces: list[_Piece] = []
    for at, part in pack(text[len(head) :], room):
        for offset, shown in _within(part.rstrip(), room):
            begin = start + len(head) + at + offset
            end = begin + len(shown)
            first = begin if pieces else start
            pieces.append(_Piece(head + shown, first, end, kind, page, headings))
    return pieces


def _within(lines: str, room: int) -> Iterator[tuple[int, str]]:
    """Lines as they are, or one line that is too long in pieces."""
    if len(lines) > room:
        for at, span in spans_of(lines, RUN_TO * room):
            for offset, part in _indices(span, room, 0):
                yield at + offset, part
    elif lines:
        yield 0, lines


def _head_of(table: str, size: int) -> str:
    """The first row and the rule below it; nothing if there is none or it is too long to repeat."""
    first = table.find("\n") + 1
    second = table.find("\n", first) + 1
    if 0 < first < second <= size // 2 and _RULE.fullmatch(table, first, second):
        return table[:second]
    return ""


def _is_heading(block: TextBlock) -> bool:
    # A parser hands over a heading as the first block below itself, with its signs ("## ").
    if not block.headings:
        return False
    name = block.headings[-1]
    return len(block.text) <= 2 * len(name) + 16 and name in block.text


def _checksum(text: str) -> int:
    return crc32(text.encode(errors="surrogatepass"))


def _indices(text: str, size: int, overlap: int) -> list[tuple[int, str]]:
    splitter = _splitter(size, min(overlap, size - 1))
    try:
        return splitter.chunk_indices(text)
    except UnicodeEncodeError:  # half a pair, from a PDF: it stands for no character
        return splitter.chunk_indices(_SURROGATES.sub("\ufffd", text))


@lru_cache(maxsize=64)
def _splitter(size: int, overlap: int) -> TextSplitter:
    return TextSplitter(size, overlap=overlap, trim=True)


SEEN: Final = 24
"""Characters before a place that decide whether it is a good one to cut."""
_GAP = re.compile(r"\s+")


def spans_of(text: str, most: int) -> Iterator[tuple[int, str]]:
    """Parts of at most `most` characters with their offsets; together they are the text.

    A text that is longer than that is cut at the ends of lines, and lines between words: those
    places are taken that look the same after an edit elsewhere.
    """
    if len(text) <= most:
        yield 0, text
        return
    if "\n" in text:
        for at, line in _lines(text):
            for offset, part in _cut(line, most):
                yield at + offset, part
    else:
        yield from _cut(text, most)


def pack(text: str, room: int) -> Iterator[tuple[int, str]]:
    """Whole lines together, at most `room` characters; a line alone that is longer than that."""
    at = start = length = 0
    least = room // 2
    for at, line in _lines(text):
        if length and length + len(line.rstrip()) > room:
            yield start, text[start:at]
            length = 0
        if not length:
            start = at
        length += len(line)
        if length >= least and crc32(line.encode(errors="surrogatepass")) % room < len(line):
            yield start, text[start : start + length]
            length = 0
    if length:
        yield start, text[start:]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    at = 0
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        yield at, text[at:end]
        at = end


def _cut(line: str, most: int) -> Iterator[tuple[int, str]]:
    at = 0
    while len(line) - at > most:
        # The wider the choice, the sooner two versions of a text choose the same place again.
        end = _place(line, at + most // 4, at + most)
        yield at, line[at:end]
        at = end
    yield at, line[at:]


def _place(line: str, low: int, high: int) -> int:
    """The gap between words, in this range, whose words before it have the lowest checksum."""
    best, place = 1 << 32, high
    for gap in _GAP.finditer(line, low, high):
        found = crc32(line[gap.start() - SEEN : gap.start()].encode(errors="surrogatepass"))
        if found < best:
            best, place = found, gap.end()
    return place
