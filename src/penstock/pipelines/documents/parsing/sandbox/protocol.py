"""Messages between the pool of parsers and its children.

Frames with a msgpack body. Nothing is pickled: a child reads untrusted files and may be taken over
by one, so its replies are validated as strictly as a message from outside. The parent sends one
`ParserSetup`, then a `PartRequest` for each part, each with the descriptor of the file; the child
replies `Ready`, then `Read` or `Refused` to each.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from penstock.pipelines.documents.config.models import Chunking
from penstock.pipelines.documents.parsing.chunks import Part

__all__ = [
    "FENCES",
    "LONGEST_REASON",
    "ParserReply",
    "ParserSetup",
    "PartRequest",
    "Read",
    "Ready",
    "Refused",
    "largest_body",
    "largest_chunks",
]

FENCES: Final = ("calls", "files", "memory", "network", "privileges")
"""What a child is kept from: see docs/explanation/documents.md."""


class ParserSetup(msgspec.Struct, frozen=True, array_like=True):
    """Sent once, before the first request."""

    memory_bytes: int
    cpu_s: int
    ocr: bool
    """It may start `tesseract`; others can start nothing."""


class PartRequest(msgspec.Struct, frozen=True, array_like=True):
    """A part to read."""

    size: int
    """Bytes of the file."""
    type: str
    """Type of the file, known from an earlier part; "" to detect it."""
    declared: str
    by_content: bool
    chunking: Chunking
    ocr: bool
    first: int
    """The first page, from 0."""
    last: int
    """One beyond the last page."""
    start: int
    """Characters of earlier parts."""
    largest_text: int
    """Most characters of this part."""


LONGEST_REASON: Final = 200
"""Characters of the reason for which a fence is missing, which may name a path."""

_Short = Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)]
_Line = Annotated[str, msgspec.Meta(max_length=1_000)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The child accepts requests."""

    resident_kb: _Count
    peak_kb: _Count
    """So far. On Linux children inherit the parent's peak."""
    missing: Annotated[dict[_Short, _Short], msgspec.Meta(max_length=len(FENCES))] = {}
    """The fences that do not stand, and why."""
    problem: _Line = ""
    """Why it does not: a library is missing."""


class Read(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A part that was read."""

    part: Part
    end: _Count
    """Characters up to the end of this part."""
    blank: _Count = 0
    """Pages without text."""
    failed: _Count = 0
    """Pages that could not be read."""
    resident_kb: _Count = 0


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A part that could not be read, and why."""

    kind: Literal["parse", "unsupported", "memory", "again"]
    code: Annotated[str, msgspec.Meta(pattern="^ERR_[A-Z_]{1,40}$")]
    reason: _Line
    suggestions: Annotated[tuple[_Line, ...], msgspec.Meta(max_length=10)] = ()


ParserReply = Ready | Read | Refused


def largest_chunks(largest_text: int) -> int:
    """Most bytes of all chunks: the text, and room for overlaps and headings."""
    return 8 * largest_text + (16 << 20)


def largest_body(largest_text: int, memory_bytes: int) -> int:
    """Most bytes of a reply, which the parent holds: no more than a child has the memory for."""
    return min(largest_chunks(largest_text), memory_bytes // 4)
