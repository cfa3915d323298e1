"""Schedules, for the suite `sizes`: what a tick costs, how late it is, and what holds the loop up.

python schedule_ticks.py <schedules> <seconds>

One scheduler with schedules of one queue that fire 50 times a second in all, whatever their number.
Costs are measured without the watch over the event loop, which is on while the schedules are
declared and for as long again afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Self

import uvloop

from meter import Meter, percentile
from penstock import Settings
from penstock.queues.schedules.cron import Every
from penstock.queues.schedules.schedule import Schedule
from penstock.queues.schedules.scheduler import Scheduler
from penstock.queues.storage.keys import QueueKeyring
from penstock.redis import Client

URL = os.environ["BENCH_URL"]
QUEUE = "scheduled"
A_SECOND = 50
JOB = b"x" * 200
WATCH_EVERY_S = 0.005


class LoopWatch:
    """How long the event loop was held up at most.

    The machine may be busy with others: only processor time of our own thread shows what held the
    loop up. It is the most between two looks, so an upper bound for one stretch of work.
    """

    def __init__(self) -> None:
        self.late_ms = self.busy_ms = 0.0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            at, used = time.perf_counter(), time.thread_time()
            await asyncio.sleep(WATCH_EVERY_S)
            late_s, busy_s = time.perf_counter() - at - WATCH_EVERY_S, time.thread_time() - used
            self.late_ms = max(self.late_ms, late_s * 1000)
            self.busy_ms = max(self.busy_ms, busy_s * 1000)


async def tick(count: int, seconds: float) -> dict[str, float]:
    late_ms: list[float] = []

    def make(_: str, tick_ms: int) -> bytes:
        late_ms.append(time.time() * 1000 - tick_ms)
        return JOB

    schedules = [
        Schedule(
            name=f"tick-{number}",
            when=Every(count / A_SECOND, number / A_SECOND),
            queue=QUEUE,
            make=make,
        )
        for number in range(count)
    ]
    watch = LoopWatch()
    async with Client(Settings(url=URL)) as client:
        keys = QueueKeyring.of(client.keys, QUEUE)
        meter = await Meter(client).start()
        async with Scheduler(client, schedules):
            async with watch:
                while await client.call("ZCARD", keys.schedule) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                declared = await meter.spent()
                await asyncio.sleep(1)  # what became due meanwhile
            late_ms.clear()
            meter = await Meter(client).start()
            await asyncio.sleep(seconds)
            spent, counted = await meter.spent(), late_ms[:]
            async with watch:
                await asyncio.sleep(seconds)
    return {
        "client": spent.client_us / len(counted),
        "server": spent.server_us / len(counted),
        "both": (spent.client_us + spent.server_us) / len(counted),
        "ticks": len(counted) / spent.seconds,
        "late p50": percentile(counted, 50),
        "late p99": percentile(counted, 99),
        "loop held up": watch.busy_ms,
        "loop late": watch.late_ms,
        "declared after": declared.seconds,
        "declare client": declared.client_us / count,
        "declare server": declared.server_us / count,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(tick(int(sys.argv[1]), float(sys.argv[2])))), flush=True)
