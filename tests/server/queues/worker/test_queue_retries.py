"""Failed jobs: when they are tried again, how often, and what is left of them; and times."""

import asyncio
import json
import statistics
from datetime import UTC, datetime, timedelta

import pytest
from tests.kit.patience import patient
from tests.kit.scripts import scripts_of
from tests.kit.workplace import claim_as, counters, in_hand, letters, record

from penstock import DeadLetter, Exponential, Fixed, Retry, RetryPolicy, current_job
from penstock.queues.storage.stored_job import Meta, task_item
from penstock.testing.eventually import eventually
from penstock.testing.queues import clock


def counts(queue, **expected):
    async def check():
        counted = await counters(queue)
        return all(counted.get(name, 0) == number for name, number in expected.items())

    return check


async def server_ms(queue):
    seconds, micros = await queue.client.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def wait_of(queue, job_id):
    """Ms until a job is due, and how it stands there."""
    due = await queue.client.call("ZSCORE", queue.keyring.delayed, job_id)
    body = await queue.client.call("HGET", queue.keyring.delayed_bodies, job_id)
    if due is None:
        return None
    return float(due) - await server_ms(queue), body


async def test_the_table_of_waits_is_followed_to_its_last_row(workplace):
    app, attempts = await workplace.open(), []

    @app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=4, backoff=(5, 10, 30)))
    async def fail() -> None:
        attempts.append(current_job().attempt)
        raise LookupError

    await workplace.start(app)
    job = await fail.send()
    for number, wait_s in enumerate((5, 10, 30), start=1):
        await eventually(counts(fail.queue, retried=number))
        wait_ms, body = await wait_of(fail.queue, job.id)
        assert wait_s * 1000 - 1000 < wait_ms <= wait_s * 1000
        assert body.startswith(b"f\n{")
        said = await job.status()
        assert (said.status, said.retry_count, said.attempt) == ("retrying", number, number)
        assert said.error_type == "LookupError"
        await clock.advance(app, wait_s)
    await job.wait(timeout_s=60)
    assert attempts == [1, 2, 3, 4]
    said = await job.status()
    assert (said.status, said.reason, said.max_retries) == ("failed", "exhausted", 3)
    assert said.retry_count == 3
    assert await counters(fail.queue) == {"added": 1, "retried": 3, "dead": 1}


@pytest.mark.parametrize("max_retries", [0, 1, 3])
async def test_there_are_as_many_attempts_as_retries_and_one(workplace, max_retries):
    app, attempts = await workplace.open(), []
    policy = RetryPolicy(max_attempts=1 + max_retries, backoff=Fixed(0.01))

    @app.task(queue="mail", retry=policy)
    async def fail(number: int) -> None:
        attempts.append(current_job().attempt)
        raise LookupError(number)

    await workplace.start(app)
    await fail.send(7)
    await eventually(counts(fail.queue, dead=1))
    assert attempts == list(range(1, max_retries + 2))
    (letter,) = map(json.loads, await letters(fail.queue))
    assert (letter["attempt_count"], letter["max_attempts"]) == (max_retries + 1, max_retries + 1)
    assert letter["reason"] == "exhausted"
    assert [one["attempt"] for one in letter["history"]] == attempts


@pytest.mark.parametrize("fatal", [True, False])
async def test_a_fatal_error_ends_a_job_at_once_and_says_so(workplace, fatal):
    app, attempts = await workplace.open(), []
    policy = RetryPolicy(max_attempts=3, backoff=Fixed(0.01), give_up_on=(FileNotFoundError,))

    @app.task(queue="mail", retry=policy, status=True)
    async def read() -> None:
        attempts.append(1)
        raise FileNotFoundError("gone") if fatal else OSError("busy")

    await workplace.start(app)
    job = await read.send()
    await job.wait(timeout_s=60)
    said = await job.status()
    (letter,) = map(json.loads, await letters(read.queue))
    if fatal:
        assert (len(attempts), said.reason, letter["reason"]) == (1, "fatal", "fatal")
        assert (said.retry_count, letter["attempt_count"]) == (0, 1)
    else:
        assert (len(attempts), said.reason, letter["reason"]) == (3, "exhausted", "exhausted")
        assert (said.retry_count, letter["attempt_count"]) == (2, 3)


