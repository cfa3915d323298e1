"""Feeds for code that does not await: see `penstock.sync`."""

from __future__ import annotations

import asyncio
from typing import Self

from penstock.coordination.feeds import feed as asynchronous
from penstock.coordination.feeds.events import FeedEvent
from penstock.coordination.feeds.reader import FeedReader as AsynchronousReader
from penstock.sync.portal import Blocking, Facade, Portal
from penstock.sync.sibling import Bound

__all__ = ["Feed", "FeedReader"]


class Feed:
    """`coordination.Feed`, blocking. Made by `Penstock.feed`; of a run or a window, by those."""

    def __init__(self, feed: Facade[asynchronous.Feed], name: str) -> None:
        self._feed, self.name = feed, name

    def reach(self) -> tuple[Portal, asynchronous.Feed]:
        return self._feed.reach()

    def __repr__(self) -> str:
        return f"Feed({self.name!r})"

    publish = Blocking(asynchronous.Feed.publish)
    snapshot = Blocking(asynchronous.Feed.snapshot)

    def read(self, after: int | None = None, *, snapshot: bool = True) -> FeedReader:
        """Return an iterator over the events, as `coordination.Feed.read` does."""
        portal, feed = self.reach()
        return FeedReader(portal, feed.read(after, snapshot=snapshot))


class FeedReader(Bound[AsynchronousReader]):
    """Iterates over the events of a feed in order; each step waits for the next one.

        for event in feed.read():
            print(event.number, event.type, event.data)

    It ends after the final event. It is for one thread.
    """

    def __init__(self, portal: Portal, reader: AsynchronousReader) -> None:
        super().__init__(portal, reader)

    @property
    def last(self) -> int:
        """Number of the latest event that was returned: the one to resume after."""
        return self._target.last

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FeedEvent:
        return self.next()

    def next(self, timeout: float | None = None) -> FeedEvent:
        """Wait for the next event; TimeoutError after `timeout` seconds.

        Nothing is lost by that: ask again. StopIteration after the final one.
        """

        async def step() -> FeedEvent | None:
            async with asyncio.timeout(timeout):
                return await anext(self._target, None)

        event = self._portal.run(step())
        if event is None:
            raise StopIteration
        return event

    def stop(self) -> None:
        """Stop reading. May come twice."""
        self._portal.post(self._target.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        self.stop()  # on the loop, where the others read
