"""Huey: `work`, or `offer <one by one> <in bulk>`; it has no call for many jobs.

It has no acknowledgement: a job is gone once a worker has it.
"""

from __future__ import annotations

import asyncio
import logging

import offering
import sending
from huey import RedisHuey

huey = RedisHuey("orders", url=sending.URL, results=False)


@huey.task(retries=3)
def handle(order: dict[str, object]) -> None:
    pass


if __name__ == "__main__":
    if offering.is_asked():
        asyncio.run(offering.offer(offering.blocking(lambda: handle(sending.ORDER))))
    else:
        logging.getLogger("huey").setLevel(logging.ERROR)
        huey.create_consumer(workers=2, periodic=False).run()
