"""One look at each feed for all its readers in a process."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from penstock.coordination.feeds.events import (
    Event,
    Snapshot,
    event_of,
    is_count,
    snapshot_of,
    to_begin_with,
)
from penstock.coordination.hints import Hints
from penstock.errors import DecodeError, NotOpen, PenstockError, ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys import SLOTS, key_slot
from penstock.redis.wire import Reply
from penstock.topics.sizes import Sizes

__all__ = ["FeedHub", "Place", "Seat", "Tail"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

MOST_AT_ONCE: Final = 500
"""Events of one feed that are read in one go."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of events of all feeds that are read in one go, as far as the sizes of earlier ones tell."""
_FIRST: Final = 32
# On a cluster feeds of neighbouring slots, which are mostly on one node, are looked at together: a
# node that does not answer holds up only the feeds on it.
_SLOTS_TOGETHER = SLOTS // 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where a feed is stored, and what it is called."""

    name: str
    events: str
    state: str


class FeedHub:
    """Reads feeds on behalf of all their readers in this process; one per application.

    Hints over one connection say which feeds have news; those are read in one pipeline, each once
    however many readers it has. Every `feeds.poll_s` all of them are, for a hint may be lost.
    """

    def __init__(self, client: Client, codec: Codec, hints: Hints) -> None:
        self._client, self._hints = client, hints
        self._settings = client.settings.feeds
        self._decode = codec.decoder(Any)
        self._page = min(MOST_AT_ONCE, self._settings.buffer)
        """Events in one go: what one look brings must fit into the buffer of an idle reader."""
        self._tails: dict[str, Tail] = {}
        self._with_news: set[Tail] = set()
        self._looks: set[asyncio.Task[None]] = set()
        self._about_to_look = False
        self._polling: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End all readers with `NotOpen`. May come twice; a reader that comes later begins anew."""
        polling, self._polling = self._polling, None
        tails, self._tails = list(self._tails.values()), {}
        self._with_news.clear()
        tasks = [*self._looks, *([polling] if polling else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(tail.watching for tail in tails), return_exceptions=True)
        for tail in tails:
            tail.close(NotOpen("the application was closed while a feed was read"))
            await self._hints.unwatch(tail.place.events, tail.wake)

    # ---- for readers

    async def tail(self, place: Place) -> Tail:
        """Return the tail of a feed, watched; the caller holds it until `let_go`."""
        tail = self._tails.get(place.events)
        if tail is None:
            part = key_slot(place.events) // _SLOTS_TOGETHER if self._client.keys.cluster else 0
            tail = Tail(self, self._hints, place, part, self._settings.buffer)
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

    async def look(self, place: Place) -> Snapshot:
        """Ask where a feed stands."""
        reply = await self._client.scripts.look_at_feed(events=place.events, state=place.state)
        return snapshot_of(reply, self._decode)

    async def read(self, tail: Tail, after: int) -> tuple[list[Event], bool]:
        """Read the next events, the first of which may leave a gap; whether there may be more."""
        count = self._fitting(tail, 1)
        entries = await self._client.call(*self._reading(tail.place, after, count))
        tail.sizes.note_entries(entries)
        return self._events(entries), len(entries) == count

    # ---- looking

    def note_news(self, tail: Tail) -> None:
        """Look at a feed soon, together with others that have news."""
        self._with_news.add(tail)
        if not self._about_to_look:
            self._about_to_look = True
            asyncio.get_running_loop().call_soon(self._begin_to_look)

    def _begin_to_look(self) -> None:
        self._about_to_look = False
        self._with_news = {tail for tail in self._with_news if tail.seats}
        ready = [tail for tail in self._with_news if not tail.is_looked_at]
        self._with_news.difference_update(ready)
        together: dict[int, list[Tail]] = {}
        for tail in ready:
            tail.is_looked_at = True
            together.setdefault(tail.part, []).append(tail)
        for tails in together.values():
            look = asyncio.create_task(self._look_at(tails), name="feeds look")
            self._looks.add(look)
            look.add_done_callback(self._looked)

    def _looked(self, look: asyncio.Task[None]) -> None:
        self._looks.discard(look)
        if not look.cancelled() and (error := look.exception()) is not None:
            logger.error("looking at feeds failed", exc_info=error)
        if self._with_news and self._tails:
            self._begin_to_look()

    async def _look_at(self, tails: Sequence[Tail]) -> None:
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
                tail.is_looked_at = False

    async def _take_alone(self, tail: Tail, count: int, entries: Reply, latest: Reply) -> None:
        """Hand out what was read of one feed; if that fails, its own readers learn of it."""
        try:
            await self._take(tail, count, entries, latest)
        except PenstockError as error:
            self._note_failure(tail, error)
        except Exception as error:  # one feed must not stop the others
            logger.exception("feed %s cannot be read", tail.place.name)
            self._note_failure(tail, DecodeError(f"feed {tail.place.name!r}: {error}", b""))

    async def _take(self, tail: Tail, count: int, entries: Reply, latest: Reply) -> None:
        """Hand out what was read of one feed, at most `count` events."""
        for reply in (entries, latest):
            if isinstance(reply, PenstockError):
                self._note_failure(tail, reply)
                return
        tail.sizes.note_entries(entries)
        events = self._events(entries)
        upcoming = events[0].number if events else None
        # What is no number tells nothing: the feed's next event puts it right.
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

    def _note_failure(self, tail: Tail, error: PenstockError) -> None:
        """Look again with the next poll, unless that would not help."""
        if isinstance(error, ServerError) and error.transient:
            quiet.warning(type(error).__name__, "cannot look at feeds, trying again: %s", error)
        else:
            tail.fail(error)

    async def _poll(self) -> None:
        """Look at everything every now and then, and forget what nobody reads any more."""
        while self._tails:
            await asyncio.sleep(self._settings.poll_s)
            for tail in list(self._tails.values()):
                if tail.holds == 0:
                    del self._tails[tail.place.events]
                    await self._hints.unwatch(tail.place.events, tail.wake)
                elif tail.seats:
                    self.note_news(tail)

    def _fitting(self, tail: Tail, together: int) -> int:
        """How many events of a feed may be read at once with those of others."""
        return min(self._page, tail.sizes.fitting(MOST_BYTES // together))

    def _reading(self, place: Place, after: int, count: int) -> tuple[str | int, ...]:
        return ("XRANGE", place.events, f"({after}-0", "+", "COUNT", count)

    def _events(self, entries: Reply) -> list[Event]:
        """Read entries up to the first one that does not follow on the one before."""
        events = [event_of(entry, self._decode) for entry in entries]
        for index, (one, other) in enumerate(pairwise(events), 1):
            if other.number != one.number + 1:
                return events[:index]
        return events


class Tail:
    """The end of one feed: gets what is new, and hands it to everybody who sits there."""

    def __init__(self, hub: FeedHub, hints: Hints, place: Place, part: int, buffer: int) -> None:
        self.place, self.part = place, part
        self.watching = asyncio.create_task(hints.watch(place.events, self.wake))
        self.position = 0
        """Number up to which those who sit here have everything."""
        self.seats: set[Seat] = set()
        self.holds = 0
        self.is_looked_at = False
        self.sizes = Sizes(MOST_BYTES, first=_FIRST)
        self._hub, self._buffer = hub, buffer
        self._closed: PenstockError | None = None

    def wake(self) -> None:
        if self.seats:
            self._hub.note_news(self)

    def take_seat(self, position: int) -> Seat | None:
        """Sit down with everything up to `position`; None if others here have more already."""
        if self._closed is not None:
            raise self._closed
        if self.seats and position < self.position:
            return None
        seat = Seat(position, self._buffer)
        if not self.seats:
            self.position = position
            self._hub.note_news(self)  # a hint may have come while nobody sat here
        self.seats.add(seat)
        return seat

    def let_go(self, seat: Seat | None) -> None:
        """Leave. It is forgotten with the next poll if nobody is left by then."""
        self.holds -= 1
        if seat is not None:
            self.seats.discard(seat)

    def put(self, events: Sequence[Event]) -> None:
        self.position = events[-1].number
        for seat in list(self.seats):
            if not seat.put(events):
                self.seats.discard(seat)

    def jump(self, look: Snapshot, upcoming: int | None) -> None:
        """Go on where the feed is: what comes next is not kept, or the numbers went back."""
        event = to_begin_with(look, self.position, upcoming)
        went_back = look.number < self.position
        self.position = event.number if event is not None else 0
        for seat in list(self.seats):
            if went_back:
                seat.position = 0
            if event is not None and not seat.put((event,)):
                self.seats.discard(seat)

    def fail(self, error: PenstockError) -> None:
        """Let everybody who sits here know of an error, and go."""
        for seat in self.seats:
            seat.fail(error)
        self.seats.clear()

    def close(self, error: PenstockError) -> None:
        """As `fail`, for those who are still to come, too."""
        self._closed = error
        self.fail(error)


class Seat:
    """What waits for one reader."""

    def __init__(self, position: int, most: int) -> None:
        self.position = position
        self.events: deque[Event] = deque()
        self.failure: PenstockError | None = None
        self.is_too_slow = False
        self.news = asyncio.Event()
        self._most = most

    def put(self, events: Sequence[Event]) -> bool:
        """Let events wait for the reader; False if there are too many and it is cut off."""
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
