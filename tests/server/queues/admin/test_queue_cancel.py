"""Cancelling jobs that wait, that are not yet due, and that run."""

import asyncio
import threading
import time

import pytest
from tests.kit.scripts import scripts_of
from tests.kit.workplace import claim_as, counters, in_hand, record, stored

from penstock import Fixed, RetryPolicy, current_job
from penstock.queues.worker.claimed_jobs import ClaimedJobs, WorkerCounts
from penstock.queues.worker.job_ends import JobEnd, flush_ended
from penstock.queues.worker.membership import Membership
from penstock.testing.eventually import eventually

SOON = RetryPolicy(max_attempts=3, backoff=Fixed(0.02))


def counts(queue, **expected):
    async def check():
        counted = await counters(queue)
        return all(counted.get(name, 0) == number for name, number in expected.items())

    return check


async def test_a_cancelled_job_that_waits_is_never_run(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail", status=True)
    async def note(number: int) -> None:
        ran.append(number)

    jobs = await note.send_many([(number,) for number in range(3)])
    assert await jobs[1].cancel()
    await workplace.start(app)
    await jobs[2].wait(timeout_s=60)
    assert ran == [0, 2]
    assert (await jobs[1].status()).status == "cancelled"
    await eventually(counts(note.queue, done=2, cancelled=1))
    await eventually(lambda: _empty(note.queue))
    assert (await counters(note.queue))["done"] == 2
    assert not await jobs[1].cancel()


async def _empty(queue):
    return not await in_hand(queue) and not await stored(queue)


async def test_a_cancelled_job_that_is_not_yet_due_is_gone(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail", status=True)
    async def note() -> None:
        ran.append(1)

    job = await note.with_options(delay=0.3).send()
    assert await job.cancel()
    await workplace.start(app)
    queue = note.queue
    assert await queue.client.call("ZCARD", queue.keyring.delayed) == 0
    assert await queue.client.call("HLEN", queue.keyring.delayed_bodies) == 0
    marker = await note.with_options(delay=0.5).send()
    await marker.wait(timeout_s=60)
    assert ran == [1]


async def test_a_job_that_is_cancelled_as_it_begins_is_counted_once(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def note() -> None: ...

    queue = note.queue
    job = await note.send()
    claims = ClaimedJobs(Membership(app.redis, queue.keyring, "w"), queue.codec, WorkerCounts())
    await claims.membership.join()
    (claimed,) = await claims.claim(1)
    await job.cancel()
    # Nobody has noted that it runs: it ends, and nothing is said of it twice.
    claims.ended.append(JobEnd(claimed, "done"))
    await flush_ended(claims)
    assert (await job.status()).status == "cancelled"
    assert await counters(queue) == {"added": 1, "cancelled": 1, "passed_over": 1}
    assert await in_hand(queue) == 0
    assert await app.redis.call("EXISTS", queue.keyring.cancelled) == 0
    await claims.membership.leave()


async def test_a_running_coroutine_is_stopped(workplace):
    app, began, cleaned = await workplace.open(), asyncio.Event(), []

    @app.task(queue="mail", status=True)
    async def hang() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(current_job().cancelled)

    await workplace.start(app)
    job = await hang.send()
    await began.wait()
    assert await job.cancel()
    await job.wait(timeout_s=60)
    assert (await job.status()).status == "cancelled"
    await eventually(lambda: cleaned == [True])
    await eventually(counts(hang.queue, cancelled=1, done=0))


async def test_a_running_thread_is_told_to_stop(workplace):
    app, began, told = await workplace.open(), threading.Event(), threading.Event()

    @app.task(queue="mail", status=True)
    def loop() -> None:
        began.set()
        try:
            while True:
                current_job().raise_if_cancelled()
                time.sleep(0.005)
        finally:
            told.set()

    await workplace.start(app)
    job = await loop.send()
    await eventually(began.is_set)
    assert await job.cancel()
    await job.wait(timeout_s=60)
    assert (await job.status()).status == "cancelled"
    await eventually(told.is_set)


async def test_a_job_that_hears_of_it_with_its_last_word_does_no_harm(workplace):
    app, began, go_on, ran = await workplace.open(), asyncio.Event(), asyncio.Event(), []

    @app.task(queue="mail", status=True)
    async def work(number: int) -> None:
        began.set()
        await go_on.wait()
        ran.append(number)
        await current_job().progress(1)

    await workplace.start(app, concurrency=1)
    first = await work.send(1)
    await began.wait()
    # Asked just as it goes on: it learns of it from its own progress.
    assert await first.cancel()
    go_on.set()
    await first.wait(timeout_s=60)
    assert (await first.status()).status == "cancelled"
    for number in (2, 3):
        await (await work.send(number)).result(timeout_s=60)
    assert ran[-2:] == [2, 3]


async def test_a_job_that_fails_while_it_is_stopped_is_not_tried_again(workplace):
    app, began = await workplace.open(), []

    @app.task(queue="mail", status=True, retry=SOON)
    async def messy() -> None:
        began.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("while cleaning up")

    @app.task(queue="mail", status=True)
    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_fail())

    await workplace.start(app, concurrency=1)
    job = await messy.send()
    await eventually(lambda: began)
    await job.cancel()
    await job.wait(timeout_s=60)
    assert (await job.status()).status == "cancelled"
    # The next job in the same place sees nothing of it.
    other = await group.with_options(max_attempts=1).send()
    await other.wait(timeout_s=60)
    assert (await other.status()).error_type.endswith("ExceptionGroup")
    assert began == [1]


async def _fail():
    raise ValueError


async def test_a_cancelled_job_lets_its_unique_key_go_wherever_it_is(workplace):
    app, began = await workplace.open(), asyncio.Event()

    @app.task(queue="mail", status=True)
    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    await workplace.start(app)
    job = await hang.with_options(unique="u").send()
    await began.wait()
    assert not (await hang.with_options(unique="u").send()).created
    await job.cancel()
    await job.wait(timeout_s=60)
    again = await hang.with_options(unique="u", delay=60).send()
    assert again.created
    await again.cancel()
    assert (await hang.with_options(unique="u", delay=60).send()).created


# ---- the mark of a job that was cancelled while it waited


async def marks(queue):
    return await queue.client.call("SMEMBERS", queue.keyring.cancelled)


async def cancelled_for_long(app, task):
    """A job that waits on its list, and was cancelled so long ago that its record is gone."""
    job = await task.send()
    assert await job.cancel()
    await eventually(lambda: _is_gone(task.queue, job))
    return job


async def _is_gone(queue, job):
    return not await record(queue, job.id)


@pytest.fixture
async def forgetful(workplace):
    """An application whose final records are kept for a moment, and a task that notes its runs."""
    app, ran = await workplace.open(keep_s=0.03, silence_s=0.3), []

    @app.task(queue="mail", status=True)
    async def note() -> None:
        ran.append(current_job().id)

    return app, note, ran


async def test_a_cancelled_job_is_never_run_however_long_it_has_waited(workplace, forgetful):
    app, note, ran = forgetful
    job = await cancelled_for_long(app, note)
    assert await app.redis.call("PTTL", note.queue.keyring.cancelled) == -1
    await workplace.start(app)
    await eventually(counts(note.queue, passed_over=1))
    last = await note.send()
    await eventually(lambda: ran == [last.id])
    assert await record(note.queue, job.id) == {}
    assert await marks(note.queue) == []


async def test_a_cancelled_job_is_passed_over_again_if_the_worker_that_did_so_dies(
    workplace, forgetful
):
    app, note, ran = forgetful
    job = await cancelled_for_long(app, note)
    await claim_as(note.queue, "dead", 1)
    verdicts = await scripts_of(app.redis).begin_jobs(
        keys=note.queue.keyring, worker="dead", jobs=("1", job.id, 1, "", "")
    )
    assert verdicts == [2]
    await workplace.start(app)
    await eventually(counts(note.queue, reaped=1, passed_over=1))
    assert ran == []


async def test_a_worker_keeps_marks_that_an_earlier_version_would_let_run_out(workplace, forgetful):
    app, note, ran = forgetful
    await app.queues.pause("mail")
    await cancelled_for_long(app, note)
    await app.redis.call("PEXPIRE", note.queue.keyring.cancelled, 60_000)
    await workplace.start(app)
    await eventually(lambda: _persists(app, note.queue.keyring.cancelled))
    await app.queues.resume("mail")
    await eventually(counts(note.queue, passed_over=1))
    assert ran == []


async def _persists(app, key):
    return await app.redis.call("PTTL", key) == -1


@pytest.mark.parametrize("how", ["purged", "dropped", "dropped, compressed", "moved", "deleted"])
async def test_a_cancelled_job_that_leaves_its_list_takes_its_mark_along(workplace, how):
    app = await workplace.open()
    queue = app.queue("mail", max_size=2, overflow="drop_oldest")

    @app.task(queue="mail", status=True)
    async def note(text: str) -> None: ...

    job = await note.send("x" * (5_000 if "compressed" in how else 1))
    await note.send("y")
    assert await job.cancel()
    assert await marks(queue) == [job.id.encode()]
    if how == "purged":
        await app.queues.purge("mail")
    elif how == "moved":
        assert await app.queues.move("mail", "other") == 1
        assert await app.redis.call("LLEN", app.queue("other").keyring.waiting) == 1
    elif how == "deleted":
        await app.queues.delete("mail")
    else:
        await note.send("z")
    assert await marks(queue) == []


async def test_an_id_that_is_sent_again_runs_although_a_mark_was_left_behind(workplace, forgetful):
    app, note, ran = forgetful
    again = note.with_options(job_id="again")
    job = await again.send()
    assert await job.cancel()
    # Another program takes the job off the list.
    await app.redis.call("DEL", note.queue.keyring.waiting)
    await eventually(lambda: _is_gone(note.queue, job))
    assert (await again.send()).created
    await workplace.start(app)
    await eventually(lambda: ran == ["again"])