async def test_a_function_decides_for_itself(workplace):
    app, attempts = await workplace.open(), []

    @app.task(queue="mail", status=True)
    async def decide() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise Retry(after=0.01, reason="not yet")
        raise DeadLetter("look at this one")

    await workplace.start(app)
    job = await decide.send()
    await job.wait(timeout_s=60)
    said = await job.status()
    assert (len(attempts), said.reason, said.error) == (2, "requested", "look at this one")


class TooManyRequests(Exception):
    def __init__(self, retry_after):
        super().__init__("429")
        self.retry_after = retry_after


@pytest.mark.parametrize(("asked", "at_least", "at_most"), [(7, 6.5, 7), (0.001, 1.5, 2)])
async def test_a_wait_that_the_error_asks_for_is_heeded_if_longer(
    workplace, asked, at_least, at_most
):
    app = await workplace.open()

    @app.task(queue="mail", retry=RetryPolicy(backoff=Fixed(2)))
    async def call() -> None:
        raise TooManyRequests(asked)

    await workplace.start(app)
    job = await call.send()
    wait_ms, _ = await eventually(lambda: wait_of(call.queue, job.id))
    assert at_least * 1000 < wait_ms <= at_most * 1000


async def test_a_retry_goes_to_the_front_of_its_lane(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail", retry=RetryPolicy(backoff=Fixed(0)))
    async def once_more(number: int) -> None:
        ran.append(number)
        if len(ran) == 1:
            # Others stand in the lane before it comes back.
            await once_more.with_options(group="g").send_many([(2,), (3,)])
            raise LookupError

    await workplace.start(app, concurrency=1)
    await once_more.with_options(group="g").send(1)
    await eventually(lambda: len(ran) == 4)
    assert ran == [1, 1, 2, 3]


async def test_a_raw_job_is_kept_as_it_was_through_its_retries(workplace):
    app, seen = await workplace.open(), []
    queue = app.queue("mail", retry=RetryPolicy(max_attempts=3, backoff=Fixed(0.01)))

    @queue.handler
    async def handle(job: bytes) -> None:
        seen.append(job)
        raise LookupError

    await workplace.start(app)
    for raw in (b'{"a": 1, "b":2}', b"any text", b"\xff\x00", b"[1, 2]", b"", b'"text"'):
        await queue.client.call("RPUSH", queue.keyring.waiting, raw)
        await eventually(lambda: len(seen) == 3)
        assert seen == [raw] * 3
        seen.clear()
    await eventually(counts(queue, dead=6))
    dead = [json.loads(letter)["original_job"] for letter in await letters(queue)]
    assert dead == [{"a": 1, "b": 2}, "any text", dead[2], "[1, 2]", "", '"text"']


async def test_a_job_may_have_more_attempts_than_its_task_or_fewer(workplace):
    app, attempts = await workplace.open(), []

    @app.task(queue="mail", retry=RetryPolicy(max_attempts=2, backoff=Fixed(0.01)))
    async def fail(name: str) -> None:
        attempts.append(name)
        raise LookupError

    await workplace.start(app)
    await fail.with_options(max_attempts=4).send("more")
    await fail.with_options(max_attempts=1).send("fewer")
    await eventually(counts(fail.queue, dead=2))
    assert (attempts.count("more"), attempts.count("fewer")) == (4, 1)


async def test_backoff_is_spread_but_never_beyond_its_cap(workplace):
    app = await workplace.open()
    policy = RetryPolicy(max_attempts=9, backoff=Exponential(100, 100, jitter=0.25))

    @app.task(queue="mail", retry=policy)
    async def fail() -> None:
        raise LookupError

    await workplace.start(app)
    await fail.send_many([()] * 20)
    await eventually(counts(fail.queue, retried=20))
    flat = await app.redis.call("ZRANGE", fail.queue.keyring.delayed, 0, -1, "WITHSCORES")
    now = await server_ms(fail.queue)
    assert all(float(due) - now <= 100_000 for due in flat[1::2])


# ---- dead workers


@pytest.mark.parametrize("limit", [1, 2])
async def test_jobs_of_a_dead_worker_are_charged_once_and_buried_at_their_limit(workplace, limit):
    app, attempts = await workplace.open(silence_s=0.4), []

    @app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=limit, backoff=Fixed(0)))
    async def work() -> None:
        attempts.append(current_job().attempt)

    queue = work.queue
    job = await work.send()
    assert len(await claim_as(queue, "dead", 1)) == 1
    await workplace.start(app)
    await job.wait(timeout_s=60)
    # A single attempt counts only if it was noted as begun, and this one was not.
    assert attempts == [1 if limit == 1 else 2]
    assert (await job.status()).status == "done"
    assert await in_hand(queue) == 0
    assert (await counters(queue))["reaped"] == 1


