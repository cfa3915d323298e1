"""Workers that wait for work, for the suite `idle_queues`: what they cost, and how soon they wake.

python idle_workers.py <workers> <queues> <topics> <processes> <seconds> <jobs>

So many workers, each an application with connections of its own, serve all queues and subscribe to
all topics, spread over the processes. As soon as all are ready, a job is sent to each queue and a
message to each topic. Nothing is sent for `seconds`; then `jobs` are sent, one every 5 ms, to the
queues and their lanes in turn, and as many messages if there are topics. Tells commands and
processor time a second, how long the first ones and all others are on their way, and what the
server costs with as many connections on which nothing is ever sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import uvloop

from meter import commands_in, percentile
from penstock import Penstock, Settings
from penstock.redis import Client

URL = os.environ["BENCH_URL"]
LANES = ({}, {"priority": "high"}, {"group": "tenant"})
EVERY_S = 0.005
SETTLE_S = 2.0
TICKS = os.sysconf("SC_CLK_TCK")


Waits = dict[str, list[float]]
"""Seconds on the way by what was sent: `jobs`, `messages`, and the `first` of each."""


def application(queues: int, topics: int, waits: Waits) -> tuple[Penstock, list[object]]:
    """An application with so many queues and subscriptions, and the tasks of the queues.

    What is sent is the time of sending; below zero for the first ones.
    """
    app, tasks = Penstock(settings=Settings(url=URL)), []

    def note(kind: str, sent_at: float) -> None:
        waits["first" if sent_at < 0 else kind].append(time.time() - abs(sent_at))

    for number in range(queues):

        @app.task(queue=f"q{number}", name=f"note-{number}")
        async def run(sent_at: float) -> None:
            note("jobs", sent_at)

        tasks.append(run)
    for number in range(topics):

        @app.topic(f"t{number}", type=float).subscribe("group")
        async def handle(sent_at: float) -> None:
            note("messages", sent_at)

    return app, tasks


async def work(workers: int, queues: int, topics: int, told: int, heard: int) -> None:
    """Run workers until the parent has closed its end; tell how long jobs were on their way."""
    waits: Waits = {"jobs": [], "messages": [], "first": []}
    apps = [application(queues, topics, waits)[0] for _ in range(workers)]
    for app in apps:
        await app.open()
    running = [app.worker() for app in apps]
    tasks = [asyncio.create_task(worker.run()) for worker in running]
    while not all(worker.readiness().ready for worker in running):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    os.write(told, b"ready\n")
    await asyncio.to_thread(os.read, heard, 1)
    with os.fdopen(told, "w") as tells:
        tells.write(json.dumps(waits) + "\n")
    for worker in running:
        worker.ask_to_stop()
    await asyncio.gather(*tasks)
    for app in apps:
        await app.close()


async def measure(
    queues: int, topics: int, seconds: float, jobs: int, children: list[int]
) -> dict[str, float]:
    """Look at the server and at the children while nothing is queued, then send jobs."""
    app, tasks = application(queues, topics, {})

    async def send_job(number: int, sent_at: float, lane: int) -> None:
        task = tasks[number % queues]
        await task.with_options(**LANES[lane % len(LANES)]).send(sent_at)  # type: ignore[attr-defined]

    async def send_message(number: int, sent_at: float) -> None:
        await app.topic(f"t{number % topics}", type=float).send(sent_at)

    async with app, Client(Settings(url=URL)) as client:
        for number in range(queues):
            await send_job(number, -time.time(), 1)
        for number in range(topics):
            await send_message(number, -time.time())
        await asyncio.sleep(SETTLE_S)
        before = await server_s(client), children_s(children), time.monotonic()
        await asyncio.sleep(seconds)
        after = await server_s(client), children_s(children), time.monotonic()
        server, own, took_s = (new - old for new, old in zip(after, before, strict=True))
        commands = await commands_in(seconds, URL.removeprefix("unix://"))
        connections = await client.call("CLIENT", "LIST")
        for number in range(jobs):
            await send_job(number, time.time(), number)
            if topics:
                await send_message(number, time.time())
            await asyncio.sleep(EVERY_S)
        await asyncio.sleep(0.5)
    return {
        "client": own * 1e6 / took_s,
        "server": server * 1e6 / took_s,
        "commands": commands / seconds,
        "connections": connections.count(b"\n"),
    }


async def floor_us(connections: int, seconds: float) -> float:
    """What the server needs a second for connections on which nothing is sent."""
    async with AsyncExitStack() as stack, Client(Settings(url=URL)) as client:
        for _ in range(connections - 1):
            _, writer = await asyncio.open_unix_connection(URL.removeprefix("unix://"))
            stack.callback(writer.close)
        await asyncio.sleep(SETTLE_S)
        before = await server_s(client), time.monotonic()
        await asyncio.sleep(seconds)
        return 1e6 * (await server_s(client) - before[0]) / (time.monotonic() - before[1])


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
    workers, queues, topics, processes = map(int, sys.argv[1:5])
    seconds, jobs = float(sys.argv[5]), int(sys.argv[6])
    children = [
        forked(lambda told, heard: work(workers // processes, queues, topics, told, heard))
        for _ in range(processes)
    ]
    tells = [os.fdopen(heard) for _, heard, _ in children]
    for one in tells:
        assert one.readline() == "ready\n"  # noqa: S101
    pids = [child for child, _, _ in children]
    found = uvloop.run(measure(queues, topics, seconds, jobs, pids))
    for _, _, says in children:
        os.close(says)
    told: list[Waits] = [json.loads(one.readline()) for one in tells]
    for child in pids:
        os.waitpid(child, 0)
    found["server, nothing sent"] = uvloop.run(floor_us(int(found["connections"]), seconds))
    jobs_s, messages_s, first_s = (
        [wait for one in told for wait in one[kind]] for kind in ("jobs", "messages", "first")
    )
    found["first"] = max(first_s)
    for name, waits in (("wake-up", jobs_s), ("message", messages_s)):
        if waits:
            found[f"{name} p50"] = 1000 * percentile(waits, 50)
            found[f"{name} p99"] = 1000 * percentile(waits, 99)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
