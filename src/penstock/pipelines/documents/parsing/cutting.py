"""Where to cut text that is too long for one go, by what stands there and not by position."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from zlib import crc32

__all__ = ["pack", "spans_of"]

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
