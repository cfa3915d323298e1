"""Feeds that something else keeps: what happens to a run, or in a window."""

from __future__ import annotations

from penstock.app import Penstock
from penstock.coordination.feeds.feed import Feed
from penstock.errors import CoordinationError
from penstock.inspector.windows import places_of, registered

__all__ = ["run_feed", "window_feed"]


async def run_feed(app: Penstock, run_id: str) -> Feed:
    """Return the feed of a run; RunMissing if there is none. One round trip."""
    run = app.runs.open(run_id)
    await run.record()
    return run.feed


async def window_feed(app: Penstock, name: str, partition: int | None = None) -> Feed:
    """Return the feed of a window: what opened, grew and closed.

    A window that closes into a topic has one for each partition. CoordinationError if there is no
    such window or partition. One round trip, or three for a topic.
    """
    places = [
        place for record in await registered(app, name) for place in await places_of(app, record)
    ]
    if partition is None and len(places) > 1:
        raise CoordinationError(
            f"window {name!r} has {len(places)} feeds, one for each partition: say which"
        )
    number = partition or 0
    if not 0 <= number < len(places):
        raise CoordinationError(f"window {name!r} has no partition {number}")
    index = places[number].index
    return Feed.at(app.redis, app.codec, app.hub, name=name, events=index.events, state=index.state)
