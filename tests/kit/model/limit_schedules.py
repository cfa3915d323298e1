"""Random schedules for limits: generators of calls that judge every reply by the oracle."""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import Any

import msgspec

from .limit_judge import GRANTED, LOGGED, PERMIT, Judge
from .limit_oracle import Foreign, Loan, Oracle, Use
from .limit_plan import ALGORITHMS, BUCKETS, Plan, draw_windows

NOON_MS = 1_800_000_000_000

Call = tuple[str, int, tuple[Any, ...]]
"""A script, which of the keys, and its arguments."""


class Schedule(Judge):
    """One limit with two keys, from its first call to its last."""

    def __init__(self, seed: int, steps: int) -> None:
        self.random = random = Random(seed)  # noqa: S311  to be repeated, not to be secret
        super().__init__(seed, Plan.drawn(random), *draw_windows(random))
        self.steps = steps
        self.offset_ms = random.randrange(3_600_000)

    @property
    def now_ms(self) -> int:
        return NOON_MS + self.offset_ms + self.true_ms

    # ---- how the limit is set

    def _met(self, place: int) -> Oracle:
        """The oracle of a key that is asked next: only so its server learns of an edit."""
        key = self.keys[place]
        set_now = (self.algorithm, self.windows, self.bursts)
        if (key.algorithm, key.windows, key.bursts) != set_now:
            key.edit(self.algorithm, dict(self.windows), dict(self.bursts), self.true_ms)
        return key

    def _setting(self) -> tuple[int, ...]:
        told: list[int] = [BUCKETS]
        for period, limit in self.windows.items():
            told += (limit, period, self.bursts[period])
        return tuple(told)

    # ---- the steps

    def play(self) -> Generator[Call, Any, None]:
        plan, random = self.plan, self.random
        for _ in range(self.steps):
            self._pass_time()
            place = 0 if random.random() < 0.8 else 1
            draw = random.random()
            if plan.set_backs and draw < 0.1:
                self._set_back()
            elif plan.penalties and draw < 0.17:
                yield from self._penalise(place)
            elif plan.reconciles and draw < 0.27:
                yield from self._reconcile(place)
            elif plan.edits and draw < 0.35:
                self._edit()
            elif plan.settles and draw < 0.55:
                yield from self._settle(place)
            elif plan.leases and draw < 0.8:
                yield from self._lend(place)
            elif 0.8 < draw < 0.9:
                yield from self._look(place)
            else:
                yield from self._take(place)
                for _ in range(random.choice((0, 0, 1, 3))):
                    yield from self._take(place)

    def _pass_time(self) -> None:
        random, draw = self.random, self.random.random()
        period = random.choice(list(self.windows))
        if draw < 0.25:
            ms = 0
        elif draw < 0.35:
            ms = 1
        elif self.wakes is not None and draw < 0.6:
            ms = self.wakes[2] - self.true_ms - random.choice((0, 0, 1))
        elif draw < 0.7:
            ms = period + random.choice((-1, 0, 1))
        elif draw < 0.75:
            ms = random.randrange(2 * period)
        else:
            ms = random.randrange(max(2, period // 8))
        until = self.true_ms + max(0, ms)
        while until > self.true_ms:
            self._use_loans(until)

    def _use_loans(self, until: int) -> None:
        """Let processes use what they have in hand, at some moments of the time that passes."""
        loans = [
            (key, loan)
            for key in self.keys
            for loan in key.loans
            if loan.used < loan.size and self.true_ms < loan.until
        ]
        if not loans or self.random.random() < 0.2:
            self.true_ms = until
            return
        key, loan = self.random.choice(loans)
        last = min(until, loan.until - 1)
        at = last if self.random.random() < 0.5 else self.random.randint(self.true_ms, last)
        self.true_ms = at
        weight = self.random.randint(1, loan.size - loan.used)
        loan.used += weight
        key.uses.append(Use(at, weight, loan.granted_at))
        self._tell(f"uses {weight} in hand of {loan.permit!r}")
        over = key.over(at, loan.ceilings) if loan.ceilings else 0
        if over > 0:
            self._break(f"{over} too many of what was in hand")
        if at == last or self.random.random() < 0.5:
            self.true_ms = until

    def _take(self, place: int) -> Generator[Call, Any, None]:
        random = self.random
        most = min(self.windows.values())
        wanted = 1 if random.random() < 0.6 else random.randint(1, min(most, 12))
        if random.random() < 0.03:
            wanted = most + random.choice((0, 1))
        fewest = wanted if random.random() < 0.7 else random.randint(1, wanted)
        if self.wakes is not None and place == self.wakes[0] and random.random() < 0.7:
            fewest = self.wakes[1]
            wanted = max(wanted, fewest)
        key = self._met(place)
        reply = yield self._acquire(place, wanted, fewest)
        self._judge(place, wanted, fewest, reply)
        granted = reply[GRANTED]
        if granted:
            now, permit = self.true_ms, reply[PERMIT]
            key.uses.append(Use(now, granted, now, permit, granted, reply[LOGGED]))
        self._judge_what_is_left(place, reply)

    def _acquire(
        self,
        place: int,
        wanted: int,
        fewest: int,
        hold_ms: int = 0,
        share: float = 1,
        back: tuple[Any, ...] = ("", 0, 0, 0),
    ) -> Call:
        self._tell(f"{place}: wants {wanted}, {fewest} at least, for {hold_ms} ms, back {back}")
        arguments = (wanted, fewest, share, hold_ms, "", 0, 3_000, *back)
        return "acquire_limit", place, (self.algorithm, *arguments, *self._setting())

    def _lend(self, place: int) -> Generator[Call, Any, None]:
        """Take permits in advance, and give others back with the same call."""
        random, key = self.random, self._met(place)
        back = ("", 0, 0, 0)
        if key.loans and random.random() < 0.7:
            back = self._end_loan(key)
            if random.random() < 0.3:
                self._tell(f"{place}: back {back}")
                yield "settle_limit", place, (self.algorithm, *back, "1", *self._setting())
                self.wakes = None
                return
        wanted, fewest = random.choice((3, 10, 100)), random.choice((1, 1, 2))
        hold_ms = random.randint(1, min(self.windows) // 50)
        reply = yield self._acquire(place, wanted, fewest, hold_ms, random.choice((0.25, 1)), back)
        self._judge(place, wanted, fewest, reply)
        if reply[GRANTED]:
            now, told = self.true_ms, (reply[GRANTED], reply[PERMIT], reply[LOGGED])
            key.loans.append(Loan(now, now + hold_ms, *told, dict(self.windows)))
        self._judge_what_is_left(place, reply)

    def _end_loan(self, key: Oracle) -> tuple[Any, ...]:
        loan = key.loans.pop(self.random.randrange(len(key.loans)))
        return (loan.permit, loan.size, loan.used, loan.logged)

    def _look(self, place: int) -> Generator[Call, Any, None]:
        self._met(place)
        reply = yield self._acquire(place, 0, 0)
        if reply[GRANTED]:
            self._break("a look took permits")
        self._judge_what_is_left(place, reply)

    def _settle(self, place: int) -> Generator[Call, Any, None]:
        random, key = self.random, self._met(place)
        reserved = [use for use in key.uses if use.reserved]
        if not reserved:
            yield from self._look(place)
            return
        use = random.choice(reserved[-6:])
        most = use.reserved + (3 if self.plan.overdraws else 0)
        weight = 0 if random.random() < 0.4 else random.randint(0, most)
        self._tell(f"{place}: {use.permit!r} of {use.reserved} was {weight}")
        told = (use.permit, use.reserved, weight, use.logged, "0")
        back = yield "settle_limit", place, (self.algorithm, *told, *self._setting())
        inside, surely = (
            [period for period in self.windows if key.holds(use, period, self.true_ms, surely=sure)]
            for sure in (False, True)
        )
        expected = use.reserved - weight if inside else 0
        if self._is_strict and inside == surely and back != expected:
            self._break(f"{back} came back")
        use.weight, use.reserved = weight, 0
        self.wakes, self.was_settled = None, True

    def _penalise(self, place: int) -> Generator[Call, Any, None]:
        random, key = self.random, self._met(place)
        ms = random.choice((0, 1, 500, 5_000, 100_000))
        self._tell(f"{place}: a penalty of {ms} ms")
        lasts = yield "penalise_limit", place, (self.algorithm, ms, *self._setting())
        now = self.true_ms
        key.closed_until = max(key.closed_until, now + ms) if ms else 0
        if lasts < key.closed_until - now or (
            lasts != max(0, key.closed_until - now) and not self.was_set_back
        ):
            self._break(f"the penalty lasts {lasts} ms")
        self.wakes = None

    def _reconcile(self, place: int) -> Generator[Call, Any, None]:
        random, key, now = self.random, self._met(place), self.true_ms
        told: list[tuple[int, int]] = []
        for period, limit in self.windows.items():
            used = -1 if random.random() < 0.3 else random.randint(0, limit)
            reset = random.choice((-1, random.randint(1, period)))
            told.append((used, reset))
            if used >= 0:
                besides = max(0, used - key.used(period, now))
                key.foreign[period] = Foreign(besides, now + (period if reset < 0 else reset))
        self._tell(f"{place}: the provider says {told}")
        arguments = (self.algorithm, msgspec.json.encode(told), *self._setting())
        yield "reconcile_limit", place, arguments
        self.wakes = None

    def _edit(self) -> None:
        random = self.random
        self.true_ms += 1  # so that times tell what was before
        windows, bursts = draw_windows(random)
        if random.random() < 0.6:
            # The same periods, other limits.
            windows = {
                period: max(1, round(limit * random.uniform(0.4, 2)))
                for period, limit in self.windows.items()
            }
            bursts = {period: min(self.bursts[period], limit) for period, limit in windows.items()}
        was = self.algorithm
        if random.random() < 0.3:
            self.algorithm = random.choice(ALGORITHMS)
        self.was_switched |= was != self.algorithm
        self.windows, self.bursts, self.was_edited, self.wakes = windows, bursts, True, None
        self._tell(f"edited: {self.algorithm} {windows} {bursts}")

    def _set_back(self) -> None:
        random = self.random
        ms = random.choice((1, 400, 59_000, 60_000, 60_001, 61_000, 500_000, 7_200_000))
        self.offset_ms -= ms
        self.was_set_back, self.wakes = True, None
        self._tell(f"clock set back by {ms} ms")
