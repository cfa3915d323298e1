"""Callers that wait for slots, for the suite `sizes`: grants against the possible, and their cost.

python slot_waiters.py <waiters> <processes> <seconds>

Every caller holds a slot for a moment and then waits for the next one, so that as many wait all the
time. Costs are those of the processes that wait, and of the server.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time

import redis.asyncio  # noqa: F401  before the fork: whoever waits for a slot needs it
import uvloop

from idle_workers import forked
from meter import Meter, Spent
from penstock import Penstock, Settings
from penstock.redis import Client

URL = os.environ["BENCH_URL"]
SLOTS, HOLD_S = 8, 0.1
POSSIBLE_A_SECOND = SLOTS / HOLD_S
SETTLE_S = 2.0
"""From when all processes are there until it counts."""


async def wait(waiters: int, said: int, heard: int) -> None:
    """Wait in many tasks; say how many slots were granted in the time that counts, at what cost."""
    granted, begin, end = 0, math.inf, 0.0

    async def caller() -> None:
        nonlocal granted
        while True:
            async with gpu.hold():
                granted += begin <= time.time() < end
                await asyncio.sleep(HOLD_S)

    async with Penstock(settings=Settings(url=URL)) as app:
        gpu = app.slots("gpu", SLOTS)
        callers = [asyncio.create_task(caller()) for _ in range(waiters)]
        await asyncio.sleep(0)  # all have asked
        os.write(said, b"ready\n")
        begin, end = json.loads(await asyncio.to_thread(os.read, heard, 100))
        await asyncio.sleep(begin - time.time())
        used_s = time.process_time()
        await asyncio.sleep(end - time.time())
        used_s = time.process_time() - used_s
        for task in callers:
            if task.done():
                task.result()  # raises what ended it
            task.cancel()
        await asyncio.wait(callers)
    os.write(said, json.dumps([granted, used_s]).encode())


async def watch_server(begin: float, seconds: float) -> Spent:
    async with Client(Settings(url=URL)) as client:
        await asyncio.sleep(begin - time.time())
        meter = await Meter(client).start()
        await asyncio.sleep(seconds)
        return await meter.spent()


def main() -> None:
    waiters, processes, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    children = [
        forked(lambda said, heard: wait(waiters // processes, said, heard))
        for _ in range(processes)
    ]
    words = [os.fdopen(heard) for _, heard, _ in children]
    for one in words:
        assert one.readline() == "ready\n"  # noqa: S101
    begin = time.time() + SETTLE_S
    for _, _, says in children:
        os.write(says, json.dumps([begin, begin + seconds]).encode())
    server = uvloop.run(watch_server(begin, seconds))
    found = [json.loads(one.readline()) for one in words]
    granted, used_s = (sum(column) for column in zip(*found, strict=True))
    measured = {
        "grants": granted / seconds,
        "of the possible": granted / seconds / POSSIBLE_A_SECOND,
        "client": used_s * 1e6 / max(1, granted),
        "server": server.server_us / max(1, granted),
        "server in all": 100 * server.server_us / 1e6 / server.seconds,
    }
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
