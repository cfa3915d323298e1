"""Many files at once: batches, fair turns, priorities; and what the pipeline says of itself."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from tests.kit.library import paragraphs

from penstock import Penstock
from penstock.errors import JobMissing
from penstock.pipelines.documents.service import Documents
from penstock.pipelines.documents.submit.job_message import QUEUE
from penstock.settings import EmbeddedSettings, Settings, TableSettings, VectorSettings
from penstock.testing.postgres import PostgresProcess
from penstock.testing.servers import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def completed(library, submission) -> list[str]:
    """When the files of a batch were done, in that order."""
    told = [await library.documents.status(job.job_id) for job in submission.jobs]
    assert {one["status"] for one in told} == {"done"}
    return sorted(one["completed_at"] for one in told)


async def test_150_files_are_one_batch_and_starve_nobody(library):
    big, small, urgent = library.rag(), library.rag(), library.rag()
    for number in range(150):
        big.write(f"{number}.txt", paragraphs(f"number {number}", f"more of {number}"))
    for number in range(3):
        small.write(f"{number}.txt", paragraphs(f"small {number}"))
    urgent.write("now.txt", paragraphs("now"))
    async with library.paused():
        batch = await big.submit(big.outside)
        after = await small.submit(small.outside)
        first = await urgent.submit(urgent.outside, priority="high")
        assert (len(batch.jobs), batch.refused) == (150, ())
        assert all(job.created for job in batch.jobs)
        view = await library.documents.batch(batch.batch_id)
        assert (view.status, view.counts, view.ended) == ("queued", {"queued": 150}, 0)
        assert (view.part, view.estimated_remaining_s) == (0.0, None)
        health = await library.documents.health()
        assert (health.queued, health.processing) == (154, 0)
    parts: list[float] = []
    async for view in library.documents.follow(batch.batch_id, every_s=0.02):
        parts.append(view.part)
        assert view.status in {"queued", "processing", "done"}
        assert len(view.files) == 150
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    told = view.as_json()
    assert (told["status"], told["total"], told["ended"]) == ("done", 150, 150)
    assert (told["counts"], told["chunks_created"]) == ({"done": 150}, 300)
    assert told["embeddings_generated"] == 300
    assert told["tokens_used"] > 300
    assert told["estimated_remaining_seconds"] == 0.0
    assert await big.total() == 300
    assert len(big.files()["processed"]) == 150
    # The others came last and were done among the first.
    ends = await completed(library, batch)
    for submission in (after, first):
        last = (await completed(library, submission))[-1]
        assert sum(end < last for end in ends) < 60


async def test_a_batch_tells_of_each_file_and_of_the_worst(library):
    rag = library.rag()
    rag.write("good.txt", paragraphs("good"))
    rag.write("bad.pdf", "no PDF")
    submission = await rag.submit(rag.outside)
    view = await library.documents.wait(submission.batch_id)
    assert (view.status, view.is_final, view.rag_id) == ("failed", True, rag.id)
    bad, good = view.files
    assert (bad.document, bad.status, bad.error_code) == ("bad.pdf", "failed", "ERR_PDF_INVALID")
    assert (good.document, good.status, good.chunks_created) == ("good.txt", "done", 1)
    assert (good.error, good.embeddings_generated) == ("", 1)
    with pytest.raises(JobMissing):
        await library.documents.batch("batch-nowhere-1-00000000")


async def test_a_batch_is_known_after_the_records_of_its_jobs_have_gone(library):
    rag = library.rag()
    rag.write("good.txt", paragraphs("good"))
    rag.write("bad.pdf", "no PDF")
    submission = await rag.submit(rag.outside)
    await library.documents.wait(submission.batch_id)
    for job in submission.jobs:
        await library.app.redis.call("DEL", f"rag:ingest:job:{job.job_id}")
    view = await library.documents.batch(submission.batch_id)
    assert {file.document: (file.status, file.error_code) for file in view.files} == {
        "bad.pdf": ("failed", "ERR_PDF_INVALID"),
        "good.txt": ("done", ""),
    }
    assert sum(file.chunks_created for file in view.files) == 1


async def test_numbers_add_up(library):
    rag = library.rag()
    before = library.documents.metrics.view()
    await rag.take("a.txt", paragraphs("one", "two", "three"))
    await rag.take("a.txt", paragraphs("one", "two", "four"))
    await rag.take("a.txt", paragraphs("one", "two", "four"))
    await rag.take("b.pdf", "no PDF")
    after = library.documents.metrics.view()
    names = ("documents", "failed", "retried", "chunks", "embedded", "reused")
    grown = {name: getattr(after, name) - getattr(before, name) for name in names}
    assert grown == {
        "documents": 3,
        "failed": 1,
        "retried": 0,
        "chunks": 6,
        "embedded": 4,
        "reused": 2,
    }
    assert after.tokens > before.tokens
    for stage in ("parse", "embed", "upsert", "job"):
        assert after.seconds[stage] > before.seconds.get(stage, 0.0)
    spent = sum(after.seconds[name] for name in ("parse", "embed", "upsert"))
    assert spent <= after.seconds["job"] + 5.0  # of those that failed, too


# ---- health


async def test_all_is_well(library):
    rag = library.rag()
    told = await rag.take("a.txt", paragraphs("one"))
    health = await library.documents.health()
    assert (health.ok, health.problems) == (True, ())
    assert (health.redis_ok, health.qdrant_ok, health.ledger_ok) == (True, True, True)
    assert (health.worker_connected, health.workers) == (True, 1)
    assert health.last_heartbeat_s < 5
    assert (health.queued, health.processing, health.queue_name) == (0, 0, QUEUE)
    assert health.last_job["job_id"] == told["job_id"]
    assert health.last_job["state"] == "done"


@pytest_asyncio.fixture(loop_scope="module")
async def open_documents(tmp_path):
    """`await open_documents(url=…)` is `Documents` without a worker."""
    opened: list[tuple[Penstock, Documents]] = []

    async def open_one(**settings) -> Documents:
        made = Settings(
            home=str(tmp_path / f"{len(opened)}"),
            **{
                "embedded": EmbeddedSettings(linger_s=0.1),
                "vectors": VectorSettings(linger_s=0.1),
                **settings,
            },
        )
        app = Penstock(settings=made)
        documents = Documents(app)
        await app.open()
        await documents.open()
        opened.append((app, documents))
        return documents

    yield open_one
    for app, documents in opened:
        await documents.close()
        await app.close()


async def test_a_missing_worker_is_told(open_documents):
    documents = await open_documents()
    health = await documents.health()
    assert health.problems == ("no worker: start one with penstock ingest work",)
    assert (health.worker_connected, health.workers, health.last_heartbeat_s) == (False, 0, None)
    assert (health.ok, health.redis_ok, health.last_job) == (False, True, None)


async def test_vectors_that_are_away_are_told(open_documents):
    url = f"http://127.0.0.1:{free_port()}"
    documents = await open_documents(vectors=VectorSettings(url=url))
    health = await documents.health()
    assert (health.qdrant_ok, health.redis_ok, health.ledger_ok) == (False, True, True)
    assert any(problem.startswith("vectors: ") for problem in health.problems)


async def test_a_redis_that_is_away_is_told(open_documents, start_server):
    server = start_server("valkey")
    documents = await open_documents(url=server.url)
    assert (await documents.health()).redis_ok
    await asyncio.to_thread(server.stop)
    health = await documents.health()
    assert (health.redis_ok, health.qdrant_ok, health.ledger_ok) == (False, True, True)
    assert any(problem.startswith("redis: ") for problem in health.problems)
    assert health.queued == 0


@pytest.mark.usefixtures("postgres_server")  # skipped where there is none
async def test_a_ledger_that_is_away_is_told(open_documents):
    with PostgresProcess() as own:
        documents = await open_documents(tables=TableSettings(url=own.url, wait_s=0.5))
        assert (await documents.health()).ledger_ok
        await asyncio.to_thread(own.stop)
        health = await documents.health()
    assert (health.redis_ok, health.qdrant_ok, health.ledger_ok) == (True, True, False)
    assert any(problem.startswith("ledger: ") for problem in health.problems)
