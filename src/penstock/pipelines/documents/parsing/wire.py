"""What the pool of parsers and its children say to each other.

A frame is a length and a msgpack body. Nothing is ever pickled here: a child reads what strangers
wrote and may have been taken over by it, so that all it says is checked as strictly as a message
from outside. The parent sends one `Setup`, then an `Order` for each part, each with the descriptor
of the file; the child answers `Ready`, then `Read` or `Refused` to each.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, Literal

import msgspec

from penstock.pipelines.documents.chunks import Part
from penstock.pipelines.documents.configuration import Chunking

__all__ = [
    "HEADER",
    "Answer",
    "Order",
    "Read",
    "Ready",
    "Refused",
    "Setup",
    "frame",
    "largest_body",
]

HEADER: Final = struct.Struct(">I")
"""Length of the body in bytes."""


class Setup(msgspec.Struct, frozen=True, array_like=True):
    """What a child has to know before its first order."""

    memory_bytes: int
    cpu_s: int
    ocr: bool
    """It may start `tesseract`; one that may not can start nothing."""


class Order(msgspec.Struct, frozen=True, array_like=True):
    """A part to read."""

    type: str
    """What the file is, if an earlier part told; "" to find out."""
    declared: str
    by_content: bool
    chunking: Chunking
    ocr: bool
    first: int
    """The first page, from 0."""
    last: int
    """One beyond the last page."""
    start: int
    """Characters of the parts before."""
    largest_text: int
    """Most characters of this part."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """It can take orders."""

    resident_kb: int
    peak_kb: int
    """So far. Linux hands the parent's own peak down to whom it starts."""
    fences: tuple[str, ...] = ()
    """What keeps it in: limits that this system does not have are not among them."""
    problem: str = ""
    """Why it cannot: a library is missing."""


class Read(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A part that was read."""

    part: Part
    end: int
    """Characters up to the end of this part."""
    blank: int = 0
    """Pages without text."""
    failed: int = 0
    """Pages that could not be read."""
    resident_kb: int = 0


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A part that could not be read, with the reason."""

    kind: Literal["parse", "unsupported", "memory", "again"]
    code: Annotated[str, msgspec.Meta(pattern="^ERR_[A-Z_]{1,40}$")]
    reason: str
    suggestions: tuple[str, ...] = ()


Answer = Ready | Read | Refused


def frame(message: Setup | Order | Answer) -> bytes:
    """One message as it goes over the line."""
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(len(body)) + body


def largest_body(largest_text: int) -> int:
    """Most bytes of an answer: the text, and room for overlaps, headings and digests."""
    return min(8 * largest_text + (16 << 20), 0xFFFF_FFFF)
