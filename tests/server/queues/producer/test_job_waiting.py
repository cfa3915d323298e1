"""Waiting for the ends of jobs: those who wait hear of them, and cost next to nothing meanwhile."""

import asyncio
import time

import pytest
from tests.kit.patience import patient
from tests.kit.scripts import scripts_of
from tests.kit.workplace import Workplace, claim_as

from penstock import RetryPolicy
from penstock.queues.producer import result_poller as waiting
from penstock.queues.worker.claimed_jobs import ClaimedJobs, WorkerCounts
from penstock.queues.worker.job_ends import JobEnd, flush_ended
from penstock.queues.worker.membership import Membership
from penstock.testing.eventually import eventually
from penstock.testing.servers import ServerProcess


@pytest.fixture
def no_recheck(monkeypatch):
    """Who misses an announcement waits for ever."""
    monkeypatch.setattr(waiting, "RECHECK_S", 600)


async def listens(queue, count):
    """Whether so many jobs are awaited, and all records say so."""
    results = queue.results
    if len(results._awaited) != count or not results._subscribed or results._due:
        return False
    names = [queue.keyring.records + name for name in results._awaited]
    return all(await queue.client.pipeline([("HEXISTS", name, "waited") for name in names]))


async def begin_waiting(queue, jobs):
    """Tasks that wait for jobs, when all of them are heard of."""
    tasks = [asyncio.create_task(job.wait(timeout_s=60)) for job in jobs]
    await eventually(lambda: listens(queue, len({job.id for job in jobs})))
    return tasks


async def finish(app, queue, state="done", count=1):
    """End what is claimed, as a worker does."""
    claims = ClaimedJobs(Membership(app.redis, queue.keyring, "w"), queue.codec, WorkerCounts())
    await claims.membership.join()
    claims.ended += [JobEnd(job, state, "0.1", b"1") for job in await claims.claim(count)]
    await flush_ended(claims)
    await claims.membership.leave()


ENDS = ["done", "expired", "cancelled", "buried", "crashed", "purged", "dropped", "moved"]


@pytest.mark.parametrize("how", [*ENDS, "dropped, compressed", "purged, delayed"])
async def test_whatever_ends_a_job_those_who_wait_hear_of_it(workplace, no_recheck, how):
    app = await workplace.open(silence_s=0.3)
    queue = app.queue("mail", max_size=1, overflow="drop_oldest")

    @app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=1))
    async def work(text: str = "") -> None:
        raise LookupError

    sender = work.with_options(delay=60) if "delayed" in how else work
    job = await sender.send("x" * 5_000 if "compressed" in how else "")
    (waits,) = await begin_waiting(queue, [job])
    if how in {"done", "expired"}:
        await finish(app, queue, how)
    elif how == "cancelled":
        assert await job.cancel()
    elif how == "buried":
        await workplace.start(app)
    elif how == "crashed":
        await claim_as(queue, "dead", 1)
        await workplace.start(app)
    elif how.startswith("purged"):
        await app.queues.purge("mail", delayed="delayed" in how)
    elif how.startswith("dropped"):
        await work.send()
    else:
        await app.queues.move("mail", "other")
    ended = {"buried": "failed", "crashed": "failed", "purged": "cancelled", "moved": "cancelled"}
    expected = "failed" if how.startswith("dropped") else ended.get(how.split(",")[0], how)
    assert await waits == expected
    assert queue.results._task is None


async def test_many_wait_for_the_same_and_for_other_jobs_in_several_programs(workplace, no_recheck):
    app, other = await workplace.open(), await workplace.open()

    @app.task(queue="mail", status=True)
    async def work(number: int) -> None: ...

    jobs = await work.send_many([(number,) for number in range(120)])
    waits = await begin_waiting(work.queue, jobs * 2)
    waits += await begin_waiting(
        other.queue("mail"), [other.queue("mail").job(job.id) for job in jobs[:60]]
    )
    await finish(app, work.queue, count=120)
    assert set(await asyncio.gather(*waits)) == {"done"}


async def test_an_end_that_nobody_announces_is_found(workplace, monkeypatch):
    monkeypatch.setattr(waiting, "RECHECK_S", 0.05)
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def work() -> None: ...

    job = await work.send()
    (waits,) = await begin_waiting(work.queue, [job])
    # A worker of an earlier version writes the record, and that is all.
    await app.redis.call("HSET", work.queue.keyring.record(job.id), "status", "done")
    assert await waits == "done"


