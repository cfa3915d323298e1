"""PyrateLimiter: three windows in one script, as a sliding log. `<callers> <count>`."""

from __future__ import annotations

import asyncio
import sys
import time

import sending
import uvloop
from pyrate_limiter import Duration, Rate, RateItem, RedisBucket
from redis.asyncio import Redis

RATES = [
    Rate(1_000_000, Duration.MINUTE),
    Rate(10_000_000, Duration.HOUR),
    Rate(100_000_000, Duration.DAY),
]


async def main(callers: int) -> None:
    """Put items from tasks. The bucket itself is asked: a limiter on top would wait for it."""
    bucket = await RedisBucket.init(RATES, Redis.from_url(sending.URL), "bench")
    each = sending.count() // callers

    async def put() -> None:
        for _ in range(each):
            if not await bucket.put(RateItem("bench", bucket.now())):
                raise SystemExit("the limit was reached")

    await bucket.put(RateItem("bench", bucket.now()))
    started = time.perf_counter()
    await asyncio.gather(*(put() for _ in range(callers)))
    sending.tell(each * callers, started)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
