"""After any amount of work the books balance: counters, records and indexes tell one story."""

import asyncio
import random

import pytest
from tests.kit.model.queue_truth import FINAL, STATES, look
from tests.kit.workplace import counters, in_hand, letters

from penstock import DeadLetter, Fixed, Retry, RetryPolicy, current_job
from penstock.testing.eventually import eventually

JOBS = 600


@pytest.mark.parametrize("seed", [1, 2])
async def test_what_was_added_is_done_dead_cancelled_or_expired(workplace, seed):
    chance = random.Random(seed)  # noqa: S311  the same jobs every time
    apps, ended = [await workplace.open(), await workplace.open()], {}
    for app in apps:
        app.queue("mail", lane_limit=5, max_bytes=10_000_000)

        @app.task(queue="mail", name="work", status=True, retry=_policy())
        async def work(fate: str) -> None:
            await _meet(fate)
            ended[current_job().id] = ended.get(current_job().id, 0) + 1

        @app.task(queue="mail", name="plain", retry=_policy())
        def plain(fate: str) -> None:
            if fate == "fails":
                raise LookupError

        await workplace.start(app, concurrency=8)

    async def send(number):
        fate = chance.choice(("fine", "fine", "fails", "once more", "dies", "slow"))
        words = {"job_id": f"j{number}"}
        words |= chance.choice(({}, {"priority": "high"}, {"group": f"g{number % 3}"}))
        words |= chance.choice(({}, {}, {"unique": f"u{number % 40}"}, {"delay": 0.05}))
        words |= chance.choice(({}, {}, {}, {"expires": 0.02}))
        task = work if chance.random() < 0.7 else plain
        job = await task.with_options(**words).send(fate)
        if task is work and job.created and chance.random() < 0.1:
            await job.cancel()
        return job.created

    created = 0
    for first in range(0, JOBS, 50):
        created += sum(await asyncio.gather(*(send(first + one) for one in range(50))))
    queue = work.queue
    assert await app.queues.drain("mail", timeout_s=30)
    await eventually(lambda: _none_in_hand(queue))

    counted = await counters(queue)
    assert counted["added"] == created
    ends = ("done", "dead", "cancelled", "expired")
    assert sum(counted.get(name, 0) for name in ends) == created
    assert counted.get("stale", 0) == 0
    assert len(await letters(queue)) == counted["dead"]
    assert max(ended.values()) == 1

    seen = await look(queue)
    for state in STATES:
        told = {name for name, (status, _) in seen.records.items() if status == state}
        assert seen.indexes[state] == told
    assert {status for status, _ in seen.records.values()} <= FINAL
    assert seen.uniques == {}
    assert (seen.ring, seen.delayed, seen.bodies, seen.bytes_noted) == ([], set(), set(), 0)


def _policy():
    return RetryPolicy(max_attempts=3, backoff=Fixed(0.01))


async def _meet(fate):
    if fate == "fails":
        raise LookupError
    if fate == "dies":
        raise DeadLetter("so be it")
    if fate == "once more" and current_job().attempt == 1:
        raise Retry(after=0.01)
    if fate == "slow":
        await asyncio.sleep(0.03)


async def _none_in_hand(queue):
    return not await in_hand(queue)


async def test_workers_that_come_and_go_leave_the_books_balanced(workplace):
    """Workers stop in the middle of things, again and again; nothing is lost or charged."""
    app, ran = await workplace.open(grace_s=0.01), {}

    @app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=2, backoff=Fixed(0.01)))
    async def work(number: int) -> None:
        ran.setdefault(number, []).append(current_job().attempt)
        await asyncio.sleep(0.005)

    jobs = await work.send_many([(number,) for number in range(300)])
    for _ in range(12):
        worker = await workplace.start(app, concurrency=16)
        await asyncio.sleep(0.02)  # it is to be stopped at an arbitrary moment
        await workplace.stop(worker)
        assert await in_hand(work.queue) == 0
    await workplace.start(app)
    for job in jobs:
        await job.wait(timeout_s=60)
    assert await counters(work.queue) == {"added": 300, "done": 300}
    assert {attempt for attempts in ran.values() for attempt in attempts} == {1}
    seen = await look(work.queue)
    assert {status for status, _ in seen.records.values()} == {"done"}
    assert len(seen.indexes["done"]) == 300
