"""The text within one paragraph or table row of a DOCX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.pipelines.documents.parsing.docx_xml import child, name_of, value_of
from penstock.pipelines.documents.parsing.markup import Element

__all__ = ["row_cells", "texts_of"]

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
    # Walked without recursion: depth is up to whoever wrote the file.
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
