"""BullMQ for Python: `work`, or `offer <one by one> <in bulk>`."""

from __future__ import annotations

import asyncio
from typing import Any

import offering
import sending
import uvloop
from bullmq import Queue, Worker

OPTIONS = {"removeOnComplete": True, "attempts": 3}


async def handle(_job: Any, _token: str) -> None:
    pass


async def work() -> None:
    worker = Worker("orders", handle, {"connection": sending.URL, "concurrency": 2})
    await asyncio.Event().wait()
    await worker.close()


async def offer() -> None:
    queue = Queue("orders", {"connection": sending.URL})
    one = {"name": "order", "data": sending.ORDER, "opts": OPTIONS}
    await offering.offer(
        lambda: queue.add("order", sending.ORDER, OPTIONS),
        lambda count: queue.addBulk([one] * count),
    )
    await queue.close()


if __name__ == "__main__":
    uvloop.run(offer() if offering.is_asked() else work())
