"""Chunks of text as parsers return them, and the version of the parsers."""

from __future__ import annotations

from functools import cache
from typing import Final, Literal

import msgspec

__all__ = ["Chunk", "Kind", "Part", "parser_version"]

Kind = Literal["text", "table", "code"]


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a document: the unit of search."""

    text: str
    kind: Kind = "text"
    page: int | None = None
    """The page on which it begins, from 1; None if the document has no pages."""
    headings: tuple[str, ...] = ()
    """Headings above it, outermost first."""
    start: int = 0
    """Offset in the document's text, in characters."""
    end: int = 0


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A whole document, or some pages of it."""

    chunks: list[Chunk]
    type: str
    """Type by content: pdf, docx, md, txt or html."""
    done: int = 1
    """Pages read so far, this part included; 1 for documents without pages."""
    total: int = 1
    title: str = ""
    warnings: tuple[str, ...] = ()
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
