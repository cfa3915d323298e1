"""Aggregators die, closers race with adders, servers go away: each item is in exactly one batch."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter

import pytest
from tests.kit.crews.window_crew import LATE_MS, MAX_AGE_S, SHARES

from penstock import Penstock
from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.window import Window
from penstock.settings import Settings
from penstock.testing.eventually import eventually
from penstock.testing.servers import ServerProcess


async def storm(crew, *, kills, every_s, seed):
    """Kill one aggregator after another, each time starting the next for its share."""
    chance = random.Random(seed)  # noqa: S311  repeatable, not secret
    async with crew:
        await crew.aggregate(*range(SHARES))
        at_work = 0
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0, every_s))  # somewhere within its work
            victim = chance.randrange(SHARES)
            await crew.aggregators[victim].kill()
            at_work += crew.done() < crew.items
            await crew.aggregate(victim)
        await crew.all_added()
        assert at_work >= kills // 4
        return await crew.hold()


async def test_a_storm_of_kills_loses_and_doubles_no_item(make_window_crew, valkey_server):
    crew = make_window_crew(valkey_server, keys=500, items=6_000)
    await storm(crew, kills=12, every_s=0.2, seed=1)


async def test_a_storm_of_kills_on_a_cluster(make_window_crew, cluster):
    crew = make_window_crew(cluster, keys=100, items=1_500)
    await storm(crew, kills=5, every_s=0.15, seed=2)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(5))
async def test_long_storms_of_kills_lose_and_double_no_item(make_window_crew, valkey_server, seed):
    crew = make_window_crew(valkey_server, keys=500, items=100_000)
    await storm(crew, kills=150, every_s=0.2, seed=seed)


@pytest.mark.parametrize("script", ["add_to_window", "close_windows"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_aggregator_dies_right_around_its_words(
    make_window_crew, valkey_server, when, script
):
    """Each share has its own, so that they die at different calls of the script."""
    crew = make_window_crew(valkey_server, keys=20, items=400)
    async with crew:
        for share in range(SHARES):
            await crew.aggregate(share, crash=f"{when} {script} {1 + 3 * share}")
        for share in range(SHARES):
            assert await crew.aggregators[share].ended() == -signal.SIGKILL
            await crew.aggregate(share)
        await crew.all_added()
        await crew.hold()


async def test_batches_of_dead_aggregators_are_closed_by_a_worker_without_their_code(
    make_window_crew, valkey_server
):
    crew = make_window_crew(valkey_server, keys=100, items=400, pace_s=0)
    async with crew:
        await crew.aggregate(*range(SHARES))
        await crew.all_added()
        for aggregator in crew.aggregators.values():
            await aggregator.kill()
        async with WindowCloser(crew.app.redis, crew.app.codec):
            await crew.hold()


# ---- racing


async def race(app, other, times):
    """Add and close at the same moment, over different connections."""
    queue = app.queue("batches", max_size=0)
    adding = Window(app.redis, app.codec, "gather", to=queue, max_items=3)
    closing = Window(other.redis, other.codec, "gather", to=other.queue("batches", max_size=0))
    seen, keys, batches = Counter(), 50, set()

    async def one(key, count):
        for number in range(count):
            added, _ = await asyncio.gather(
                adding.add(f"key-{key}", number), closing.close(f"key-{key}")
            )
            assert added.is_new

    rounds = times // keys
    for begin in range(0, rounds, 100):
        count = min(100, rounds - begin)
        await asyncio.gather(*(one(key, count) for key in range(keys)))
        for key in range(keys):
            await adding.close(f"key-{key}")
        stored = await app.redis.call("LPOP", queue.keyring.waiting, 1_000_000)
        for job in map(json.loads, stored):
            assert job["batch_id"] not in batches
            batches.add(job["batch_id"])
            seen.update((job["key"], item, begin) for item in job["items"])
    assert len(seen) == rounds * keys
    assert set(seen.values()) == {1}
    # Closes came before, between and after adds.
    assert rounds * keys / 3 < len(batches) < rounds * keys


async def open_two(server, namespace):
    settings = Settings(url=server.url, namespace=namespace)
    return Penstock(settings=settings), Penstock(settings=settings)


async def test_an_item_that_races_with_the_close_of_its_batch_is_in_one_batch(
    valkey_server, namespace
):
    app, other = await open_two(valkey_server, namespace)
    async with app, other:
        await race(app, other, 3_000)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
async def test_100_000_items_that_race_with_the_close_of_their_batch(valkey_server, namespace):
    app, other = await open_two(valkey_server, namespace)
    async with app, other:
        await race(app, other, 100_000)


# ---- outages


async def test_batches_outlive_an_outage_of_their_server(make_window_crew):
    """The server is away for longer than any batch is open; nothing in it has an end of its own."""
    with ServerProcess("valkey") as server:
        crew = make_window_crew(server, keys=50, items=1_200)
        async with crew:
            await crew.aggregate(*range(SHARES))
            await eventually(lambda: crew.done() > 200)
            server.kill()
            await asyncio.sleep(MAX_AGE_S + 0.3)
            server.start()
            await crew.all_added()
            # Those that became due meanwhile are late by the outage, and no more than that.
            await crew.hold(late_ms=LATE_MS + (MAX_AGE_S + 2) * 1000)


async def test_nothing_of_an_open_batch_expires_while_nobody_looks(make_window_crew, valkey_server):
    crew = make_window_crew(valkey_server, keys=1, items=0)
    async with crew:
        await crew.window.add("a", 1, id="one")
        keys = await crew.app.redis.call("KEYS", f"{crew.app.settings.namespace}::*")
        ttls = {key: await crew.app.redis.call("PTTL", key) for key in keys}
    assert {key for key, ttl in ttls.items() if ttl != -1} == {
        f"{crew.app.settings.namespace}::batch:gather%1Fa:seen".encode()
    }
