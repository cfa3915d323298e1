"""Permits that one process grants alone while the server is away."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from penstock.coordination.limits.result import LimitResult
from penstock.coordination.limits.setting import LimitSetting

__all__ = ["LocalFallback"]

_MOST_KEYS: Final = 10_000
"""Above so many keys, those that are not in use are dropped."""


class LocalFallback:
    """A part of each window, for one process, its own calls before the outage included.

    With a share of 1/n for each of n processes, they admit at most the limit together while the
    server is away; in the window in which it went away, at most that and what had been used.
    """

    def __init__(self, setting: LimitSetting, share: float) -> None:
        self._rates = [(int(rate.limit * share), rate.period_s) for rate in setting.used_rates]
        self._longest_s = max(period_s for _, period_s in self._rates)
        self._logs: dict[str, deque[tuple[float, int]]] = {}

    def note(self, key: str, cost: int) -> None:
        """Count a call of this process."""
        if cost:
            log, now = self._logs.setdefault(key, deque()), time.monotonic()
            log.append((now, cost))
            self._prune(log, now)
            if len(self._logs) > _MOST_KEYS:
                self._forget(now)

    def take(self, key: str, cost: int) -> LimitResult:
        """Take permits of this process's share."""
        log, now = self._logs.get(key, deque()), time.monotonic()
        self._prune(log, now)
        wait_s = max(self._wait_s(log, now, cost, *rate) for rate in self._rates)
        if wait_s > 0:
            return LimitResult(allowed=False, granted=0, retry_after_s=wait_s, reason="away")
        self.note(key, cost)
        return LimitResult(allowed=True, granted=cost)

    def _wait_s(
        self, log: deque[tuple[float, int]], now: float, cost: int, limit: int, period_s: float
    ) -> float:
        if cost > limit:
            return float("inf")
        inside = [(at, weight) for at, weight in log if at > now - period_s]
        excess = sum(weight for _, weight in inside) + cost - limit
        for at, weight in inside:
            if excess <= 0:
                break
            excess -= weight
            if excess <= 0:
                return at + period_s - now
        return 0.0

    def _forget(self, now: float) -> None:
        """Drop the logs of keys that have not been used for the longest window."""
        for key, log in list(self._logs.items()):
            self._prune(log, now)
            if not log:
                del self._logs[key]

    def _prune(self, log: deque[tuple[float, int]], now: float) -> None:
        while log and log[0][0] <= now - self._longest_s:
            log.popleft()
