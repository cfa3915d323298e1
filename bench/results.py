"""What the contenders of a suite gave, round by round, and the figures made of it."""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal

from arena import FOLDER, Arena, Failed
from figures import Figure
from rivals import Missing

__all__ = ["ANSWERS", "DRAINS", "NOT_MEASURED", "SENDS", "Results", "Turn", "program"]

ANSWERS, DRAINS, SENDS = " answers", " drains", " sends"
NOT_MEASURED = ": NOT MEASURED"

Turn = Callable[[Arena], Awaitable[dict[str, float]]]


class Results:
    """What the turns gave in each round, and which gave nothing."""

    def __init__(self, suite: str) -> None:
        self._suite = suite
        self._values: dict[str, list[float]] = defaultdict(list)
        self._given_up: set[str] = set()

    async def play_rounds(self, arena: Arena, turns: Mapping[str, Turn], rounds: int) -> None:
        """Give all their turns, in every other round from the last to the first."""
        for number in range(rounds):
            print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for name in reversed(turns) if number % 2 else turns:
                await self.play(arena, name, turns[name])

    async def play(self, arena: Arena, name: str, turn: Turn) -> None:
        """Give a contender its turn, unless it has failed before."""
        if name in self._given_up:
            return
        try:
            values = await turn(arena)
        except (Failed, Missing) as error:
            print(f"  {name}: {error}", file=sys.stderr, flush=True)
            self._given_up.add(name)
        else:
            for key, value in values.items():
                self._values[key].append(value)
        await arena.clean()

    def ratio(self, name: str, bar: float, ours: str, *theirs: str) -> Figure:
        """Ours over the best of theirs, round by round."""
        missing = [key for key in (ours, *theirs) if not self._values.get(key)]
        if missing:
            return self._not_measured(f"{name} (missing: {', '.join(missing)})", "x", bar)
        rounds = zip(*(self._values[key] for key in (ours, *theirs)), strict=False)
        value = statistics.median(first / max(others) for first, *others in rounds)
        return Figure(self._suite, name, value, "x", bar, ">=")

    def growth(self, name: str, most: float, large: str, small: str) -> Figure:
        """How many times as much one value is as another, round by round."""
        if not self._values.get(large) or not self._values.get(small):
            return self._not_measured(name, "x", most)
        rounds = zip(self._values[large], self._values[small], strict=False)
        value = statistics.median(more / less for more, less in rounds)
        return Figure(self._suite, name, value, "x", most, "<=")

    def value(self, key: str, unit: str, bar: float, op: Literal[">=", "<="]) -> Figure:
        values = self._values.get(key)
        if not values:
            return self._not_measured(key, unit, bar)
        return Figure(self._suite, key, statistics.median(values), unit, bar, op)

    def rates(self) -> Iterator[Figure]:
        """All absolute rates, for the reader; they have no bar."""
        for key, values in sorted(self._values.items()):
            if key.endswith((ANSWERS, DRAINS, SENDS)):
                yield Figure(self._suite, key, statistics.median(values) / 1000, "k/s", 0, ">=")

    def _not_measured(self, name: str, unit: str, bar: float) -> Figure:
        """A figure that never holds, whichever way its bar would point."""
        return Figure(self._suite, name + NOT_MEASURED, -1, unit, bar, ">=")


def program(name: str, *arguments: Any) -> list[object]:
    """The command of one of our own programs in this folder."""
    return [sys.executable, FOLDER / f"{name}.py", *arguments]
