"""What dead workers had is returned once, whoever returns it, whatever it was."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from tests.kit.crews.queue_crew import QUEUE

from penstock.queues.admin.claimed_jobs import wait_until_idle
from penstock.queues.storage.stored_job import read_item
from penstock.queues.worker.claimed_jobs import WorkerCounts
from penstock.queues.worker.reaper import Reaper
from penstock.testing.eventually import eventually

REAPERS = 5


async def claims_of_the_dead(crew, workers, jobs_each, items=None):
    """Leave claims of workers that are silent: written as `claim_jobs` writes them."""
    call, keys = crew.app.redis.call, crew.keys
    expected = []
    for number in range(workers):
        worker = f"dead-1-{number:06x}.1"
        await call("ZADD", keys.workers, 1, worker)
        for place in range(jobs_each):
            name = f"{number}-{place}"
            data = items[place] if items else b'{"id":"%b","task":"none","args":[]}' % name.encode()
            expected.append(name)
            await call("HSET", keys.claimed(worker), str(place + 1), data)
    return expected


@pytest.mark.parametrize("seed", range(2))
async def test_five_reapers_return_each_job_once(make_queue_crew, valkey_server, seed):
    """They run at the same time, each on a connection of its own, and one ends half-way."""
    crew = make_queue_crew(valkey_server.url)
    async with crew:
        expected = await claims_of_the_dead(crew, 4, 250)
        crews = [make_queue_crew_like(crew) for _ in range(REAPERS)]
        counts = [WorkerCounts() for _ in crews]
        for app in crews:
            await app.open()
        try:
            reapers = [
                Reaper(app.redis, app.codec, crew.keys, lambda _: crew.task.retry, count)
                for app, count in zip(crews, counts, strict=True)
            ]
            tasks = [asyncio.create_task(reaper.reap(1)) for reaper in reapers]
            await asyncio.sleep(random.Random(seed).uniform(0, 0.02))  # noqa: S311
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await reapers[1].reap(1)
        finally:
            for app in crews:
                await app.close()
        stored = await crew.app.redis.call("LRANGE", crew.keys.waiting, 0, -1)
        ids = [read_item(data, crew.app.codec).id for data in stored]
        assert sorted(ids) == sorted(expected)
        assert (await crew.counters())["reaped"] == len(expected)
        await crew.nothing_is_held()


def make_queue_crew_like(crew):
    return type(crew.app)(settings=crew.app.settings)


async def test_five_processes_return_each_job_once(make_queue_crew, valkey_server, figure):
    """Six workers die at once with jobs in hand; five others notice at the same time."""
    # On a busy machine no worker is to be given up but those that are killed.
    silence_s = 2.0
    queues = {"silence_s": silence_s, "beat_s": 0.2}
    crew = make_queue_crew(
        valkey_server.url, kind="status", queue={"concurrency": 20}, queues=queues
    )
    async with crew:
        victims = await crew.hire(6)
        await crew.at_work(*victims)
        jobs = [await crew.send(pause=600, attempts=1) for _ in range(120)]
        await eventually(lambda: len(crew.events("start")) == 120)
        await crew.at_work(*await crew.hire(REAPERS))
        await asyncio.gather(*(victim.kill() for victim in victims))
        began = time.monotonic()
        await eventually(lambda: len(crew.events("start")) == 240)
        took_s = time.monotonic() - began
        verdict = await crew.hold()
        assert verdict.counts.started == 240
        assert verdict.counts.finished == len(jobs)
        counters = await crew.counters()
        assert (counters["reaped"], counters["done"]) == (120, 120)
        figure(
            "queue faults",
            "120 jobs of 6 dead workers start again",
            took_s,
            "s",
            "<=",
            2 * silence_s,
        )


ODD = [
    b"",
    b"\xff\xfe",
    b"Z:not base64 at all",
    b"Z:AAAA",
    b"null",
    b"[]",
    b'"text"',
    b"{}",
    b'{"job_id":""}',
    b'{"job_id":7}',
    b'{"job_id":"' + b"x" * 5_000 + b'"}',
    b'{"job_id":"a b/c{d}*"}',
    b'{"job_id":"\\ud800"}',
    b'{"job_id":"same"}',
    b'{"job_id":"same","n":2}',
    b'{"task":7,"id":[]}',
    b'{"task":"' + b"t" * 3_000 + b'","args":[1]}',
    b'{"retry_count":3}',
    b'{"retry_count":-1,"max_retries":"x"}',
    b'{"retry_count":999999999999999999999}',
    b'{"retry_count":1,"retry_count":2}',
    b'{"_penstock":{"attempts":-5}}',
    b'{"_penstock":{"attempts":99,"raw":"!!"}}',
    b'{"a":1,"_penstock":7}',
    b'{"_penstock":{"max_attempts":1,"begun":true}}',
    b'{"_penstock":{"crashes":1000,"attempts":1000}}',
    b'{"_penstock":{"unique":"' + b"u" * 2_000 + b'"}}',
    b'{"_penstock":{"id":"' + b"i" * 2_000 + b'"}}',
    b"[" * 5_000,
    b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    b'{"big":"' + b"b" * 300_000 + b'"}',
]


async def test_whatever_a_dead_worker_had_in_hand_comes_back(make_queue_crew, valkey_server):
    """Any program may push anything: nothing of it may keep the rest from being returned."""
    crew = make_queue_crew(valkey_server.url)
    async with crew:
        await claims_of_the_dead(crew, 1, len(ODD), ODD)
        crew.queue.handler(_takes_anything)
        worker = crew.app.worker()
        running = asyncio.create_task(worker.run())

        async def all_are_out():
            dead = await crew.app.redis.call("ZCARD", crew.keys.dead_workers)
            left = await crew.app.redis.call("HLEN", crew.keys.claimed("dead-1-000000.1"))
            return dead == 0 and left == 0

        try:
            await eventually(all_are_out)
            counters = await crew.counters()
            assert counters.get("reaped", 0) + counters.get("dead", 0) >= len(ODD)
        finally:
            await worker.stop()
            await running
        assert not worker.failures


async def _takes_anything(payload):
    return None


async def test_a_drain_does_not_end_while_jobs_change_hands(
    make_queue_crew, valkey_server, monkeypatch
):
    """A dead worker's job goes back to the list right after that was found empty."""
    crew = make_queue_crew(valkey_server.url)
    async with crew:
        await claims_of_the_dead(crew, 1, 1)
        client, looks = crew.app.redis, []
        pipeline = client.pipeline

        async def look(commands, **options):
            answer = await pipeline(commands, **options)
            looks.append(commands)
            if len(looks) == 2:  # after the lists, before the claims
                reaper = Reaper(
                    client, crew.app.codec, crew.keys, lambda _: crew.task.retry, WorkerCounts()
                )
                await reaper.reap(1)
            return answer

        monkeypatch.setattr(client, "pipeline", look)
        assert not await wait_until_idle(client, crew.keys, 0.2)
        assert await client.call("LLEN", crew.keys.waiting) == 1
        assert (await crew.app.queues.facts(QUEUE)).waiting == 1
