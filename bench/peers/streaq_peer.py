"""streaq: `work`, or `offer <one by one> <in bulk>`."""

from __future__ import annotations

from functools import partial

import msgpack
import offering
import sending
import uvloop
from streaq import Worker

worker = Worker(
    redis_url=sending.URL,
    concurrency=16,
    prefetch=500,
    serializer=msgpack.packb,
    deserializer=partial(msgpack.unpackb, strict_map_key=False),
    anyio_kwargs={"use_uvloop": True},
)


@worker.task(name="handle", silent=True, ttl=0)
async def handle(order: dict[str, object]) -> None:
    pass


async def send_many(count: int) -> None:
    await worker.enqueue_many([handle.enqueue(sending.ORDER) for _ in range(count)])


async def offer() -> None:
    async with worker:
        await offering.offer(lambda: handle.enqueue(sending.ORDER), send_many)


if __name__ == "__main__":
    if offering.is_asked():
        uvloop.run(offer())
    else:
        worker.run_sync()
