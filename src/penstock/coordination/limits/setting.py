"""The setting of a limit: as its code declares it, or as it was edited since."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypedDict, cast

import msgspec

from penstock.coordination.limits.rates import Rate, Windows, parse_rates
from penstock.errors import DecodeError, SettingError
from penstock.redis.wire import Argument

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "LimitSetting",
    "LimitSettingKwargs",
    "StoredSetting",
    "setting_of",
]

Algorithm = Literal["exact", "compact", "gcra"]
ALGORITHMS: Final[tuple[Algorithm, ...]] = ("exact", "compact", "gcra")
_BURST_PART: Final = 10
_LONGEST_MARGIN_MS: Final = 3_600_000


class StoredSetting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A limit's entry in the registry."""

    windows: tuple[str, ...]
    algorithm: str = "exact"
    burst: int | None = None
    buffer: float = 0
    margin_ms: int = 0
    edited: bool = False
    """Whether it was edited: what code declares does not change it."""


@dataclass(frozen=True, slots=True)
class LimitSetting:
    """What a limit admits.

    - `rates`: what the provider allows.
    - `buffer`: how much of that is never used: a number, or a part below 1.
    - `burst`: of the algorithm gcra, how many may come at once; a tenth by default.
    - `margin_ms`: by how much each period is extended, for calls that travel unequally long: the
      provider's period begins when a call arrives, ours before it leaves.
    """

    rates: tuple[Rate, ...]
    algorithm: Algorithm = "exact"
    burst: int | None = None
    buffer: float = 0
    margin_ms: int = 0
    edited: bool = False

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise SettingError("limit.algorithm", self.algorithm, "'exact', 'compact' or 'gcra'")
        smallest = min(rate.limit for rate in self.rates)
        if self.burst is not None and not (
            type(self.burst) is int and 1 <= self.burst <= smallest and self.algorithm == "gcra"
        ):
            expected = f"a whole number from 1 to the smallest limit ({smallest}), for gcra alone"
            raise SettingError("limit.burst", self.burst, expected)
        is_number = isinstance(self.buffer, int | float) and not isinstance(self.buffer, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_number or not 0 <= self.buffer < smallest:
            expected = f"from 0 to less than the smallest limit ({smallest}), or a part below 1"
            raise SettingError("limit.buffer", self.buffer, expected)
        if not 0 <= self.margin_ms <= _LONGEST_MARGIN_MS:
            raise SettingError("limit.margin", self.margin_ms / 1000, "seconds from 0 to an hour")

    @property
    def used_rates(self) -> tuple[Rate, ...]:
        """The rates without the buffer: what is granted."""
        if not self.buffer:
            return self.rates
        return tuple(Rate(self._without_buffer(rate.limit), rate.period_ms) for rate in self.rates)

    def arguments(self, buckets: int) -> tuple[Argument, ...]:
        """As the scripts take it."""
        arguments: list[Argument] = [buckets]
        for rate in self.used_rates:
            arguments += (rate.limit, rate.period_ms + self.margin_ms, self._burst_of(rate))
        return tuple(arguments)

    def slack_s(self, rate: Rate) -> float:
        """Of the algorithm gcra: in what time a burst accumulates; later permits are lost."""
        burst = self._burst_of(rate)
        return (burst - 1) * (rate.period_ms + self.margin_ms) / (rate.limit - burst + 1) / 1000

    def most_of(self, rate: Rate) -> int:
        """What a rate can grant at once."""
        return self._burst_of(rate) if self.algorithm == "gcra" else rate.limit

    def _burst_of(self, rate: Rate) -> int:
        return min(self.burst or max(1, rate.limit // _BURST_PART), rate.limit)

    def stored(self) -> bytes:
        """As it stands in the registry."""
        return msgspec.json.encode(
            StoredSetting(
                windows=tuple(map(str, self.rates)),
                algorithm=self.algorithm,
                burst=self.burst,
                buffer=self.buffer,
                margin_ms=self.margin_ms,
                edited=self.edited,
            )
        )

    @classmethod
    def read(cls, stored: bytes) -> LimitSetting:
        """Read an entry of the registry, or raise DecodeError."""
        try:
            entry = msgspec.json.decode(stored, type=StoredSetting)
            algorithm = cast("Algorithm", entry.algorithm)
            rates = parse_rates(entry.windows)
            return cls(rates, algorithm, entry.burst, entry.buffer, entry.margin_ms, entry.edited)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, SettingError) as error:
            raise DecodeError(f"a limit that cannot be read: {error}", stored) from None

    def _without_buffer(self, limit: int) -> int:
        kept = math.ceil(limit * self.buffer) if self.buffer < 1 else int(self.buffer)
        return max(1, limit - kept)


class LimitSettingKwargs(TypedDict, total=False):
    """Options of a limit besides its windows: see `LimitSetting`. `margin` is in seconds."""

    algorithm: Algorithm
    burst: int | None
    buffer: float
    margin: float


def setting_of(
    windows: Windows,
    *,
    algorithm: Algorithm = "exact",
    burst: int | None = None,
    buffer: float = 0,
    margin: float = 0,
) -> LimitSetting:
    """Validate the options of a limit; `margin` is in seconds."""
    is_number = isinstance(margin, int | float) and not isinstance(margin, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_number or not 0 <= margin <= _LONGEST_MARGIN_MS / 1000:  # nor is that true of NaN
        raise SettingError("limit.margin", margin, "seconds from 0 to an hour")
    return LimitSetting(parse_rates(windows), algorithm, burst, buffer, round(margin * 1000))
