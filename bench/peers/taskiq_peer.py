"""taskiq on its stream broker. Consumes under its own command line; run as a program it sends."""

from __future__ import annotations

import asyncio

import sending
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url=sending.URL, consumer_id="0")


@broker.task(task_name="handle")
async def handle(order: dict[str, object]) -> None:
    pass


async def produce() -> None:
    await broker.startup()
    await sending.send_at_once(lambda: handle.kiq(sending.ORDER))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(produce())
