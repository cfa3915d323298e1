"""Chunks of text as parsers return them, and the version of the parsers."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

__all__ = ["MOST_CHUNKS", "Chunk", "Kind", "Part", "parser_version"]

Kind = Literal["text", "table", "code"]

# Small values take many times their encoded size in memory. A child that was taken over could fill
# that of its parent with them, so their number is checked before any is decoded.
MOST_CHUNKS: Final = 1 << 20
"""Chunks of a part."""
_MOST_PAGES: Final = 1 << 20
"""PDFium reads no more than that."""
_FARTHEST: Final = 1 << 40


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a document: the unit of search."""

    text: Annotated[str, Meta(max_length=1 << 16)]
    kind: Kind = "text"
    page: Annotated[int, Meta(ge=1, le=_MOST_PAGES)] | None = None
    """The page on which it begins, from 1; None if the document has no pages."""
    headings: Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=10)] = ()
    """Headings above it, outermost first."""
    start: Annotated[int, Meta(ge=0, le=_FARTHEST)] = 0
    """Offset in the document's text, in characters."""
    end: Annotated[int, Meta(ge=0, le=_FARTHEST)] = 0


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A whole document, or some pages of it."""

    chunks: Annotated[list[Chunk], Meta(max_length=MOST_CHUNKS)]
    type: Annotated[str, Meta(max_length=10)]
    """Type by content: pdf, docx, md, txt or html."""
    done: Annotated[int, Meta(ge=1, le=_MOST_PAGES)] = 1
    """Pages read so far, this part included; 1 for documents without pages."""
    total: Annotated[int, Meta(ge=1, le=_MOST_PAGES)] = 1
    title: Annotated[str, Meta(max_length=500)] = ""
    warnings: Annotated[tuple[Annotated[str, Meta(max_length=500)], ...], Meta(max_length=10)] = ()
    """For the status: pages without text, omitted text."""


_OURS: Final = "3"
"""Increase it when the same libraries read, refuse or split a file differently."""
_LIBRARIES: Final = (
    *("pypdfium2", "lxml", "markdown-it-py", "semantic-text-splitter"),
    "charset-normalizer",
)


@cache
def parser_version() -> str:
    """Changes when a refused file may now be read, or a file be split differently.

    Made from metadata, without loading a library.
    """
    return "-".join((_OURS, *(_version_of(library) for library in _LIBRARIES)))


def _version_of(library: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  for parents

    try:
        return version(library)
    except PackageNotFoundError:
        return "none"
