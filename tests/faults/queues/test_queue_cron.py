"""Schedulers die at any moment, and clocks jump: each tick is still queued once."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time

import pytest
from tests.kit.crews.wrong_clock import server_offset_s
from tests.kit.scripts import load_script

from penstock.queues.schedules.cron import Every
from penstock.queues.schedules.schedule import Schedule
from penstock.queues.schedules.scheduler import Scheduler
from penstock.queues.storage.keys import QueueKeyring
from penstock.redis.client import Client
from penstock.settings import Settings, TimeoutSettings
from penstock.testing.eventually import eventually

PERIOD_S = 0.1
PROCESSES = 5
KILLED_FOR_S = 6.0
HOUR, DAY = 3_600, 86_400

PROGRAM = """
import asyncio, json, sys
from penstock.queues.schedules.cron import Every
from penstock.queues.schedules.schedule import Schedule
from penstock.queues.schedules.scheduler import Scheduler
from penstock.redis.client import Client
from tests.kit.scripts import load_script
from penstock.settings import Settings, TimeoutSettings

def make(job_id, tick_ms):
    return json.dumps({"id": job_id}).encode()

async def main(url, namespace, period, tracked):
    schedule = Schedule(
        name="tick", when=Every(float(period)), queue="work", make=make, missed="all",
        fields=() if tracked == "tracked" else None,
    )
    async with Client(Settings(url=url, namespace=namespace)) as client:
        await Scheduler(client, [schedule]).serve()

