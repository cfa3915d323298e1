"""What a limit answers, and what a provider says of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.coordination.limits.rates import Rate

__all__ = ["Answer", "Reason", "Usage", "WindowAnswer"]

Reason = Literal["", "limit", "line", "penalty", "away"]
"""Why not: the limit itself, callers that waited before, a penalty, or the server is away."""


@dataclass(frozen=True, slots=True)
class WindowAnswer:
    """One window of a limit, after the call."""

    limit: int
    period_s: float
    remaining: int
    """What could be had at once."""
    reset_s: float
    """Until all of it could be had, if nothing more is used."""


@dataclass(slots=True)  # not frozen, which takes three times as long to make
class Answer:
    """Whether a call may be made, and what is left. True in conditions if it may."""

    allowed: bool
    granted: int
    """How much of the cost was granted: all of it, unless less was asked for."""
    retry_after_s: float = 0.0
    """After how long to ask again; 0 if allowed, infinite if the cost is above a limit."""
    reason: Reason = ""
    rates: tuple[Rate, ...] = ()
    told: Sequence[Any] = ()
    """What is left of each rate and ms until its reset, in turn."""
    permit: tuple[bytes, int] | None = None
    """By which the server knows what was granted, and the ms it logged for it."""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def windows(self) -> tuple[WindowAnswer, ...]:
        """Each window, in the order in which the limit names them."""
        return tuple(
            WindowAnswer(rate.limit, rate.period_s, max(0, int(left)), max(0, int(reset)) / 1000)
            for rate, left, reset in zip(self.rates, self.told[::2], self.told[1::2], strict=True)
        )

    @property
    def remaining(self) -> int:
        """What is left in the window with the least."""
        return min((max(0, int(left)) for left in self.told[::2]), default=0)


@dataclass(frozen=True, slots=True)
class Usage:
    """One window as a provider tells it; what it does not say is None."""

    limit: int | None
    period_s: float | None
    used: int | None = None
    remaining: int | None = None
    reset_s: float | None = None
