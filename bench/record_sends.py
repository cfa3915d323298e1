"""Sends of jobs with records, for the suite `sizes`: what one job costs, by jobs in a call.

python record_sends.py <jobs in a call> <jobs>
"""

from __future__ import annotations

import json
import sys
from typing import Any

import uvloop

from loops import ORDER, Order, sending
from meter import Meter
from penstock import Penstock, Settings
from penstock.settings import QueueSettings

app = Penstock(settings=Settings(url=sending.URL, queues=QueueSettings(max_size=0)))


@app.task(queue="orders", name="handle", status=True)
async def handle(_: Order) -> None:
    pass


async def send(size: int, total: int) -> dict[str, Any]:
    calls, jobs = max(1, total // size), [(ORDER,)] * size
    async with app:
        for _ in range(min(3, calls)):  # the first one opens what it needs
            await handle.send_many(jobs)
        meter = await Meter(app.redis).start()
        for _ in range(calls):
            await handle.send_many(jobs)
        spent = await meter.spent()
    return {
        "client": spent.client_us / (calls * size),
        "server": spent.server_us / (calls * size),
        "jobs": calls * size / spent.seconds,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(send(int(sys.argv[1]), int(sys.argv[2])))), flush=True)
