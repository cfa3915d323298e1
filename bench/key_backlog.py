"""A key that fails, for the suite `sizes`: what its backlog costs the messages of other keys.

python key_backlog.py <backlog>

One partition, `ordering="key"`: a message of one key fails and waits for its retry, so many of the
same key stand behind it, and behind those 500 messages of 50 other keys.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import uvloop

from loops import GROUP
from meter import Meter
from penstock import Fixed, Message, Outgoing, Penstock, RetryPolicy, Settings

LATER = RetryPolicy(max_attempts=5, backoff=Fixed(3_600))
OTHERS, OTHER_KEYS = 500, 50
AT_A_TIME = 5_000
FAILING = "failing"

app = Penstock(settings=Settings(url=os.environ["BENCH_URL"]))


async def handle_others(backlog: int) -> dict[str, float]:
    orders, left, done = app.topic("orders", type=int, partitions=1), OTHERS, asyncio.Event()

    @orders.subscribe(group=GROUP, ordering="key", retry=LATER)
    async def handle(message: Message) -> None:
        nonlocal left
        if message.key == FAILING:
            raise ValueError
        left -= 1
        if not left:
            done.set()

    for first in range(0, backlog, AT_A_TIME):
        numbers = range(first, min(backlog, first + AT_A_TIME))
        await orders.send_batch([Outgoing(number, key=FAILING) for number in numbers])
    await orders.send_batch(
        [Outgoing(number, key=f"other-{number % OTHER_KEYS}") for number in range(OTHERS)]
    )
    meter, worker = await Meter(app.redis).start(), app.worker()
    running = asyncio.create_task(worker.run())
    await done.wait()
    spent = await meter.spent()
    await worker.stop()
    await running
    return {
        "others handled after": spent.seconds,
        "client": spent.client_us / (backlog + OTHERS),
        "server": spent.server_us / (backlog + OTHERS),
    }


async def main(backlog: int) -> None:
    async with app:
        print(json.dumps(await handle_others(backlog)), flush=True)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
