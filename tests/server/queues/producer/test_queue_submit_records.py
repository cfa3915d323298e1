"""Records of submitted jobs, unique keys, and what full queues drop of them."""

import asyncio
import json
import random
from datetime import timedelta

import pytest
from tests.kit.queue_scripts import items
from tests.kit.workplace import counters, record

from penstock.errors import CommandRefused, InvalidJob, OutcomeUnknown, QueueFull, SendBatchFailed
from penstock.queues.schedules.cron import Every
from penstock.queues.schedules.schedule import Schedule, enqueue
from penstock.redis.prepared_call import Prepared

ODD_ID = "order 7/ü:{x}%*"


# ---- records


async def test_a_record_is_written_with_the_push(tracked):
    job = await tracked.send(5)
    assert await record(tracked.queue, job.id) | {"submitted_at": "…"} == {
        "job_id": job.id,
        "status": "queued",
        "queue": "mail",
        "task": "mail.tracked",
        "max_attempts": "3",
        "max_retries": "2",
        "retry_count": "0",
        "submitted_at": "…",
    }
    (item,) = await items(tracked.queue)
    assert (item.id, item.meta.tracked) == (job.id, True)
    index = await tracked.queue.client.call("ZRANGE", tracked.queue.keyring.jobs("queued"), 0, -1)
    assert index == [job.id.encode()]
    later = await tracked.with_options(delay=60).send(6)
    assert (await record(tracked.queue, later.id))["status"] == "submitted"


async def test_many_calls_have_records_too(tracked):
    jobs = await tracked.send_many([(n,) for n in range(100)])
    found = await items(tracked.queue)
    assert {item.id for item in found} == {job.id for job in jobs}
    assert (await record(tracked.queue, jobs[99].id))["status"] == "queued"


def counted_calls(monkeypatch):
    """How many jobs each call of the script adds from now on."""
    calls, send = [], Prepared.send

    async def counted(call, *jobs):
        calls.append(len(jobs))
        return await send(call, *jobs)

    monkeypatch.setattr(Prepared, "send", counted)
    return calls


async def test_many_calls_with_records_take_one_script_for_fifty(tracked, monkeypatch):
    calls = counted_calls(monkeypatch)
    jobs = await tracked.send_many([(n,) for n in range(120)])
    assert calls == [50, 50, 20]
    assert [item.id for item in await items(tracked.queue)] == [job.id for job in jobs]


async def test_calls_that_come_at_the_same_time_go_together(tracked, welcome, monkeypatch):
    calls = counted_calls(monkeypatch)
    await tracked.send(0)
    jobs = await asyncio.gather(*(tracked.send(n) for n in range(100)))
    assert calls[0] == 1
    assert len(calls) <= 5
    assert len({job.id for job in jobs}) == 100
    for job in jobs:
        assert (await job.status()).status == "queued"
    # What needs other fields in its record goes with its like.
    both = [*(tracked.send(n) for n in range(10)), *(_unique(welcome, n) for n in range(10))]
    calls.clear()
    assert all(job.created for job in await asyncio.gather(*both))
    assert sum(calls) == 20
    assert len(calls) <= 4


async def test_large_jobs_and_what_cannot_be_sent_again_go_apart(app, monkeypatch):
    @app.task(queue="mail", name="mail.text")
    async def write(text: str) -> None: ...

    noise = random.Random(1).randbytes(40_000).hex()  # noqa: S311  it cannot be compressed well
    calls = counted_calls(monkeypatch)
    await asyncio.gather(
        write.with_options(delay=60).send("first, alone"),
        *(write.with_options(delay=60).send("") for _ in range(5)),
        *(write.with_options(unique=f"w{n}", unique_for=60).send("") for n in range(5)),
        *(write.with_options(delay=60).send(noise) for _ in range(2)),
    )
    assert sorted(calls) == [1, 1, 1, 5, 5]


async def _unique(task, number):
    return await task.with_options(unique=f"u{number}").send(number)