async def test_a_job_that_was_begun_by_a_dead_worker_at_its_limit_is_a_dead_letter(workplace):
    app, attempts = await workplace.open(silence_s=0.4), []

    @app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=2))
    async def work() -> None:
        attempts.append(1)

    queue = work.queue
    job = await work.send()
    for worker in ("dead", "dead too"):
        await _die_with(queue, worker, job.id)
        if worker == "dead":
            await _reap(app, queue)
    await workplace.start(app)
    await job.wait(timeout_s=60)
    said = await record(queue, job.id)
    assert (said["status"], said["error_type"]) == ("failed", "Crashed")
    (letter,) = map(json.loads, await letters(queue))
    assert (letter["reason"], letter["attempt_count"]) == ("crashed", 2)
    assert attempts == []


class Odd(Exception):
    error_code = "E7"
    suggestions = ("look again",)


async def test_the_record_of_a_crashed_job_tells_of_the_crash_alone(workplace):
    app = await workplace.open(silence_s=0.4)

    @app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=3, backoff=Fixed(60)))
    async def work() -> None:
        raise Odd("attempt 1")

    queue = work.queue
    job = await work.send()
    worker = await workplace.start(app)
    await eventually(counts(queue, retried=1))
    await workplace.stop(worker)
    failed = await record(queue, job.id)
    assert (failed["error"], failed["error_code"]) == ("attempt 1", "E7")
    assert "Odd" in failed["traceback"]

    await clock.advance(app, 61)
    await _die_with(queue, "first", job.id)
    await _reap(app, queue)
    said = await record(queue, job.id)
    assert said["error"] == "attempt 2 ended without an outcome: worker first died"
    assert (said["status"], said["retry_count"]) == ("queued", "2")
    assert "reason" not in said

    await _die_with(queue, "second", job.id)
    reaper = _reaper(app)
    await eventually(lambda: _is_buried(reaper, queue))
    said = await record(queue, job.id)
    assert said["error"] == "attempt 3 ended without an outcome: worker second died"
    assert (said["status"], said["error_type"], said["reason"]) == ("failed", "Crashed", "crashed")
    assert said["traceback"] == said["error_code"] == said["suggestions"] == ""
    view = await job.status()
    assert (view.traceback, view.error_code, view.suggestions) == ("", "", ())


async def test_the_record_of_an_error_without_a_code_has_none_of_an_earlier_one(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=2, backoff=Fixed(0)))
    async def work() -> None:
        raise Odd("coded") if current_job().attempt == 1 else LookupError("plain")

    await workplace.start(app)
    job = await work.send()
    await job.wait(timeout_s=60)
    view = await job.status()
    assert (view.error, view.error_code, view.suggestions) == ("plain", "", ())


async def _die_with(queue, worker, job_id):
    """Begin the next job as a worker that dies of it."""
    scripts = scripts_of(queue.client)
    (item,) = await claim_as(queue, worker, 1)
    begun = json.loads(item)
    begun["_penstock"] = {**begun.get("_penstock", {}), "begun": True}
    told = ("1", job_id, 1, "", json.dumps(begun))
    assert await scripts.begin_jobs(keys=queue.keyring, worker=worker, jobs=told) == [1]
    await scripts.leave_queue(keys=queue.keyring, worker=worker)


