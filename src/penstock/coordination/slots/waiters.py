"""Callers of one process that wait for a slot.

However many callers wait, the server knows one ticket per process, ordered by when its first caller
came; slots for several callers are taken in one call.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final
from uuid import uuid4

from penstock.coordination.slots.keys import SlotKeys
from penstock.coordination.slots.scripts import SlotScripts
from penstock.coordination.slots.slot import Slot
from penstock.coordination.waiting_callers import BackgroundTasks, Waiter, WaitingCallers
from penstock.coordination.wakeups import Wakeups
from penstock.errors import NotOpen, ServerError
from penstock.redis.client import Client
from penstock.settings.coordination import SlotSettings
from penstock.throttled_log import RateLimitedLog

__all__ = ["KEEP_FENCE_MS", "SlotWaiter", "SlotWaiters"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

KEEP_FENCE_MS: Final = 7 * 86_400_000
"""The last fence matters only if the server's clock is set back: fences follow the clock."""
# A ticket that was not renewed for so many rounds is void.
_ROUNDS: Final = 3
_LARGEST_GROUP: Final = 100
# The server learns within this time that callers have come or left.
_REFRESH_S: Final = 0.05
# The last caller that leaves waits so long at most until the server knows.
_LEAVE_S: Final = 1.0


class SlotWaiter(Waiter[Slot | None]):
    """One caller."""

    __slots__ = ("is_sent", "lease_s", "token")

    def __init__(self, token: str, lease_s: float, patience_s: float) -> None:
        super().__init__(patience_s)
        self.token, self.lease_s = token, lease_s
        self.is_sent = False
        """Whether the server was asked for a slot for it and has not replied."""


