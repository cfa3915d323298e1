"""Callers of one process that wait for permits of a limit.

However many callers wait, the server knows one ticket per process, key and priority, for the group
of first callers. Permits for the group are taken in one call.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from penstock.coordination.limits.client import AcquireRequest, GroupResult, LimitClient
from penstock.coordination.limits.result import LimitResult
from penstock.coordination.limits.scripts import LimitScripts
from penstock.coordination.waiting_callers import BackgroundTasks, Waiter, WaitingCallers
from penstock.errors import LimitReached, NotOpen, ServerError
from penstock.runtime.waiting import retry_delay_s

if TYPE_CHECKING:
    from penstock.coordination.limits.limit import Limit

__all__ = ["LimitWaiters", "count_callers"]

# Callers that came within this time of each other form one group, up to so many.
_GROUP_S: Final = 0.1
_LARGEST_GROUP: Final = 100
# The server learns within these times that callers have come or left.
_JOIN_S: Final = 0.05
_LEAVE_S: Final = 0.01
# Timers fire late by about this much; where that matters they are set earlier.
_TIMER_S: Final = 0.001
# Behind so many tickets, or with so many keys that wait in this process, the server is asked half
# as often.
_MANY: Final = 100
_MOST_DEPTHS: Final = 16

# As `limit_waiters.lua` writes a ticket: eight numbers, the fourth is the number of callers.
_ticket = re.compile(rb"\d{1,15} \d{1,15} \d{1,15} (\d{1,9})(?: \d{1,15}){4}").fullmatch


def count_callers(tickets: Iterable[bytes]) -> int:
    """How many callers wait with these tickets; ignores what is not a ticket."""
    return sum(int(match[1]) for match in map(_ticket, tickets) if match)


class LimitWaiters:
    """Callers that wait for one limit in this process, by key and priority."""

    def __init__(self, limit: Limit, server: LimitClient) -> None:
        self.limit, self.server = limit, server
        self._by_key: dict[tuple[str, int], _KeyWaiters] = {}
        self._returns = BackgroundTasks()

    def __len__(self) -> int:
        return len(self._by_key)

    async def close(self) -> None:
        """Refuse all callers with `NotOpen`."""
        await asyncio.gather(*(waiters.close() for waiters in self._by_key.values()))
        await self._returns.close()

    def wait(
        self, key: str, priority: int, cost: int, patience_s: float
    ) -> Coroutine[Any, Any, LimitResult]:
        """Wait for permits behind all callers of the same key and priority."""
        waiters = self._by_key.get((key, priority))
        if waiters is None:
            waiters = self._by_key[key, priority] = _KeyWaiters(self, key, priority)
        return waiters.wait(cost, patience_s)

    def forget(self, waiters: _KeyWaiters) -> None:
        if self._by_key.get((waiters.key, waiters.priority)) is waiters:
            del self._by_key[waiters.key, waiters.priority]

    def give_back(self, key: str, granted: LimitResult) -> None:
        """Return permits whose caller has gone."""
        self._returns.start(self._give_back(key, granted), f"permits of {key}")

    async def _give_back(self, key: str, granted: LimitResult) -> None:
        if granted.permit is not None:
            with suppress(ServerError, NotOpen):  # then they stay spent
                await self.limit.settle(key, granted.used(0))


class _Waiter(Waiter[LimitResult]):
    """One caller."""

    __slots__ = ("cost", "promise")

    def __init__(self, cost: int, patience_s: float) -> None:
        super().__init__(patience_s)
        self.cost = cost
        self.promise: tuple[LimitResult, float] | None = None
        """What it was granted, and from when on it may be used."""

    def keep_promise(self, result: LimitResult, ready_at: float) -> None:
        """Pass permits on as soon as they may be used."""
        left_s = ready_at - time.monotonic()
        if left_s > 0:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(max(left_s, _TIMER_S), self.keep_promise, result, ready_at)
        elif not self.future.done():
            self.future.set_result(result)


class _KeyWaiters(WaitingCallers[_Waiter]):
    """Callers with one key and priority, in their order."""

    def __init__(self, owner: LimitWaiters, key: str, priority: int) -> None:
        super().__init__(f"limit waiters of {key}")
        self.key, self.priority = key, priority
        self._owner, self._limit, self._server = owner, owner.limit, owner.server
        settings = owner.limit.client.settings.limits
        self._recheck_s, self._ticket_s = settings.recheck_s, settings.ticket_s
        self._ticket = uuid4().hex
        self._has_ticket = False
        self._unchecked: dict[_Waiter, None] = {}
        """Callers that may not be served before their deadline: the server is asked."""
        self._cost, self._last_came = 0, 0.0
        self._group: Sequence[_Waiter] = ()
        self._group_number, self._group_came = 0, 0.0
        self._is_asking = False
        self._ahead, self._opens_at = 0, 0.0
        self._asked_at, self._ask_by = 0.0, math.inf
        self._sleep: asyncio.Future[None] | None = None
        self._wakes_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, cost: int, patience_s: float) -> LimitResult:
        waiter = _Waiter(cost, patience_s)
        self._cost += cost
        self._last_came = waiter.came
        is_patient = patience_s == math.inf
        if not is_patient or cost > self._server.most:
            self._unchecked[waiter] = None
        if self._join(waiter):
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
        while self._waiters:
            try:
                pause_s = await self._ask()
                failures = 0
            except ServerError as error:
                failures += 1
                self._fall_back(error)
                pause_s = retry_delay_s(failures)
            if self._waiters:
                await self._pause(pause_s)

    async def _end_serving(self) -> None:
        self._owner.forget(self)
        if not self._has_ticket:
            return
        keys = self._limit.keys(self.key)
        with suppress(ServerError, NotOpen):  # the ticket of a silent process is void after a while
            await LimitScripts.of(self._limit.client).leave_limit(keys=keys, ticket=self._ticket)

    async def _ask(self) -> float:
        """Ask for the first callers and give them what is granted; how long to wait then."""
        group, depths = self._next_group(), self._depths()
        self._asked_at, self._ask_by = time.monotonic(), math.inf
        request = AcquireRequest(
            self.key,
            sum(waiter.cost for waiter in group),
            self.priority,
            fewest=group[0].cost,
            ticket=self._ticket,
            waiting=self._described(group, [(depth, one.cost) for one, depth in depths]),
        )
        self._has_ticket = self._is_asking = True
        try:
            reply = await self._server.ask_for_group(request, len(depths))
        finally:
            self._is_asking = False
        self._ahead = reply.ahead
        self._opens_at = time.monotonic() + reply.wait_s
        self._distribute(group, reply.result, reply.ready_s)
        is_done = reply.result.granted == request.cost
        if is_done or math.isinf(reply.wait_s):
            self._has_ticket = False
        if math.isinf(reply.wait_s):
            self._refuse(group[0], self._reached(math.inf))
        self._check(depths, reply.waits_s)
        for waiter in group:
            if waiter.deadline <= time.monotonic():
                self._expire(waiter)
        return 0.0 if is_done else self._pause_after(reply)

    def _pause_after(self, reply: GroupResult) -> float:
        pace_s, pause_s = self._server.pace_s, reply.pause_s
        if math.isinf(pause_s):
            return 0.0
        if not reply.ahead:
            pause_s -= max(0.0, self._server.early_s - pace_s)
        pause_s = pause_s - _TIMER_S if pace_s < _TIMER_S else max(pause_s, pace_s)
        return min(pause_s, self._longest_pause_s(), _LEAVE_S if self._unchecked else math.inf)

    def _longest_pause_s(self) -> float:
        # No longer than a ticket lasts, or its place is lost.
        many = max(self._ahead, len(self._owner)) / _MANY
        return self._recheck_s + min(self._recheck_s * many, self._ticket_s / 2)

    def _fall_back(self, error: ServerError) -> None:
        """Give what this process may give while the server is away; raises other errors."""
        for waiter in list(self._waiters):
            result = self._limit.fall_back(error, self.key, waiter.cost)
            if math.isinf(result.retry_after_s):
                self._refuse(waiter, self._reached(math.inf))
            elif result.allowed:
                self._give(waiter, result)
            else:
                self._opens_at = time.monotonic() + result.retry_after_s
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
        """Ask no later than so long after the last time: callers have come or left."""
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

    def _next_group(self) -> Sequence[_Waiter]:
        """Callers of the group that still wait; another group if none does."""
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
        """The group as `acquire_limit.lua` takes it."""
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
                int(self._server.early_s * 1000),
            )
        )

    def _distribute(
        self, group: Sequence[_Waiter], grant: LimitResult, ready_s: Sequence[float]
    ) -> None:
        """Split what was granted among the callers of the group."""
        if not grant.granted or grant.permit is None:
            return
        left, (permit, logged_ms), now = grant.granted, grant.permit, time.monotonic()
        spare: list[tuple[LimitResult, float]] = []
        each = zip(group, chain(ready_s, repeat(0.0)), strict=False)
        for number, (waiter, in_s) in enumerate(each, int(permit)):
            if left < waiter.cost:
                break
            left -= waiter.cost
            result = LimitResult(
                allowed=True,
                granted=waiter.cost,
                rates=grant.rates,
                windows_left=grant.windows_left,
                permit=(b"%d" % number, logged_ms + round(in_s * 1000)),
            )
            self._limit.note(self.key, waiter.cost)
            if in_s and now + in_s > waiter.deadline:
                self._refuse(waiter, self._reached(in_s))
            if not self._give(waiter, result, now + in_s):
                spare.append((result, now + in_s))
        for result, ready_at in spare:
            self._pass_on(result, ready_at)

    def _pass_on(self, result: LimitResult, ready_at: float) -> None:
        """Give the permits of a caller that has gone to the next one, or back."""
        waiter = next(iter(self._waiters), None)
        if waiter is None or waiter.cost != result.granted:
            self._owner.give_back(self.key, result)
        else:
            self._give(waiter, result, ready_at)

    # ---- single callers

    def _remove(self, waiter: _Waiter) -> bool:
        if not super()._remove(waiter):
            return False
        self._unchecked.pop(waiter, None)
        self._cost -= waiter.cost
        return True

    def _give(self, waiter: _Waiter, result: LimitResult, ready_at: float = 0.0) -> bool:
        """Give permits that may be used from then on; False if the caller has gone."""
        if not self._remove(waiter) or waiter.future.done():
            return False
        waiter.promise = (result, ready_at)
        waiter.keep_promise(result, ready_at)
        return True

    def _expire(self, waiter: _Waiter) -> None:
        if waiter not in self._waiters or (self._is_asking and waiter in self._group):
            return  # the pending reply decides
        self._refuse(waiter, self._reached(max(0.0, self._opens_at - time.monotonic())))
        self._ask_within(_LEAVE_S)

    def _reached(self, retry_after_s: float) -> LimitReached:
        return LimitReached(self._limit.name, self.key, retry_after_s)

    # ---- callers that cannot be served in time

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
        """Refuse callers that cannot be served in time, by the waits of some: deeper is later."""
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
            elif at_most <= patience_s and (is_asked or waiter.cost <= self._server.most):
                del self._unchecked[waiter]
