"""`5/min`, `50/hour`: how many in how long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from penstock.errors import SettingError

__all__ = ["MOST", "Rate", "Windows", "parse_rate", "parse_rates"]

MOST: Final = 1_000_000_000
"""Largest limit and cost."""
_SHORTEST_MS: Final = 10
_LONGEST_MS: Final = 366 * 86_400_000
_MOST_RATES: Final = 8
_MOST_DIGITS: Final = 40

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000, "sec": 1_000, "second": 1_000,
    "m": 60_000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000,
    "d": 86_400_000, "day": 86_400_000,
    "w": 604_800_000, "week": 604_800_000,
}  # fmt: skip
_read = re.compile(
    r"\s*([0-9]+(?:_[0-9]+)*)\s*(?:/|per)\s*([0-9]*\.?[0-9]*)\s*([a-z]+)\s*"
).fullmatch
_EXPECTED: Final = "like '5/min', '50/hour', '125/day' or '100/10s'"


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `limit` in any `period_ms`."""

    limit: int
    period_ms: int

    def __post_init__(self) -> None:
        if type(self.limit) is not int or not 1 <= self.limit <= MOST:
            raise SettingError("limit", self.limit, f"a whole number from 1 to {MOST}")
        if type(self.period_ms) is not int or not _SHORTEST_MS <= self.period_ms <= _LONGEST_MS:
            raise SettingError("limit", f"{self.period_ms} ms", "a period from 10 ms to a year")

    @property
    def period_s(self) -> float:
        return self.period_ms / 1000

    def __str__(self) -> str:
        for name in ("week", "day", "hour", "min", "s"):
            if self.period_ms == _UNITS_MS[name]:
                return f"{self.limit}/{name}"
        if self.period_ms % 1000 == 0:
            return f"{self.limit}/{self.period_ms // 1000}s"
        return f"{self.limit}/{self.period_ms}ms"


Window: TypeAlias = str | Rate | tuple[int, float | timedelta]
"""`5/min`, or a number and a period (in seconds)."""
Windows: TypeAlias = str | Rate | Sequence[Window]
"""One window, or several that hold at once."""


def parse_rate(text: Window) -> Rate:
    """Read `5/min`, `100/10s`, or a number and a period in seconds; SettingError otherwise."""
    if isinstance(text, Rate):
        return text
    if isinstance(text, tuple):
        if len(text) != 2:  # pyright: ignore[reportUnnecessaryComparison]  # noqa: PLR2004
            raise SettingError("limit", text, "a number and a period in seconds")
        limit, period = text
        seconds = period.total_seconds() if isinstance(period, timedelta) else period
        return Rate(limit, _whole_ms(seconds, text))
    found = _read(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if not found:
        raise SettingError("limit", text, _EXPECTED)
    limit, count, unit = found.groups()
    unit_ms = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
    if unit_ms is None:
        raise SettingError("limit", text, _EXPECTED)
    try:
        seconds = float(count or 1) * unit_ms / 1000
    except ValueError:
        raise SettingError("limit", text, _EXPECTED) from None
    if len(limit) > _MOST_DIGITS:
        raise SettingError("limit", text, f"a whole number from 1 to {MOST}")
    return Rate(int(limit), _whole_ms(seconds, text))


def _whole_ms(seconds: float, text: object) -> int:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
    if is_number and abs(seconds) <= _LONGEST_MS:  # which is not true of NaN
        return round(seconds * 1000)
    raise SettingError("limit", text, "a period from 10 ms to a year")


def parse_rates(texts: Windows) -> tuple[Rate, ...]:
    """Read one or several rates, the shortest period first; each period once."""
    if not isinstance(texts, str | Rate | Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingError("limit", texts, _EXPECTED)
    given = (texts,) if isinstance(texts, str | Rate) else tuple(texts)
    rates = sorted(map(parse_rate, given), key=lambda rate: rate.period_ms)
    if not 1 <= len(rates) <= _MOST_RATES:
        raise SettingError("limit", len(rates), f"1 to {_MOST_RATES} windows")
    if len({rate.period_ms for rate in rates}) < len(rates):
        raise SettingError("limit", ", ".join(map(str, rates)), "each period once")
    return tuple(rates)
