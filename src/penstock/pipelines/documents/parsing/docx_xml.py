"""The XML of a DOCX, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from penstock.pipelines.documents.parsing.archive import XmlPart
from penstock.pipelines.documents.parsing.markup import Element, xml_events

__all__ = ["child", "elements", "forget", "name_of", "value", "value_of"]

_WORD: Final = (
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "http://purl.oclc.org/ooxml/wordprocessingml/main",  # of the strict variant
)
_PREFIXES: Final = {
    **dict.fromkeys(_WORD, "w"),
    "http://schemas.openxmlformats.org/markup-compatibility/2006": "mc",
    "http://schemas.openxmlformats.org/officeDocument/2006/math": "m",
    "http://purl.oclc.org/ooxml/officeDocument/math": "m",
    "http://purl.org/dc/elements/1.1/": "dc",
    "http://schemas.openxmlformats.org/package/2006/content-types": "ct",
}
_VALUES: Final = tuple(f"{{{space}}}val" for space in _WORD)


_VARIANTS: Final[dict[str, list[str]]] = {}
for _space, _prefix in _PREFIXES.items():
    _VARIANTS.setdefault(_prefix, []).append(_space)


@lru_cache(maxsize=1024)
def _short(tag: str) -> str:
    space, _, local = tag[1:].rpartition("}")
    return f"{_PREFIXES.get(space, '?')}:{local}"


def name_of(element: Element) -> str:
    """Such as `w:p`, for either variant of the format."""
    tag = element.tag  # no text for comments and the like
    return _short(tag) if isinstance(tag, str) else ""


def child(parent: Element | None, name: str) -> Element | None:
    if parent is not None:
        for each in parent:
            if name_of(each) == name:
                return each
    return None


def value(element: Element) -> str:
    """Its attribute `val`, "" if it has none."""
    for key in _VALUES:
        found = element.get(key)
        if found is not None:
            return found
    return ""


def value_of(parent: Element | None, name: str) -> str | None:
    """The attribute `val` of a child; None if there is no such child."""
    found = child(parent, name)
    return None if found is None else value(found)


def elements(part: XmlPart, *names: str) -> Iterator[tuple[str, str, Element]]:
    """(start or end, name, element) for the named ones, as they come."""
    tags = [
        f"{{{space}}}{local}"
        for prefix, _, local in (name.partition(":") for name in names)
        for space in _VARIANTS[prefix]
    ]
    for event, element in xml_events(part, tags):
        yield event, name_of(element), element


def forget(element: Element) -> None:
    """Free an element that has been read, and all that stands before it."""
    element.clear()
    outer = element
    while (parent := outer.getparent()) is not None:
        while outer.getprevious() is not None:
            del parent[0]
        outer = parent