async def test_ends_that_nobody_announces_are_found_soon_once_there_was_one(workplace):
    """A worker of an earlier version runs one job after the other, and each result is awaited."""
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def work() -> None: ...

    async def end_unannounced():
        job = await work.send()
        (waits,) = await begin_waiting(work.queue, [job])
        await app.redis.call("HSET", work.queue.keyring.record(job.id), "status", "done")
        assert await waits == "done"

    await end_unannounced()
    await eventually(lambda: work.queue.results._recheck_until)
    began = time.monotonic()
    for _ in range(20):
        await end_unannounced()
    assert time.monotonic() - began < patient(20 * waiting.RECHECK_S / 2)


async def test_large_results_come_in_several_answers(workplace, monkeypatch):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def work() -> None: ...

    jobs = await work.send_many([()] * 6)
    answers = []
    await_jobs = scripts_of(app.redis).await_jobs

    async def noted(*, keys, names):
        answers.append(await await_jobs(keys=keys, names=names))
        return answers[-1]

    monkeypatch.setattr(scripts_of(app.redis), "await_jobs", noted)
    large = b'"%b"' % (b"x" * 700_000)
    for job in jobs:
        record = work.queue.keyring.record(job.id)
        await app.redis.call("HSET", record, "status", "done", "result", large)
    assert set(await asyncio.gather(*(job.wait(timeout_s=60) for job in jobs))) == {"done"}
    assert max(sum(reply not in (0, 1) for reply in answer) for answer in answers) == 2


async def test_an_end_while_the_subscription_is_lost_is_heard_of(workplace, no_recheck):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def work() -> None: ...

    job = await work.send()
    (waits,) = await begin_waiting(work.queue, [job])
    await app.redis.call("CLIENT", "KILL", "TYPE", "pubsub")
    await finish(app, work.queue)
    assert await waits == "done"


async def test_jobs_that_nobody_waits_for_are_not_announced(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def work() -> None: ...

    await work.send_many([()] * 20)
    job = await work.send()
    heard = []
    app.wakeups.listen(f"{work.queue.keyring.indexes}ended", heard.append)
    (waits,) = await begin_waiting(work.queue, [job])
    await finish(app, work.queue, count=21)
    await waits
    assert [message for message in heard if message is not None] == [job.id.encode()]


async def test_who_waits_costs_next_to_nothing_until_the_end(monkeypatch, workplace):
    count = 3_000
    app = await workplace.open()
    app.queue("mail", max_size=0)

    @app.task(queue="mail", status=True)
    async def work() -> None: ...

    jobs = await work.send_many([()] * count)
    looks = []
    await_jobs = scripts_of(app.redis).await_jobs

    async def counted(*, keys, names):
        looks.append(len(names))
        return await await_jobs(keys=keys, names=names)

    monkeypatch.setattr(scripts_of(app.redis), "await_jobs", counted)
    waits = await begin_waiting(work.queue, jobs)
    looks.clear()
    await asyncio.sleep(1.2)
    # At 200 a second, in calls of a hundred.
    assert sum(looks) <= 300
    assert len(looks) <= 4
    for _ in range(0, count, 1_000):
        await finish(app, work.queue, count=1_000)
    assert set(await asyncio.gather(*waits)) == {"done"}
    assert sum(looks) <= count + 400


@pytest.mark.parametrize("binary", ["valkey", "redis62"])
def test_a_full_server_and_one_that_lets_nobody_subscribe_tell_of_the_end(binary):
    async def wait(url, *, is_full):
        async with Workplace(url) as workplace:
            app = await workplace.open()

            @app.task(queue="mail", status=True)
            async def work() -> None: ...

            job = await work.send()
            if is_full:
                await app.redis.call("CONFIG", "SET", "maxmemory", 1)
                (waits,) = await begin_waiting(work.queue, [job])
            else:
                waits = asyncio.create_task(job.wait(timeout_s=60))
                await eventually(lambda: work.queue.results._awaited)
            await finish(app, work.queue)
            assert await waits == "done"

    with ServerProcess(binary) as server:
        server.command("ACL", "SETUSER", "shy", "on", ">secret", "~*", "resetchannels", "+@all")
        shy = server.url.replace("redis://", "redis://shy:secret@")
        asyncio.run(wait(shy, is_full=False))
        asyncio.run(wait(server.url, is_full=True))
