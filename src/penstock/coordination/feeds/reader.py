"""Reading one feed, event by event."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Self

from penstock.coordination.feeds.events import FeedEvent, FeedSnapshot, to_begin_with
from penstock.coordination.feeds.hub import FeedHub, FeedSource, FeedTail, ReaderBuffer
from penstock.errors import ReaderTooSlow, ServerError
from penstock.redis.retry import repeat_until_known
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog

__all__ = ["FeedReader"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)


class FeedReader:
    """Iterates over the events of a feed in order: none twice, none left out.

        async for event in feed.read(after=last_seen):
            ...

    It ends after the final event. While the server is away it waits; only if it cannot be reached
    when reading begins, that is an error. `last` is the number to resume after.
    """

    def __init__(
        self, hub: FeedHub, place: FeedSource, after: int | None, *, snapshot: bool
    ) -> None:
        self.last = after or 0
        """Number of the latest event that was returned."""
        self._hub, self._place = hub, place
        self._after, self._wants_snapshot = after, snapshot
        self._tail: FeedTail | None = None
        self._buffer: ReaderBuffer | None = None
        self._ready: deque[FeedEvent] = deque()
        self._position = 0
        """Number up to which events were read."""
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FeedEvent:
        try:
            event = None if self._is_over else await self._next()
        except asyncio.CancelledError:
            raise  # nothing was taken; the next call continues
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

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    async def aclose(self) -> None:
        """Stop reading, as other iterators of this kind do."""
        self.stop()

    def stop(self) -> None:
        """Stop reading. May be called twice."""
        self._is_over = True
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.let_go(self._buffer)
        self._buffer = None
        self._ready.clear()

    def __del__(self) -> None:
        self.stop()  # a loop that is left early calls nothing else

    async def _next(self) -> FeedEvent | None:
        if self._tail is None:
            self._tail = await self._hub.tail(self._place)
            try:
                self._begin(
                    await repeat_until_known(lambda: self._hub.look(self._place), insist=True)
                )
            except asyncio.CancelledError:
                self._tail.let_go(None)  # the next call starts again
                self._tail = None
                raise
        while not self._ready:
            if self._is_over:
                return None
            if self._buffer is not None:
                await self._wait_for_news(self._buffer)
            else:
                await self._catch_up(self._tail)
        return self._ready.popleft()

    def _begin(self, look: FeedSnapshot) -> None:
        """Find the first event."""
        after = self._after
        if after is None and not self._wants_snapshot:
            # A late reader still gets the final event.
            self._position = look.final_number - 1 if look.final else look.number
        elif after is None or after > look.number:
            self._jump(look, after)
        else:
            self._position = after
            self._is_over = 0 < look.final_number <= after

    def _jump(self, look: FeedSnapshot, after: int | None, upcoming: int | None = None) -> None:
        event = to_begin_with(look, after, upcoming)
        self._position = 0
        if event is not None:
            self._position = event.number
            self._ready.append(event)

    async def _wait_for_news(self, buffer: ReaderBuffer) -> None:
        while not buffer.events:
            if buffer.is_too_slow:
                raise ReaderTooSlow(self._place.name, self.last)
            if buffer.failure is not None:
                raise type(buffer.failure)(*buffer.failure.args)  # other readers raise it as well
            buffer.news.clear()
            await buffer.news.wait()
        self._ready = buffer.events

    async def _catch_up(self, tail: FeedTail) -> None:
        """Read a page; after the last one, join the other readers."""
        events, may_be_more = await self._patiently_read(tail)
        if events and events[0].number > self._position + 1:
            look = await repeat_until_known(lambda: self._hub.look(self._place), insist=True)
            self._jump(look, self._position, events[0].number)
            return
        if events:
            self._ready.extend(events)
            self._position = events[-1].number
        if not may_be_more:
            self._buffer = tail.join(self._position)

    async def _patiently_read(self, tail: FeedTail) -> tuple[list[FeedEvent], bool]:
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