@pytest.mark.parametrize("policy", ["reject", "dlq", "drop_oldest"])
@pytest.mark.parametrize("words", [{}, {"priority": "high"}, {"group": "g"}, {"delay": 60}])
async def test_many_are_as_if_each_had_come_alone(open_queues, policy, words):
    found = []
    for how in ("alone", "together"):
        app = await open_queues(max_overflow=3)
        queue = app.queue(how, max_size=4, max_bytes=100_000, overflow=policy)

        @app.task(queue=how, status=True, unique=lambda number: f"u{number % 6}")
        async def work(number: int) -> None: ...

        sender = work.with_options(**words)
        numbers = [0, 1, 1, 2, 3, 4, 5, 0, 9, 8]
        if how == "alone":
            ended = [await _outcome(sender.send(number)) for number in numbers]
        else:
            ended = await _outcomes(sender.send_many([(number,) for number in numbers]))
        lane = words.get("priority") or ("g" if "group" in words else "")
        waiting = [json.loads(item.body)["args"] for item in await items(queue, lane)]
        size = await app.redis.call("HGET", queue.keyring.state, "bytes")
        states = [
            await app.redis.call("ZCARD", queue.keyring.jobs(state))
            for state in ("queued", "submitted", "failed")
        ]
        delayed = await app.redis.call("ZCARD", queue.keyring.delayed)
        ring = await app.redis.call("LRANGE", queue.keyring.ring, 0, -1)
        found.append((ended, waiting, size, states, delayed, ring, await counters(queue)))
    alone, together = found
    assert alone == together


async def _outcome(sending):
    try:
        return (await sending).created
    except QueueFull as full:
        return type(full)


async def _outcomes(sending):
    try:
        return [job.created for job in await sending]
    except SendBatchFailed as failed:
        # One that was there already is told by the id of the holder.
        seen, ended = set(), []
        for outcome in failed.outcomes:
            is_id = isinstance(outcome, str)
            ended.append(outcome not in seen if is_id else type(outcome))
            seen.add(outcome)
        return ended


async def test_one_of_many_that_meets_a_foreign_key_is_refused_alone(tracked):
    queue = tracked.queue
    await queue.client.call("HSET", queue.keyring.unique("u2"), "foreign", 1)
    by_number = tracked.with_options(unique="u2")
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await by_number.send(2)
    sending = [tracked.with_options(unique=f"u{n}").send(n) for n in range(5)]
    ended = await asyncio.gather(*sending, return_exceptions=True)
    assert [type(one) is CommandRefused for one in ended] == [False, False, True, False, False]
    assert len(await items(queue)) == 4


async def test_a_raw_job_keeps_its_own_id_and_gives_fields_to_its_record(app):
    queue = app.queue("rag:ingest:queue", status=True, push="left", status_fields=("rag_id", "n"))
    result = await queue.push({"job_id": "j-1", "rag_id": "r", "n": 5, "secret": "s", "x": None})
    assert result.job_id == "j-1"
    told = await record(queue, "j-1")
    assert (told["rag_id"], told["n"], told["status"]) == ("r", "5", "queued")
    assert not {"secret", "x"} & told.keys()
    (item,) = await items(queue)
    assert (item.id, item.meta.tracked) == ("j-1", True)
    assert json.loads(item.body)["secret"] == "s"
    raw = await queue.push("no object at all")
    (item, _) = await items(queue)
    assert (item.id, item.body) == (raw.job_id, b"no object at all")


async def test_a_job_cannot_overwrite_what_its_record_says(app):
    queue = app.queue("jobs", status=True, status_fields=("status", "job_id", "queue"))
    await queue.push({"job_id": "a", "status": "done", "queue": "other"})
    told = await record(queue, "a")
    assert (told["status"], told["queue"], told["job_id"]) == ("queued", "jobs", "a")


async def test_an_id_of_odd_characters_is_encoded_in_keys_alone(app, tracked):
    job = await tracked.with_options(job_id=ODD_ID).send(1)
    name = tracked.queue.keyring.record_name(ODD_ID)
    assert job.id == ODD_ID
    assert not set(name) & set("/ :{}*")
    assert (await record(tracked.queue, ODD_ID))["job_id"] == ODD_ID
    index = await app.redis.call("ZRANGE", tracked.queue.keyring.jobs("queued"), 0, -1)
    assert index == [name.encode()]
    again = await tracked.with_options(job_id=ODD_ID).send(2)
    assert (again.id, again.created) == (ODD_ID, False)
    assert await job.cancel()
    assert (await job.status()).status == "cancelled"


