"""Plain text: paragraphs, in whatever encoding."""

from __future__ import annotations

import re
from typing import BinaryIO

from penstock.pipelines.documents.parsing.decoding import read_text
from penstock.pipelines.documents.parsing.formats.blocks import (
    ParsedDocument,
    ParseLimits,
    TextBlock,
)

__all__ = ["parse"]

# Possessive: each repetition of the group would take a hundred bytes, to come back to.
_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*+\n)++")


def parse(file: BinaryIO, limits: ParseLimits) -> ParsedDocument:
    """Each paragraph is a block; offsets are those in the decoded file.

    Raises `ParseError` with ERR_NOT_TEXT for binary data, ERR_NO_TEXT for nothing but white space,
    ERR_TOO_MUCH_TEXT beyond `limits.largest_text`.
    """
    text, warnings = read_text(file, limits)
    blocks: list[TextBlock] = []
    at = 0
    for gap in _EMPTY_LINES.finditer(text):
        _add(blocks, text[at : gap.start()], at)
        at = gap.end()
    _add(blocks, text[at:], at)
    return ParsedDocument(blocks, warnings=tuple(warnings))


def _add(blocks: list[TextBlock], paragraph: str, start: int) -> None:
    if paragraph and not paragraph.isspace():
        blocks.append(TextBlock(paragraph, start=start))
