"""A million jobs wait: claiming, looking and pausing take no longer than with a few."""

import asyncio
import statistics
import time

import pytest
from tests.kit.scripts import scripts_of
from tests.kit.workplace import Workplace

from penstock.queues.storage.stored_job import new_id, task_item
from penstock.testing.eventually import eventually

MILLION, CHUNK = 1_000_000, 500
SLOW_US = 5_000


@pytest.fixture
def own_server(start_server):
    return start_server("valkey", "--slowlog-log-slower-than", str(SLOW_US), "--save", "")


async def fill(queue, count):
    item = task_item(queue.codec, id=new_id(), task="note", args=b"[1]", kwargs=b"{}")
    room = ("", "right", "reject", 0, 0, 0, 0)
    names = ("lane", "side", "policy", "max_size", "max_bytes", "max_overflow", "max_lanes")
    words = dict(zip(names, room, strict=True))
    gate = asyncio.Semaphore(8)

    async def chunk():
        async with gate:
            await scripts_of(queue.client).push_jobs(
                keys=queue.keyring, items=[item] * CHUNK, **words
            )

    await asyncio.gather(*(chunk() for _ in range(count // CHUNK)))


async def claim_ms(queue, worker, most):
    """How long a claim takes, in the middle of many."""
    scripts, took, first = scripts_of(queue.client), [], 1
    await scripts.join_queue(keys=queue.keyring, worker=worker)
    for _ in range(21):
        began = time.perf_counter()
        reply = await scripts.claim_jobs(
            keys=queue.keyring, worker=worker, first=first, most=most, done=()
        )
        took.append((time.perf_counter() - began) * 1000)
        assert sum(map(len, reply.lanes[1::2])) == most
        first += most
    await scripts.leave_queue(keys=queue.keyring, worker=worker)
    return statistics.median(took)


@pytest.mark.faults
async def test_a_million_waiting_jobs_make_nothing_slower(own_server):
    ran = 0
    async with Workplace(own_server.url) as workplace:
        app = await workplace.open(max_size=0)

        @app.task(queue="many", name="note")
        async def note(number: int) -> None:
            nonlocal ran
            ran += number

        queue, few = note.queue, app.queue("few")
        await fill(few, 20_000)
        with_few = await claim_ms(few, "w", 100)
        await fill(queue, MILLION)
        assert await app.redis.call("LLEN", queue.keyring.waiting) == MILLION

        slow, with_many = [], []
        # A busy machine may hold the server up, but not thrice at one thing.
        for number in range(3):
            own_server.command("SLOWLOG", "RESET")
            with_many.append(await claim_ms(queue, f"w{number}", 100))
            await app.queues.facts("many")
            await app.queues.peek("many", start=500_000, limit=50)
            await app.get_queue_pressure("many")
            await app.queues.pause("many")
            await app.queues.resume("many")
            await note.send(1)
            await app.queues.list()
            entries = own_server.command("SLOWLOG", "GET", 100)
            slow.append({entry[3][0] + " " + entry[3][1] for entry in entries})
        assert set.intersection(*slow) == set()
        assert min(with_many) < 3 * with_few + 1

        await workplace.start(app)
        await eventually(lambda: ran > 20_000)
