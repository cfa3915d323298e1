"""Workers that wait for jobs, for the suite `idle_queues`: what they cost, and how soon they wake.

python idle_workers.py <workers> <queues> <processes> <seconds> <jobs>

So many workers, each an application with connections of its own, serve all queues, spread over the
processes. Nothing is queued for `seconds`; then `jobs` are sent, one every 5 ms, to the queues and
their lanes in turn. Tells commands and processor time a second, how long it takes until a first job
of every queue is done that is sent as soon as all workers are ready, and how long jobs are on their
way.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

import uvloop

from meter import commands_in, percentile
from penstock import Client, Penstock, Settings
from penstock.redis.keys import QueueKeyring

URL = os.environ["BENCH_URL"]
LANES = ({}, {"priority": "high"}, {"group": "tenant"})
EVERY_S = 0.005
SETTLE_S = 2.0
TICKS = os.sysconf("SC_CLK_TCK")


def application(queues: int, began: Callable[[float], None]) -> tuple[Penstock, list[object]]:
    app, tasks = Penstock(settings=Settings(url=URL)), []
    for number in range(queues):

        @app.task(queue=f"q{number}", name=f"note-{number}")
        async def note(sent_at: float) -> None:
            if sent_at > 0:
                began(time.time() - sent_at)

        tasks.append(note)
    return app, tasks


async def work(workers: int, queues: int, told: int, heard: int) -> None:
    """Run workers until the parent has closed its end; tell how long jobs were on their way."""
    waits: list[float] = []
    apps = [application(queues, waits.append)[0] for _ in range(workers)]
    for app in apps:
        await app.open()
    running = [app.worker() for app in apps]
    tasks = [asyncio.create_task(worker.run()) for worker in running]
    while not all(worker.readiness().ready for worker in running):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    os.write(told, b"ready\n")
    await asyncio.to_thread(os.read, heard, 1)
    os.write(told, (json.dumps(waits) + "\n").encode())
    for worker in running:
        worker.ask_to_stop()
    await asyncio.gather(*tasks)
    for app in apps:
        await app.close()


async def measure(queues: int, seconds: float, jobs: int, children: list[int]) -> dict[str, float]:
    """Look at the server and at the children while nothing is queued, then send jobs."""
    app, tasks = application(queues, lambda _: None)
    async with app, Client(Settings(url=URL)) as client:
        for task in tasks:
            await task.with_options(**LANES[1]).send(-1.0)  # type: ignore[attr-defined]
        sent_at = time.time()
        while await counted(client, queues) < queues:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        first_s = time.time() - sent_at
        await asyncio.sleep(SETTLE_S)
        before = await server_s(client), children_s(children), time.monotonic()
        await asyncio.sleep(seconds)
        after = await server_s(client), children_s(children), time.monotonic()
        server, own, took_s = (new - old for new, old in zip(after, before, strict=True))
        commands = await commands_in(seconds, URL.removeprefix("unix://"))
        for number in range(jobs):
            options = LANES[number % len(LANES)]
            task = tasks[number % queues]
            await task.with_options(**options).send(time.time())  # type: ignore[attr-defined]
            await asyncio.sleep(EVERY_S)
        await asyncio.sleep(0.5)
    return {
        "first job": first_s,
        "client": own * 1e6 / took_s,
        "server": server * 1e6 / took_s,
        "commands": commands / seconds,
    }


async def counted(client: Client, queues: int) -> int:
    """How many jobs are done."""
    rings = [QueueKeyring.of(client.keys, f"q{number}") for number in range(queues)]
    return sum(
        map(
            int,
            filter(None, await client.pipeline([("HGET", one.counters, "done") for one in rings])),
        )
    )


async def server_s(client: Client) -> float:
    info = (await client.call("INFO", "cpu")).decode().splitlines()
    facts = dict(line.split(":", 1) for line in info if ":" in line)
    return float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])


def children_s(children: list[int]) -> float:
    ticks = 0
    for child in children:
        with open(f"/proc/{child}/stat", encoding="ascii") as told:  # noqa: PTH123
            fields = told.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def forked(body: Callable[[int, int], Awaitable[None]]) -> tuple[int, int, int]:
    """A child process with all imports done: its id, what it tells, and a pipe to it."""
    heard, told = os.pipe()
    listens, says = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(says)
            uvloop.run(body(told, listens))  # type: ignore[arg-type]
        finally:
            os._exit(0)  # it must not go on as its parent
    os.close(told)
    os.close(listens)
    return child, heard, says


def main() -> None:
    workers, queues, processes = map(int, sys.argv[1:4])
    seconds, jobs = float(sys.argv[4]), int(sys.argv[5])
    children = [
        forked(lambda told, heard: work(workers // processes, queues, told, heard))
        for _ in range(processes)
    ]
    tells = [os.fdopen(heard) for _, heard, _ in children]
    for one in tells:
        assert one.readline() == "ready\n"  # noqa: S101
    told = uvloop.run(measure(queues, seconds, jobs, [child for child, _, _ in children]))
    for _, _, says in children:
        os.close(says)
    waits = [wait for one in tells for wait in json.loads(one.readline())]
    print(
        json.dumps(
            {
                **told,
                "wake-up p50": 1000 * percentile(waits, 50),
                "wake-up p99": 1000 * percentile(waits, 99),
            }
        )
    )
    for child, _, _ in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
