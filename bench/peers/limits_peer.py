"""limits: hits of a single fixed window. `<blocking | redispy | coredis> <callers> <count>`."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import sending
import uvloop
from limits.storage import storage_from_string

from limits import RateLimitItemPerHour, aio, strategies

WINDOW = RateLimitItemPerHour(1_000_000_000)
ADDRESS = f"redis+{sending.URL}"


def block(callers: int) -> None:
    """Hit from threads; redis-py has a connection for each."""
    limiter = strategies.FixedWindowRateLimiter(storage_from_string(ADDRESS))
    each = sending.count() // callers

    def hit() -> None:
        for _ in range(each):
            if not limiter.hit(WINDOW, "bench"):
                raise SystemExit("the limit was reached")

    limiter.hit(WINDOW, "bench")  # the first one opens what it needs
    started = time.perf_counter()
    if callers == 1:
        hit()
    else:
        threads = [threading.Thread(target=hit) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sending.tell(each * callers, started)


async def await_each(implementation: str, callers: int) -> None:
    """Hit from tasks, each of which awaits its answer before it hits again."""
    storage = storage_from_string(f"async+{ADDRESS}", implementation=implementation)
    limiter = aio.strategies.FixedWindowRateLimiter(storage)
    each = sending.count() // callers

    async def hit() -> None:
        for _ in range(each):
            if not await limiter.hit(WINDOW, "bench"):
                raise SystemExit("the limit was reached")

    await limiter.hit(WINDOW, "bench")
    started = time.perf_counter()
    await asyncio.gather(*(hit() for _ in range(callers)))
    sending.tell(each * callers, started)


if __name__ == "__main__":
    way, at_once = sys.argv[1], int(sys.argv[2])
    if way == "blocking":
        block(at_once)
    else:
        uvloop.run(await_each(way, at_once))
