"""What the reader of a format hands over, and the limits that each of them heeds."""

from __future__ import annotations

import msgspec

from penstock.pipelines.documents.chunks import Kind

__all__ = ["Block", "Limits", "Parsed"]


class Block(msgspec.Struct, frozen=True):
    """A run of text of one kind, on one page and below one set of headings."""

    text: str
    kind: Kind = "text"
    page: int | None = None
    """From 1; None for what has no pages."""
    headings: tuple[str, ...] = ()
    """Outermost first."""
    start: int = 0
    """Where `text` begins in the document's whole text, in characters."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a reader takes from one file. What goes beyond is refused."""

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
    xml_depth: int = 256
    """Elements within elements."""


class Parsed(msgspec.Struct):
    """A document, or some pages of one."""

    blocks: list[Block]
    title: str = ""
    warnings: tuple[str, ...] = ()
    """What a reader of the status should know."""
