"""Callers that wait for a limit, for the suite `limits`: how many permits they get.

python limit_waiters.py <exact | compact | gcra> <waiters> <processes> <begin> <seconds>

Every caller asks again as soon as it was granted, so that as many wait all the time. What was
granted counts from `begin` on, in seconds since 1970, for so many seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import uvloop

from penstock import Penstock, Settings

RATE = "1000/s"
URL = os.environ["BENCH_URL"]


async def wait(algorithm: str, waiters: int, begin: float, seconds: float) -> int:
    """Wait in many tasks; how many were granted in the time that counts."""
    granted = 0

    async def caller() -> None:
        nonlocal granted
        while True:
            await limit.acquire()
            granted += begin <= time.time() < begin + seconds

    async with Penstock(settings=Settings(url=URL)) as app:
        limit = app.limit("bench", RATE, algorithm=algorithm)
        callers = [asyncio.create_task(caller()) for _ in range(waiters)]
        done, _ = await asyncio.wait(
            callers, timeout=begin + seconds - time.time(), return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()
        for task in callers:
            task.cancel()
        await asyncio.wait(callers)
    return granted


def main() -> None:
    algorithm, waiters, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    begin, seconds = float(sys.argv[4]), float(sys.argv[5])
    results: list[int] = []
    for _ in range(processes):
        result, told = os.pipe()
        if not os.fork():  # with all imports done
            try:
                granted = uvloop.run(wait(algorithm, waiters // processes, begin, seconds))
                os.write(told, f"{granted}".encode())
            finally:
                os._exit(0)  # it must not go on as its parent
        os.close(told)
        results.append(result)
    print(json.dumps({"granted": sum(int(os.read(result, 20)) for result in results)}))


if __name__ == "__main__":
    main()
