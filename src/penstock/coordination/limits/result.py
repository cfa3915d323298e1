"""The result of asking a limit, and what a provider reports of its own counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.coordination.limits.rates import MOST, Rate
from penstock.coordination.limits.scripts import NO_PERMITS, PermitUse, Reason
from penstock.coordination.limits.setting import LimitSetting

__all__ = ["LimitResult", "Usage", "WindowStatus", "counted_by_provider"]

_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """One window of a limit, after the call."""

    limit: int
    period_s: float
    remaining: int
    """Permits that could be taken at once."""
    reset_s: float
    """Until all of it is free, if nothing more is used."""


@dataclass(slots=True)  # not frozen, which takes three times as long to make
class LimitResult:
    """Whether a call may be made, and what is left. True in conditions if it may."""

    allowed: bool
    granted: int
    """How much of the cost was granted: all of it, unless less was acceptable."""
    retry_after_s: float = 0.0
    """After how long to ask again; 0 if allowed, infinite if the cost is above a limit."""
    reason: Reason = ""
    rates: tuple[Rate, ...] = ()
    windows_left: Sequence[Any] = ()
    """Permits left of each rate and ms until its reset, in turn."""
    permit: tuple[bytes, int] | None = None
    """Id under which the server knows what was granted, and the ms it logged for it."""

    def __bool__(self) -> bool:
        return self.allowed

    def used(self, count: int) -> PermitUse:
        """What was granted, with so many of the permits used; `NO_PERMITS` if none was."""
        if self.permit is None:
            return NO_PERMITS
        permit, logged_ms = self.permit
        return PermitUse(permit, self.granted, count, logged_ms)

    @property
    def windows(self) -> tuple[WindowStatus, ...]:
        """Each window, in the order of the limit's rates."""
        return tuple(
            WindowStatus(rate.limit, rate.period_s, max(0, int(left)), max(0, int(reset)) / 1000)
            for rate, left, reset in zip(
                self.rates, self.windows_left[::2], self.windows_left[1::2], strict=True
            )
        )

    @property
    def remaining(self) -> int:
        """What is left in the window with the least."""
        return min((max(0, int(left)) for left in self.windows_left[::2]), default=0)


@dataclass(frozen=True, slots=True)
class Usage:
    """One window as a provider reports it; None for what it leaves out."""

    limit: int | None
    period_s: float | None
    used: int | None = None
    remaining: int | None = None
    reset_s: float | None = None


def counted_by_provider(usages: Iterable[Usage], setting: LimitSetting) -> list[tuple[int, int]]:
    """For each window of a limit, what the provider has counted and ms until it resets that.

    Windows are matched by their length. -1 stands for what is missing or makes no sense.
    """
    by_period = {
        round(period_s * 1000): usage
        for usage in usages
        if (period_s := _number(usage.period_s)) is not None
    }
    counted: list[tuple[int, int]] = []
    for rate, given in zip(setting.rates, setting.used_rates, strict=True):
        usage = by_period.get(rate.period_ms)
        used = None if usage is None else _used(usage)
        if usage is None or used is None:
            counted.append((_UNKNOWN, _UNKNOWN))
            continue
        reset_s = _number(usage.reset_s)
        # No later than after a whole period: else one answer could stop the limit for a year.
        resets_ms = _UNKNOWN if reset_s is None else min(math.ceil(reset_s * 1000), given.period_ms)
        # The buffer is ours: what they have counted is compared with what we grant.
        counted.append((min(math.ceil(used), given.limit), resets_ms))
    return counted


def _used(usage: Usage) -> float | None:
    limit, remaining = _number(usage.limit), _number(usage.remaining)
    if (used := _number(usage.used)) is not None:
        return used
    if limit is None or remaining is None:
        return None
    return max(0, limit - remaining)


def _number(value: object) -> float | None:
    """The value if it is a plausible number from 0 on, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= MOST else None
