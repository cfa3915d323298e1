"""Callers that wait for results, for the suite `sizes`: what they cost, and when they hear.

python queue_waiters.py <waiters> <seconds>
                        work

Each of so many tasks in one process waits for a job of its own. For so many seconds no job ends;
then `work`, another process, ends one after the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import uvloop

from meter import Meter, percentile
from penstock import Penstock, Settings
from penstock.settings import QueueSettings

URL = os.environ["BENCH_URL"]
PACE_S = 0.004
MOST_ENDS = 400

app = Penstock(settings=Settings(url=URL, queues=QueueSettings(max_size=0)))


@app.task(queue="awaited", status=True)
async def end() -> float:
    await asyncio.sleep(PACE_S)
    return time.time()


async def work() -> None:
    await app.worker(concurrency=1).run()


async def wait(count: int, seconds: float) -> dict[str, float]:
    heard, enough = list[float](), asyncio.Event()
    jobs = await end.send_many([()] * count)
    meter = await Meter(app.redis).start()

    async def caller(job: object) -> None:
        ended_at = await job.result()  # type: ignore[attr-defined]
        heard.append((time.time() - ended_at) * 1000)
        if len(heard) == min(count, MOST_ENDS):
            enough.set()

    callers = [asyncio.create_task(caller(job)) for job in jobs]
    await asyncio.sleep(1 + count / 5_000)
    begun = await meter.spent()
    meter = await Meter(app.redis).start()
    await asyncio.sleep(seconds)
    idle = await meter.spent()
    print(json.dumps({"ready": 1}), flush=True)
    await enough.wait()
    for task in callers:
        task.cancel()
    await asyncio.wait(callers)
    return {
        "begin client": begun.client_us / count,
        "begin server": begun.server_us / count,
        "waiting client": idle.client_us / idle.seconds,
        "waiting server": idle.server_us / idle.seconds,
        "waiting commands": idle.commands / idle.seconds,
        "heard p50": percentile(heard, 50),
        "heard p99": percentile(heard, 99),
    }


async def main(role: str, seconds: str = "0") -> None:
    async with app:
        if role == "work":
            await work()
        else:
            print(json.dumps(await wait(int(role), float(seconds))), flush=True)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