async def test_two_ids_for_one_raw_job_are_a_mistake(app):
    with pytest.raises(InvalidJob, match="own id"):
        await app.queue("jobs").push({"job_id": "a"}, job_id="b")
    result = await app.queue("jobs").push({"n": 1}, job_id="b")
    assert result.job_id == "b"


# ---- unique


async def test_a_unique_key_is_held_by_one_job_until_it_ends(welcome):
    sender = welcome.with_options(unique="daily report")
    first, second = await sender.send(1), await sender.send(2)
    assert (first.created, second.created) == (True, False)
    assert second.id == first.id
    (item,) = await items(welcome.queue)
    assert item.meta.unique == "daily report"
    client, key = welcome.queue.client, welcome.queue.keyring.unique("daily report")
    assert await client.call("GET", key) == first.id.encode()
    assert await client.call("PTTL", key) == -1
    other = await welcome.with_options(unique="other").send(3)
    assert other.created


async def test_a_window_outlives_the_job_so_the_job_does_not_know_of_it(tracked):
    sender = tracked.with_options(unique="w", unique_for=timedelta(seconds=30))
    first, second = await sender.send(1), await sender.send(1)
    assert (second.created, second.id) == (False, first.id)
    (item,) = await items(tracked.queue)
    assert item.meta.unique == ""
    assert await first.cancel()
    assert not (await sender.send(1)).created
    assert "unique" not in await record(tracked.queue, first.id)


async def test_a_cancelled_job_lets_its_unique_key_go(tracked):
    sender = tracked.with_options(unique="u", job_id=ODD_ID)
    job = await sender.send(1)
    assert await job.cancel()
    assert (await tracked.with_options(unique="u").send(1)).created


async def test_a_refused_job_leaves_no_mark(app):
    @app.task(queue="small", name="small.one", status=True)
    def one() -> None: ...

    app.queue("small", max_size=1)
    await one.send()
    with pytest.raises(QueueFull):
        await one.with_options(unique="u", job_id="j").send()
    assert await app.redis.call("EXISTS", one.queue.keyring.unique("u")) == 0
    assert await record(one.queue, "j") == {}


async def test_a_task_can_be_unique_by_its_arguments(app):
    @app.task(queue="mail", name="mail.once", unique=True)
    def once(user: int, *, lang: str = "en", region: str = "eu") -> None: ...

    @app.task(queue="mail", name="mail.by_user", unique=lambda user: f"user {user}")
    def by_user(user: int) -> None: ...

    @app.task(queue="mail", name="mail.single", unique="single")
    def single(user: int) -> None: ...

    first = await once.send(1, lang="a", region="b")
    assert (await once.send(1, region="b", lang="a")).id == first.id
    assert (await once.send(2)).created
    assert [job.created for job in await by_user.send_many([(1,), (2,), (1,)])] == [
        *(True, True, False),
    ]
    assert (await single.send(1)).created
    assert not (await single.send(2)).created


async def test_a_submission_of_unknown_end_is_repeated_until_it_is_known(
    tracked, welcome, monkeypatch
):
    answers, send = [], Prepared.send

    async def lose_the_first_reply(call, *arguments):
        answer = await send(call, *arguments)
        answers.append(answer[3:])
        if len(answers) == 1:
            raise OutcomeUnknown("the reply was lost")
        return answer

    monkeypatch.setattr(Prepared, "send", lose_the_first_reply)
    job = await tracked.send(1)
    name = job.id.encode()
    assert (job.created, answers) == (True, [[1], [[2, name]]])
    assert [item.id for item in await items(tracked.queue)] == [job.id]
    # Of many, each is known again by its own id.
    answers.clear()
    jobs = await tracked.send_many([(n,) for n in range(60)])
    assert len(answers) == 3
    assert all(job.created for job in jobs)
    assert len(await items(tracked.queue)) == 61
    # Without a record nobody could tell whether it is there: the caller decides.
    answers.clear()
    with pytest.raises(OutcomeUnknown):
        await welcome.with_options(delay=60).send(1)
    assert len(answers) == 1


