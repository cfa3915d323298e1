"""Figures as Markdown: a table for each run of rows that have the same columns."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby

from arena import FOLDER
from figures import Figure
from results import NOT_MEASURED

__all__ = ["tables"]

_Row = tuple[str, list[Figure]]


def tables(figures: Iterable[Figure]) -> str:
    """Tables of the figures named `<row>: <column>`, and under each its bars and other figures."""
    blocks: list[tuple[list[_Row], list[Figure]]] = [([], [])]
    for row, found in groupby(figures, _row_of):
        some = list(found)
        rows, others = blocks[-1]
        if not row:
            others += some
        elif others or (rows and _columns(rows[0]) != _columns((row, some))):
            blocks.append(([(row, some)], []))
        else:
            rows.append((row, some))
    return "\n\n".join([_heading(), *(text for block in blocks for text in _texts(*block))])


def _texts(rows: Sequence[_Row], others: Sequence[Figure]) -> Iterator[str]:
    if rows:
        yield _table(rows)
    barred = [one for _, some in rows for one in some if one.bar or not one.holds]
    if barred or others:
        yield "\n".join(map(_bullet, [*barred, *others]))


def _heading() -> str:
    """When, and what was measured."""
    describe = ["git", "-C", str(FOLDER), "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    today = datetime.now(UTC).date()
    return f"{today}, Penstock {version('penstock')} {commit}, {os.cpu_count()} cores"


def _table(rows: Sequence[_Row]) -> str:
    noun = _common_end([row for row, _ in rows])
    lines = [[noun, *_columns(rows[0])], ["---"] * (1 + len(rows[0][1]))]
    for row, figures in rows:
        lines.append([row.removesuffix(noun).strip(), *(_number(one.value) for one in figures)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _columns(row: _Row) -> list[str]:
    return [", ".join(filter(None, (_names(one)[1], one.unit))) for one in row[1]]


def _row_of(figure: Figure) -> str:
    return _names(figure)[0]


def _names(figure: Figure) -> tuple[str, str]:
    """Of its row, "" if it is in no table, and of its column."""
    before, colon, after = figure.name.removesuffix(NOT_MEASURED).partition(": ")
    return (before, after) if colon else ("", before)


def _bullet(figure: Figure) -> str:
    value = f"{_number(figure.value)} {figure.unit}".strip()
    if figure.holds and not figure.bar:
        return f"- {figure.name}: {value}"
    kept = "held" if figure.holds else "MISSED"
    return f"- {kept}: {figure.name} {figure.op} {_number(figure.bar)}: {value}"


def _common_end(names: Sequence[str]) -> str:
    """The words that all names end with, but not the first word of any."""
    split = [name.split()[1:] for name in names]
    common: list[str] = []
    for words in zip(*(reversed(words) for words in split), strict=False):
        if len({*words}) > 1:
            break
        common.insert(0, words[0])
    return " ".join(common)


def _number(value: float) -> str:
    """Three digits that count."""
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{digits}f}"
