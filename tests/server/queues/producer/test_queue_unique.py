"""Unique keys while workers run, held until the end or for a time; and one run for one key."""

import asyncio

import pytest
from tests.kit.workplace import QUICK, claim_as, counters, letters

from penstock import Fixed, RetryPolicy
from penstock.queues.schedules.cron import Every
from penstock.queues.schedules.schedule import Schedule, enqueue
from penstock.queues.schedules.scripts import FireStatus
from penstock.testing.eventually import eventually
from penstock.testing.queues import clock

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.settings(
        queues={**QUICK, "silence_s": 0.4}, worker={"grace_s": 1.0, "poll_s": 0.2}
    ),
]


async def holder(queue, key):
    held = await queue.client.call("GET", queue.keyring.unique(key))
    return None if held is None else held.decode()


@pytest.mark.parametrize("status", [True, False])
async def test_a_key_is_held_while_its_job_waits_and_runs_and_free_afterwards(
    workplace, app, status
):
    began, go_on, ran = asyncio.Event(), asyncio.Event(), []

    @app.task(queue="mail", status=status)
    async def sync(account: int) -> None:
        ran.append(account)
        began.set()
        await go_on.wait()

    sender = sync.with_options(unique="account-7")
    first = await sender.send(7)
    assert not (await sender.send(7)).created
    await workplace.start(app)
    await began.wait()
    second = await sender.send(7)
    assert (second.created, second.id) == (False, first.id)
    go_on.set()
    await eventually(lambda: _is_free(sync.queue, "account-7"))
    third = await sender.send(7)
    assert third.created
    assert third.id != first.id
    await eventually(lambda: ran == [7, 7])


async def _is_free(queue, key):
    return await holder(queue, key) is None


async def test_a_key_is_held_through_retries_and_free_after_the_burial(workplace, app):
    attempts = []

    @app.task(queue="mail", retry=RetryPolicy(max_attempts=2, backoff=Fixed(60)))
    async def fail() -> None:
        attempts.append(1)
        raise LookupError

    sender = fail.with_options(unique="u")
    await workplace.start(app)
    job = await sender.send()
    await eventually(lambda: _counted(fail.queue, "retried", 1))
    assert await holder(fail.queue, "u") == job.id
    assert not (await sender.send()).created
    await clock.advance(app, 60)
    await eventually(lambda: _counted(fail.queue, "dead", 1))
    assert await holder(fail.queue, "u") is None
    assert len(await letters(fail.queue)) == 1


async def _counted(queue, name, number):
    return (await counters(queue)).get(name) == number


async def test_a_key_is_free_after_its_job_has_expired(workplace, app):
    @app.task(queue="mail")
    async def work() -> None: ...

    await work.with_options(unique="u", expires=0.01).send()
    await clock.advance(app, 1)
    await workplace.start(app)
    await eventually(lambda: _is_free(work.queue, "u"))
    await eventually(lambda: _counted(work.queue, "expired", 1))


async def test_a_key_goes_with_the_job_when_its_worker_dies(workplace, app):
    ran = []

    @app.task(queue="mail")
    async def work() -> None:
        ran.append(1)

    sender = work.with_options(unique="u")
    job = await sender.send()
    await claim_as(work.queue, "dead", 1)
    assert await holder(work.queue, "u") == job.id
    assert not (await sender.send()).created
    await workplace.start(app)
    await eventually(lambda: ran == [1])
    await eventually(lambda: _is_free(work.queue, "u"))


async def test_a_window_holds_however_soon_the_job_ends(workplace, app):
    ran = []

    @app.task(queue="mail")
    async def work() -> None:
        ran.append(1)

    sender = work.with_options(unique="u", unique_for=30)
    await workplace.start(app)
    await sender.send()
    await eventually(lambda: _counted(work.queue, "done", 1))
    assert not (await sender.send()).created
    await clock.advance(app, 29)
    assert not (await sender.send()).created
    await clock.advance(app, 2)
    assert (await sender.send()).created
    await eventually(lambda: ran == [1, 1])


async def test_a_hundred_senders_of_one_key_beside_workers_never_run_two_at_once(workplace, app):
    at_once, most, ran = 0, 0, 0

    @app.task(queue="mail")
    async def work() -> None:
        nonlocal at_once, most, ran
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.002)
        at_once -= 1
        ran += 1

    await workplace.start(app)
    await workplace.start(app)
    sender = work.with_options(unique="u")

    async def send_often():
        return sum([(await sender.send()).created for _ in range(20)])

    created = sum(await asyncio.gather(*(send_often() for _ in range(100))))
    await eventually(lambda: ran == created)
    assert most == 1
    assert created > 1