class SlotWaiters(WaitingCallers[SlotWaiter]):
    """Callers in the order in which they came; granted slots are handed to `hold`."""

    def __init__(
        self,
        client: Client,
        name: str,
        limit: Callable[[], Awaitable[int]],
        hold: Callable[[Slot, float], None],
        wakeups: Wakeups | None,
    ) -> None:
        super().__init__(f"slots {name}")
        self._client, self._name, self._keys = client, name, SlotKeys.of(client.keys, name)
        self._limit, self._hold, self._wakeups = limit, hold, wakeups
        self._settings: SlotSettings = client.settings.slots
        self._ticket, self._has_ticket = uuid4().hex, False
        self._asked: Sequence[SlotWaiter] = ()
        self._is_unsure = False
        self._most = _LARGEST_GROUP
        self._error: ServerError | None = None
        self._clock = _ServerClock()
        self._asked_at = 0.0
        self._woken, self._is_watching = asyncio.Event(), False
        self._refresh: asyncio.TimerHandle | None = None
        self._returns = BackgroundTasks()

    async def close(self) -> None:
        await super().close()
        await self._returns.close()

    async def wait(self, waiter: SlotWaiter) -> Slot | None:
        """Wait behind all other callers; None when the timeout has passed."""
        if self._join(waiter):
            self._refresh_soon()
        try:
            slot = await waiter.future
        except asyncio.CancelledError:
            if self._remove(waiter):
                self._refresh_soon()
            elif not waiter.future.cancelled() and (slot := waiter.future.result()):
                await self._give_back(slot)
            raise
        if slot is None and not self._waiters:
            await self._until_left()
        return slot

    async def _until_left(self) -> None:
        """Wait until the ticket is removed: it precedes callers that do not wait."""
        if self._task is not None:
            self._wake()
            await asyncio.wait([self._task], timeout=_LEAVE_S)

    # ---- the task

    async def _serve(self) -> None:
        while self._waiters:
            self._woken.clear()
            pause_s = await self._ask_safely()
            if self._wakeups is not None and not self._is_watching and self._waiters:
                # Ask once more afterwards: a release in between wakes no one.
                await self._wakeups.watch(self._keys.holders, self._woken.set)
                self._is_watching, pause_s = True, 0.0
            if self._waiters and pause_s > 0:
                await self._sleep(pause_s)

    async def _end_serving(self) -> None:
        if self._wakeups is not None and self._is_watching:
            self._is_watching = False
            await self._wakeups.unwatch(self._keys.holders, self._woken.set)
        if self._has_ticket and not self._waiters:
            await self._leave()

    def _wake(self) -> None:
        self._woken.set()

    async def _ask_safely(self) -> float:
        """Ask for the first callers; how long to wait then."""
        try:
            pause_s = await self._ask()
        except ServerError as error:
            if not error.transient:
                raise
            quiet.warning("wait", "waiting for a slot of %r: %s", self._name, error)
            self._error = error
            pause_s = self._settings.recheck_s
            self._expire_late(self._asked)
        finally:
            self._asked = ()
        return pause_s

    async def _ask(self) -> float:
        limit = await self._limit()
        group = self._asked = list(islice(self._waiters, self._most))
        if not group:
            return 0.0
        behind = next(islice(self._waiters, len(group), None), group[-1])
        for waiter in group:
            waiter.is_sent = True
        again, self._is_unsure, self._has_ticket = self._is_unsure, True, True
        sent = self._asked_at = time.monotonic()
        now_ms, wait_ms, *fences = await SlotScripts.of(self._client).take_slot(
            keys=self._keys,
            ticket=self._ticket,
            limit=limit,
            ticket_ms=math.ceil(_ROUNDS * self._settings.recheck_s * 1000),
            again=again,
            keep_ms=KEEP_FENCE_MS,
            waiting=len(self._waiters),
            next_came=self._came(behind, sent),
            callers=[
                (waiter.token, round(waiter.lease_s * 1000), self._came(waiter, sent))
                for waiter in group
            ],
        )
        self._is_unsure, self._error = False, None
        self._clock.note(now_ms, sent, time.monotonic())
        granted = 0
        for waiter, fence in zip(group, fences, strict=True):
            waiter.is_sent = False
            if fence:
                granted += 1
                self._give(waiter, fence, sent)
        self._expire_late(group)
        # The next call asks for one more than were granted, or twice as many if all were.
        is_enough = granted == len(group)
        self._most = min(_LARGEST_GROUP, 2 * granted if is_enough else granted + 1)
        if is_enough:
            return 0.0
        # The server's lease ends at a whole ms; one later it has ended.
        wait_s = wait_ms / 1000 + 0.001 if wait_ms >= 0 else math.inf
        return min(wait_s, self._settings.recheck_s)

    def _came(self, waiter: SlotWaiter, sent: float) -> str:
        """When a caller came, as `take_slot.lua` takes it."""
        came_ms = self._clock.ms_at(waiter.came)
        return f"{(waiter.came - sent) * 1000 if came_ms is None else came_ms:.3f}"

    async def _sleep(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _refresh_soon(self) -> None:
        """Ask the server soon: the number of callers has changed."""
        if self._refresh is None:
            left_s = max(0.0, self._asked_at + _REFRESH_S - time.monotonic())
            self._refresh = asyncio.get_running_loop().call_later(left_s, self._refresh_now)

    def _refresh_now(self) -> None:
        self._refresh = None
        self._wake()

    async def _leave(self) -> None:
        self._has_ticket = False
        try:
            # No holder has this name: only the ticket is removed.
            await SlotScripts.of(self._client).release_slot(
                keys=self._keys, holder="-", token=self._ticket
            )
        except (ServerError, NotOpen) as error:  # the ticket is void after a while
            quiet.warning(
                "leave", "a ticket for %r is left until it expires: %s", self._name, error
            )

    # ---- single callers

    def _give(self, waiter: SlotWaiter, fence: int, sent: float) -> None:
        slot = Slot(
            self._client, self._name, token=waiter.token, fence=fence, lease_s=waiter.lease_s
        )
        self._remove(waiter)
        if waiter.future.done():  # its caller has gone meanwhile
            self._returns.start(self._give_back(slot), f"give back {slot!r}")
        else:
            self._hold(slot, sent)
            waiter.future.set_result(slot)

    async def _give_back(self, slot: Slot) -> None:
        try:
            await slot.release()
        except (ServerError, NotOpen) as error:
            quiet.warning("release", "%r is free only after its lease: %s", slot, error)

    def _give_up(self, waiter: SlotWaiter) -> None:
        # If the server could not be asked, that is not "all taken".
        if self._error is not None:
            self._refuse(waiter, self._error)
        elif self._remove(waiter) and not waiter.future.done():
            waiter.future.set_result(None)

    def _expire(self, waiter: SlotWaiter) -> None:
        if waiter in self._asked:
            return  # the pending reply decides
        self._give_up(waiter)
        self._refresh_soon()

    def _expire_late(self, waiters: Sequence[SlotWaiter]) -> None:
        for waiter in waiters:
            if waiter in self._waiters and waiter.deadline <= time.monotonic():
                self._give_up(waiter)


class _ServerClock:
    """The server's clock by our monotonic one: between two bounds, which replies narrow down."""

    def __init__(self) -> None:
        self._low_ms, self._high_ms = -math.inf, math.inf

    def note(self, now_ms: int, sent: float, received: float) -> None:
        """Record that the server's clock showed `now_ms` between two moments of ours."""
        low_ms, high_ms = now_ms - received * 1000, now_ms + 1 - sent * 1000
        self._low_ms, self._high_ms = max(low_ms, self._low_ms), min(high_ms, self._high_ms)
        if self._low_ms > self._high_ms:  # one of the clocks was set, or they differ in speed
            self._low_ms, self._high_ms = low_ms, high_ms

    def ms_at(self, moment: float) -> float | None:
        """The server's ms at a moment of ours; None before the first reply."""
        if math.isinf(self._high_ms):
            return None
        return (self._low_ms + self._high_ms) / 2 + moment * 1000
