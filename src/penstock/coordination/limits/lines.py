"""Callers of one process that wait for a limit, and the one task that asks the server for them.

However many callers wait, the server knows of a process only its foremost ones: one ticket for each
key and priority. Permits for several of them are taken in one question.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec

from penstock.coordination.limits.answer import Answer
from penstock.coordination.limits.asking import Asker, GroupAnswer, Question
from penstock.errors import LimitReached, NotOpen, ServerError
from penstock.runtime.backoff import retry_delay_s

if TYPE_CHECKING:
    from penstock.coordination.limits.limit import Limit

__all__ = ["LocalLines", "count_callers"]

# Callers that came within this time of each other go as one group, up to so many.
_GROUP_S: Final = 0.1
_LARGEST_GROUP: Final = 100
# Others learn within this time that more callers wait here, and that some have left.
_JOIN_S: Final = 0.05
_LEAVE_S: Final = 0.01
# Sleeps are longer than they should be by about this much; where that matters we wake up earlier.
_TIMER_S: Final = 0.001
# A line of so many tickets, or a process with so many lines, looks half as often.
_LONG_LINE: Final = 100
_MOST_DEPTHS: Final = 16

# As `limitline.lua` writes a ticket: eight numbers, the fourth of which is the number of callers.
_ticket = re.compile(rb"\d{1,15} \d{1,15} \d{1,15} (\d{1,9})(?: \d{1,15}){4}").fullmatch


def count_callers(tickets: Iterable[bytes]) -> int:
    """How many callers wait with these tickets; what is not a ticket counts for none."""
    return sum(int(found[1]) for found in map(_ticket, tickets) if found)


class LocalLines:
    """The lines of one limit in this process, one for each key and priority."""

    def __init__(self, limit: Limit, asker: Asker) -> None:
        self.limit, self.asker = limit, asker
        self._lines: dict[tuple[str, int], _Line] = {}
        self._returning: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._lines)

    async def wait(self, key: str, priority: int, cost: int, patience_s: float) -> Answer:
        """Wait for permits behind all callers of the same key and priority."""
        line = self._lines.get((key, priority))
        if line is None:
            line = self._lines[key, priority] = _Line(self, key, priority)
        return await line.wait(cost, patience_s)

    def forget(self, line: _Line) -> None:
        if self._lines.get((line.key, line.priority)) is line:
            del self._lines[line.key, line.priority]

    def give_back(self, key: str, answer: Answer) -> None:
        """Return permits whose caller has gone."""
        task = asyncio.create_task(self._give_back(key, answer), name=f"permits of {key}")
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _give_back(self, key: str, answer: Answer) -> None:
        if answer.permit is not None:
            permit, logged_ms = answer.permit
            with suppress(ServerError, NotOpen):  # then they stay spent
                await self.limit.settle(key, (permit, answer.granted, 0, logged_ms))


class _Waiter:
    """One caller."""

    __slots__ = ("came", "cost", "deadline", "future", "promise", "timer")

    def __init__(self, cost: int, patience_s: float) -> None:
        self.cost, self.came = cost, time.monotonic()
        self.deadline = self.came + patience_s
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.promise: tuple[Answer, float] | None = None
        """What it was given, and from when on it may be used."""

    def keep_promise(self, answer: Answer, ready_at: float) -> None:
        """Hand permits over, as soon as they may be used."""
        left_s = ready_at - time.monotonic()
        if left_s > 0:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(max(left_s, _TIMER_S), self.keep_promise, answer, ready_at)
        elif not self.future.done():
            self.future.set_result(answer)


class _Line:
    """Callers with one key and priority, in their order. Its task lives while anybody waits."""

    def __init__(self, lines: LocalLines, key: str, priority: int) -> None:
        self.key, self.priority = key, priority
        self._lines, self._limit, self._asker = lines, lines.limit, lines.asker
        settings = lines.limit.client.settings.limits
        self._recheck_s, self._ticket_s = settings.recheck_s, settings.ticket_s
        self._ticket = uuid4().hex
        self._has_ticket = False
        self._waiters: OrderedDict[_Waiter, None] = OrderedDict()
        self._unchecked: dict[_Waiter, None] = {}
        """Who may not be served within its patience: the server is asked."""
        self._cost, self._last_came = 0, 0.0
        self._group: Sequence[_Waiter] = ()
        self._group_number, self._group_came = 0, 0.0
        self._is_asking = False
        self._ahead, self._opens_at = 0, 0.0
        self._asked_at, self._ask_by = 0.0, math.inf
        self._sleep: asyncio.Future[None] | None = None
        self._wakes_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def wait(self, cost: int, patience_s: float) -> Answer:
        waiter = _Waiter(cost, patience_s)
        self._waiters[waiter] = None
        self._cost += cost
        self._last_came = waiter.came
        is_patient = patience_s == math.inf
        if not is_patient:
            loop = asyncio.get_running_loop()
            waiter.timer = loop.call_later(patience_s, self._expire, waiter)
        if not is_patient or cost > self._asker.most:
            self._unchecked[waiter] = None
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), name=f"line of {self.key}")
        else:
            self._ask_within(_JOIN_S if is_patient else _LEAVE_S)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if self._remove(waiter):
                self._ask_within(_LEAVE_S)
            elif waiter.promise is not None:
                self._pass_on(*waiter.promise)
            raise

    # ---- the task

    async def _serve(self) -> None:
        failures = 0
        try:
            while self._waiters:
                try:
                    pause_s = await self._ask()
                    failures = 0
                except ServerError as error:
                    failures += 1
                    self._do_without(error)
                    pause_s = retry_delay_s(failures)
                if self._waiters:
                    await self._pause(pause_s)
        except asyncio.CancelledError:
            for waiter in list(self._waiters):
                self._remove(waiter)
                waiter.future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  everybody who waits gets it
            for waiter in list(self._waiters):
                self._refuse(waiter, error)
        finally:
            self._lines.forget(self)
            if self._has_ticket:
                await self._leave()

    async def _leave(self) -> None:
        keys = self._limit.keys(self.key)
        with suppress(ServerError, NotOpen):  # the ticket of a silent process is void after a while
            await self._limit.client.scripts.leave_line(keys=keys, ticket=self._ticket)

    async def _ask(self) -> float:
        """Ask for the foremost callers and give them what there is; how long to wait then."""
        group, depths = self._foremost(), self._depths()
        self._asked_at, self._ask_by = time.monotonic(), math.inf
        question = Question(
            self.key,
            sum(waiter.cost for waiter in group),
            self.priority,
            fewest=group[0].cost,
            ticket=self._ticket,
            waiting=self._described(group, [(depth, one.cost) for one, depth in depths]),
        )
        self._has_ticket = self._is_asking = True
        try:
            told = await self._asker.ask_for_group(question, len(depths))
        finally:
            self._is_asking = False
        self._ahead = told.ahead
        self._opens_at = time.monotonic() + told.wait_s
        self._hand_out(group, told.answer, told.ready_s)
        is_done = told.answer.granted == question.cost
        if is_done or math.isinf(told.wait_s):
            self._has_ticket = False
        if math.isinf(told.wait_s):
            self._refuse(group[0], self._reached(math.inf))
        self._check(depths, told.waits_s)
        for waiter in group:
            if waiter.deadline <= time.monotonic():
                self._expire(waiter)
        return 0.0 if is_done else self._pause_for(told)

    def _pause_for(self, told: GroupAnswer) -> float:
        pace_s, pause_s = self._asker.pace_s, told.pause_s
        if math.isinf(pause_s):
            return 0.0
        if not told.ahead:
            pause_s -= max(0.0, self._asker.early_s - pace_s)
        pause_s = pause_s - _TIMER_S if pace_s < _TIMER_S else max(pause_s, pace_s)
        return min(pause_s, self._longest_pause_s(), _LEAVE_S if self._unchecked else math.inf)

    def _longest_pause_s(self) -> float:
        # No longer than a ticket lasts, or the place in line is lost.
        many = max(self._ahead, len(self._lines)) / _LONG_LINE
        return self._recheck_s + min(self._recheck_s * many, self._ticket_s / 2)

    def _do_without(self, error: ServerError) -> None:
        """Give what this process may give while the server is away; raises if it is not."""
        for waiter in list(self._waiters):
            answer = self._limit.unanswered(error, self.key, waiter.cost)
            if math.isinf(answer.retry_after_s):
                self._refuse(waiter, self._reached(math.inf))
            elif answer.allowed:
                self._give(waiter, answer)
            else:
                self._opens_at = time.monotonic() + answer.retry_after_s
                return

    async def _pause(self, pause_s: float) -> None:
        until = min(time.monotonic() + pause_s, self._ask_by)
        if until <= time.monotonic():
            return
        self._sleep = asyncio.get_running_loop().create_future()
        self._wake_at(until)
        try:
            await self._sleep
        finally:
            self._sleep = None
            if self._timer is not None:
                self._timer.cancel()

    def _ask_within(self, seconds: float) -> None:
        """Ask no later than so long after the last time: there is news for others."""
        ask_by = self._asked_at + seconds
        if ask_by < self._ask_by:
            self._ask_by = ask_by
            if self._sleep is not None and ask_by < self._wakes_at:
                self._wake_at(ask_by)

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s, self._wakes_at = max(0.0, when - time.monotonic()), when
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)

    # ---- the group

    def _foremost(self) -> Sequence[_Waiter]:
        """Those of the group who still wait; the next group if there is none."""
        self._group = [waiter for waiter in self._group if waiter in self._waiters]
        if not self._group:
            first = next(iter(self._waiters))
            self._group = []
            for waiter in self._waiters:
                if waiter.came > first.came + _GROUP_S or len(self._group) == _LARGEST_GROUP:
                    break
                self._group.append(waiter)
            self._group_number, self._group_came = self._group_number + 1, first.came
        return self._group

    def _described(self, group: Sequence[_Waiter], depths: list[tuple[int, int]]) -> bytes:
        """As `acquire_limit.lua` takes it."""
        ages = (self._asked_at - self._group_came, self._asked_at - self._last_came)
        return msgspec.msgpack.encode(
            (
                self._group_number,
                *(age_s * 1000 for age_s in ages),
                len(self._waiters),
                self._cost,
                round(self._longest_pause_s() * 1000),
                round((self._recheck_s + self._ticket_s) * 1000),
                [waiter.cost for waiter in group],
                depths,
                int(self._asker.early_s * 1000),
            )
        )

    def _hand_out(self, group: Sequence[_Waiter], told: Answer, ready_s: Sequence[float]) -> None:
        if not told.granted or told.permit is None:
            return
        left, (permit, logged_ms), now = told.granted, told.permit, time.monotonic()
        spare: list[tuple[Answer, float]] = []
        each = zip(group, chain(ready_s, repeat(0.0)), strict=False)
        for number, (waiter, in_s) in enumerate(each, int(permit)):
            if left < waiter.cost:
                break
            left -= waiter.cost
            answer = Answer(
                allowed=True,
                granted=waiter.cost,
                rates=told.rates,
                told=told.told,
                permit=(b"%d" % number, logged_ms + round(in_s * 1000)),
            )
            self._limit.note(self.key, waiter.cost)
            if in_s and now + in_s > waiter.deadline:
                self._refuse(waiter, self._reached(in_s))
            if not self._give(waiter, answer, now + in_s):
                spare.append((answer, now + in_s))
        for answer, ready_at in spare:
            self._pass_on(answer, ready_at)

    def _pass_on(self, answer: Answer, ready_at: float) -> None:
        """Give the permits of a caller that has gone to the next one, or back."""
        waiter = next(iter(self._waiters), None)
        if waiter is None or waiter.cost != answer.granted:
            self._lines.give_back(self.key, answer)
        else:
            self._give(waiter, answer, ready_at)

    # ---- single callers

    def _remove(self, waiter: _Waiter) -> bool:
        if waiter not in self._waiters:
            return False
        del self._waiters[waiter]
        self._unchecked.pop(waiter, None)
        self._cost -= waiter.cost
        if waiter.timer is not None:
            waiter.timer.cancel()
        return True

    def _give(self, waiter: _Waiter, answer: Answer, ready_at: float = 0.0) -> bool:
        """Give permits that may be used from then on; False if the caller has gone."""
        if not self._remove(waiter) or waiter.future.done():
            return False
        waiter.promise = (answer, ready_at)
        waiter.keep_promise(answer, ready_at)
        return True

    def _refuse(self, waiter: _Waiter, error: Exception) -> None:
        if self._remove(waiter) and not waiter.future.done():
            waiter.future.set_exception(error)

    def _expire(self, waiter: _Waiter) -> None:
        if waiter not in self._waiters or (self._is_asking and waiter in self._group):
            return  # the answer that is on its way decides
        self._refuse(waiter, self._reached(max(0.0, self._opens_at - time.monotonic())))
        self._ask_within(_LEAVE_S)

    def _reached(self, retry_after_s: float) -> LimitReached:
        return LimitReached(self._limit.name, self.key, retry_after_s)

    # ---- who cannot be served in time

    def _depths(self) -> list[tuple[_Waiter, int]]:
        """Some unchecked callers, evenly spread, with the permits wanted up to each."""
        if not self._unchecked:
            return []
        sums = accumulate(waiter.cost for waiter in self._waiters)
        places = [
            (waiter, depth)
            for waiter, depth in zip(self._waiters, sums, strict=True)
            if waiter in self._unchecked
        ]
        last, count = len(places) - 1, min(len(places), _MOST_DEPTHS)
        chosen = {last * number // max(1, count - 1) for number in range(count)}
        return [places[place] for place in sorted(chosen)]

    def _check(self, depths: list[tuple[_Waiter, int]], waits_s: Sequence[float]) -> None:
        """Refuse who cannot be served in time, by the waits of some of them: deeper is later."""
        if not depths:
            return
        now = time.monotonic()
        wait_of = {waiter: wait_s for (waiter, _), wait_s in zip(depths, waits_s, strict=True)}
        last_asked = depths[-1][0]
        at_least, within = 0.0, list[_Waiter]()
        for waiter in [waiter for waiter in self._waiters if waiter in self._unchecked]:
            wait_s = wait_of.get(waiter)
            if wait_s is not None and math.isinf(wait_s):
                self._refuse(waiter, self._reached(math.inf))
                continue
            within.append(waiter)
            if wait_s is not None:
                self._check_between(within, now, at_least, wait_s)
                at_least, within = max(at_least, wait_s), []
            if waiter is last_asked:
                break

    def _check_between(
        self, waiters: list[_Waiter], now: float, at_least: float, at_most: float
    ) -> None:
        for waiter in waiters:
            patience_s, is_asked = waiter.deadline - now, waiter is waiters[-1]
            least = at_most if is_asked else at_least
            if least > patience_s:
                self._refuse(waiter, self._reached(least))
            elif at_most <= patience_s and (is_asked or waiter.cost <= self._asker.most):
                del self._unchecked[waiter]
