"""What a provider says of its windows, as far as it can be understood."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from penstock.coordination.limits.answer import Usage
from penstock.coordination.limits.rates import MOST
from penstock.coordination.limits.setting import LimitSetting

__all__ = ["counted_by_provider"]

_UNSAID: Final = -1


def counted_by_provider(usages: Iterable[Usage], setting: LimitSetting) -> list[tuple[int, int]]:
    """For each window of a limit, what the provider has counted and ms until it forgets that.

    Windows are told apart by their length. -1 stands for what is not said, or makes no sense.
    """
    by_period = {
        round(period_s * 1000): usage
        for usage in usages
        if (period_s := _number(usage.period_s)) is not None
    }
    told: list[tuple[int, int]] = []
    for rate, given in zip(setting.rates, setting.used_rates, strict=True):
        usage = by_period.get(rate.period_ms)
        used = None if usage is None else _used(usage)
        if usage is None or used is None:
            told.append((_UNSAID, _UNSAID))
            continue
        reset_s = _number(usage.reset_s)
        # The buffer is not theirs: what they have counted is compared with what we give out.
        forgets_ms = _UNSAID if reset_s is None else math.ceil(reset_s * 1000)
        told.append((min(math.ceil(used), given.limit), forgets_ms))
    return told


def _used(usage: Usage) -> float | None:
    limit, remaining = _number(usage.limit), _number(usage.remaining)
    if (used := _number(usage.used)) is not None:
        return used
    if limit is None or remaining is None:
        return None
    return max(0, limit - remaining)


def _number(value: object) -> float | None:
    """Return what is a number from 0 on, of a size that can be meant; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= MOST else None
