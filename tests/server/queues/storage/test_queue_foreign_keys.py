"""A key of another type where a queue has its own: no job is lost, and all end once it is gone."""

import contextlib
import json
import math

import pytest
from tests.kit.workplace import letters, stored

from penstock import RetryPolicy
from penstock.errors import CommandRefused
from penstock.queues.storage.keys import lane_name
from penstock.queues.worker.claimed_jobs import WorkerCounts
from penstock.queues.worker.lost_lanes import relist_known_lanes
from penstock.queues.worker.reaper import Reaper
from penstock.runtime import service
from penstock.testing.eventually import eventually

ONCE = RetryPolicy(max_attempts=1)


async def everywhere(queue):
    """Numbers of all jobs of the queue, wherever they stand, in their order."""
    client, keys = queue.client, queue.keyring
    found = await stored(queue)
    for name in await client.call("KEYS", f"{keys.claims}*"):
        found += await client.call("HVALS", name)
    found += await client.call("HVALS", keys.delayed_bodies)
    if await client.call("TYPE", keys.dead_letters) == b"list":
        found += await letters(queue)
    jobs = [json.loads(item[item.index(b"{") :]) for item in found]
    return sorted(job.get("original_job", job)["args"][0] for job in jobs)


async def test_failing_jobs_outlast_a_foreign_key_under_the_dead_letters(workplace):
    app, ran = await workplace.open(silence_s=0.5), []

    @app.task(queue="orders", retry=ONCE)
    async def ship(number: int) -> None:
        ran.append(number)
        raise LookupError(number)

    keys = ship.queue.keyring
    await app.redis.call("SET", keys.dead_letters, "foreign")
    await ship.send_many([(number,) for number in range(5)])
    worker = workplace.begin(app, concurrency=5)
    await eventually(lambda: len(ran) >= 5)
    await eventually(lambda: any("WRONGTYPE" in why for why in worker.readiness().reasons))
    assert await everywhere(ship.queue) == [0, 1, 2, 3, 4]
    assert await app.redis.call("GET", keys.dead_letters) == b"foreign"

    await app.redis.call("DEL", keys.dead_letters)

    async def are_buried():
        return len(await letters(ship.queue)) == 5

    await eventually(are_buried)
    assert await everywhere(ship.queue) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("attempts", [1, 3], ids=["buries", "returns"])
@pytest.mark.parametrize(
    "broken", ["dead_letters", "waiting", "ring", "parked", "state", "counters", "dead_workers"]
)
async def test_the_reaper_loses_no_claim_to_a_foreign_key(workplace, broken, attempts):
    app = await workplace.open(silence_s=0.5)
    queue, keys = app.queue("orders"), app.queue("orders").keyring
    for number in range(5):
        job = {"task": "ship", "args": [number], "_penstock": {"begun": True}}
        await app.redis.call("HSET", keys.claimed("dead"), number + 1, json.dumps(job))
    await app.redis.call("ZADD", keys.dead_workers, 1, "dead")
    name = getattr(keys, broken)
    await app.redis.call("DEL", name)
    await app.redis.call("SET", name, "foreign")
    reaper = Reaper(
        app.redis, queue.codec, keys, lambda _: RetryPolicy(max_attempts=attempts), WorkerCounts()
    )
    long_dead = {b"dead": -math.inf}  # so that its jobs are buried without further delay
    reaper._found_dead = long_dead
    with contextlib.suppress(CommandRefused):
        await reaper.reap(0)
    await app.redis.call("DEL", name)
    assert await everywhere(queue) == [0, 1, 2, 3, 4]

    await app.redis.call("ZADD", keys.dead_workers, 1, "dead")
    reaper._found_dead = long_dead
    await reaper.reap(0)
    assert await everywhere(queue) == [0, 1, 2, 3, 4]
    assert not await app.redis.call("EXISTS", keys.claimed("dead"))


@pytest.mark.parametrize("kind", ["ring", "state"])
async def test_jobs_of_fair_lanes_run_once_a_foreign_key_over_their_turns_is_gone(
    workplace, monkeypatch, kind
):
    """A foreign SET removes what was there: which lanes have jobs has to be found again."""
    monkeypatch.setattr(service, "STEADY_S", 0.5)
    app, ran = await workplace.open(), []

    @app.task(queue="orders")
    async def ship(number: int) -> None:
        ran.append(number)

    keys = ship.queue.keyring
    for number in range(6):
        await ship.with_options(group=f"tenant {number % 3}").send(number)
    await app.queues.park(ship.queue.name, "tenant 0", 60)
    await app.redis.call("SET", getattr(keys, kind), "foreign")
    worker = workplace.begin(app)
    await eventually(lambda: any("WRONGTYPE" in why for why in worker.readiness().reasons))
    await app.redis.call("DEL", getattr(keys, kind))
    await eventually(lambda: sorted(ran) == [1, 2, 4, 5])  # parked lanes stay so
    await eventually(lambda: worker.readiness().ready)


async def test_lanes_without_turns_are_found_by_an_index_not_among_all_keys(
    workplace, valkey_server
):
    app = await workplace.open()

    @app.task(queue="orders")
    async def ship(number: int) -> None: ...

    def scans():
        return valkey_server.info("commandstats").get("cmdstat_scan", "calls=0").split(",")[0]

    keys = ship.queue.keyring
    assert await relist_known_lanes(app.redis, keys) == 0  # once it walks over all keys
    walked = scans()
    for number in range(3):
        await ship.with_options(group=f"tenant {number}").send(number)
    await app.redis.call("DEL", keys.ring)
    assert await relist_known_lanes(app.redis, keys) == 3
    assert await relist_known_lanes(app.redis, keys) == 0
    await workplace.start(app)
    await eventually(lambda: _is_done(app, keys, 3))
    assert await app.redis.call("SMEMBERS", keys.lanes) == [b""]
    assert scans() == walked


async def _is_done(app, keys, count):
    return int(await app.redis.call("HGET", keys.counters, "done") or 0) == count


async def test_a_lane_that_another_program_pushed_to_is_found_by_the_operator(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="orders")
    async def ship(number: int) -> None:
        ran.append(number)

    @app.task(queue="orders:bulk:queue")
    async def other(number: int) -> None:
        raise AssertionError

    keys = ship.queue.keyring
    await app.redis.call("RPUSH", keys.list_of(lane_name("a")), b"foreign")
    await other.send(1)
    await ship.with_options(group="a").send(1)
    await ship.with_options(priority="low").send(2)
    assert await app.queues.relist_lanes("orders") == 1
    assert await app.queues.relist_lanes("orders") == 0
    assert await app.redis.call("LRANGE", keys.ring, 0, -1) == [b"a"]
    await workplace.start(app)
    await eventually(lambda: sorted(ran) == [1, 2])
