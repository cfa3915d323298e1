"""Plain text: paragraphs, in whatever encoding."""

from __future__ import annotations

import re
from typing import BinaryIO

from penstock.pipelines.documents.parsing.blocks import Block, Limits, Parsed
from penstock.pipelines.documents.parsing.decoding import read_text

__all__ = ["parse"]

_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


def parse(file: BinaryIO, limits: Limits) -> Parsed:
    """Each paragraph is a block; offsets are those in the decoded file.

    Raises `ParseError` with ERR_NOT_TEXT for binary data, ERR_NO_TEXT for nothing but white space,
    ERR_TOO_MUCH_TEXT beyond `limits.largest_text`.
    """
    text, warnings = read_text(file, limits)
    blocks: list[Block] = []
    at = 0
    for gap in _EMPTY_LINES.finditer(text):
        _add(blocks, text[at : gap.start()], at)
        at = gap.end()
    _add(blocks, text[at:], at)
    return Parsed(blocks, warnings=tuple(warnings))


def _add(blocks: list[Block], paragraph: str, start: int) -> None:
    if paragraph and not paragraph.isspace():
        blocks.append(Block(paragraph, start=start))
