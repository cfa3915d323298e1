"""Callers that wait for slots, for the suite `sizes`: grants against the possible, and their cost.

python slot_waiters.py <waiters> <processes> <seconds>

Every caller holds a slot for a moment and then waits for the next one, so that as many wait all the
time. Costs are those of the processes that wait, and of the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import uvloop

from meter import Meter, Spent
from penstock import Client, Penstock, Settings

URL = os.environ["BENCH_URL"]
SLOTS, HOLD_S = 8, 0.1
POSSIBLE_A_SECOND = SLOTS / HOLD_S
WARM_UP_S = 4.0


async def wait(waiters: int, begin: float, seconds: float) -> tuple[int, float]:
    """Wait in many tasks: slots granted in the time that counts, and processor seconds."""
    granted, end = 0, begin + seconds

    async def caller() -> None:
        nonlocal granted
        while True:
            async with gpu.hold():
                granted += begin <= time.time() < end
                await asyncio.sleep(HOLD_S)

    async with Penstock(settings=Settings(url=URL)) as app:
        gpu = app.slots("gpu", SLOTS)
        callers = [asyncio.create_task(caller()) for _ in range(waiters)]
        await asyncio.sleep(begin - time.time())
        used_s = time.process_time()
        await asyncio.sleep(end - time.time())
        used_s = time.process_time() - used_s
        for task in callers:
            if task.done():
                task.result()  # raises what ended it
            task.cancel()
        await asyncio.wait(callers)
    return granted, used_s


async def watch_server(begin: float, seconds: float) -> Spent:
    async with Client(Settings(url=URL)) as client:
        await asyncio.sleep(begin - time.time())
        meter = await Meter(client).start()
        await asyncio.sleep(seconds)
        return await meter.spent()


def main() -> None:
    waiters, processes, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    begin = time.time() + WARM_UP_S
    results: list[int] = []
    for _ in range(processes):
        result, written = os.pipe()
        if not os.fork():  # with all imports done
            try:
                found = uvloop.run(wait(waiters // processes, begin, seconds))
                os.write(written, json.dumps(found).encode())
            finally:
                os._exit(0)  # it must not go on as its parent
        os.close(written)
        results.append(result)
    server = uvloop.run(watch_server(begin, seconds))
    found = [json.loads(os.read(result, 100)) for result in results]
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
