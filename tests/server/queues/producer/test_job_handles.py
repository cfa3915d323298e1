"""Handles on jobs: status, result, progress, cancelling; and many who wait at once."""

import asyncio
import json

import msgspec
import pytest
from tests.kit.scripts import scripts_of

from penstock.errors import DecodeError, JobFailed, JobMissing
from penstock.queues.storage.job_record import JobRecord
from penstock.queues.worker.job_context import JobContext
from penstock.testing.eventually import eventually


class Answer(msgspec.Struct):
    number: int


@pytest.fixture
def compute(app):
    @app.task(queue="jobs", name="compute", status=True)
    async def compute(number: int, job: JobContext | None = None) -> Answer:
        return Answer(number)

    return compute


class Worker:
    """Does by scripts what a worker does, at the test's word."""

    def __init__(self, queue, name="w1"):
        self.queue, self.name, self.number = queue, name, 1
        self.scripts, self.keys = scripts_of(queue.client), queue.keyring

    async def begin(self, job):
        await self.queue.declared()
        await self.scripts.join_queue(keys=self.keys, worker=self.name)
        claim = str(self.number)
        await self.scripts.claim_jobs(
            keys=self.keys, worker=self.name, first=self.number, most=1, done=()
        )
        self.number += 1
        name = self.keys.record_name(job.id)
        assert await self.scripts.begin_jobs(
            keys=self.keys, worker=self.name, jobs=(claim, name, 1, "compute", "")
        ) == [1]
        return claim

    async def write(self, job, **fields):
        pairs = [word for pair in fields.items() for word in pair]
        await self.queue.client.call("HSET", self.keys.record(job.id), *pairs)

    async def end(self, job, status="done", **fields):
        await self.write(job, status=status, **fields)


async def test_the_status_tells_what_the_record_says(compute):
    job = await compute.send(5)
    told = await job.status()
    assert (told.job_id, told.queue, told.task) == (job.id, "jobs", "compute")
    assert (told.status, told.attempt, told.max_attempts) == ("queued", 0, 5)
    assert told.submitted_ms is not None
    assert told.started_ms is None
    assert not told.is_final
    worker = Worker(compute.queue)
    await worker.begin(job)
    told = await job.status()
    assert (told.status, told.attempt, told.worker) == ("processing", 1, "w1")
    assert told.started_ms >= told.submitted_ms


async def test_a_result_comes_back_as_the_function_is_annotated(compute):
    job = await compute.send(5)
    waiting = asyncio.create_task(job.result(timeout_s=60))
    await Worker(compute.queue).end(job, result=b'{"number":5}')
    assert await waiting == Answer(5)
    assert await job.result() == Answer(5)
    assert await compute.job(job.id).result() == Answer(5)
    assert await compute.queue.job(job.id).result() == {"number": 5}
    assert await job.wait() == "done"


@pytest.mark.parametrize(
    ("kind", "stored", "expected"),
    [(str, b'"text"', "text"), (bytes, b'"AP8="', b"\x00\xff"), (None, b"null", None)],
)
async def test_results_are_json_whatever_their_type(app, kind, stored, expected):
    async def give():
        return expected

    give.__annotations__["return"] = kind
    task = app.task(queue="jobs", name="give", status=True)(give)
    job = await task.send()
    await Worker(task.queue).end(job, result=stored)
    assert await job.result(timeout_s=60) == expected


async def test_a_result_that_could_not_be_stored_is_told(compute):
    job = await compute.send(5)
    await Worker(compute.queue).end(job)
    with pytest.raises(DecodeError):
        await job.result(timeout_s=60)


@pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
async def test_a_job_that_ended_otherwise_has_no_result(compute, status):
    job = await compute.send(5)
    await Worker(compute.queue).end(job, status, error="it broke")
    with pytest.raises(JobFailed, match="it broke") as failed:
        await job.result(timeout_s=60)
    assert (failed.value.job_id, failed.value.status) == (job.id, status)
    assert await job.wait(timeout_s=60) == status


async def test_waiting_ends_with_its_time_and_the_job_goes_on(compute):
    job = await compute.send(5)
    with pytest.raises(TimeoutError):
        await job.result(timeout_s=0.05)
    assert (await job.status()).status == "queued"
    assert compute.queue.results._awaited == {}
    assert compute.queue.results._task is None


async def test_a_job_without_a_record_has_no_result_and_the_remedy_is_told(app):
    job = await app.send("other.task", queue="jobs")
    for asking in (
        job.result(timeout_s=60),
        job.status(),
        job.cancel(),
        job.wait(),
        job.progress(),
    ):
        with pytest.raises(JobMissing, match="status=True"):
            await asking


async def test_hundreds_wait_on_one_loop_for_their_own_jobs(compute):
    jobs = await compute.send_many([(n,) for n in range(300)])
    waiting = [asyncio.create_task(job.result(timeout_s=60)) for job in jobs for _ in range(2)]
    await eventually(lambda: _all_wait(compute.queue.results, 300))
    loops = [task for task in asyncio.all_tasks() if task.get_name().startswith("penstock: await")]
    assert len(loops) == 1
    worker = Worker(compute.queue)
    for number, job in reversed(list(enumerate(jobs))):
        await worker.end(job, result=json.dumps({"number": number}))
    answers = await asyncio.gather(*waiting)
    assert [answer.number for answer in answers] == [n for n in range(300) for _ in range(2)]


