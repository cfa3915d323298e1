"""A queue with as many fair lanes as may be: all that is done with it stays quick."""

import asyncio
import statistics
import time

import pytest
from tests.kit.scripts import scripts_of
from tests.kit.workplace import Workplace

from penstock.errors import QueueFull
from penstock.queues.worker.lost_lanes import relist_known_lanes
from penstock.testing.eventually import eventually

MANY, VERY_MANY = 10_000, 100_000
CLAIM = 50
LONGEST_US = 50_000
BYTES_PER_LANE = 1_000


@pytest.fixture
def own_server(start_server):
    slowlog = ("--slowlog-log-slower-than", str(LONGEST_US))
    return start_server("valkey", *slowlog, "--save", "", "--appendonly", "no")


async def fill(queue, count):
    """One job in each of so many lanes; how many were refused."""
    gate = asyncio.Semaphore(64)

    async def push(number):
        async with gate:
            try:
                await queue.push({"n": number}, group=f"g{number}")
            except QueueFull as full:
                assert full.setting == "queues.max_lanes"  # noqa: PT017  any other fails the test
                return 1
            return 0

    return sum(await asyncio.gather(*map(push, range(count))))


async def claim_ms(queue, worker):
    """How long a claim takes, in the middle of many; the jobs go back."""
    scripts, took, first = scripts_of(queue.client), [], 1
    await scripts.join_queue(keys=queue.keyring, worker=worker)
    for _ in range(15):
        began = time.perf_counter()
        reply = await scripts.claim_jobs(
            keys=queue.keyring, worker=worker, first=first, most=CLAIM, done=()
        )
        took.append((time.perf_counter() - began) * 1000)
        assert sum(map(len, reply.lanes[1::2])) == CLAIM
        first += CLAIM
    await scripts.leave_queue(keys=queue.keyring, worker=worker)
    return statistics.median(took)


async def used_bytes(app):
    info = await app.redis.call("INFO", "memory")
    return int(info.split(b"used_memory:")[1].split()[0])


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(MANY, marks=pytest.mark.slow(60)),
        pytest.param(VERY_MANY, marks=[pytest.mark.torture, pytest.mark.timeout(1800)]),
    ],
)
async def test_a_flood_of_groups_ends_at_the_limit_and_the_queue_stays_usable(own_server, count):
    async with Workplace(own_server.url) as workplace:
        app = await workplace.open(max_lanes=count, silence_s=600)
        few, queue, ran = app.queue("few"), app.queue("many"), 0
        await fill(few, 2_000)
        with_few = await claim_ms(few, "w")
        before = await used_bytes(app)
        assert await fill(queue, count + 1_000) == 1_000
        assert await used_bytes(app) - before < (count + 1_000) * BYTES_PER_LANE
        facts = await app.queues.facts("many")
        assert (facts.fair_lanes, facts.max_lanes) == (count, count)

        # A busy machine may hold one call up, but not each of three.
        slow, with_many, last = [], [], f"g{count - 1}"
        for number in range(3):
            own_server.command("SLOWLOG", "RESET")
            with_many.append(await claim_ms(queue, f"w{number}"))
            await queue.push("x", group=f"again {number}")  # claims have made room
            await app.queues.list()
            await app.queues.peek("many", lane=last)
            assert await app.queues.pause("many", last)
            assert await app.queues.resume("many", last)
            assert await app.queues.purge("many", f"g{count - 2 - number}") == 1
            entries = own_server.command("SLOWLOG", "GET", 100)
            slow.append({entry[3][0] + " " + entry[3][1] for entry in entries})
        assert set.intersection(*slow) == set()
        assert min(with_many) < 3 * with_few + 1
        assert await relist_known_lanes(queue.client, queue.keyring) == 0

        @queue.handler
        async def note(job: object) -> None:
            nonlocal ran
            ran += 1

        worker = await workplace.start(app)
        await eventually(lambda: ran > count // 20)  # lanes take turns while there are so many
        await workplace.stop(worker)
        left = (await app.queues.facts("many")).fair_lanes
        assert await app.queues.purge("many") == left
        assert await app.redis.call("EXISTS", queue.keyring.ring, queue.keyring.parked) == 0
        assert await app.redis.call("SMEMBERS", queue.keyring.lanes) == [b""]
        await queue.push("x", group="another")
