"""Items that a process or a server may have many of, measured at several sizes."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from arena import Arena, open_arena
from figures import Figure
from results import Results

__all__ = ["Column", "Growth", "Item", "Measure", "item_figures"]

Measure = Callable[[Arena, bool], Awaitable[dict[str, float]]]
"""Measures one size, quickly or not: a value for each column, by name."""


@dataclass(frozen=True, slots=True)
class Column:
    """A value at each size. Its bar, if it has one, counts where the item says."""

    name: str
    unit: str
    bar: float = 0
    op: Literal[">=", "<="] = ">="


@dataclass(frozen=True, slots=True)
class Growth:
    """How many times as much a column may be at one size as at another."""

    column: str
    large: str
    small: str
    most: float
    is_quick: bool = False
    """Whether it is measured with --quick, too."""

    @property
    def name(self) -> str:
        return f"growth of {self.column}, {self.large} / {self.small}"


@dataclass(frozen=True, slots=True)
class Item:
    """One table: a row for each size, by the name that it has in figures."""

    rows: Mapping[str, Measure]
    columns: Sequence[Column]
    barred: Sequence[str]
    """Rows whose bars count: the largest."""
    growths: Sequence[Growth] = ()

    def quick_rows(self) -> list[str]:
        quick = (growth for growth in self.growths if growth.is_quick)
        needed = {*self.barred, *(row for one in quick for row in (one.large, one.small))}
        return [row for row in self.rows if row in needed]


async def item_figures(suite: str, items: Sequence[Item], *, quick: bool) -> AsyncIterator[Figure]:
    """Measure all sizes, or quickly those whose bars matter most."""
    # Others who compute meanwhile spoil the rest: the reader shall see it.
    yield Figure(suite, "load of the machine beforehand", os.getloadavg()[0], "", 0, ">=")
    results = Results(suite)
    async with open_arena() as arena:
        for item in items:
            rows = item.quick_rows() if quick else list(item.rows)
            for row in rows:
                print(f"  {row}", file=sys.stderr, flush=True)
                await results.play(arena, row, partial(_measured, row, item.rows[row], quick))
            for figure in _figures(results, item, rows):
                yield figure


async def _measured(row: str, measure: Measure, quick: bool, arena: Arena) -> dict[str, float]:
    return {_key(row, name): value for name, value in (await measure(arena, quick)).items()}


def _figures(results: Results, item: Item, rows: Sequence[str]) -> Iterator[Figure]:
    for row in rows:
        for column in item.columns:
            bar, op = (column.bar, column.op) if row in item.barred else (0, ">=")
            yield results.value(_key(row, column.name), column.unit, bar, op)
    for growth in item.growths:
        if not {growth.large, growth.small} <= {*rows}:
            continue
        large, small = (_key(row, growth.column) for row in (growth.large, growth.small))
        yield results.growth(growth.name, growth.most, large, small)


def _key(row: str, column: str) -> str:
    return f"{row}: {column}"
