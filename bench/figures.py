"""A measured number, the bar it has to clear, and how both are printed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

__all__ = ["Figure", "ratio", "table"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a report. Ratios of one run wherever possible, never absolute promises."""

    suite: str
    name: str
    value: float
    unit: str
    bar: float
    op: Literal[">=", "<="]

    @property
    def holds(self) -> bool:
        return self.value >= self.bar if self.op == ">=" else self.value <= self.bar

    def as_json(self) -> str:
        return json.dumps({**asdict(self), "value": round(self.value, 4), "holds": self.holds})


def table(figures: Iterable[Figure]) -> str:
    """The figures for people."""
    rows = [("", "name", "value", "bar")]
    rows += [
        (
            "ok" if figure.holds else "MISSED",
            figure.name,
            f"{figure.value:,.3g} {figure.unit}",
            f"{figure.op} {figure.bar:g}",
        )
        for figure in figures
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


async def ratio(
    ours: Callable[[], Awaitable[float]], theirs: Callable[[], Awaitable[float]], rounds: int
) -> float:
    """Median of ours over theirs, measured in turns so that a noisy moment hits both."""
    ratios: list[float] = []
    for round_number in range(rounds):
        if round_number % 2:
            second, first = await theirs(), await ours()
        else:
            first, second = await ours(), await theirs()
        ratios.append(first / second)
    return statistics.median(ratios)
