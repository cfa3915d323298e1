"""The ingestion queue of the RAG chatbot, letter by letter: its keys, messages and status records.

Everything is written and read with plain commands, as its other programs do.
"""

import asyncio
import json
import re

import pytest

from penstock import RetryPolicy, current_job
from penstock.testing.eventually import eventually
from penstock.testing.queues import clock

QUEUE = "rag:ingest:queue"
JOB_ID = "rag-policies_rag-1704882600-a7b2c3d4"
JOB_KEY = f"rag:ingest:job:{JOB_ID}"
JOB = {
    "job_id": JOB_ID,
    "rag_id": "policies_rag",
    "source_path": "/app/data/sources/policies_rag/incoming/my_policy.pdf",
    "source_type": "pdf",
    "filename": "my_policy.pdf",
    "submitted_at": "2025-01-10T20:15:30.123456Z",
    "submitted_by": "cli",
    "options": {"reindex": False, "skip_validation": False, "preserve_metadata": True},
    "retry_count": 0,
    "max_retries": 3,
}
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
WEEK_S = 604_800
TABLE = RetryPolicy(max_attempts=4, backoff=(5, 10, 30), give_up_on=(FileNotFoundError,))


class ParseError(Exception):
    error_code = "ERR_PDF_INVALID"
    suggestions = ("Verify PDF is valid using: pdfinfo filename.pdf", "Check file permissions")


@pytest.fixture
async def app(workplace):
    return await workplace.open()


@pytest.fixture
def ingest(app):
    """The queue as the contract describes it."""
    return app.queue(
        QUEUE, push="left", status=True, retry=TABLE, status_fields=("rag_id", "filename")
    )


@pytest.fixture
def status(cli):
    def hgetall(key=JOB_KEY):
        flat = cli("HGETALL", key)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    return hgetall


async def test_what_the_cli_pushes_is_taken_from_the_other_end(workplace, app, ingest, cli):
    seen = []

    @ingest.handler
    async def handle(job: dict) -> None:
        seen.append(job)

    jobs = [{**JOB, "job_id": f"rag-x-{number}"} for number in range(3)]
    for job in jobs:
        cli("LPUSH", QUEUE, json.dumps(job))
    assert cli("LLEN", QUEUE) == 3
    assert json.loads(cli("LINDEX", QUEUE, -1)) == jobs[0]  # the oldest, as documented
    await workplace.start(app, concurrency=1)
    await eventually(lambda: len(seen) == 3)
    assert seen == jobs


async def test_a_pushed_job_stands_there_as_documented_and_is_queued(ingest, cli, status):
    await ingest.push(JOB)
    stored = json.loads(cli("LINDEX", QUEUE, 0))
    own = stored.pop("_penstock", {})
    assert stored == JOB
    assert own == {"tracked": True}
    assert cli("TYPE", JOB_KEY) == "hash"
    assert cli("TTL", JOB_KEY) == -1
    said = status()
    assert (said["job_id"], said["status"], said["rag_id"], said["filename"]) == (
        *(JOB_ID, "queued", "policies_rag", "my_policy.pdf"),
    )
    assert ISO.fullmatch(said["submitted_at"])
    assert (said["retry_count"], said["max_retries"]) == ("0", "3")


async def test_a_job_id_is_taken_once(ingest, cli):
    assert (await ingest.push(JOB)).created
    again = await ingest.push(JOB)
    assert (again.created, again.job_id) == (False, JOB_ID)
    assert cli("LLEN", QUEUE) == 1


@pytest.mark.parametrize("pushed_by", ["Penstock", "another program"])
async def test_the_record_of_a_job_from_processing_to_done(
    workplace, app, ingest, cli, status, pushed_by
):
    counted, go_on = asyncio.Event(), asyncio.Event()

    @ingest.handler
    async def handle(job: dict) -> str:
        await current_job().progress(chunks_created=7)
        counted.set()
        await go_on.wait()
        await current_job().progress(chunks_created=21, embeddings_generated=21, tokens_used=5432)
        return "indexed"

    if pushed_by == "Penstock":
        await ingest.push(JOB)
    else:
        cli("LPUSH", QUEUE, json.dumps(JOB))
    await workplace.start(app)
    await counted.wait()
    said = status()
    assert (said["status"], said["chunks_created"]) == ("processing", "7")
    assert ISO.fullmatch(said["started_at"])
    assert "completed_at" not in said
    assert cli("TTL", JOB_KEY) == -1
    assert cli("LLEN", QUEUE) == 0

    go_on.set()
    await eventually(lambda: status().get("status") == "done")
    said = status()
    assert said["job_id"] == JOB_ID
    assert said["submitted_at"] <= said["started_at"] <= said["completed_at"]
    assert ISO.fullmatch(said["completed_at"])
    assert float(said["duration_seconds"]) >= 0
    assert (said["chunks_created"], said["embeddings_generated"], said["tokens_used"]) == (
        *("21", "21", "5432"),
    )
    assert said["retry_count"] == "0"
    assert "error" not in said
    assert WEEK_S - 60 < cli("TTL", JOB_KEY) <= WEEK_S
    assert cli("EXISTS", f"{JOB_KEY}:ttl") == 0
    assert (said["rag_id"], said["filename"]) == ("policies_rag", "my_policy.pdf")
    assert (said["queue"], said["max_retries"]) == (QUEUE, "3")


