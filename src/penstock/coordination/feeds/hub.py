"""Reads each feed once for all its readers in a process."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from penstock.coordination.feeds.events import (
    FeedEvent,
    FeedSnapshot,
    event_of,
    is_count,
    snapshot_of,
    to_begin_with,
)
from penstock.coordination.feeds.scripts import FeedScripts
from penstock.coordination.wakeups import Wakeups
from penstock.delivery.message_sizes import MessageSizes
from penstock.errors import DecodeError, NotOpen, PenstockError, ServerError
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.hash_slot import SLOTS, key_slot
from penstock.redis.wire import Reply
from penstock.throttled_log import RateLimitedLog

__all__ = ["FeedHub", "FeedSource", "FeedTail", "ReaderBuffer"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

MOST_AT_ONCE: Final = 500
"""Events of one feed that are read at once."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of events of all feeds that are read at once, estimated by the sizes of earlier ones."""
_FIRST: Final = 32
# On a cluster feeds of neighbouring slots, which are mostly on one node, are looked at together: a
# node that does not answer holds up only the feeds on it.
_SLOTS_TOGETHER = SLOTS // 64


@dataclass(frozen=True, slots=True)
class FeedSource:
    """The name of a feed and its keys."""

    name: str
    events: str
    state: str


class FeedHub:
    """Reads feeds on behalf of all their readers in this process; one per application.

    Wakeups over one connection say which feeds have news; those are read in one pipeline, each once
    however many readers it has. Every `feeds.poll_s` all of them are, for a hint may be lost.
    """

    def __init__(self, client: Client, codec: Codec, wakeups: Wakeups) -> None:
        self._client, self._wakeups = client, wakeups
        self._settings = client.settings.feeds
        self._decode = codec.decoder(Any)
        self._page = min(MOST_AT_ONCE, self._settings.buffer)
        """Events in one go: what one look brings must fit into the buffer of an idle reader."""
        self._tails: dict[str, FeedTail] = {}
        self._with_news: set[FeedTail] = set()
        self._looks: set[asyncio.Task[None]] = set()
        self._about_to_look = False
        self._polling: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End all readers with `NotOpen`. May be called twice; later readers start again."""
        polling, self._polling = self._polling, None
        tails, self._tails = list(self._tails.values()), {}
        self._with_news.clear()
        tasks = [*self._looks, *([polling] if polling else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(tail.watching for tail in tails), return_exceptions=True)
        for tail in tails:
            tail.close(NotOpen("the application was closed while a feed was read"))
            await self._wakeups.unwatch(tail.place.events, tail.wake)

    # ---- for readers

    async def tail(self, place: FeedSource) -> FeedTail:
        """Return the tail of a feed, watched; the caller holds it until `let_go`."""
        tail = self._tails.get(place.events)
        if tail is None:
            part = key_slot(place.events) // _SLOTS_TOGETHER if self._client.keys.cluster else 0
            tail = FeedTail(self, self._wakeups, place, part, self._settings.buffer)
            self._tails[place.events] = tail
        tail.holds += 1
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(), name="feeds poll")
        try:
            await asyncio.shield(tail.watching)
        except BaseException:
            tail.let_go(None)
            raise
        return tail

    async def look(self, place: FeedSource) -> FeedSnapshot:
        """Read the state of a feed."""
        reply = await FeedScripts.of(self._client).look_at_feed(
            events=place.events, state=place.state
        )
        return snapshot_of(reply, self._decode)

    async def read(self, tail: FeedTail, after: int) -> tuple[list[FeedEvent], bool]:
        """Read the next events, the first of which may leave a gap; whether there may be more."""
        count = self._fitting(tail, 1)
        entries = await self._client.call(*self._reading(tail.place, after, count))
        tail.sizes.note_entries(entries)
        return self._events(entries), len(entries) == count

    # ---- looking

    def note_news(self, tail: FeedTail) -> None:
        """Read a feed soon, together with others that have news."""
        self._with_news.add(tail)
        if not self._about_to_look:
            self._about_to_look = True
            asyncio.get_running_loop().call_soon(self._begin_to_look)

    def _begin_to_look(self) -> None:
        self._about_to_look = False
        self._with_news = {tail for tail in self._with_news if tail.readers}
        ready = [tail for tail in self._with_news if not tail.is_being_read]
        self._with_news.difference_update(ready)
        together: dict[int, list[FeedTail]] = {}
        for tail in ready:
            tail.is_being_read = True
            together.setdefault(tail.part, []).append(tail)
        for tails in together.values():
            look = asyncio.create_task(self._look_at(tails), name="feeds look")
            self._looks.add(look)
            look.add_done_callback(self._looked)

    def _looked(self, look: asyncio.Task[None]) -> None:
        self._looks.discard(look)
        if not look.cancelled() and (error := look.exception()) is not None:
            logger.error("reading feeds failed", exc_info=error)
        if self._with_news and self._tails:
            self._begin_to_look()

    async def _look_at(self, tails: Sequence[FeedTail]) -> None:
        counts = [self._fitting(tail, len(tails)) for tail in tails]
        try:
            replies = await self._client.pipeline(
                [
                    command
                    for tail, count in zip(tails, counts, strict=True)
                    for command in (
                        self._reading(tail.place, tail.position, count),
                        ("HGET", tail.place.state, "seq"),
                    )
                ]
            )
        except PenstockError as error:
            for tail in tails:
                self._note_failure(tail, error)
        else:
            for index, tail in enumerate(tails):
                await self._take_alone(tail, counts[index], *replies[2 * index : 2 * index + 2])
        finally:
            for tail in tails:
                tail.is_being_read = False

    async def _take_alone(self, tail: FeedTail, count: int, entries: Reply, latest: Reply) -> None:
        """Distribute what was read of one feed; a failure reaches its own readers only."""
        try:
            await self._take(tail, count, entries, latest)
        except PenstockError as error:
            self._note_failure(tail, error)
        except Exception as error:  # one feed must not stop the others
            logger.exception("feed %s cannot be read", tail.place.name)
            self._note_failure(tail, DecodeError(f"feed {tail.place.name!r}: {error}", b""))

    async def _take(self, tail: FeedTail, count: int, entries: Reply, latest: Reply) -> None:
        """Distribute what was read of one feed, at most `count` events."""
        for reply in (entries, latest):
            if isinstance(reply, PenstockError):
                self._note_failure(tail, reply)
                return
        tail.sizes.note_entries(entries)
        events = self._events(entries)
        upcoming = events[0].number if events else None
        # An invalid number is ignored: the feed's next event corrects it.
        went_back = not events and (latest is None or is_count(latest))
        went_back = went_back and tail.position > int(latest or 0)
        if went_back or (upcoming is not None and upcoming > tail.position + 1):
            try:
                look = await self.look(tail.place)
            except ServerError as error:
                self._note_failure(tail, error)
                return
            if upcoming is not None or look.number < tail.position:
                tail.jump(look, upcoming)
                self.note_news(tail)
            return
        if events:
            tail.put(events)
        if len(entries) == count or len(events) < len(entries):
            self.note_news(tail)

    def _note_failure(self, tail: FeedTail, error: PenstockError) -> None:
        """Retry with the next poll if the error is transient."""
        if isinstance(error, ServerError) and error.transient:
            quiet.warning(type(error).__name__, "cannot look at feeds, trying again: %s", error)
        else:
            tail.fail(error)

    async def _poll(self) -> None:
        """Read all feeds periodically, and drop those without readers."""
        while self._tails:
            await asyncio.sleep(self._settings.poll_s)
            for tail in list(self._tails.values()):
                if tail.holds == 0:
                    del self._tails[tail.place.events]
                    await self._wakeups.unwatch(tail.place.events, tail.wake)
                elif tail.readers:
                    self.note_news(tail)

    def _fitting(self, tail: FeedTail, together: int) -> int:
        """How many events of a feed may be read at once with those of others."""
        return min(self._page, tail.sizes.fitting(MOST_BYTES // together))

    def _reading(self, place: FeedSource, after: int, count: int) -> tuple[str | int, ...]:
        return ("XRANGE", place.events, f"({after}-0", "+", "COUNT", count)

    def _events(self, entries: Reply) -> list[FeedEvent]:
        """Read entries up to the first one that does not follow on the one before."""
        events = [event_of(entry, self._decode) for entry in entries]
        for index, (one, other) in enumerate(pairwise(events), 1):
            if other.number != one.number + 1:
                return events[:index]
        return events


class FeedTail:
    """The end of one feed: distributes new events to the readers that have all earlier ones."""

    def __init__(
        self, hub: FeedHub, wakeups: Wakeups, place: FeedSource, part: int, buffer: int
    ) -> None:
        self.place, self.part = place, part
        self.watching = asyncio.create_task(wakeups.watch(place.events, self.wake))
        self.position = 0
        """Number up to which its readers have all events."""
        self.readers: set[ReaderBuffer] = set()
        self.holds = 0
        self.is_being_read = False
        self.sizes = MessageSizes(MOST_BYTES, first=_FIRST)
        self._hub, self._buffer = hub, buffer
        self._closed: PenstockError | None = None

    def wake(self) -> None:
        if self.readers:
            self._hub.note_news(self)

    def join(self, position: int) -> ReaderBuffer | None:
        """Join with all events up to `position`; None if the others have more already."""
        if self._closed is not None:
            raise self._closed
        if self.readers and position < self.position:
            return None
        buffer = ReaderBuffer(position, self._buffer)
        if not self.readers:
            self.position = position
            self._hub.note_news(self)  # a wakeup may have come while there was no reader
        self.readers.add(buffer)
        return buffer

    def let_go(self, buffer: ReaderBuffer | None) -> None:
        """Leave. It is dropped with the next poll if no reader is left by then."""
        self.holds -= 1
        if buffer is not None:
            self.readers.discard(buffer)

    def put(self, events: Sequence[FeedEvent]) -> None:
        self.position = events[-1].number
        for buffer in list(self.readers):
            if not buffer.put(events):
                self.readers.discard(buffer)

    def jump(self, look: FeedSnapshot, upcoming: int | None) -> None:
        """Continue where the feed is: the next event is not kept, or the numbers went back."""
        event = to_begin_with(look, self.position, upcoming)
        went_back = look.number < self.position
        self.position = event.number if event is not None else 0
        for buffer in list(self.readers):
            if went_back:
                buffer.position = 0
            if event is not None and not buffer.put((event,)):
                self.readers.discard(buffer)

    def fail(self, error: PenstockError) -> None:
        """Pass an error to all readers, and remove them."""
        for buffer in self.readers:
            buffer.fail(error)
        self.readers.clear()

    def close(self, error: PenstockError) -> None:
        """As `fail`, also for later readers."""
        self._closed = error
        self.fail(error)


class ReaderBuffer:
    """Events that wait for one reader."""

    def __init__(self, position: int, most: int) -> None:
        self.position = position
        self.events: deque[FeedEvent] = deque()
        self.failure: PenstockError | None = None
        self.is_too_slow = False
        self.news = asyncio.Event()
        self._most = most

    def put(self, events: Sequence[FeedEvent]) -> bool:
        """Add events for the reader; False if there are too many and it is cut off."""
        if events[0].number <= self.position:
            events = [event for event in events if event.number > self.position]
            if not events:
                return True
        self.is_too_slow = len(self.events) + len(events) > self._most
        if self.is_too_slow:
            self.events.clear()
        else:
            self.events.extend(events)
            self.position = events[-1].number
        self.news.set()
        return not self.is_too_slow

    def fail(self, error: PenstockError) -> None:
        self.failure = error
        self.news.set()
