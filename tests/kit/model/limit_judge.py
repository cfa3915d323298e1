"""What a schedule of calls to a limit may be answered, in the eyes of the oracle."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from .limit_oracle import Oracle
from .limit_plan import BUCKETS, Plan

REASONS = ("", "limit", "line", "penalty")
GRANTED, WAIT, LOGGED, PERMIT, WHY, WINDOWS = 0, 1, 2, 3, 4, 6


class Broken(AssertionError):
    """A reply that the definition does not allow."""


class Judge:
    """Knows what has happened to a limit with some keys, and holds every reply against it."""

    def __init__(self, seed: int, plan: Plan, windows: dict[int, int], bursts: dict[int, int]):
        self.seed, self.plan, self.windows, self.bursts = seed, plan, windows, bursts
        self.algorithm = plan.algorithm
        self.true_ms = 0
        self.keys = [Oracle(self.algorithm, dict(windows), dict(bursts)) for _ in range(2)]
        self.levels = [dict.fromkeys(windows, 0.0) for _ in self.keys]
        """Of the leaky buckets that are the other way to say what GCRA is."""
        self.levels_at = [0, 0]
        self.was_edited = self.was_switched = self.was_set_back = self.was_settled = False
        self.wakes: tuple[int, int, int] | None = None
        """Which key was told to come again, for how many, and when."""
        self.admitted = 0
        self.story: list[str] = []

    @property
    def _is_strict(self) -> bool:
        """Whether every answer is known to the letter."""
        return (
            self.algorithm == "exact"
            and not self.was_switched
            and not self.plan.leases
            and not self.was_set_back
        )

    @property
    def _is_plain(self) -> bool:
        """Whether only calls were made."""
        plan = self.plan
        return not (
            plan.leases
            or plan.reconciles
            or self.was_edited
            or self.was_set_back
            or self.was_settled
        )

    def _judge(self, place: int, wanted: int, fewest: int, reply: list[Any]) -> None:
        key, now, granted = self.keys[place], self.true_ms, reply[GRANTED]
        self._tell(f"  → {reply}")
        room, surely = key.room(now), key.room(now, surely=True)
        is_closed = now < key.closed_until
        if granted and (granted > surely or not fewest <= granted <= wanted):
            self._break(f"{granted} admitted, where {surely} were left")
        if granted and is_closed:
            self._break("admitted during a penalty")
        self.admitted += granted
        self._judge_wait(place, fewest, reply)
        if self._is_strict:
            self._judge_exactly(place, wanted, fewest, reply, room)
        elif self._is_plain and not is_closed:
            self._judge_use(place, wanted, fewest, granted)

    def _judge_wait(self, place: int, fewest: int, reply: list[Any]) -> None:
        now, wait, woken = self.true_ms, reply[WAIT], self.wakes
        self.wakes = None
        if reply[GRANTED]:
            return
        never = fewest > self._most()
        if (wait < 0) != never or wait == 0:
            self._break(f"told to wait {wait} ms")
        if not never and (self._is_strict or self._is_plain):
            self.wakes = (place, fewest, now + wait)
            if woken == (place, fewest, now):
                self._break("not admitted at the moment that was told")

    def _judge_use(self, place: int, wanted: int, fewest: int, granted: int) -> None:
        """Whether others than the exact algorithm admit as much as they say."""
        if self.algorithm == "gcra":
            self._judge_leaking(place, wanted, fewest, granted)
        elif self.algorithm == "compact":
            late = self.keys[place].room(self.true_ms, late=1 / BUCKETS)
            if late >= fewest and granted < min(wanted, late):
                self._break(f"{granted} admitted, where {late} were left even a bucket later")

    def _most(self) -> int:
        return min(
            self.bursts[period] if self.algorithm == "gcra" else limit
            for period, limit in self.windows.items()
        )

    def _judge_exactly(
        self, place: int, wanted: int, fewest: int, reply: list[Any], room: int
    ) -> None:
        key, now, granted = self.keys[place], self.true_ms, reply[GRANTED]
        if any(
            key.left(period, now) != key.left(period, now, surely=True) for period in key.windows
        ):
            return  # a period that nobody counted before
        is_open = now >= key.closed_until and room >= fewest
        if granted != (min(wanted, room) if is_open else 0):
            self._break(f"{granted} admitted, where {room} were left")
        if not granted:
            opens = key.opens_at(now, fewest)
            if reply[WAIT] != (-1 if math.isinf(opens) else opens - now):
                self._break(f"told to wait {reply[WAIT]} ms instead of {opens - now}")
            expected = "penalty" if now < key.closed_until else "limit"
            if REASONS[reply[WHY]] != expected:
                self._break(f"refused for the {REASONS[reply[WHY]]}, not the {expected}")

    def _judge_leaking(self, place: int, wanted: int, fewest: int, granted: int) -> None:
        levels, passed = self.levels[place], self.true_ms - self.levels_at[place]
        self.levels_at[place] = self.true_ms
        room = math.inf
        for period, limit in self.windows.items():
            leak = passed * (limit - self.bursts[period] + 1) / period
            levels[period] = max(0.0, levels[period] - leak)
            room = min(room, self.bursts[period] - levels[period])
        least, most = (math.floor(room + slack) for slack in (-1e-6, 1e-6))
        if granted > most or (least >= fewest and granted < min(wanted, least)):
            self._break(f"{granted} admitted, where {room} were left")
        for period in levels:
            levels[period] += granted

    def _judge_what_is_left(self, place: int, reply: list[Any]) -> None:
        key, now = self.keys[place], self.true_ms
        for number, (period, limit) in enumerate(self.windows.items()):
            remaining, reset = reply[WINDOWS + 2 * number], reply[WINDOWS + 2 * number + 1]
            left = key.left(period, now, surely=True)
            if remaining > max(0, left) or remaining > limit:
                self._break(f"{remaining} said to be left of {limit}/{period}, not {left}")
            if not self._is_strict or left != key.left(period, now):
                continue
            if remaining != left:
                self._break(f"{remaining} said to be left of {limit}/{period}, not {left}")
            if not self.was_settled:
                inside = [use.at for use in key.uses if use.at > now - period]
                until = max(inside) + period if inside else now
                if key.counted_abroad(period, now):
                    until = max(until, key.foreign[period].until)
                if reset != until - now:
                    self._break(f"all free in {reset} ms, not {until - now}")

    def _tell(self, line: str) -> None:
        self.story.append(f"{self.true_ms:>9} {line}")

    def _break(self, what: str) -> NoReturn:
        windows = f"{self.algorithm} {self.windows} bursts {self.bursts}"
        story = "\n".join(self.story[-60:])
        raise Broken(f"seed {self.seed}: {what}; {windows}\n{self.plan}\n{story}")