async def test_the_status_json_is_a_view_of_the_record(workplace, app, ingest):
    @ingest.handler
    async def handle(job: dict) -> None:
        await current_job().progress(chunks_created=21)

    await ingest.push(JOB)
    await workplace.start(app)
    job = ingest.job(JOB_ID)
    await job.wait(timeout_s=60)
    view = (await job.status()).contract_view()
    assert view["job_id"] == JOB_ID
    assert (view["rag_id"], view["filename"], view["status"]) == (
        *("policies_rag", "my_policy.pdf", "done"),
    )
    assert (view["chunks_created"], view["retry_count"]) == (21, 0)
    assert (view["error"], view["error_type"]) == (None, None)
    for name in ("submitted_at", "started_at", "completed_at"):
        assert ISO.fullmatch(view[name])
    assert view["duration_seconds"] >= 0


async def test_retries_follow_the_table_and_are_counted_in_the_message(
    workplace, app, ingest, cli, status
):
    attempts = []

    @ingest.handler
    async def handle(job: dict) -> None:
        attempts.append((current_job().attempt, job["retry_count"]))
        raise TimeoutError("embedding API")

    cli("LPUSH", QUEUE, json.dumps(JOB))
    await workplace.start(app)
    for retry, wait_s in enumerate((5, 10, 30), start=1):
        await eventually(lambda retry=retry: len(attempts) == retry)
        await eventually(lambda: status().get("status") == "retrying")
        flat = cli("ZRANGE", f"penstock:queue:{QUEUE}:delayed", 0, -1, "WITHSCORES")
        seconds, micros = cli("TIME")
        left_s = float(flat[1]) / 1000 - int(seconds) - int(micros) / 1e6
        assert wait_s - 1 < left_s <= wait_s
        body = cli("HGET", f"penstock:queue:{QUEUE}:delayed_bodies", JOB_ID)
        message = json.loads(body.partition("\n")[2])
        assert message["retry_count"] == retry
        assert {name: message[name] for name in JOB} == {**JOB, "retry_count": retry}
        assert (status()["retry_count"], status()["error_type"]) == (str(retry), "TimeoutError")
        await clock.advance(app, wait_s)
    await eventually(lambda: status().get("status") == "failed")
    assert attempts == [(1, 0), (2, 1), (3, 2), (4, 3)]  # one try and three retries
    assert (status()["retry_count"], status()["reason"]) == ("3", "exhausted")


async def test_a_message_that_was_retried_elsewhere_goes_on_from_there(
    workplace, app, ingest, cli, status
):
    attempts = []

    @ingest.handler
    async def handle(job: dict) -> None:
        attempts.append(current_job().attempt)
        raise TimeoutError

    cli("LPUSH", QUEUE, json.dumps({**JOB, "retry_count": 2}))
    await workplace.start(app)
    await eventually(lambda: attempts == [3])
    await eventually(lambda: status().get("status") == "retrying")
    await clock.advance(app, 30)
    await eventually(lambda: status().get("status") == "failed")
    assert attempts == [3, 4]


@pytest.mark.parametrize(("asked", "made"), [(0, 1), (1, 2), (99, 4)])
async def test_a_message_may_ask_for_fewer_retries_but_not_for_more(
    workplace, app, ingest, cli, status, asked, made
):
    attempts = []

    @ingest.handler
    async def handle(job: dict) -> None:
        attempts.append(1)
        raise TimeoutError

    cli("LPUSH", QUEUE, json.dumps({**JOB, "max_retries": asked}))
    await workplace.start(app)
    for number in range(1, made):
        await eventually(lambda number=number: len(attempts) == number)
        await eventually(lambda: status().get("status") == "retrying")
        await clock.advance(app, 30)
    await eventually(lambda: status().get("status") == "failed")
    assert len(attempts) == made


