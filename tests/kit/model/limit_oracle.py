"""What a limit may admit, by its definition alone: a log of uses, and a sum for each window.

In any half-open window (t - period, t] the weights of all uses are at most the limit. Times are
true ones: a server whose clock is set back does not change them. Nothing here knows how it counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

ALWAYS = -math.inf


@dataclass
class Use:
    """A call, or several at once."""

    at: int
    weight: int
    granted_at: int
    permit: bytes = b""
    reserved: int = 0
    logged: int = 0


@dataclass
class Loan:
    """Permits taken in advance, in the hands of a process."""

    granted_at: int
    until: int
    size: int
    permit: bytes
    logged: int
    ceilings: dict[int, int]
    used: int = 0


@dataclass
class Foreign:
    """What a provider counts besides ours."""

    weight: int
    until: int


@dataclass
class Oracle:
    """All uses of one key. `windows`: the limit for each period in ms."""

    algorithm: str
    windows: dict[int, int]
    bursts: dict[int, int]
    uses: list[Use] = field(default_factory=list)
    loans: list[Loan] = field(default_factory=list)
    foreign: dict[int, Foreign] = field(default_factory=dict)
    closed_until: int = 0
    surely_since: dict[int, float] = field(default_factory=dict)
    """For windows that came with an edit: what was before need not be known."""

    def used(self, period: int, now: int, *, surely: bool = False, late: int = 0) -> int:
        """What is in a window; `surely`: as far as a limit must know of it."""
        edge, since = now - period - late, self._since(period, surely=surely)
        return sum(use.weight for use in self.uses if use.at > edge and use.granted_at >= since)

    def holds(self, use: Use, period: int, now: int, *, surely: bool) -> bool:
        """Whether a use is in a window."""
        return use.at > now - period and use.granted_at >= self._since(period, surely=surely)

    def lent(self, period: int, now: int, *, surely: bool = False) -> int:
        """What processes have in hand and may use at this moment."""
        since = self._since(period, surely=surely)
        return sum(
            loan.size - loan.used
            for loan in self.loans
            if now < loan.until and loan.granted_at >= since
        )

    def _since(self, period: int, *, surely: bool) -> float:
        return self.surely_since.get(period, ALWAYS) if surely else ALWAYS

    def counted_abroad(self, period: int, now: int) -> int:
        told = self.foreign.get(period)
        return told.weight if told is not None and now < told.until else 0

    def left(self, period: int, now: int, *, surely: bool = False, late: int = 0) -> int:
        """The room of one window."""
        taken = self.used(period, now, surely=surely, late=late)
        taken += self.lent(period, now, surely=surely)
        return self.windows[period] - taken - self.counted_abroad(period, now)

    def room(self, now: int, *, surely: bool = False, late: float = 0) -> int:
        """The room of the limit; `late`: for windows longer by this part."""
        return min(
            self.left(period, now, surely=surely, late=math.ceil(period * late))
            for period in self.windows
        )

    def opens_at(self, now: int, cost: int) -> float:
        """The first moment from now on at which a cost is admitted, if nothing else happens."""
        if cost > min(self.windows.values()):
            return math.inf
        moments = {now, max(now, self.closed_until)}
        moments |= {use.at + period for use in self.uses for period in self.windows}
        moments |= {told.until for told in self.foreign.values()}
        return min(
            moment
            for moment in moments
            if moment >= max(now, self.closed_until) and self.room(moment) >= cost
        )

    def over(self, now: int, ceilings: dict[int, int]) -> int:
        """By how much the windows that end now are over, at the most."""
        return max(
            self.used(period, now, surely=True) - limit for period, limit in ceilings.items()
        )

    def edit(
        self, algorithm: str, windows: dict[int, int], bursts: dict[int, int], now: int
    ) -> None:
        """Set the limit anew: as much of what was before is sure as an algorithm can know."""
        was, longest = self.algorithm, max(self.windows)
        self.algorithm, self.bursts = algorithm, bursts
        before = max(self.surely_since.values(), default=ALWAYS)
        for period in windows:
            if period not in self.windows:
                # A log has what was in its longest window; others have nothing of a new period.
                back = longest if was == algorithm == "exact" else 0
                self.surely_since[period] = max(now - back, before)
        self.foreign = {period: told for period, told in self.foreign.items() if period in windows}
        if "gcra" in {was, algorithm}:
            self.surely_since, self.foreign = dict.fromkeys(windows, now), {}
        for loan in self.loans:
            loan.ceilings = {
                period: max(limit, windows[period])
                for period, limit in loan.ceilings.items()
                if period in windows
            }
        self.windows = windows
