"""Stores and servers that documents need are killed, frozen, locked, full, away or busy."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import time
from contextlib import contextmanager, suppress

import pytest
from tests.kit.crews.document_site import MAX_ATTEMPTS, RAG, write_rag
from tests.kit.crews.papers import write_notes
from tests.kit.fakes.embedding_api import EmbeddingApi
from tests.kit.fakes.qdrant_rest import QdrantRest

from penstock.pipelines.documents.submit.submitter import SourceFile, SubmitOptions
from penstock.testing.eventually import eventually
from penstock.testing.processes import processes_in


async def check_all(site, submission, expected, papers=()):
    await site.ended(submission.batch_id)
    await site.check(expected, {})
    await site.check_statuses(submission.jobs, {})
    await site.check_found(papers)
    await site.dismiss()


# ---- the process that has the vectors


async def test_the_house_of_vectors_is_killed_amid_ingestion(make_site, valkey_server, tmp_path):
    papers = write_notes(tmp_path / "drop", 60)
    async with make_site(valkey_server.url, pause_s=0.2) as site:
        submission, expected = await site.takes_in(tmp_path / "drop", workers=2)
        killed = 0
        while killed < 6 and await site.goes_on(submission.batch_id, 4):
            with suppress(ProcessLookupError):
                os.kill(await eventually(site.house().pid), signal.SIGKILL)
                killed += 1
        assert killed >= 3
        await check_all(site, submission, expected, papers[::10])


async def test_the_house_of_vectors_freezes_amid_ingestion(make_site, valkey_server, tmp_path):
    write_notes(tmp_path / "drop", 30)
    async with make_site(valkey_server.url, vectors={"answer_s": 1.0}) as site:
        submission, expected = await site.takes_in(tmp_path / "drop", workers=2)
        await site.goes_on(submission.batch_id, 2)
        frozen = await eventually(site.house().pid)
        os.kill(frozen, signal.SIGSTOP)
        await check_all(site, submission, expected)
        assert site.house().pid() != frozen


# ---- the server of the queue


async def test_the_server_is_killed_amid_ingestion(make_site, start_server, tmp_path):
    server = start_server()
    write_notes(tmp_path / "drop", 60)
    async with make_site(server.url) as site:
        submission, expected = await site.takes_in(tmp_path / "drop", workers=2)
        hands = site.living
        for _ in range(3):
            if await site.goes_on(submission.batch_id, 5):
                server.kill()
                await asyncio.to_thread(server.restart)
                await eventually(lambda: site.view(submission.batch_id))
        assert [hand.code for hand in hands] == [None, None]
        await check_all(site, submission, expected)


async def test_the_embedded_server_is_killed_amid_ingestion(make_site, tmp_path):
    write_notes(tmp_path / "drop", 40)
    async with make_site(None) as site:
        submission, expected = await site.takes_in(tmp_path / "drop", workers=2)
        await site.goes_on(submission.batch_id, 5)
        (victim,) = processes_in(site.home, "valkey-server")
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: site.view(submission.batch_id))
        await check_all(site, submission, expected)
    await eventually(lambda: not processes_in(site.home))


# ---- the ledger


@contextmanager
def locked(path):
    """Hold the file of the ledger as another program may."""
    other = sqlite3.connect(path, isolation_level=None, timeout=20)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def test_a_ledger_that_is_locked_for_seconds_is_waited_for(
    make_site, valkey_server, tmp_path
):
    write_notes(tmp_path / "drop", 6)
    options = {"tables": {"wait_s": 1.0}, "backoff": (1.0, 1.0, 1.0)}
    async with make_site(valkey_server.url, **options) as site:
        first = tmp_path / "drop" / "paper-000.md"
        submission, expected = await site.takes_in(tmp_path / "drop")
        await site.ended(submission.batch_id)
        await site.dismiss()
        first.write_text(first.read_text() + "\n\nOne more line.\n")
        expected |= await site.fresh_counts([first])
        again = await site.submit(first)
        await site.hire(pause_s=2.0)
        await site.comes_to(again.jobs[0].job_id, status="processing")
        with locked(site.home / "tables.db"):
            status = await site.comes_to(again.jobs[0].job_id, status="retrying")
            assert status["error_code"] == "ERR_STORE_AWAY"
        await site.ended(again.batch_id)
        await site.check(expected, {}, versions=2)
        await site.dismiss()


# ---- room on the disk


@contextmanager
def small_disk(place, size):
    place.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs"]
    mounted = subprocess.run(["mount", *options, place], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(path):
    """Leave no byte free."""
    with path.open("wb", buffering=0) as ballast:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while ballast.write(b"\0" * size) == size:
                    pass


@pytest.mark.parametrize("store", ["vectors", "tables"])
async def test_a_full_disk_delays_documents_until_there_is_room(
    make_site, valkey_server, tmp_path, store
):
    write_notes(tmp_path / "drop", 8, words=600)
    disk = tmp_path / "home" / "vectors" if store == "vectors" else tmp_path / "tables"
    options = {}
    if store == "tables":
        options["tables"] = {"url": f"sqlite://{disk}/ledger.db"}
    size = {"vectors": "300m", "tables": "600k"}[store]
    with small_disk(disk, size):
        async with make_site(valkey_server.url, **options) as site:
            (tmp_path / "one").mkdir()
            (tmp_path / "drop" / "paper-000.md").rename(tmp_path / "one" / "paper-000.md")
            first, expected = await site.takes_in(tmp_path / "one")
            await site.ended(first.batch_id)
            if store == "vectors":
                fill(disk / "ballast")
            submission = await site.submit(tmp_path / "drop")
            job_id = submission.jobs[0].job_id
            if store == "tables":
                fill(disk / "ballast")
            expected |= await site.fresh_counts(sorted((tmp_path / "drop").iterdir()))
            seen = await eventually(lambda: one_that_waits(site, submission))
            assert seen["error_code"] == "ERR_DISK_FULL", seen
            assert "Free space" in " ".join(seen["suggestions"])
            (disk / "ballast").unlink()
            await site.comes_to(job_id, 60, status="done")
            await check_all(site, submission, expected)


async def one_that_waits(site, submission):
    for job in submission.jobs:
        status = await site.documents.status(job.job_id)
        if status["status"] == "retrying":
            return status
    return None


# ---- a Qdrant server


async def test_a_qdrant_server_that_is_away_delays_documents(make_site, valkey_server, tmp_path):
    papers = write_notes(tmp_path / "drop", 12)
    async with QdrantRest() as qdrant:
        options = {"vectors": {"url": qdrant.url, "answer_s": 2.0}}
        async with make_site(valkey_server.url, **options) as site:
            await qdrant.stop()
            submission, expected = await site.takes_in(tmp_path / "drop")
            seen = await eventually(lambda: one_that_waits(site, submission))
            assert seen["error_code"] == "ERR_STORE_AWAY"
            health = await site.documents.health()
            assert not health.qdrant_ok
            await qdrant.start()
            await check_all(site, submission, expected, papers[:3])
            # Those that waited in the queue have not been tried in vain.
            tried = [
                (await site.documents.status(job.job_id))["retry_count"] for job in submission.jobs
            ]
            assert sum(tried) <= 2 * site.orders["documents"]["concurrency"]


# ---- an API that makes vectors


class Busy:
    """An API that answers so and so often otherwise, and notes when it was asked."""

    def __init__(self, api, *answers):
        self.times, self._answers = [], list(answers)
        api.before = self._before

    async def _before(self, asked):
        self.times.append(time.monotonic())
        return self._answers.pop(0) if self._answers else None


def http_rag(home, api):
    embeddings = {"provider": "http", "model": "m", "dimension": 4, "url": api.url, "cache": False}
    write_rag(home, embeddings=embeddings)


async def test_an_embedder_that_is_busy_is_left_alone_for_as_long_as_it_asks(
    make_site, valkey_server, tmp_path
):
    write_notes(tmp_path / "drop", 1)
    async with EmbeddingApi() as api:
        http_rag(tmp_path / "home", api)
        busy = Busy(api, *[{"status": 429, "headers": {"Retry-After": "2"}}] * 2)
        async with make_site(valkey_server.url) as site:
            submission, expected = await site.takes_in(tmp_path / "drop")
            job_id = submission.jobs[0].job_id
            status = await site.comes_to(job_id, status="retrying")
            assert status["error_code"] == "ERR_EMBEDDER_BUSY"
            await check_all(site, submission, expected)
            assert (await site.documents.status(job_id))["retry_count"] == 2
        waits = [
            later - earlier for earlier, later in zip(busy.times, busy.times[1:], strict=False)
        ]
        assert len(busy.times) == 3
        assert all(wait >= 1.9 for wait in waits), waits


async def test_a_busy_embedder_is_not_asked_for_every_document_that_waits(
    make_site, valkey_server, tmp_path
):
    write_notes(tmp_path / "drop", 40)
    async with EmbeddingApi() as api:
        http_rag(tmp_path / "home", api)
        busy = Busy(api, *[{"status": 429, "headers": {"Retry-After": "1"}}] * 3)
        async with make_site(valkey_server.url) as site:
            submission, expected = await site.takes_in(tmp_path / "drop", workers=2)
            await check_all(site, submission, expected)
            texts = sum(expected.values())
        # All of them in one call each at worst, and a few that were refused.
        assert len(busy.times) <= 40 + 3
        assert texts <= len(api.texts) <= texts + 40


async def test_an_embedder_that_fails_now_and_then_delays_documents(
    make_site, valkey_server, tmp_path
):
    write_notes(tmp_path / "drop", 1)
    async with EmbeddingApi() as api:
        http_rag(tmp_path / "home", api)
        busy = Busy(api, *[{"status": 500, "body": {"error": {"message": "no"}}}] * 3)
        async with make_site(valkey_server.url) as site:
            submission, expected = await site.takes_in(tmp_path / "drop")
            status = await site.comes_to(submission.jobs[0].job_id, status="retrying")
            assert status["error_code"] == "ERR_EMBEDDER_AWAY"
            await check_all(site, submission, expected)
        assert len(busy.times) == 4


@pytest.mark.parametrize("max_retries", [MAX_ATTEMPTS - 1, 1])
async def test_an_embedder_that_always_fails_is_asked_as_often_as_was_said(
    make_site, valkey_server, tmp_path, max_retries
):
    (paper,) = write_notes(tmp_path / "drop", 1)
    async with EmbeddingApi() as api:
        http_rag(tmp_path / "home", api)
        busy = Busy(api, *[{"status": 500}] * 50)
        async with make_site(valkey_server.url) as site:
            words = SubmitOptions(max_retries=max_retries)
            files = [SourceFile(path=tmp_path / "drop" / paper.name, name=paper.name)]
            submission = await site.documents._submitter.submit(
                site.resources.rag(RAG), files, words
            )
            await site.hire()
            view = await site.ended(submission.batch_id)
            assert view.counts == {"failed": 1}
            status = await site.documents.status(submission.jobs[0].job_id)
            assert status["status"] == "failed"
            assert status["error_code"] == "ERR_EMBEDDER_AWAY"
            assert status["retry_count"] == max_retries
            await site.check({}, {paper.name: "ERR_EMBEDDER_AWAY"})
            body = site.note("failed", paper.name, ".error.json")
            assert (body["retry_count"], body["max_retries"]) == (max_retries, max_retries)
            assert body["reason"] == "exhausted"
            await site.dismiss()
        assert len(busy.times) == max_retries + 1