async def test_a_hundred_parallel_submits_of_one_key_are_one_job(open_queues):
    apps = [await open_queues() for _ in range(4)]
    jobs = await asyncio.gather(
        *(
            apps[n % 4].send("a.task", [n], queue="jobs", idempotency_key="order 7")
            for n in range(100)
        )
    )
    assert {job.id for job in jobs} == {"order 7"}
    assert sum(job.created for job in jobs) == 1
    (item,) = await items(apps[0].queue("jobs"))
    assert item.meta.tracked
    unique = await asyncio.gather(
        *(apps[n % 4].send("a.task", [n], queue="others", unique="u") for n in range(100))
    )
    assert len({job.id for job in unique}) == 1
    assert sum(job.created for job in unique) == 1


async def test_many_jobs_cannot_share_one_id(welcome):
    with pytest.raises(InvalidJob):
        await welcome.with_options(job_id="a").send_many([(1,), (2,)])
    with pytest.raises(InvalidJob):
        await welcome.with_options(idempotency_key="a").send_many([(1,), (2,)])


# ---- losses of full queues


@pytest.mark.parametrize("job_id", ["plain", ODD_ID])
@pytest.mark.parametrize("by", ["push", "submit"])
async def test_a_dropped_job_is_told_in_its_record_and_lets_its_unique_key_go(app, job_id, by):
    queue = app.queue("jobs", max_size=1, overflow="drop_oldest")

    @app.task(queue="jobs", name="jobs.tracked", status=True)
    def tracked() -> None: ...

    @app.task(queue="jobs", name="jobs.plain")
    def plain() -> None: ...

    job = await tracked.with_options(job_id=job_id, unique="ü/1").send()
    await (plain if by == "push" else tracked).send()
    told = await job.status()
    assert (told.status, told.error_type) == ("failed", "Overflow")
    assert await app.redis.call("PTTL", queue.keyring.record(job_id)) > 0
    assert await app.redis.call("EXISTS", queue.keyring.unique("ü/1")) == 0


@pytest.mark.parametrize("by", ["push", "push many", "submit", "submit many", "tick"])
async def test_a_dropped_job_that_is_compressed_is_told_in_its_record_too(app, by):
    queue = app.queue("jobs", max_size=1, overflow="drop_oldest")

    @app.task(queue="jobs", name="jobs.tracked", status=True)
    def tracked(text: str = "") -> None: ...

    @app.task(queue="jobs", name="jobs.plain")
    def plain() -> None: ...

    job = await tracked.with_options(unique="ü/1").send("a" * 5000)
    if by.endswith("many"):
        await (plain if by == "push many" else tracked).send_many([()])
    elif by == "tick":
        tick = Schedule(
            name="tick", when=Every(60), queue="jobs", make=lambda *_: b"{}", max_size=1,
            overflow="drop_oldest",
        )  # fmt: skip
        assert await enqueue(app.redis, tick, [("t1", 1)]) == 1
    else:
        await (plain if by == "push" else tracked).send()
    told = await job.status()
    assert (told.status, told.error_type) == ("failed", "Overflow")
    assert await app.redis.call("EXISTS", queue.keyring.unique("ü/1")) == 0


async def test_however_much_a_full_queue_drops_each_loss_is_told(app):
    app.queue("jobs", max_size=10, overflow="drop_oldest")

    @app.task(queue="jobs", name="jobs.tracked", status=True)
    def tracked(text: str = "") -> None: ...

    @app.task(queue="jobs", name="jobs.plain")
    def plain() -> None: ...

    noise = random.Random(1)  # noqa: S311  what cannot be compressed stays large
    old = await tracked.send_many([(noise.randbytes(150_000).hex(),) for _ in range(10)])
    await plain.send_many([()] * 10)
    assert {(await job.status()).status for job in old} == {"failed"}
    assert len(await items(plain.queue)) == 10


async def test_a_raw_job_that_was_moved_aside_is_told_in_its_record(app):
    queue = app.queue("jobs", max_size=1, overflow="dlq", status=True)
    named = await queue.push({"job_id": ODD_ID})
    await queue.push("text")
    assert (await queue.job(named.job_id).status()).status == "failed"


async def test_what_is_stored_of_many_submissions_is_told_one_by_one(app):
    @app.task(queue="small", status=True)
    def one(n: int) -> None: ...

    app.queue("small", max_size=3)
    with pytest.raises(SendBatchFailed) as failed:
        await one.send_many([(n,) for n in range(5)])
    kinds = [type(outcome) for outcome in failed.value.outcomes]
    assert (kinds.count(str), kinds.count(QueueFull)) == (3, 2)
    assert len(await items(one.queue)) == 3
