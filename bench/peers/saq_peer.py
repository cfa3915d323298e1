"""SAQ: `work`, or `offer <one by one> <in bulk>`; it has no call that sends many jobs faster."""

from __future__ import annotations

from typing import Any

import offering
import orjson
import sending
import uvloop
from redis.asyncio import Redis
from saq import Worker
from saq.queue.redis import RedisQueue

# Nothing is kept of a job that is done, and it may take its time; both make it faster.
OPTIONS: dict[str, int] = {"ttl": -1, "timeout": 0, "retries": 3}


async def handle(_: dict[str, Any], *, order: dict[str, object]) -> None:
    pass


async def main() -> None:
    redis = Redis.from_url(sending.URL)
    queue = RedisQueue(redis, name="orders", dump=orjson.dumps, load=orjson.loads)
    await queue.connect()
    if offering.is_asked():
        await offering.offer(lambda: queue.enqueue("handle", order=sending.ORDER, **OPTIONS))
    else:
        await Worker(queue, functions=[handle], concurrency=50).start()


if __name__ == "__main__":
    uvloop.run(main())
