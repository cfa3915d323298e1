"""FastStream on a stream with a consumer group, message by message or in batches."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import sending
import uvloop
from faststream import AckPolicy, FastStream
from faststream.redis import RedisBroker, StreamSub

BULK = 500
broker = RedisBroker(sending.URL, logger=None, apply_types=False)


async def handle(message: Any) -> None:
    pass


async def consume(*, batch: bool) -> None:
    stream = StreamSub(
        "orders",
        group="bench",
        consumer="bench",
        last_id=">",
        batch=batch,
        max_records=500 if batch else 200,
    )
    workers = {} if batch else {"max_workers": 20}
    broker.subscriber(stream=stream, ack_policy=AckPolicy.NACK_ON_ERROR, **workers)(handle)
    await FastStream(broker, logger=None).run()


async def connected() -> Any:
    """Its own consumer would begin behind what is in the stream already."""
    redis = await broker.connect()
    await redis.xgroup_create("orders", "bench", id="0", mkstream=True)
    return redis


async def produce() -> None:
    await connected()
    await sending.send_at_once(lambda: broker.publish(sending.ORDER, stream="orders"))


async def produce_in_bulk() -> None:
    redis = await connected()
    for _ in range(sending.count() // BULK):
        async with redis.pipeline(transaction=False) as pipeline:
            for _ in range(BULK):
                await broker.publish(sending.ORDER, stream="orders", pipeline=pipeline)
            await pipeline.execute()


ROLES = {
    "consume": lambda: consume(batch=False),
    "consume-batch": lambda: consume(batch=True),
    "produce": produce,
    "produce-in-bulk": produce_in_bulk,
}

if __name__ == "__main__":
    uvloop.install()
    asyncio.run(ROLES[sys.argv[1]]())
