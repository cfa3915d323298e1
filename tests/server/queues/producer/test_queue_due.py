"""Jobs that become due: none lost, in the order of their times."""

import asyncio

from tests.kit.workplace import letters

from penstock import Fixed, RetryPolicy
from penstock.testing.eventually import eventually

TWICE = RetryPolicy(max_attempts=2, backoff=Fixed(0.05))


async def test_two_jobs_of_one_id_that_fail_at_the_same_time_are_both_tried_again(workplace):
    app, begun, both = await workplace.open(), [], asyncio.Event()
    queue = app.queue("ingest", retry=TWICE)

    @queue.handler
    async def ingest(job: dict) -> None:
        begun.append(job["number"])
        if len(begun) == 2:
            both.set()
        if len(begun) <= 2:
            await both.wait()
            raise RuntimeError("not yet")

    for number in (1, 2):
        job = f'{{"job_id": "same", "number": {number}}}'
        await app.redis.call("RPUSH", queue.keyring.waiting, job)
    await workplace.start(app)
    await eventually(lambda: len(begun) == 4)
    assert sorted(begun) == [1, 1, 2, 2]
    assert await letters(queue) == []


async def test_jobs_that_become_due_at_once_run_in_the_order_of_their_times(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)

    for number in range(5):
        await note.with_options(delay=0.01 * (number + 1)).send(number)
    keys = note.queue.keyring
    for id_ in await app.redis.call("ZRANGE", keys.delayed, 0, -1):
        body = await app.redis.call("HGET", keys.delayed_bodies, id_)
        await app.redis.call("HSET", keys.delayed_bodies, id_, b"f" + body[1:])  # as retries stand

    async def all_due():
        seconds, _ = await app.redis.call("TIME")
        last = (await app.redis.call("ZRANGE", keys.delayed, -1, -1, "WITHSCORES"))[1]
        return int(seconds) * 1000 > int(last)

    await eventually(all_due)
    await workplace.start(app, concurrency=1)
    await eventually(lambda: len(ran) == 5)
    assert ran == [0, 1, 2, 3, 4]