asyncio.run(main(*sys.argv[1:]))
"""


class Schedulers:
    """Schedulers in processes of their own; all are gone when the block ends."""

    def __init__(self, url, namespace, tracked):
        self._arguments = (url, namespace, str(PERIOD_S), tracked)
        self.processes = []
        self.kills = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while self.processes:
            self.kill(self.processes[0])

    def start(self):
        command = [sys.executable, "-c", PROGRAM, *self._arguments]
        self.processes.append(subprocess.Popen(command))

    def some(self, dice):
        return dice.sample(self.processes, dice.randint(1, len(self.processes)))

    def kill(self, process):
        process.kill()
        process.wait(10)
        self.processes.remove(process)
        self.kills += 1


def ticks_of(jobs):
    return [int(json.loads(job)["id"].removeprefix("cron:tick:")) for job in jobs]


def ticking(missed):
    def make(job_id, tick_ms):
        return json.dumps({"id": job_id}).encode()

    return Schedule(name="tick", when=Every(PERIOD_S), queue="work", make=make, missed=missed)


@pytest.fixture
async def open_keys(namespace):
    """`client, keys = await open_keys(server)`"""
    opened = []

    async def open_one(server):
        client = Client(Settings(url=server.url, namespace=namespace))
        opened.append(client)
        await client.open()
        return client, QueueKeyring.of(client.keys, "work")

    yield open_one
    for client in opened:
        await client.close()


@pytest.mark.parametrize("tracked", ["plain", "tracked"])
async def test_five_schedulers_that_are_killed_at_any_moment_queue_each_tick_once(
    open_keys, valkey_server, namespace, tracked
):
    client, keys = await open_keys(valkey_server)
    dice = random.Random(5)  # noqa: S311  not a secret

    async def queued():
        return ticks_of(await client.call("LRANGE", keys.waiting, 0, -1))

    with Schedulers(valkey_server.url, namespace, tracked) as schedulers:
        for _ in range(PROCESSES):
            schedulers.start()
        await eventually(queued)
        ends = time.monotonic() + KILLED_FOR_S
        while time.monotonic() < ends:
            # Around a tick, when all of them are at it.
            since_tick = time.time() % PERIOD_S
            await asyncio.sleep(PERIOD_S - since_tick + dice.uniform(-0.003, 0.006))
            for process in dice.sample(
                schedulers.processes, dice.randint(1, len(schedulers.processes))
            ):
                schedulers.kill(process)
            while len(schedulers.processes) < PROCESSES:
                schedulers.start()
            await asyncio.sleep(dice.uniform(0.2, 0.8))
        killed_until = (await queued())[-1]

        async def caught_up():
            return (await queued())[-1] >= killed_until + 1_000

        await eventually(caught_up)
        assert schedulers.kills >= 10
    found = await queued()
    every = Every(PERIOD_S).period_ms
    assert found == list(range(found[0], found[-1] + 1, every))
    assert len(found) >= KILLED_FOR_S / PERIOD_S
    assert int(await client.call("ZSCORE", keys.schedule, "tick")) == found[-1] + every
    if tracked == "tracked":
        assert await client.call("ZCARD", keys.jobs("queued")) == len(found)
    assert int(await client.call("HGET", keys.counters, "added")) == len(found)


async def test_jumps_of_the_servers_clock_repeat_no_tick_and_stop_none_for_good(
    open_keys, clock, server
):
    client, keys = await open_keys(server)

    schedule = ticking(missed="once")

    async def queued():
        return ticks_of(await client.call("LRANGE", keys.waiting, 0, -1))

    async def jump(offset_s):
        clock.set(offset_s)
        await eventually(lambda: abs(server_offset_s(server) - offset_s) < 5)

    async def more_than(count):
        return len(await queued()) > count

    async with Scheduler(client, [schedule]), Scheduler(client, [schedule]):
        await eventually(lambda: more_than(5))
        await jump(HOUR)
        count = len(await queued())
        await eventually(lambda: more_than(count + 5))
        await jump(0)  # these ticks have been
        found = await queued()
        assert len(found) == len(set(found))
        await jump(HOUR + 60)
        await eventually(lambda: more_than(len(found) + 5))
        found = await queued()
        assert len(found) == len(set(found))
        assert found == sorted(found)
        await jump(10 * DAY)
        await eventually(lambda: more_than(len(found) + 5))
        await jump(2 * HOUR)  # nobody waits for ten days
        count = len(await queued())
        await eventually(lambda: more_than(count + 5))
    found = await queued()
    assert len(found) == len(set(found))


async def test_answers_that_get_lost_lose_and_repeat_no_tick(
    open_keys, valkey_server, fault_proxy, namespace
):
    client, keys = await open_keys(valkey_server)
    shaky = fault_proxy(valkey_server)
    settings = Settings(
        url=shaky.url, namespace=namespace, timeouts=TimeoutSettings(connect_s=0.3, command_s=0.3)
    )

    async def queued():
        return ticks_of(await client.call("LRANGE", keys.waiting, 0, -1))

    async def queued_after(tick):
        return (await queued())[-1] > tick

    async with Client(settings) as far, Scheduler(far, [ticking(missed="all")]):
        await eventually(queued)
        script = f"EVALSHA {load_script('fire_tick').digest}"
        for lose in (shaky.swallow, shaky.cut_before) * 2:
            rule = lose(script, times=1)
            await eventually(lambda rule=rule: rule.hits == 1)
            last = (await queued())[-1]
            await eventually(lambda last=last: queued_after(last + 200))
    found = await queued()
    assert found == list(range(found[0], found[-1] + 1, Every(PERIOD_S).period_ms))


async def test_a_full_server_keeps_ticks_due_until_it_has_room(open_keys, start_server):
    server = start_server()
    client, keys = await open_keys(server)
    async with Scheduler(client, [ticking(missed="all")]) as running:
        await eventually(lambda: running.fired >= 2)
        server.command("CONFIG", "SET", "maxmemory", "1")
        await eventually(lambda: running._failures)
        stuck = len(await client.call("LRANGE", keys.waiting, 0, -1))
        server.command("CONFIG", "SET", "maxmemory", "0")
        await eventually(lambda: running.fired > stuck)
    found = ticks_of(await client.call("LRANGE", keys.waiting, 0, -1))
    assert found == list(range(found[0], found[-1] + 1, Every(PERIOD_S).period_ms))
