"""DOCX: its text in blocks, read from the archive without unpacking that to disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO, Final, NamedTuple

from penstock.pipelines.documents.parsing.decoding import clean, no_text
from penstock.pipelines.documents.parsing.formats.archive import Archive, XmlPart
from penstock.pipelines.documents.parsing.formats.blocks import (
    BlockBuilder,
    ParsedDocument,
    ParseLimits,
    TableBuilder,
)
from penstock.pipelines.documents.parsing.formats.lxml_api import Element, xml_events

__all__ = [
    "Styles",
    "child",
    "elements",
    "forget",
    "name_of",
    "parse",
    "row_cells",
    "texts_of",
    "value",
    "value_of",
]

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
    """By the id that paragraphs name, which is in the language of the program that wrote it."""

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


_MOST_COLUMNS: Final = 63
"""Of a table in Word."""
_LEFT_OUT: Final = frozenset({
    "w:pPr", "w:rPr", "w:tblPr", "w:tblGrid", "w:trPr", "w:tcPr", "w:sdtPr", "w:sectPr",
    # Deleted, or moved to where it is found again, with changes tracked.
    "w:del", "w:moveFrom", "w:delText", "w:delInstrText",
    # The formula of a field (its result is kept), and how a word is to be spoken.
    "w:instrText", "w:fldData", "w:rt",
})  # fmt: skip
_SIGNS: Final = {
    "w:tab": "\t",
    "w:ptab": "\t",
    "w:br": "\n",
    "w:cr": "\n",
    "w:noBreakHyphen": "-",
    "w:p": "\n",
    "w:tr": "\n",
    "w:tc": " ",
}


def texts_of(element: Element) -> list[str]:
    """The text of a paragraph or cell, and then that of each text box which is anchored in it."""
    main: list[str] = []
    boxes: list[list[str]] = []
    # Walked without recursion: the file decides the depth.
    stack: list[tuple[Iterator[Element], list[str]]] = [(iter(element), main)]
    while stack:
        rest, out = stack[-1]
        inner = next(rest, None)
        if inner is None:
            stack.pop()
            continue
        name = name_of(inner)
        if name in _LEFT_OUT:
            continue
        if name in {"w:t", "m:t"}:
            out.append(inner.text or "")
        elif name == "mc:AlternateContent":
            stack.append((iter(_one_of(inner)), out))
        elif name == "w:txbxContent":
            boxes.append([])
            stack.append((iter(inner), boxes[-1]))
        else:
            if out and name in _SIGNS:
                out.append(_SIGNS[name])
            stack.append((iter(inner), out))
    return ["".join(out) for out in (main, *boxes)]


def row_cells(row: Element, above: dict[int, str]) -> list[str]:
    """The cells of a row, one for each column of the table's grid.

    A cell that is merged with the one above repeats its text, since a row is also found alone;
    one that covers several columns has its text in the first. `above` is carried from row to row.
    """
    properties = child(row, "w:trPr")
    if value_of(properties, "w:del") is not None:
        return []
    cells = [""] * _count(value_of(properties, "w:gridBefore"), 0)
    for cell in _cells(row):
        shape = child(cell, "w:tcPr")
        merge = value_of(shape, "w:vMerge")
        column = len(cells)
        if merge is not None and merge != "restart" and column in above:
            text = above[column]
        else:
            text = "\n".join(texts_of(cell)).strip()
        if merge is None:
            above.pop(column, None)
        else:
            above[column] = text
        cells.append(text)
        cells += [""] * (_count(value_of(shape, "w:gridSpan"), 1) - 1)
    return cells


def _cells(row: Element) -> Iterator[Element]:
    stack = [iter(row)]
    while stack:
        inner = next(stack[-1], None)
        if inner is None:
            stack.pop()
        elif name_of(inner) == "w:tc":
            yield inner
        elif name_of(inner) in {"w:sdt", "w:sdtContent", "w:customXml", "w:ins", "w:moveTo"}:
            stack.append(iter(inner))


def _one_of(alternatives: Element) -> list[Element]:
    """The variant for new programs; the others say the same."""
    variants = list(alternatives)
    for name in ("mc:Choice", "mc:Fallback"):
        for variant in variants:
            if name_of(variant) == name and any(texts_of(variant)):
                return [variant]
    return []


def _count(written: str | None, least: int) -> int:
    if written is None or not written.isdecimal() or len(written) > len(str(_MOST_COLUMNS)):
        return least
    return min(max(int(written), least), _MOST_COLUMNS)


_CONTENT_TYPES: Final = "[Content_Types].xml"
_MAIN: Final = "word/document.xml"
_KINDS: Final = (
    (".main+xml", "main"),
    (".styles+xml", "styles"),
    (".footnotes+xml", "notes"),
    (".endnotes+xml", "notes"),
    (".header+xml", "margins"),
    (".footer+xml", "margins"),
    (".core-properties+xml", "core"),
)


def parse(file: BinaryIO, limits: ParseLimits) -> ParsedDocument:
    """Paragraphs, lists and tables with the headings above them; then notes, headers and footers.

    What was deleted with changes tracked is left out, and so are comments and the table of
    contents. Raises `ParseError`: ERR_DOCX_INVALID, ERR_DOCX_ENCRYPTED, ERR_ZIP_BOMB,
    ERR_ZIP_UNSAFE, ERR_XML_DOCTYPE, ERR_TOO_MANY_ELEMENTS, ERR_TOO_MUCH_TEXT, ERR_NO_TEXT.
    """
    archive = Archive(file, limits)
    parts = _parts(archive)
    styles = Styles()
    for name in parts["styles"]:
        with archive.part(name) as part:
            styles.read(part)
    body = _Reader(BlockBuilder(limits), styles, limits)
    body.read(archive, parts["main"][0] if parts["main"] else _MAIN)
    body.gathering.outline.leave()
    for name in parts["notes"]:
        body.read(archive, name)
    _add_margins(archive, parts["margins"], body, limits)
    if not body.gathering.blocks:
        raise no_text()
    title = _title(archive, parts["core"]) or body.title
    return ParsedDocument(
        body.gathering.blocks,
        " ".join(clean(title, []).split())[:500],
        tuple(dict.fromkeys(body.warnings)),
    )


class _Reader:
    """Goes through parts once; one paragraph, or one row of a table, is in memory as XML."""

    def __init__(self, gathering: BlockBuilder, styles: Styles, limits: ParseLimits) -> None:
        self.gathering = gathering
        self.title = ""
        self.warnings: list[str] = []
        self._styles = styles
        self._rows = TableBuilder(limits)
        self._above: dict[int, str] = {}
        self._items: list[str] = []

    def read(self, archive: Archive, name: str) -> None:
        paragraphs = tables = fallbacks = 0
        with archive.part(name) as part:
            for event, tag, element in elements(part, "w:p", "w:tbl", "w:tr", "mc:Fallback"):
                step = 1 if event == "start" else -1
                if tag == "mc:Fallback":
                    fallbacks += step  # repeats what the choice before it says
                elif tag == "w:p":
                    paragraphs += step
                    if step < 0 and not (paragraphs or tables or fallbacks):
                        self._paragraph(element)
                        forget(element)
                elif tag == "w:tbl":
                    tables += step
                    if step < 0 and not (paragraphs or tables or fallbacks):
                        self._end_list()
                        self._rows.end(self.gathering)
                        self._above.clear()
                        forget(element)
                elif step < 0 and tables == 1 and not (paragraphs or fallbacks):
                    cells = row_cells(element, self._above)
                    self._rows.add([clean(cell, self.warnings) for cell in cells])
                    forget(element)
        self._end_list()

    def _paragraph(self, element: Element) -> None:
        properties = child(element, "w:pPr")
        if self._styles.is_contents(properties):
            return
        text, *boxes = (clean(text, self.warnings) for text in texts_of(element))
        level = self._styles.heading(properties)
        depth = self._styles.list_level(properties)
        if text.isspace() or not text:
            pass
        elif level:
            self._end_list()
            self.gathering.heading(level, text)
        elif depth is not None:
            self._items.append(f"{'  ' * depth}- {text.strip()}")
        else:
            self._end_list()
            if not self.title and self._styles.is_title(properties):
                self.title = text
            self.gathering.add(text)
        for box in boxes:
            self._end_list()
            self.gathering.add(box)

    def _end_list(self) -> None:
        if self._items:
            items, self._items = self._items, []
            self.gathering.add("\n".join(items))


def _parts(archive: Archive) -> dict[str, list[str]]:
    """The names of the parts that are read, by what they are."""
    parts: dict[str, list[str]] = {kind: [] for _, kind in _KINDS}
    with archive.part(_CONTENT_TYPES) as part:
        for event, _, element in elements(part, "ct:Override"):
            if event == "start":
                continue
            name = (element.get("PartName") or "").removeprefix("/")
            content = element.get("ContentType") or ""
            kind = next((kind for ending, kind in _KINDS if content.endswith(ending)), None)
            if kind is not None and name in archive and name not in parts[kind]:
                parts[kind].append(name)
            forget(element)
    return parts


def _add_margins(archive: Archive, names: list[str], body: _Reader, limits: ParseLimits) -> None:
    """Headers and footers, each text once: first page, even and odd pages mostly say the same."""
    margins = _Reader(BlockBuilder(limits), Styles(), limits)
    for name in names:
        margins.read(archive, name)
    for text in dict.fromkeys(block.text for block in margins.gathering.blocks):
        if any(sign.isalpha() for sign in text):  # a number alone is that of the page
            body.gathering.add(text)
    body.warnings += margins.warnings


def _title(archive: Archive, names: list[str]) -> str:
    for name in names:
        with archive.part(name) as part:
            for event, _, element in elements(part, "dc:title"):
                if event == "end":
                    return element.text or ""
    return ""
