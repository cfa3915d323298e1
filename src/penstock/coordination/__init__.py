"""Primitives by which processes agree: once, limits, windows, runs, slots, feeds, cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.coordination.cache.cache import Cache
    from penstock.coordination.feeds.events import FeedEvent, FeedSnapshot
    from penstock.coordination.feeds.feed import Feed
    from penstock.coordination.feeds.reader import FeedReader
    from penstock.coordination.limits.hourly import HourlyCount, HourlyLimit
    from penstock.coordination.limits.limit import Limit, Reservation
    from penstock.coordination.limits.rates import Rate
    from penstock.coordination.limits.registry import LimitRegistry
    from penstock.coordination.limits.result import LimitResult, Usage
    from penstock.coordination.limits.setting import LimitSetting
    from penstock.coordination.once.once import EnqueuedOnce, Mark, Once
    from penstock.coordination.runs.records import RunEvent, RunFailure, RunRecord, TaskStart
    from penstock.coordination.runs.run import Run
    from penstock.coordination.runs.runs import Runs
    from penstock.coordination.slots.slot import Holder, Slot, SlotState
    from penstock.coordination.slots.slots import Slots
    from penstock.coordination.windows.batches import OpenBatch
    from penstock.coordination.windows.window import AddedItem, Window
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "cache.cache": "Cache",
            "feeds.events": "FeedEvent FeedSnapshot",
            "feeds.feed": "Feed",
            "feeds.reader": "FeedReader",
            "limits.result": "LimitResult Usage",
            "limits.hourly": "HourlyCount HourlyLimit",
            "limits.limit": "Limit Reservation",
            "limits.rates": "Rate",
            "limits.registry": "LimitRegistry",
            "limits.setting": "LimitSetting",
            "once.once": "EnqueuedOnce Mark Once",
            "runs.records": "RunFailure RunEvent RunRecord TaskStart",
            "runs.run": "Run",
            "runs.runs": "Runs",
            "slots.slot": "Holder Slot SlotState",
            "slots.slots": "Slots",
            "windows.batches": "OpenBatch",
            "windows.window": "AddedItem Window",
        },
    )

__all__ = [
    # once
    "Once",
    "Mark",
    "EnqueuedOnce",
    # limits
    "Limit",
    "LimitResult",
    "Reservation",
    "Usage",
    "Rate",
    "LimitSetting",
    "LimitRegistry",
    "HourlyLimit",
    "HourlyCount",
    # windows
    "Window",
    "AddedItem",
    "OpenBatch",
    # runs
    "Runs",
    "Run",
    "RunRecord",
    "RunEvent",
    "RunFailure",
    "TaskStart",
    # slots
    "Slots",
    "Slot",
    "SlotState",
    "Holder",
    # feeds
    "Feed",
    "FeedReader",
    "FeedEvent",
    "FeedSnapshot",
    # cache
    "Cache",
]
