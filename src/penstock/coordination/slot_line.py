"""Callers of one process that wait for a slot, and the one task that asks the server for them.

However many callers wait, the server knows of a process only one ticket, which stands in line where
its foremost caller came; slots for several callers are taken in one question.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final
from uuid import uuid4

from penstock.coordination.hints import Hints
from penstock.coordination.slot import Slot
from penstock.errors import NotOpen, ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.settings_coordination import SlotSettings

__all__ = ["KEEP_FENCE_MS", "SlotLine", "Waiter"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

KEEP_FENCE_MS: Final = 7 * 86_400_000
"""Fences rise without a memory, too, as long as clocks do: it is for clocks that were set back."""
# A process in line that has not asked for so many of its rounds has gone.
_ROUNDS: Final = 3
_LARGEST_GROUP: Final = 100
# The server learns within this time that more callers wait here, and that some have left.
_NEWS_S: Final = 0.05
# The last caller that leaves waits so long at most until the server knows.
_LEAVE_S: Final = 1.0


class Waiter:
    """One caller."""

    __slots__ = ("came", "deadline", "future", "is_sent", "lease_s", "timer", "token")

    def __init__(self, token: str, lease_s: float, patience_s: float) -> None:
        self.token, self.lease_s = token, lease_s
        self.came = time.monotonic()
        self.deadline = self.came + patience_s
        self.future: asyncio.Future[Slot | None] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.is_sent = False
        """Whether the server was asked for a slot for it and has not answered."""


class SlotLine:
    """Callers in the order in which they came. Its task lives while any of them waits."""

    def __init__(
        self,
        client: Client,
        name: str,
        limit: Callable[[], Awaitable[int]],
        hold: Callable[[Slot, float], None],
        hints: Hints | None,
    ) -> None:
        self._client, self._name, self._keys = client, name, client.keys.slot(name)
        self._limit, self._hold, self._hints = limit, hold, hints
        self._settings: SlotSettings = client.settings.slots
        self._ticket, self._has_ticket = uuid4().hex, False
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._asked: Sequence[Waiter] = ()
        self._is_unsure = False
        self._most = _LARGEST_GROUP
        self._trouble: ServerError | None = None
        self._clock = _ServerClock()
        self._asked_at = 0.0
        self._woken, self._is_watching = asyncio.Event(), False
        self._news: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._returning: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(self, waiter: Waiter) -> Slot | None:
        """Stand in line; None when patience has ended."""
        self._waiters[waiter] = None
        if waiter.deadline < math.inf:
            loop = asyncio.get_running_loop()
            left_s = max(0.0, waiter.deadline - time.monotonic())
            waiter.timer = loop.call_later(left_s, self._expire, waiter)
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), name=f"slots {self._name}")
        else:
            self._tell_news()
        try:
            slot = await waiter.future
        except asyncio.CancelledError:
            if self._remove(waiter):
                self._tell_news()
            elif not waiter.future.cancelled() and (slot := waiter.future.result()):
                await self._give_back(slot)
            raise
        if slot is None and not self._waiters:
            await self._until_left()
        return slot

    async def _until_left(self) -> None:
        """Wait until the ticket is given up: it stands before callers that do not wait."""
        if self._task is not None:
            self._woken.set()
            await asyncio.wait([self._task], timeout=_LEAVE_S)

    # ---- the task

    async def _serve(self) -> None:
        try:
            await self._serve_all()
        except asyncio.CancelledError:
            for waiter in list(self._waiters):
                self._remove(waiter)
                waiter.future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  everybody who waits gets it
            for waiter in list(self._waiters):
                self._refuse(waiter, error)
        finally:
            self._task = None
            if self._hints is not None and self._is_watching:
                self._is_watching = False
                await self._hints.unwatch(self._keys.holders, self._woken.set)
            if self._has_ticket and not self._waiters:
                await self._leave()

    async def _serve_all(self) -> None:
        while self._waiters:
            self._woken.clear()
            pause_s = await self._ask_safely()
            if self._hints is not None and not self._is_watching and self._waiters:
                # Asked once more after it: what is released meanwhile tells nobody.
                await self._hints.watch(self._keys.holders, self._woken.set)
                self._is_watching, pause_s = True, 0.0
            if self._waiters and pause_s > 0:
                await self._sleep(pause_s)

    async def _ask_safely(self) -> float:
        """Ask for the foremost callers; how long to wait then."""
        try:
            pause_s = await self._ask()
        except ServerError as error:
            if not error.transient:
                raise
            quiet.warning("wait", "waiting for a slot of %r: %s", self._name, error)
            self._trouble = error
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
        now_ms, wait_ms, *fences = await self._client.scripts.take_slot(
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
        self._is_unsure, self._trouble = False, None
        self._clock.note(now_ms, sent, time.monotonic())
        granted = 0
        for waiter, fence in zip(group, fences, strict=True):
            waiter.is_sent = False
            if fence:
                granted += 1
                self._give(waiter, fence, sent)
        self._expire_late(group)
        # It is asked for one more than there were, or for twice as many if there were enough.
        is_enough = granted == len(group)
        self._most = min(_LARGEST_GROUP, 2 * granted if is_enough else granted + 1)
        if is_enough:
            return 0.0
        # The server's lease ends at a whole ms; later by one, and we find it ended.
        wait_s = wait_ms / 1000 + 0.001 if wait_ms >= 0 else math.inf
        return min(wait_s, self._settings.recheck_s)

    def _came(self, waiter: Waiter, sent: float) -> str:
        """When a caller came, as `take_slot.lua` takes it."""
        came_ms = self._clock.ms_at(waiter.came)
        return f"{(waiter.came - sent) * 1000 if came_ms is None else came_ms:.3f}"

    async def _sleep(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _tell_news(self) -> None:
        """Have the server asked soon: another number of callers waits."""
        if self._news is None:
            left_s = max(0.0, self._asked_at + _NEWS_S - time.monotonic())
            self._news = asyncio.get_running_loop().call_later(left_s, self._wake_with_news)

    def _wake_with_news(self) -> None:
        self._news = None
        self._woken.set()

    async def _leave(self) -> None:
        self._has_ticket = False
        try:
            # No holder is called so: only the place in line is given up.
            await self._client.scripts.release_slot(keys=self._keys, holder="-", token=self._ticket)
        except (ServerError, NotOpen) as error:  # the ticket is void after a while
            quiet.warning("leave", "not taken out of the line of %r: %s", self._name, error)

    # ---- single callers

    def _remove(self, waiter: Waiter) -> bool:
        if waiter.timer is not None:
            waiter.timer.cancel()
        return self._waiters.pop(waiter, self) is None

    def _give(self, waiter: Waiter, fence: int, sent: float) -> None:
        slot = Slot(
            self._client, self._name, token=waiter.token, fence=fence, lease_s=waiter.lease_s
        )
        self._remove(waiter)
        if waiter.future.done():  # it has gone meanwhile
            task = asyncio.create_task(self._give_back(slot), name=f"give back {slot!r}")
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)
        else:
            self._hold(slot, sent)
            waiter.future.set_result(slot)

    async def _give_back(self, slot: Slot) -> None:
        try:
            await slot.release()
        except (ServerError, NotOpen) as error:
            quiet.warning("release", "%r is free only after its lease: %s", slot, error)

    def _refuse(self, waiter: Waiter, error: Exception | None) -> None:
        self._remove(waiter)
        if waiter.future.done():
            return
        if error is None:
            waiter.future.set_result(None)
        else:
            waiter.future.set_exception(error)

    def _expire(self, waiter: Waiter) -> None:
        if waiter in self._asked:
            return  # the answer that is on its way decides
        # If the server could not be asked, that is not "all taken".
        self._refuse(waiter, self._trouble)
        self._tell_news()

    def _expire_late(self, waiters: Sequence[Waiter]) -> None:
        for waiter in waiters:
            if waiter in self._waiters and waiter.deadline <= time.monotonic():
                self._refuse(waiter, self._trouble)


class _ServerClock:
    """The server's clock by our monotonic one: between two bounds, which answers narrow down."""

    def __init__(self) -> None:
        self._low_ms, self._high_ms = -math.inf, math.inf

    def note(self, now_ms: int, sent: float, received: float) -> None:
        """Learn that the server's clock showed `now_ms` somewhen between two moments of ours."""
        low_ms, high_ms = now_ms - received * 1000, now_ms + 1 - sent * 1000
        self._low_ms, self._high_ms = max(low_ms, self._low_ms), min(high_ms, self._high_ms)
        if self._low_ms > self._high_ms:  # one of the clocks was set, or they differ in speed
            self._low_ms, self._high_ms = low_ms, high_ms

    def ms_at(self, moment: float) -> float | None:
        """The server's ms at a moment of ours; None before the first answer."""
        if math.isinf(self._high_ms):
            return None
        return (self._low_ms + self._high_ms) / 2 + moment * 1000
