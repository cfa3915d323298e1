"""The pipeline with PostgreSQL as its ledger: the same ends, for every step that asks it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.kit.fakes.embedding_api import EmbeddingApi
from tests.kit.library import Library, new_home, paragraphs
from tests.kit.pdf_files import written

from penstock.testing.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def library(postgres_server) -> AsyncIterator[Library]:
    url = postgres_server.create_database(f"documents_{uuid.uuid4().hex[:8]}")
    with new_home() as home:
        async with Library(home, tables=url) as opened:
            yield opened


async def test_first_and_later_versions(library):
    rag = library.rag()
    first = await rag.take("a.txt", paragraphs("one", "two", "three"))
    assert (first["status"], first["chunks_created"]) == ("done", 3)
    again = await rag.take("a.txt", paragraphs("one", "two", "three"))
    assert (again["status"], again["embeddings_generated"]) == ("done", 0)
    edited = await rag.take("a.txt", paragraphs("one", "four"))
    assert (edited["chunks_created"], edited["embeddings_generated"]) == (2, 1)
    assert await rag.points("a.txt") == await rag.total() == 2
    row = await rag.row("a.txt")
    assert (row.state, row.generation, row.sealed, row.chunks) == ("indexed", 2, 2, 2)
    copy = await rag.take("b.txt", paragraphs("one", "four"))
    assert copy["duplicate_of"] == "a.txt"
    assert (await rag.search("four"))[0].also_in


async def test_failures_retries_and_forgetting(library):
    rag = library.rag()
    told = await rag.take("a.pdf", "no PDF")
    assert (told["status"], told["error_code"]) == ("failed", "ERR_PDF_INVALID")
    again = await rag.take("a.pdf", "no PDF")
    assert again["error"].startswith("known to be unreadable")
    assert (await rag.take("a.pdf", written(["Good by now."])))["status"] == "done"
    (job_id,) = await library.documents.replay(told["job_id"])
    told = await library.is_now(job_id, "done")  # superseded by the good one, which stays
    assert (told["error"], (await rag.row("a.pdf")).state) == (None, "indexed")
    assert await rag.total() == 1
    assert await library.documents.forget(rag.id, ["a.pdf"]) == ["a.pdf"]
    assert (await rag.row("a.pdf")).state == "forgotten"
    assert await rag.total() == 0


async def test_the_newer_version_wins(library):
    async with EmbeddingApi() as api:
        http = {"provider": "http", "model": "m", "url": api.url, "dimension": 4, "cache": False}
        rag = library.rag(embeddings=http)
        release, waiting = asyncio.Event(), []

        async def hold(asked):
            if any("About slow" in text for text in asked["input"]):
                waiting.append(asked)
                await release.wait()

        api.before = hold
        first = await rag.send("a.txt", paragraphs("slow", "both"))
        await eventually(lambda: waiting)
        assert (await rag.take("a.txt", paragraphs("new", "both")))["status"] == "done"
        release.set()
        assert (await library.ended(first))["status"] == "done"
        found = {one.text for one in await rag.search("x", top_k=9)}
        assert found == set(paragraphs("new", "both").split("\n\n"))
        assert await rag.points("a.txt") == await rag.total() == 2


async def test_a_folder_a_batch_and_a_rebuild(library):
    rag = library.rag()
    for number in range(20):
        rag.write(f"{number}.txt", paragraphs(f"one of {number}", f"two of {number}"))
    report = await library.documents.sync(rag.id, rag.outside)
    view = await library.documents.wait(report.submission.batch_id)
    assert (view.counts, await rag.total()) == ({"done": 20}, 40)
    (rag.outside / "7.txt").unlink()
    report = await library.documents.sync(rag.id, rag.outside, delete=True)
    assert (report.unchanged, report.gone, report.forgotten) == (19, ("7.txt",), 1)
    library.rag(rag.id, chunking={"size": 2_000, "overlap": 0})
    rebuild = await library.documents.reindex(rag.id)
    assert rebuild.jobs == 19

    async def swapped():
        return await rag.collection() == rebuild.collection

    await eventually(swapped)
    assert await rag.total() == 19
    assert (await library.documents.rag(rag.id)).documents == {"indexed": 19, "forgotten": 1}


async def test_programs_beside_each_other(library, open_library):
    other = await open_library(of=library)
    rag = library.rag()
    for number in range(30):
        rag.write(f"{number}.txt", paragraphs(f"number {number}"))
    submission = await rag.submit(rag.outside)
    view = await other.documents.wait(submission.batch_id)
    assert (view.counts, await rag.total()) == ({"done": 30}, 30)
    assert (await library.documents.health()).workers == 2
