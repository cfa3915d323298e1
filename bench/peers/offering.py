"""How fast jobs are taken from a producer: `offer <one by one> <in bulk>`, as counts of jobs.

Each way is told as its own rate; a count of 0 leaves it out. Standard library only, like `sending`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable

BULK = 500

Send = Callable[[], Awaitable[object]]
SendMany = Callable[[int], Awaitable[object]]


def is_asked() -> bool:
    """Whether this program is to send, not to work."""
    return sys.argv[1] == "offer"


async def offer(send: Send, send_many: SendMany | None = None) -> None:
    """Send one job after the other, each awaited; then so many at once."""
    alone, in_bulk = (int(text) for text in sys.argv[-2:])
    told: dict[str, float] = {}
    if alone:
        await send()  # the first one opens what it needs
        started = time.perf_counter()
        for _ in range(alone):
            await send()
        told["alone"] = alone / (time.perf_counter() - started)
    if in_bulk and send_many:
        bulks = -(-in_bulk // BULK)
        await send_many(1)
        started = time.perf_counter()
        for _ in range(bulks):
            await send_many(BULK)
        told["in bulk"] = bulks * BULK / (time.perf_counter() - started)
    print(json.dumps(told), flush=True)


def blocking(send: Callable[[], object]) -> Send:
    """For a peer that knows no await."""

    async def call() -> None:
        send()

    return call
