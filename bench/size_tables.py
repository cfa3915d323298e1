"""Figures as Markdown: a table for each run of rows that have the same columns."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby

from arena import FOLDER
from penstock.testing.figures import Figure

__all__ = ["tables"]

_Row = tuple[str, list[Figure]]


def tables(figures: Iterable[Figure]) -> str:
    """Tables of the figures named `<row>: <column>`, each with its bars; then all other figures."""
    found = list(figures)
    rows = [(row, list(some)) for row, some in groupby(found, _row_of) if row]
    texts = [_table(list(some)) for _, some in groupby(rows, _columns)]
    others = [figure for figure in found if not _row_of(figure)]
    texts.append("\n".join(_bar(figure) for figure in others))
    return "\n\n".join([_heading(), *texts])


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
    texts = [f"| {' | '.join(cells)} |" for cells in lines]
    bars = [_bar(one) for _, some in rows for one in some if one.bar]
    return "\n".join(texts) + ("\n\n" + "\n".join(bars) if bars else "")


def _columns(row: _Row) -> list[str]:
    return [f"{_column_of(figure)}, {figure.unit}" for figure in row[1]]


def _row_of(figure: Figure) -> str:
    return figure.name.partition(": ")[0] if ": " in figure.name else ""


def _column_of(figure: Figure) -> str:
    return figure.name.partition(": ")[2]


def _bar(figure: Figure) -> str:
    value = f"{_number(figure.value)} {figure.unit}".strip()
    if not figure.bar:
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
