"""Aggregators die, closers race with adders, servers go away: each item is in exactly one batch."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.window import Window
from penstock.errors import ServerError
from penstock.settings import Settings, TimeoutSettings
from penstock.testing.eventually import eventually
from penstock.testing.servers import ServerProcess

from .topics.crew import Launcher

AGGREGATOR = Path(__file__).parent / "windows" / "aggregator.py"
MAX_AGE_S, IDLE_S, MAX_ITEMS = 1.0, 0.4, 7
LATE_MS = 1_000
SHARE = 4


@pytest.fixture(scope="module")
def aggregators():
    launcher = Launcher(AGGREGATOR)
    yield launcher
    launcher.close()


class Crew:
    """Four aggregator processes around one window, and what has come of it."""

    def __init__(self, launcher, server, namespace, folder, *, keys, items, pace_s=0.005):
        self.launcher, self.folder, self.items = launcher, folder, items
        self.told = {
            "url": server.url,
            "namespace": namespace,
            "folder": str(folder),
            "keys": keys,
            "items": items,
            "share": SHARE,
            "pace_s": pace_s,
            "window": {"max_age": MAX_AGE_S, "idle": IDLE_S, "max_items": MAX_ITEMS},
        }
        quick = TimeoutSettings(connect_s=1.0, command_s=1.0)
        self.app = Penstock(settings=Settings(url=server.url, namespace=namespace, timeouts=quick))
        self.queue = self.app.queue("batches", max_size=0)
        self.window = Window(
            self.app.redis, self.app.codec, "gather", to=self.queue, **self.told["window"]
        )
        self.pids = {}

    async def __aenter__(self):
        await self.app.open()
        return self

    async def __aexit__(self, *_):
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self.app.close()

    async def hire(self, first, crash=""):
        """Start the aggregator of one share; the one before it has to be dead."""
        told = {**self.told, "first": first, "actor": f"aggregator-{first}", "crash": crash}
        self.pids[first] = await asyncio.to_thread(self.launcher.start, told)

    async def kill(self, first):
        os.kill(self.pids[first], signal.SIGKILL)
        await self.dead(first)

    async def dead(self, first):
        pid = self.pids[first]
        await eventually(lambda: pid in self.launcher.codes, 20, what=f"the end of {first}")
        return self.launcher.codes[pid]

    def done(self):
        """How many items the aggregators know to be added."""
        files = [self.folder / f"share-{first}" for first in range(SHARE)]
        return sum(int(file.read_text()) for file in files if file.exists())

    async def all_added(self, within_s=600.0):
        await eventually(lambda: self.done() >= self.items, within_s, what="all items to be added")

    async def jobs(self):
        stored = await self.app.redis.call("LRANGE", self.queue.keyring.waiting, 0, -1)
        return [json.loads(job) for job in stored]

    async def all_closed(self, within_s=10.0):
        async def none_is_open():
            try:
                return await self.window.open_batches() == []
            except ServerError:
                return False

        await eventually(none_is_open, within_s, what="all batches to be closed")

    async def hold(self, *, late_ms=LATE_MS):
        """Check that every promise was kept; how late batches were closed, at most."""
        await self.all_closed()
        jobs = await self.jobs()
        items = Counter(item for job in jobs for item in job["items"])
        assert sorted(items) == list(range(self.items)), "items were lost"
        assert set(items.values()) == {1}, "items were doubled"
        ids = Counter(job["batch_id"] for job in jobs)
        assert set(ids.values()) == {1}, "a batch was closed twice"
        late = [0]
        for job in jobs:
            assert {item % self.told["keys"] for item in job["items"]} == {int(job["key"][4:])}
            assert 1 <= job["count"] == len(job["items"]) <= MAX_ITEMS
            if job["reason"] in {"max_age", "idle"}:
                last_ms = round(datetime.fromisoformat(job["last_activity"]).timestamp() * 1000)
                due_ms = min(job["started_ms"] + MAX_AGE_S * 1000, last_ms + IDLE_S * 1000)
                late.append(job["ended_ms"] - due_ms)
        assert min(late) >= 0
        assert max(late) <= late_ms
        await self.nothing_is_left()
        return max(late)

    async def nothing_is_left(self):
        if self.app.redis.keys.cluster:
            return
        left = await self.app.redis.call("KEYS", f"{self.told['namespace']}:batch:*")
        assert [key for key in left if not key.endswith(b":seen")] == []


@pytest.fixture
def make_crew(aggregators, namespace, tmp_path):
    def make(server, **options):
        return Crew(aggregators, server, namespace, tmp_path, **options)

    return make


async def storm(crew, *, kills, every_s, seed):
    """Kill one aggregator after another, each time starting the next for its share."""
    chance = random.Random(seed)  # noqa: S311  repeatable, not secret
    async with crew:
        for first in range(SHARE):
            await crew.hire(first)
        at_work = 0
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0, every_s))  # somewhere within its work
            victim = chance.randrange(SHARE)
            await crew.kill(victim)
            at_work += crew.done() < crew.items
            await crew.hire(victim)
        await crew.all_added()
        assert at_work >= kills // 4
        return await crew.hold()


async def test_a_storm_of_kills_loses_and_doubles_no_item(make_crew, valkey_server):
    crew = make_crew(valkey_server, keys=500, items=6_000)
    await storm(crew, kills=12, every_s=0.2, seed=1)


async def test_a_storm_of_kills_on_a_cluster(make_crew, cluster):
    crew = make_crew(cluster, keys=100, items=1_500)
    await storm(crew, kills=5, every_s=0.15, seed=2)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(5))
async def test_long_storms_of_kills_lose_and_double_no_item(make_crew, valkey_server, seed):
    crew = make_crew(valkey_server, keys=500, items=100_000)
    await storm(crew, kills=150, every_s=0.2, seed=seed)


@pytest.mark.parametrize("script", ["add_to_window", "close_windows"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_aggregator_dies_right_around_its_words(make_crew, valkey_server, when, script):
    """Each share has its own, so that they die at different calls of the script."""
    crew = make_crew(valkey_server, keys=20, items=400)
    async with crew:
        for first in range(SHARE):
            await crew.hire(first, crash=f"{when} {script} {1 + 3 * first}")
        for first in range(SHARE):
            assert await crew.dead(first) == -signal.SIGKILL
            await crew.hire(first)
        await crew.all_added()
        await crew.hold()


async def test_batches_of_dead_aggregators_are_closed_by_a_worker_without_their_code(
    make_crew, valkey_server
):
    crew = make_crew(valkey_server, keys=100, items=400, pace_s=0)
    async with crew:
        for first in range(SHARE):
            await crew.hire(first)
        await crew.all_added()
        for first in range(SHARE):
            await crew.kill(first)
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


async def test_batches_outlive_an_outage_of_their_server(make_crew):
    """The server is away for longer than any batch is open; nothing in it has an end of its own."""
    with ServerProcess("valkey") as server:
        crew = make_crew(server, keys=50, items=1_200)
        async with crew:
            for first in range(SHARE):
                await crew.hire(first)
            await eventually(lambda: crew.done() > 200, 20)
            server.kill()
            await asyncio.sleep(MAX_AGE_S + 0.3)
            server.start()
            await crew.all_added()
            # Those that became due meanwhile are late by the outage, and no more than that.
            await crew.hold(late_ms=LATE_MS + (MAX_AGE_S + 2) * 1000)


async def test_nothing_of_an_open_batch_expires_while_nobody_looks(make_crew, valkey_server):
    crew = make_crew(valkey_server, keys=1, items=0)
    async with crew:
        await crew.window.add("a", 1, id="one")
        keys = await crew.app.redis.call("KEYS", f"{crew.told['namespace']}:*")
        ttls = {key: await crew.app.redis.call("PTTL", key) for key in keys}
    assert {key for key, ttl in ttls.items() if ttl != -1} == {
        f"{crew.told['namespace']}:batch:gather%1Fa:seen".encode()
    }