async def test_a_failed_job_has_the_documented_error(workplace, app, ingest, cli, status):
    @ingest.handler(retry=RetryPolicy(give_up_on=(ParseError,)))
    async def handle(job: dict) -> None:
        raise ParseError("PDF header corrupted or invalid")

    await ingest.push(JOB)
    await workplace.start(app)
    await eventually(lambda: status().get("status") == "failed")
    said = status()
    assert (said["error"], said["error_code"]) == (
        *("PDF header corrupted or invalid", "ERR_PDF_INVALID"),
    )
    assert said["error_type"].endswith("ParseError")
    assert json.loads(said["suggestions"]) == list(ParseError.suggestions)
    assert "ParseError" in said["traceback"]
    assert ISO.fullmatch(said["failed_at"])
    assert "completed_at" not in said
    # A hopeless error is not retried: none of its retries was used.
    assert (said["retry_count"], said["max_retries"], said["reason"]) == ("0", "3", "fatal")
    assert WEEK_S - 60 < cli("TTL", JOB_KEY) <= WEEK_S

    view = (await ingest.job(JOB_ID).status()).contract_view()
    assert view["suggestions"] == list(ParseError.suggestions)
    assert (view["failed_at"], view["completed_at"]) == (said["failed_at"], None)
    assert (view["error_code"], view["max_retries"]) == ("ERR_PDF_INVALID", 3)

    letter = json.loads(cli("LINDEX", f"dlq:{QUEUE}", 0))
    assert {name: letter["original_job"][name] for name in JOB} == JOB
    assert (letter["reason"], letter["error_code"]) == ("fatal", "ERR_PDF_INVALID")
    assert letter["suggestions"] == list(ParseError.suggestions)
    assert cli("EXISTS", f"{QUEUE}:dead-letter") == 0


async def test_submitted_is_what_waits_for_its_time(ingest, status):
    await ingest.push(JOB, delay=60)
    assert status().get("status") == "submitted"


# ---- what the contract promised for later


@pytest.mark.parametrize("pushed_by", ["Penstock", "another program"])
async def test_priorities_are_the_promised_lists(workplace, app, ingest, cli, pushed_by):
    seen = []

    @ingest.handler
    async def handle(job: dict) -> None:
        seen.append(job["rag_id"])

    for priority in ("low", "normal", "high"):
        job = {**JOB, "job_id": priority, "rag_id": priority}
        if pushed_by == "Penstock":
            await ingest.push(job, priority=priority)
        else:
            cli("LPUSH", f"{QUEUE}:{priority}", json.dumps(job))
        assert cli("LLEN", f"{QUEUE}:{priority}") == 1
    assert cli("LLEN", QUEUE) == 0
    await workplace.start(app, concurrency=1)
    await eventually(lambda: seen == ["high", "normal", "low"])


async def test_each_rag_has_its_list_and_takes_its_turn(workplace, app, ingest, cli):
    seen = []

    @ingest.handler
    async def handle(job: dict) -> None:
        seen.append(job["rag_id"])

    for rag, count in (("policies_rag", 30), ("faq_rag", 2), ("procedures_rag", 2)):
        for number in range(count):
            await ingest.push({**JOB, "job_id": f"{rag}-{number}", "rag_id": rag}, group=rag)
        assert cli("LLEN", f"{QUEUE}:{rag}") == count
    await workplace.start(app, concurrency=1)
    await eventually(lambda: len(seen) == 34)
    assert sorted(seen[:6]) == sorted(["policies_rag", "faq_rag", "procedures_rag"] * 2)


async def test_queue_figures_are_those_of_the_health_check(workplace, app, ingest, cli):
    began, go_on = asyncio.Event(), asyncio.Event()

    @ingest.handler
    async def handle(job: dict) -> None:
        began.set()
        await go_on.wait()

    for number in range(3):
        cli("LPUSH", QUEUE, json.dumps({**JOB, "job_id": f"rag-x-{number}"}))
    await workplace.start(app, concurrency=1)
    await began.wait()
    assert cli("LLEN", QUEUE) == 2  # those that run are not among them
    (worker,) = cli("ZRANGE", f"penstock:queue:{QUEUE}:workers", 0, -1)
    assert cli("HLEN", f"penstock:queue:{QUEUE}:claimed:{worker}") == 1
    go_on.set()
    await eventually(lambda: cli("LLEN", QUEUE) == 0)
