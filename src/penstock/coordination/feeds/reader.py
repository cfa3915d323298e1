"""Reading one feed, event by event."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from types import TracebackType
from typing import Self

from penstock.coordination.feeds.events import Event, Snapshot, to_begin_with
from penstock.coordination.feeds.hub import FeedHub, Place, Seat, Tail
from penstock.coordination.repeating import until_known
from penstock.errors import ReaderTooSlow, ServerError
from penstock.quiet import RateLimitedLog
from penstock.runtime.backoff import retry_delay_s

__all__ = ["FeedReader"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)


class FeedReader:
    """Hands out the events of a feed in order: none twice, none left out.

        async for event in feed.read(after=last_seen):
            ...

    It ends after the final event. While the server is away it waits; only if it cannot be reached
    when reading begins, that is an error. `last` is the number to resume after.
    """

    def __init__(self, hub: FeedHub, place: Place, after: int | None, *, snapshot: bool) -> None:
        self.last = after or 0
        """Number of the latest event that was handed out."""
        self._hub, self._place = hub, place
        self._after, self._wants_snapshot = after, snapshot
        self._tail: Tail | None = None
        self._seat: Seat | None = None
        self._at_hand: deque[Event] = deque()
        self._position = 0
        """Number up to which events were read; behind it lies what is at hand."""
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            event = None if self._is_over else await self._next()
        except asyncio.CancelledError:
            raise  # nothing was taken; the next call goes on
        except BaseException:
            self.stop()
            raise
        if event is None:
            self.stop()
            raise StopAsyncIteration
        self.last = event.number
        self._is_over = event.final
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def aclose(self) -> None:
        """Stop reading, as other iterators of this kind do."""
        self.stop()

    def stop(self) -> None:
        """Stop reading. May come twice."""
        self._is_over = True
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.let_go(self._seat)
        self._seat = None
        self._at_hand.clear()

    def __del__(self) -> None:
        self.stop()  # whoever leaves the loop early says nothing

    async def _next(self) -> Event | None:
        if self._tail is None:
            self._tail = await self._hub.tail(self._place)
            try:
                self._begin(await until_known(lambda: self._hub.look(self._place), insist=True))
            except asyncio.CancelledError:
                self._tail.let_go(None)  # begins anew when asked again
                self._tail = None
                raise
        while not self._at_hand:
            if self._is_over:
                return None
            if self._seat is not None:
                await self._wait_for_news(self._seat)
            else:
                await self._catch_up(self._tail)
        return self._at_hand.popleft()

    def _begin(self, look: Snapshot) -> None:
        """Find out what to hand out first."""
        after = self._after
        if after is None and not self._wants_snapshot:
            # Whoever comes late still learns how it ended.
            self._position = look.final_number - 1 if look.final else look.number
        elif after is None or after > look.number:
            self._jump(look, after)
        else:
            self._position = after
            self._is_over = 0 < look.final_number <= after

    def _jump(self, look: Snapshot, after: int | None, upcoming: int | None = None) -> None:
        event = to_begin_with(look, after, upcoming)
        self._position = 0
        if event is not None:
            self._position = event.number
            self._at_hand.append(event)

    async def _wait_for_news(self, seat: Seat) -> None:
        while not seat.events:
            if seat.is_too_slow:
                raise ReaderTooSlow(self._place.name, self.last)
            if seat.failure is not None:
                raise type(seat.failure)(*seat.failure.args)  # other readers raise it as well
            seat.news.clear()
            await seat.news.wait()
        self._at_hand = seat.events

    async def _catch_up(self, tail: Tail) -> None:
        """Read a page by ourselves; with the last one, sit down with the others."""
        events, may_be_more = await self._patiently_read(tail)
        if events and events[0].number > self._position + 1:
            look = await until_known(lambda: self._hub.look(self._place), insist=True)
            self._jump(look, self._position, events[0].number)
            return
        if events:
            self._at_hand.extend(events)
            self._position = events[-1].number
        if not may_be_more:
            self._seat = tail.take_seat(self._position)

    async def _patiently_read(self, tail: Tail) -> tuple[list[Event], bool]:
        failures = 0
        while True:
            try:
                return await self._hub.read(tail, self._position)
            except ServerError as error:
                if not error.transient:
                    raise
                failures += 1
                quiet.warning(type(error).__name__, "cannot read a feed, trying again: %s", error)
            await asyncio.sleep(retry_delay_s(failures))
