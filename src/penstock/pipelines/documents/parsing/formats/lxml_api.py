"""Typed access to lxml, which has no type annotations."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol, cast

__all__ = ["Element", "MarkupError", "html_parser", "xml_events"]

_lxml: Any = import_module("lxml.etree")


class Element(Protocol):
    """The part of an element's API that is used here."""

    @property
    def tag(self) -> object: ...
    @property
    def text(self) -> str | None: ...
    def __iter__(self) -> Iterator[Element]: ...
    def __delitem__(self, index: int, /) -> None: ...
    def get(self, key: str, /) -> str | None: ...
    def items(self) -> list[tuple[str, str]]: ...
    def clear(self) -> None: ...
    def getparent(self) -> Element | None: ...
    def getprevious(self) -> Element | None: ...


MarkupError = cast("type[SyntaxError]", _lxml.XMLSyntaxError)


class _Source(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Feed(Protocol):
    def feed(self, data: bytes, /) -> None: ...
    def close(self) -> object: ...


def xml_events(source: _Source, names: list[str]) -> Iterator[tuple[str, Element]]:
    """Start and end of the elements of these names, as they are read.

    Entities are not replaced, nothing is fetched, and the parser's limits on depth and on the
    length of a text hold.
    """
    return cast(
        "Iterator[tuple[str, Element]]",
        _lxml.iterparse(
            source,
            events=("start", "end"),
            tag=names,
            resolve_entities=False,
            no_network=True,
            load_dtd=False,
            huge_tree=False,
            remove_comments=True,
            remove_pis=True,
        ),
    )


def html_parser(target: object) -> _Feed:
    """Parser of UTF-8, whatever the document declares; `target` gets tags and text, no tree."""
    return cast(
        "_Feed",
        _lxml.HTMLParser(
            target=target, encoding="utf-8", no_network=True, remove_pis=True, huge_tree=True
        ),
    )
