"""DOCX: its text in blocks, read from the archive without unpacking that to disk."""

from __future__ import annotations

from typing import BinaryIO, Final

from penstock.pipelines.documents.parsing.archive import Archive
from penstock.pipelines.documents.parsing.blocks import Limits, Parsed
from penstock.pipelines.documents.parsing.decoding import clean, no_text
from penstock.pipelines.documents.parsing.docx_styles import Styles
from penstock.pipelines.documents.parsing.docx_text import row_cells, texts_of
from penstock.pipelines.documents.parsing.docx_xml import child, elements, forget
from penstock.pipelines.documents.parsing.gathering import Gathering, Rows
from penstock.pipelines.documents.parsing.markup import Element

__all__ = ["parse"]

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


def parse(file: BinaryIO, limits: Limits) -> Parsed:
    """Paragraphs, lists and tables with the headings above them; then notes, headers and footers.

    What was deleted with changes tracked is left out, and so are comments and the table of
    contents. Raises `ParseError`: ERR_DOCX_INVALID, ERR_DOCX_ENCRYPTED, ERR_ZIP_BOMB,
    ERR_ZIP_UNSAFE, ERR_XML_DOCTYPE, ERR_TOO_MUCH_TEXT, ERR_NO_TEXT.
    """
    archive = Archive(file, limits)
    parts = _parts(archive)
    styles = Styles()
    for name in parts["styles"]:
        with archive.part(name) as part:
            styles.read(part)
    body = _Reader(Gathering(limits), styles, limits)
    body.read(archive, parts["main"][0] if parts["main"] else _MAIN)
    body.gathering.outline.leave()
    for name in parts["notes"]:
        body.read(archive, name)
    _add_margins(archive, parts["margins"], body, limits)
    if not body.gathering.blocks:
        raise no_text()
    title = _title(archive, parts["core"]) or body.title
    return Parsed(
        body.gathering.blocks,
        " ".join(clean(title, []).split())[:500],
        tuple(dict.fromkeys(body.warnings)),
    )


class _Reader:
    """Goes through parts once; one paragraph, or one row of a table, is in memory as XML."""

    def __init__(self, gathering: Gathering, styles: Styles, limits: Limits) -> None:
        self.gathering = gathering
        self.title = ""
        self.warnings: list[str] = []
        self._styles = styles
        self._rows = Rows(limits)
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


def _add_margins(archive: Archive, names: list[str], body: _Reader, limits: Limits) -> None:
    """Headers and footers, each text once: first page, even and odd pages mostly say the same."""
    margins = _Reader(Gathering(limits), Styles(), limits)
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
