"""Waits of loops: for an event with a limit, and after the n-th failure in a row."""

from __future__ import annotations

import asyncio

from penstock.clock import Clock
from penstock.redis.retry import backoff_s

__all__ = ["LEAST_S", "LONGEST_S", "happens_within", "retry_delay_s"]

LEAST_S = 0.5
"""Never more than two tries a second, however short the loop's own rhythm is."""
LONGEST_S = 5.0


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


def retry_delay_s(failures: int, longest_s: float = LONGEST_S) -> float:
    """Doubles from `LEAST_S`, with jitter: workers that lost one server must not return in step."""
    return backoff_s(failures, base_s=LEAST_S, max_s=max(longest_s, LEAST_S))
