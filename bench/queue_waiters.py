"""Callers that wait for results, for the suite `queues`: what they cost, and when they hear.

python queue_waiters.py <waiters>
                        work

Each of so many tasks in one process waits for a job of its own. For a few seconds no job ends; then
`work`, another process, ends one after the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time

import uvloop

from penstock import Penstock, Settings
from penstock.settings import QueueSettings

URL = os.environ["BENCH_URL"]
IDLE_S = 3.0
PACE_S = 0.004
MOST_ENDS = 400

app = Penstock(settings=Settings(url=URL, queues=QueueSettings(max_size=0)))


@app.task(queue="awaited", status=True)
async def end() -> float:
    await asyncio.sleep(PACE_S)
    return time.time()


async def work() -> None:
    await app.worker(concurrency=1).run()


class Costs:
    """What this process and the server have used up since it was made."""

    async def begin(self) -> Costs:
        self._client_s, self._at = time.process_time(), time.monotonic()
        self._server_s, self._commands = await self._server()
        return self

    async def told(self) -> dict[str, float]:
        client_s, at = time.process_time(), time.monotonic()
        server_s, commands = await self._server()
        return {
            "client_us": (client_s - self._client_s) * 1e6,
            "server_us": (server_s - self._server_s) * 1e6,
            "commands_a_second": (commands - self._commands) / (at - self._at),
        }

    async def _server(self) -> tuple[float, int]:
        text = (await app.redis.call("INFO", "everything")).decode()
        facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        used_s = float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])
        return used_s, int(facts["total_commands_processed"])


async def wait(count: int) -> dict[str, float]:
    heard, enough = list[float](), asyncio.Event()
    jobs = await end.send_many([()] * count)
    setting_up = await Costs().begin()

    async def caller(job: object) -> None:
        ended_at = await job.result()  # type: ignore[attr-defined]
        heard.append((time.time() - ended_at) * 1000)
        if len(heard) == min(count, MOST_ENDS):
            enough.set()

    callers = [asyncio.create_task(caller(job)) for job in jobs]
    await asyncio.sleep(1 + count / 5_000)
    set_up = await setting_up.told()
    waiting = await Costs().begin()
    await asyncio.sleep(IDLE_S)
    idle = await waiting.told()
    print(json.dumps({"ready": 1}), flush=True)
    await enough.wait()
    for task in callers:
        task.cancel()
    await asyncio.wait(callers)
    heard.sort()
    return {
        "begin client µs": set_up["client_us"] / count,
        "begin server µs": set_up["server_us"] / count,
        "wait client µs/s": idle["client_us"] / IDLE_S,
        "wait server µs/s": idle["server_us"] / IDLE_S,
        "wait commands/s": idle["commands_a_second"],
        "heard p50 ms": statistics.median(heard),
        "heard p99 ms": heard[int(len(heard) * 0.99) - 1] if len(heard) > 1 else heard[0],
    }


async def main(role: str) -> None:
    async with app:
        if role == "work":
            await work()
        else:
            print(json.dumps(await wait(int(role))), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