async def test_a_replayed_job_takes_its_key_again(workplace, app):
    ran, broken = [], [True]

    @app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=1))
    async def work() -> None:
        ran.append(1)
        if broken:
            raise LookupError

    job = await work.with_options(unique="u").send()
    worker = await workplace.start(app)
    await job.wait(timeout_s=60)
    await workplace.stop(worker)
    broken.clear()
    await app.queues.replay("mail", job.id)
    assert await holder(work.queue, "u") == job.id
    assert not (await work.with_options(unique="u").send()).created
    await workplace.start(app)
    await job.result(timeout_s=60)
    assert await holder(work.queue, "u") is None
    assert ran == [1, 1]


# ---- as long as the job, and no longer


@pytest.mark.parametrize("status", [True, False])
async def test_a_key_is_held_however_long_its_job_waits(workplace, status):
    app = await workplace.open(keep_s=0.01)

    @app.task(queue="mail", status=status)
    async def work() -> None: ...

    sender = work.with_options(unique="u")
    job = await sender.send()
    key = work.queue.keyring.unique("u")
    assert await app.redis.call("PTTL", key) == -1
    again = await sender.send()
    assert (again.created, again.id) == (False, job.id)


async def test_the_key_of_a_recurring_job_is_held_however_long_it_waits(workplace):
    app = await workplace.open(keep_s=0.01)
    tick = Schedule(name="t", when=Every(60), queue="mail", unique="u", make=lambda *_: b"{}")
    assert await enqueue(app.redis, tick, [("t1", 1)]) is FireStatus.QUEUED
    assert await app.redis.call("PTTL", app.queue("mail").keyring.unique("u")) == -1
    assert await enqueue(app.redis, tick, [("t2", 2)]) is not FireStatus.QUEUED
    # Another program takes the job off the list.
    await app.redis.call("DEL", app.queue("mail").keyring.waiting)
    assert await enqueue(app.redis, tick, [("t3", 3)]) is FireStatus.QUEUED


@pytest.mark.parametrize("status", [True, False])
async def test_a_key_whose_job_has_vanished_is_taken_by_the_next(workplace, status):
    app = await workplace.open()

    @app.task(queue="mail", status=status)
    async def work() -> None: ...

    queue, sender = work.queue, work.with_options(unique="u")
    await sender.send()
    await app.redis.call("DEL", queue.keyring.waiting)
    job = await sender.send()
    assert job.created
    assert await holder(queue, "u") == job.id
    # While there is work of any kind, the job may be among it.
    await claim_as(queue, "w", 1)
    assert not (await sender.send()).created


async def test_a_key_whose_job_has_ended_by_its_record_is_taken_by_the_next(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def work() -> None: ...

    sender = work.with_options(unique="u")
    job = await sender.send()
    await app.redis.call("HSET", work.queue.keyring.record(job.id), "status", "done")
    assert (await sender.send()).created


async def test_a_key_that_an_earlier_version_set_is_held_until_it_runs_out(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def work() -> None: ...

    key = work.queue.keyring.unique("u")
    await app.redis.call("SET", key, "an-old-one", "PX", 60_000)
    assert not (await work.with_options(unique="u").send()).created
    assert await app.redis.call("PTTL", key) > 0


# ---- once for one key


@pytest.mark.parametrize("how", ["at the same time", "while it runs", "after its end"])
async def test_a_hundred_submits_of_one_key_are_one_run_and_a_hundred_results(workplace, how):
    app, other, runs = await workplace.open(), await workplace.open(), []
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task(queue="mail", name="charge")
    async def charge(amount: int) -> int:
        runs.append(amount)
        began.set()
        await go_on.wait()
        return len(runs) * 1000 + amount

    await workplace.start(app)
    await workplace.start(app)
    sender = charge.with_options(idempotency_key="order-7")
    jobs = []
    if how != "at the same time":
        jobs.append(await sender.send(42))
        await began.wait()
    if how == "after its end":
        go_on.set()
        await jobs[0].result(timeout_s=60)

    async def submit(number):
        if number % 2:
            return await sender.send(42)
        return await other.send("charge", (42,), queue="mail", idempotency_key="order-7")

    jobs += await asyncio.gather(*(submit(number) for number in range(100 - len(jobs))))
    go_on.set()
    results = await asyncio.gather(*(job.result(timeout_s=60) for job in jobs))
    assert results == [1042] * 100
    assert runs == [42]
    assert len({job.id for job in jobs}) == 1
    assert sum(job.created for job in jobs) == 1
