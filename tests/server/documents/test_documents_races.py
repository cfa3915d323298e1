"""Jobs that meet: versions that overtake each other, and one job that runs twice."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.fakes.embedding_api import EmbeddingApi
from tests.kit.library import paragraphs

from penstock.testing.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


def behind(api: EmbeddingApi) -> dict[str, object]:
    return {"provider": "http", "model": "m", "url": api.url, "dimension": 4, "cache": False}


class Held:
    """Keeps whoever embeds a text with this word in it, until it is released."""

    def __init__(self, api: EmbeddingApi, word: str) -> None:
        self.word, self.waiting, self._release = word, 0, asyncio.Event()
        api.before = self

    async def __call__(self, asked) -> None:
        if any(self.word in text for text in asked["input"]):
            self.waiting += 1
            await self._release.wait()

    def release(self) -> None:
        self._release.set()


async def texts(rag) -> list[str]:
    return sorted(found.text for found in await rag.search("anything", top_k=50))


async def is_exactly(rag, *subjects: str) -> None:
    """The document `a.txt` has these chunks and no others, wherever one looks."""
    assert await texts(rag) == sorted(paragraphs(*subjects).split("\n\n"))
    assert await rag.points("a.txt") == await rag.total() == len(subjects)
    row = await rag.row("a.txt")
    assert (row.state, row.sealed, row.chunks) == ("indexed", row.generation, len(subjects))


async def test_the_newer_version_wins_however_slow_the_older_is(library):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        held = Held(api, "About old")
        first = await rag.send("a.txt", paragraphs("old one", "old two", "both"))
        await eventually(lambda: held.waiting)
        second = await rag.take("a.txt", paragraphs("new", "both"))
        assert (second["status"], second["chunks_created"]) == ("done", 2)
        await is_exactly(rag, "new", "both")
        held.release()
        told = await library.ended(first)
        assert (told["status"], told["error"]) == ("done", None)
        await is_exactly(rag, "new", "both")
        assert (await rag.row("a.txt")).job_id == second["job_id"]
        assert (await library.job_row(first)).state == "done"
        assert rag.files() == {"processed": ["a.txt"]}
        lines = (await library.documents.explain(first)).lines
        assert f"a later job has the document: {second['job_id']}" in lines


async def test_the_newer_version_wins_where_both_were_one_file(library):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        held = Held(api, "About old")
        (one,) = (await rag.submit(rag.put("a.txt", paragraphs("old")))).jobs
        await eventually(lambda: held.waiting)
        path = rag.write("a.txt", paragraphs("new")).replace(rag.folder / "incoming" / "a.txt")
        (two,) = (await rag.submit(path)).jobs
        assert (await library.ended(two.job_id))["status"] == "done"
        held.release()
        told = await library.is_now(one.job_id, "done", "retrying")
        if told["status"] == "retrying":
            await library.hurry(one.job_id)
        assert (await library.ended(one.job_id))["status"] == "done"
        await is_exactly(rag, "new")
        assert rag.files() == {"processed": ["a.txt"]}


async def test_an_older_version_that_is_tried_again_does_not_come_back(library):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        api.then(status=500, body={})
        first = await rag.send("a.txt", paragraphs("old one", "old two"))
        await library.is_now(first, "retrying")
        second = await rag.send("a.txt", paragraphs("new"))
        await library.unpark(rag.id)
        assert (await library.ended(second))["status"] == "done"
        await library.hurry(first)
        told = await library.ended(first)
        assert (told["status"], told["retry_count"], told["error"]) == ("done", 1, None)
        await is_exactly(rag, "new")
        assert rag.files() == {"processed": ["a.txt"]}


async def test_a_job_that_runs_twice_at_once_counts_once(library):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        held = Held(api, "About twice")
        rag.put("a.txt", paragraphs("twice", "more"))
        job_id = await rag.push("a.txt", job_id=f"rag-{rag.id}-1-000000aa")
        await rag.push("a.txt", job_id=job_id)
        await eventually(lambda: held.waiting == 2)
        held.release()
        await library.ended(job_id)

        async def nobody_runs():
            return (await library.documents.health()).processing == 0

        await eventually(nobody_runs)
        await is_exactly(rag, "twice", "more")
        assert rag.files() == {"processed": ["a.txt"]}


async def test_a_worker_given_up_as_dead_undoes_nothing(library, monkeypatch):
    """It wakes up before its seal, when another has done the same job to its end."""
    rag = library.rag()
    ledger = library.documents._resources.ledger
    seal, arrived, release = ledger.seal, asyncio.Event(), asyncio.Event()

    async def slow(*told):
        if not arrived.is_set():
            arrived.set()
            await release.wait()
        return await seal(*told)

    monkeypatch.setattr(ledger, "seal", slow)
    rag.put("a.txt", paragraphs("one", "two"))
    job_id = await rag.push("a.txt", job_id=f"rag-{rag.id}-1-000000bb")
    await eventually(arrived.is_set)
    await rag.push("a.txt", job_id=job_id)

    async def indexed():
        return (await rag.row("a.txt")).state == "indexed"

    await eventually(indexed)
    release.set()

    async def nobody_runs():
        return (await library.documents.health()).processing == 0

    await eventually(nobody_runs)
    await is_exactly(rag, "one", "two")
    row = await rag.row("a.txt")
    assert (row.generation, row.stored) == (1, "a.txt")
    assert rag.files() == {"processed": ["a.txt"]}


async def test_programs_beside_each_other_share_all(library, open_library):
    rag = library.rag()
    other = await open_library(of=library)
    for number in range(30):
        rag.write(f"{number}.txt", paragraphs(f"number {number}", f"more of {number}"))
    submission = await rag.submit(rag.outside)
    view = await other.documents.wait(submission.batch_id)
    assert view.counts == {"done": 30}
    done = [program.documents.metrics.view() for program in (library, other)]
    assert sum(one.chunks for one in done) >= 60
    assert await rag.total() == 60
    assert [found.text for found in await other.documents.search(rag.id, "number 7", top_k=1)] == [
        found.text for found in await rag.search("number 7", top_k=1)
    ]
    assert len(rag.files()["processed"]) == 30
    # Versions that are sent through both at the same time.
    for number in range(10):
        path = rag.write("0.txt", paragraphs(*(f"version {number}" for _ in range(number + 1))))
        program = (library, other)[number % 2]
        last = await program.documents.submit(rag.id, [path])
    for job in (await library.documents.wait(last.batch_id)).files:
        assert job.status == "done"

    async def nobody_runs():
        health = await library.documents.health()
        return not (health.processing or health.queued)

    await eventually(nobody_runs)
    assert {found.text for found in await rag.search("x", top_k=50, documents=["0.txt"])} == {
        paragraphs("version 9")
    }
    assert (await rag.points("0.txt"), await rag.total()) == (10, 68)
    assert "incoming" not in rag.files()


async def test_two_programs_that_make_the_same_rag_at_once_agree(library, open_library):
    other = await open_library(of=library)
    rag = library.rag()
    other.look_again()
    one = rag.write("one.txt", paragraphs("one"))
    two = rag.write("two.txt", paragraphs("two"))
    jobs = await asyncio.gather(
        library.documents.submit(rag.id, [one]), other.documents.submit(rag.id, [two])
    )
    for submission in jobs:
        assert (await library.ended(submission.jobs[0].job_id))["status"] == "done"
    assert await rag.total() == 2
    assert await rag.collection() == f"{rag.id}--v1"
