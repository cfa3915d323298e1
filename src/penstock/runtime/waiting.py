"""Waiting for an event, but not for ever, on a clock that tests can move."""

from __future__ import annotations

import asyncio

from penstock.clock import Clock

__all__ = ["happens_within"]


async def happens_within(event: asyncio.Event, delay_s: float, clock: Clock) -> bool:
    """Wait until `event` is set, at most `delay_s`; whether it is set."""
    if event.is_set() or delay_s <= 0:
        return event.is_set()
    async with asyncio.TaskGroup() as group:
        waiter = group.create_task(event.wait())
        timer = group.create_task(clock.sleep(delay_s))
        waiter.add_done_callback(lambda _: timer.cancel())
        timer.add_done_callback(lambda _: waiter.cancel())
    return event.is_set()
