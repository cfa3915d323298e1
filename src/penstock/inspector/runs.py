"""Views of runs, and the feeds of runs and windows."""

from __future__ import annotations

import msgspec

from penstock.coordination.access import Coordination
from penstock.coordination.feeds.feed import Feed
from penstock.coordination.runs.records import RunEvent, RunFailure, RunRecord, TaskStart
from penstock.coordination.windows.admin import registered, stores_of
from penstock.delivery.queries import server_ms
from penstock.errors import CoordinationError

__all__ = ["RunView", "run_feed", "show_run", "window_feed"]


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run with what happened in it."""

    run: RunRecord
    failures: list[RunFailure]
    """Open ones, those due first, up to the limit."""
    starts: list[TaskStart]
    """All of them, the earliest first."""
    events: list[RunEvent]
    """The latest, in order."""
    at_ms: int
    """Time of the reading, by the server's clock."""


async def show_run(
    app: Coordination, run_id: str, *, failures: int = 20, events: int = 10
) -> RunView:
    """View of a run; `RunMissing` if it does not exist. Five round trips, O(starts of tasks)."""
    run = app.runs.open(run_id)
    record = await run.record()
    at_ms = await server_ms(app.redis)
    return RunView(
        run=record,
        failures=(await run.failures(failures)).failures,
        starts=await run.task_starts(),
        events=await run.last_events(events),
        at_ms=at_ms,
    )


async def run_feed(app: Coordination, run_id: str) -> Feed:
    """The feed of a run; RunMissing if it does not exist. One round trip."""
    run = app.runs.open(run_id)
    await run.record()
    return run.feed


async def window_feed(app: Coordination, name: str, partition: int | None = None) -> Feed:
    """Return the feed of a window: what opened, grew and closed.

    A window that closes into a topic has one for each partition. CoordinationError if there is no
    such window or partition. One round trip, or three for a topic.
    """
    stores = [
        store for record in await registered(app, name) for store in await stores_of(app, record)
    ]
    if partition is None and len(stores) > 1:
        raise CoordinationError(
            f"window {name!r} has {len(stores)} feeds, one for each partition: give the partition"
        )
    number = partition or 0
    if not 0 <= number < len(stores):
        raise CoordinationError(f"window {name!r} has no partition {number}")
    index = stores[number].index
    return Feed.at(app.redis, app.codec, app.hub, name=name, events=index.events, state=index.state)
