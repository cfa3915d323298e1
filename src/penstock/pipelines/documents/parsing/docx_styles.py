"""What the styles of a DOCX say of a paragraph: heading, list, title, or table of contents."""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.pipelines.documents.parsing.archive import XmlPart
from penstock.pipelines.documents.parsing.docx_xml import (
    child,
    elements,
    forget,
    name_of,
    value,
    value_of,
)
from penstock.pipelines.documents.parsing.markup import Element

__all__ = ["Styles"]

DEEPEST = 9
_OUTLINE = frozenset("012345678")  # 9 is the body text

# Word stores the English name whatever its language; other programs store theirs.
_HEADING = re.compile(
    "(?:heading|überschrift|titre|título|titolo|kop|rubrik|overskrift|otsikko|nagłówek|nadpis"
    r"|заголовок|見出し|标题|標題|제목)\s*([1-9])"
)
_CONTENTS = re.compile(r"toc\s*[1-9]")


class _Style(NamedTuple):
    name: str
    based_on: str | None
    outline: str | None
    list_level: int | None


class Styles:
    """By the id that paragraphs name, which is in the language of whoever wrote the document."""

    def __init__(self) -> None:
        self._styles: dict[str, _Style] = {}

    def read(self, part: XmlPart) -> None:
        for event, _, element in elements(part, "w:style"):
            # Of the many styles of tables and characters none says anything here.
            if event == "end" and _attribute(element, "type") in {"", "paragraph"}:
                identifier, style = _read(element)
                self._styles[identifier] = style
            if event == "end":
                forget(element)

    def heading(self, properties: Element | None) -> int:
        """The level of a heading from 1, or 0 for other paragraphs."""
        own = value_of(properties, "w:outlineLvl")
        if own is not None:
            return _level(own)
        for style in self._chain(properties):
            if style.outline is not None:
                return _level(style.outline)
            if found := _HEADING.fullmatch(style.name):
                return int(found[1])
        return 0

    def list_level(self, properties: Element | None) -> int | None:
        """How deep in lists its item is, from 0; None outside of lists."""
        if child(properties, "w:numPr") is not None:
            return _list_level(properties)
        return next(
            (each.list_level for each in self._chain(properties) if each.list_level is not None),
            None,
        )

    def is_title(self, properties: Element | None) -> bool:
        return any(style.name == "title" for style in self._chain(properties))

    def is_contents(self, properties: Element | None) -> bool:
        """A line of a table of contents."""
        return any(_CONTENTS.fullmatch(style.name) for style in self._chain(properties))

    def _chain(self, properties: Element | None) -> list[_Style]:
        """The paragraph's style and those it is based on; a circle ends where it closes."""
        identifier = value_of(properties, "w:pStyle")
        chain: dict[str, _Style] = {}
        while identifier and identifier not in chain:
            style = self._styles.get(identifier)
            if style is None:
                style = _Style(identifier.lower(), None, None, None)
            chain[identifier] = style
            identifier = style.based_on
        return list(chain.values())


def _attribute(element: Element, local: str) -> str:
    return next((found for key, found in element.items() if key.endswith(f"}}{local}")), "")


def _read(element: Element) -> tuple[str, _Style]:
    identifier = _attribute(element, "styleId")
    name, based_on, outline, level = identifier, None, None, None
    for each in element:
        match name_of(each):
            case "w:name":
                name = value(each)
            case "w:basedOn":
                based_on = value(each)
            case "w:pPr":
                outline = value_of(each, "w:outlineLvl")
                level = _list_level(each)
            case _:
                pass
    return identifier, _Style(name.strip().lower(), based_on, outline, level)


def _level(outline: str) -> int:
    return int(outline) + 1 if outline in _OUTLINE else 0


def _list_level(properties: Element | None) -> int | None:
    numbering = child(properties, "w:numPr")
    if numbering is None or value_of(numbering, "w:numId") in {None, "0"}:
        return None
    level = value_of(numbering, "w:ilvl") or "0"
    return min(int(level), DEEPEST) if level.isdecimal() and len(level) == 1 else 0
