"""Pieces of text as they leave a parser."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

import msgspec

__all__ = ["Chunk", "Kind", "Part", "digest_of"]

Kind = Literal["text", "table", "code"]


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a document that is found as a whole."""

    text: str
    digest: bytes
    """`digest_of(text)`."""
    kind: Kind = "text"
    page: int | None = None
    """The page on which it begins, from 1; None for what has no pages."""
    headings: tuple[str, ...] = ()
    """The headings above it, outermost first."""
    start: int = 0
    """Where it begins in the document's text, in characters."""
    end: int = 0


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What was read of a document at once: all of it, or some pages."""

    chunks: list[Chunk]
    type: str
    """What the file really is: pdf, docx, md, txt or html."""
    done: int = 1
    """Pages read so far, this part included; 1 for what has no pages."""
    total: int = 1
    title: str = ""
    warnings: tuple[str, ...] = ()
    """What a reader of the status should know: pages without text, text that was left out."""


def digest_of(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