async def _all_wait(ends, count):
    return len(ends._awaited) == count


async def test_an_idempotent_send_finds_the_running_job_and_then_its_result(open_queues):
    apps = [await open_queues() for _ in range(2)]
    key = "order 7/ü"
    jobs = await asyncio.gather(
        *(apps[n % 2].send("t", [n], queue="jobs", idempotency_key=key) for n in range(20))
    )
    waiting = asyncio.gather(*(job.result(timeout_s=60) for job in jobs))
    await Worker(apps[0].queue("jobs")).end(jobs[0], result=b"42")
    assert set(await waiting) == {42}
    again = await apps[1].send("t", [99], queue="jobs", idempotency_key=key)
    assert (again.created, await again.result()) == (False, 42)
    assert await apps[0].redis.call("LLEN", apps[0].queue("jobs").keyring.waiting) == 1


async def test_progress_is_what_the_job_says(compute):
    job = await compute.send(5)
    assert (await job.progress()).ratio is None
    worker = Worker(compute.queue)
    claim = await worker.begin(job)
    assert await worker.scripts.note_progress(
        keys=worker.keys,
        worker="w1",
        record=worker.keys.record(job.id),
        claim=claim,
        fields=("progress_done", 3, "progress_total", 4, "progress_note", "pages", "chunks", 17),
    )
    progress = await job.progress()
    assert (progress.done, progress.total, progress.ratio, progress.note) == (3, 4, 0.75, "pages")
    assert progress.counts == {"chunks": 17}


async def test_a_job_that_waits_is_cancelled_and_one_that_runs_is_asked_to_stop(compute):
    waiting, late = await compute.send(1), await compute.with_options(delay=60).send(2)
    assert await waiting.cancel()
    assert await late.cancel()
    assert await late.wait() == "cancelled"
    assert await late.cancel() is False
    keys, client = compute.queue.keyring, compute.queue.client
    assert await client.call("ZCARD", keys.delayed) == 0
    assert await client.call("HLEN", keys.delayed_bodies) == 0
    assert 0 < await client.call("PTTL", keys.record(late.id)) <= 7 * 86_400_000
    await client.call("DEL", keys.waiting)
    running = await compute.send(3)
    await Worker(compute.queue).begin(running)
    assert await running.cancel()
    told = await running.status()
    assert (told.status, told.cancel_asked) == ("processing", True)


async def test_a_record_is_shown_as_the_seed_shows_it():
    stored = {
        "job_id": "j",
        "status": "failed",
        "rag_id": "r",
        "chunks_created": "7",
        "submitted_at": "2026-01-02T03:04:05.678Z",
        "started_at": "2026-01-02T03:04:06.000Z",
        "failed_at": "2026-01-02T03:04:07.500Z",
        "duration_seconds": "1.500",
        "error": "no such file",
        "error_type": "FileNotFoundError",
        "error_code": "FILE_NOT_FOUND",
        "suggestions": '["look again"]',
        "traceback": "Traceback …",
        "retry_count": "3",
        "max_retries": "3",
    }
    record = JobRecord.of("q", "j", {k.encode(): v.encode() for k, v in stored.items()})
    assert record.contract_view() == {
        "job_id": "j",
        "status": "failed",
        "rag_id": "r",
        "chunks_created": 7,
        "submitted_at": "2026-01-02T03:04:05.678Z",
        "started_at": "2026-01-02T03:04:06.000Z",
        "completed_at": None,
        "failed_at": "2026-01-02T03:04:07.500Z",
        "duration_seconds": 1.5,
        "error": "no such file",
        "error_type": "FileNotFoundError",
        "error_code": "FILE_NOT_FOUND",
        "suggestions": ["look again"],
        "traceback": "Traceback …",
        "retry_count": 3,
        "max_retries": 3,
    }
    assert record.duration_s == 1.5
    assert record.is_final
    assert record.fields == {"rag_id": "r", "chunks_created": "7"}


async def test_a_record_that_others_have_spoilt_is_still_read():
    spoilt = {
        b"status": b"\xff",
        b"attempt": b"many",
        b"submitted_at": b"yesterday",
        b"started_at": b"2026-01-02T03:04:05",
        b"duration_seconds": b"nan",
        b"suggestions": b"{",
        b"progress_done": b"1e999",
        b"max_retries": b"-",
        b"result": b"\x00",
    }
    record = JobRecord.of("q", "j", spoilt)
    assert (record.job_id, record.attempt, record.submitted_ms, record.duration_s) == (
        *("j", 0, None, None),
    )
    assert record.started_ms is not None
    assert (record.suggestions, record.progress.done, record.max_retries) == ((), None, None)
    assert record.result == b"\x00"
    assert record.contract_view()["job_id"] == "j"


async def test_who_waits_is_told_when_the_client_is_closed(open_queues):
    app = await open_queues()
    job = await app.send("t", queue="jobs", idempotency_key="k")
    waiting = asyncio.create_task(job.wait())
    await eventually(lambda: _all_wait(app.queue("jobs").results, 1))
    await app.close()
    with pytest.raises(Exception, match="open"):
        await asyncio.wait_for(waiting, 20)
