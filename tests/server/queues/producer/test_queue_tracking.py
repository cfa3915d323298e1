"""Jobs with records: progress, results, the index by state, expiring."""

import asyncio
import json

import pytest
from tests.kit.workplace import counters, in_hand, record, stored

from penstock import Fixed, JobFailed, RetryPolicy, current_job
from penstock.errors import InvalidJob
from penstock.testing.eventually import eventually

SOON = RetryPolicy(max_attempts=3, backoff=Fixed(0.02))


def counts(queue, **expected):
    async def check():
        counted = await counters(queue)
        return all(counted.get(name, 0) == number for name, number in expected.items())

    return check


async def index(queue, state):
    names = await queue.client.call("ZRANGE", queue.keyring.jobs(state), 0, -1)
    return [name.decode() for name in names]


async def test_many_jobs_with_records_stand_in_the_order_in_which_they_were_sent(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def note(number: int) -> None: ...

    raw = app.queue("raw", status=True)
    await note.send_many([(number,) for number in range(1_000)])
    await raw.push_many([{"n": number} for number in range(1_000)])
    assert [json.loads(item)["args"] for item in await stored(note.queue)] == [
        [number] for number in range(1_000)
    ]
    assert [json.loads(item)["n"] for item in await stored(raw)] == list(range(1_000))


# ---- results and progress


async def test_a_job_tells_how_far_it_is_and_what_it_counts(workplace):
    app, told, go_on = await workplace.open(), asyncio.Event(), asyncio.Event()

    @app.task(queue="mail", status=True)
    async def embed() -> str:
        await current_job().progress(3, total=12, note="page 3", chunks_created=7)
        told.set()
        await go_on.wait()
        await current_job().progress(12, chunks_created=21)
        return "ok"

    await workplace.start(app)
    job = await embed.send()
    await told.wait()
    progress = await job.progress()
    assert (progress.done, progress.total, progress.note) == (3, 12, "page 3")
    assert progress.counts == {"chunks_created": 7}
    assert progress.ratio == 0.25
    go_on.set()
    assert await job.result(timeout_s=60) == "ok"
    assert (await job.progress()).counts == {"chunks_created": 21}


async def test_a_function_in_a_thread_reports_progress_too(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    def embed() -> None:
        current_job().report(1, total=2, tokens_used=5432)

    await workplace.start(app)
    job = await embed.send()
    assert await job.result(timeout_s=60) is None
    progress = await job.progress()
    assert (progress.done, progress.total, progress.counts) == (1, 2, {"tokens_used": 5432})


async def test_a_note_may_be_any_text_that_python_has(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def note() -> None:
        await current_job().progress(note="file \udcff.pdf \n\x00 ü", rag="\ud800")

    await workplace.start(app)
    job = await note.send()
    await job.result(timeout_s=60)
    assert (await job.progress()).note == "file \\udcff.pdf \n\x00 ü"


async def test_progress_without_a_record_is_no_mistake_but_fields_of_ours_are(workplace):
    app, ended = await workplace.open(), []

    @app.task(queue="mail")
    async def plain() -> None:
        await current_job().progress(1, total=2)
        ended.append("plain")

    @app.task(queue="mail", status=True)
    async def tracked() -> None:
        for name in ("status", "submitted_at", "retry_count", "error_type", "progress_done"):
            with pytest.raises(InvalidJob, match=f"'{name}' is a field that Penstock writes"):
                await current_job().progress(**{name: "done"})
        ended.append("tracked")

    await workplace.start(app)
    await plain.send()
    await tracked.send()
    await eventually(lambda: sorted(ended) == ["plain", "tracked"])


@pytest.mark.parametrize("result", [None, 0, "", [], {"a": [1, None, "ü"]}, 2**60, 1.5])
async def test_results_come_back_as_they_were_returned(workplace, result):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def give() -> object:
        return result

    await workplace.start(app)
    assert await (await give.send()).result(timeout_s=60) == result


async def test_a_result_that_cannot_be_stored_does_not_undo_the_work(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def give() -> object:
        return {1j}

    await workplace.start(app)
    job = await give.send()
    await job.wait(timeout_s=60)
    assert (await job.status()).status == "done"


async def test_a_failed_job_tells_its_error_code_and_suggestions(workplace):
    app = await workplace.open()

    class ParseError(ValueError):
        error_code = "ERR_PDF_INVALID"
        suggestions = ("try pdfinfo", "export it again")

    @app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=1))
    async def parse() -> None:
        raise ParseError("PDF header corrupted")

    await workplace.start(app)
    job = await parse.send()
    with pytest.raises(JobFailed):
        await job.result(timeout_s=60)
    said = await job.status()
    assert (said.error, said.error_code) == ("PDF header corrupted", "ERR_PDF_INVALID")
    assert said.error_type.endswith("ParseError")
    assert said.suggestions == ("try pdfinfo", "export it again")
    assert "raise ParseError" in said.traceback
    assert said.reason == "exhausted"


async def _is_in(queue, state, job_id):
    return await index(queue, state) == [job_id]


async def test_the_index_by_state_follows_the_job(workplace):
    app, began, go_on = await workplace.open(), asyncio.Event(), asyncio.Event()

    @app.task(queue="mail", status=True)
    async def work() -> None:
        began.set()
        await go_on.wait()

    queue = work.queue
    job = await work.with_options(delay=0.2).send()
    assert await index(queue, "submitted") == [job.id]
    await workplace.start(app)
    await began.wait()
    await eventually(lambda: _is_in(queue, "processing", job.id))
    go_on.set()
    await job.wait(timeout_s=60)
    assert await index(queue, "done") == [job.id]
    for state in ("submitted", "queued", "processing"):
        assert await index(queue, state) == []


async def test_the_record_of_a_quick_job_tells_as_much_as_that_of_a_slow_one(workplace):
    app, go_on = await workplace.open(), asyncio.Event()

    @app.task(queue="mail", status=True)
    async def quick() -> None: ...

    @app.task(queue="mail", status=True)
    async def slow() -> None:
        await go_on.wait()

    await workplace.start(app)
    one, other = await quick.send(), await slow.send()
    await one.wait(timeout_s=60)
    await eventually(lambda: _is_in(quick.queue, "processing", other.id))
    go_on.set()
    await other.wait(timeout_s=60)
    told = [await record(quick.queue, job.id) for job in (one, other)]
    # Only a job that had not ended when it was awaited is marked so.
    assert told[0].keys() - {"waited"} == told[1].keys() - {"waited"}
    for name in ("status", "attempt", "worker", "retry_count"):
        assert told[0][name] == told[1][name]
    assert told[0]["attempt"] == "1"


# ---- expiring


@pytest.mark.parametrize("tracked", [True, False])
async def test_a_job_that_is_too_late_is_not_begun(workplace, tracked):
    app, ran = await workplace.open(), []

    @app.task(queue="mail", status=tracked)
    async def note(number: int) -> None:
        ran.append(number)

    late = await note.with_options(expires=0.05).send(1)
    fine = await note.with_options(expires=60).send(2)
    queue = note.queue
    deadline = await queue.server_ms() + 60
    await eventually(lambda: _past(queue, deadline))
    await workplace.start(app)
    await eventually(counts(queue, done=1, expired=1))
    assert ran == [2]
    assert await in_hand(queue) == 0
    if tracked:
        assert (await late.status()).status == "expired"
        assert (await fine.status()).status == "done"
        with pytest.raises(JobFailed):
            await late.result(timeout_s=1)


async def _past(queue, ms):
    seconds, micros = await queue.client.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000 > ms


async def test_a_retry_that_would_be_too_late_is_not_made(workplace):
    app, attempts = await workplace.open(), []

    @app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=5, backoff=Fixed(0.4)))
    async def fail() -> None:
        attempts.append(1)
        raise LookupError

    await workplace.start(app)
    job = await fail.with_options(expires=0.3).send()
    await job.wait(timeout_s=60)
    assert (await job.status()).status == "expired"
    assert attempts == [1]


async def test_an_id_that_has_ended_is_not_run_again_by_whoever_pushes_it(workplace):
    app, runs = await workplace.open(), []
    queue = app.queue("mail", status=True)

    @queue.handler
    async def work(job: dict) -> None:
        runs.append(job["job_id"])

    await workplace.start(app)
    await queue.push({"job_id": "a"})
    await queue.job("a").wait(timeout_s=60)
    before = await record(queue, "a")
    await queue.client.call("RPUSH", queue.keyring.waiting, b'{"job_id":"a"}')
    await queue.push({"job_id": "b"})
    await queue.job("b").wait(timeout_s=60)
    await eventually(lambda: _empty(queue))
    assert runs == ["a", "b"]
    assert await record(queue, "a") == before


async def _empty(queue):
    return not await in_hand(queue) and not await stored(queue)