async def _is_buried(reaper, queue):
    await reaper.reap(await server_ms(queue))
    return await letters(queue)


def _reaper(app):
    (consumer,) = [one for one in app.worker()._work if one.name == "queue mail"]
    return consumer._reaper


async def _reap(app, queue):
    await _reaper(app).reap(await server_ms(queue))


# ---- times


async def test_delayed_jobs_are_never_early_and_hardly_late(workplace):
    app, begun = await workplace.open(poll_s=0.1), {}

    @app.task(queue="mail")
    async def note(number: int) -> None:
        begun[number] = await server_ms(note.queue)

    await workplace.start(app)
    due = {}
    for number in range(60):
        delay_ms = 100 + 17 * number
        before = await server_ms(note.queue)
        if number % 2:
            await note.with_options(delay=delay_ms / 1000).send(number)
            due[number] = before + delay_ms
        else:
            at = datetime.fromtimestamp((before + delay_ms) / 1000, UTC)
            await note.with_options(at=at).send(number)
            due[number] = before + delay_ms
    await eventually(lambda: len(begun) == 60)
    late = [begun[number] - due[number] for number in due]
    assert min(late) >= -1  # a moment is cut to whole milliseconds
    assert statistics.median(late) < patient(100)


async def test_delay_and_at_take_what_python_has_for_times(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)

    now = datetime.now(UTC)
    await note.with_options(delay=timedelta(milliseconds=50)).send(1)
    await note.with_options(at=now - timedelta(seconds=3)).send(2)
    await note.with_options(at=(now + timedelta(milliseconds=50)).timestamp()).send(3)
    later = await note.with_options(delay=3600).send(4)
    await workplace.start(app)
    await eventually(lambda: sorted(ran) == [1, 2, 3])
    wait_ms, _ = await wait_of(note.queue, later.id)
    assert 3_590_000 < wait_ms <= 3_600_000


async def test_many_jobs_that_are_due_at_once_are_all_run(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(0)

    await note.with_options(delay=0.1).send_many([(number,) for number in range(1_000)])
    await workplace.start(app)
    await eventually(lambda: len(ran) == 1_000)
    assert sorted(ran) == list(range(1_000))
    assert await app.redis.call("EXISTS", note.queue.keyring.delayed_bodies) == 0


@pytest.mark.parametrize("limit", [999, 1_000, 1_001])
async def test_a_job_has_as_many_attempts_as_its_policy_allows(workplace, limit):
    app, starts = await workplace.open(), []

    @app.task(queue="mail", retry=RetryPolicy(max_attempts=3, backoff=Fixed(0)))
    async def fail() -> None:
        starts.append(current_job().attempt)
        raise LookupError

    queue = fail.queue
    begun = Meta(attempts=limit - 3, max_attempts=limit)  # those before are not worth the time
    item = task_item(app.codec, id="j", task=fail.name, args=b"[]", kwargs=b"{}", meta=begun)
    await app.redis.call("RPUSH", queue.keyring.waiting, item)
    await workplace.start(app)
    (letter,) = await eventually(lambda: letters(queue))
    assert starts == [limit - 2, limit - 1, limit]
    assert (json.loads(letter)["attempt_count"], json.loads(letter)["reason"]) == (
        *(limit, "exhausted"),
    )


@pytest.mark.torture
async def test_a_policy_of_more_than_a_thousand_attempts_ends(workplace):
    app, starts = await workplace.open(), []

    @app.task(queue="mail", retry=RetryPolicy(max_attempts=1_005, backoff=Fixed(0)))
    async def fail() -> None:
        starts.append(current_job().attempt)
        raise LookupError

    await fail.send()
    await workplace.start(app)
    await eventually(lambda: letters(fail.queue))
    assert starts == list(range(1, 1_006))
