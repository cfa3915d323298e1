"""What was lost, or came at a bad moment, and is right after all."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest
from tests.kit.fakes.embedding_api import EmbeddingApi
from tests.kit.library import paragraphs

from penstock.errors import StoreAway, StoreFull
from penstock.pipelines.documents.service import Documents
from penstock.stores.vectors.port import Point
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


def behind(api: EmbeddingApi) -> dict[str, object]:
    return {"provider": "http", "model": "m", "url": api.url, "dimension": 4, "cache": False}


async def texts(rag) -> list[str]:
    return sorted(found.text for found in await rag.search("anything", top_k=50))


async def is_exactly(rag, *subjects: str) -> None:
    """The document `a.txt` has these chunks and no others, wherever one looks."""
    assert await texts(rag) == sorted(paragraphs(*subjects).split("\n\n"))
    assert await rag.points("a.txt") == await rag.total() == len(subjects)
    row = await rag.row("a.txt")
    assert (row.state, row.sealed, row.chunks) == ("indexed", row.generation, len(subjects))


async def lose(rag, *, back_to: int = 0) -> None:
    """Take the points of `a.txt` away; a crash of the machine may bring back those before."""
    vectors, collection = rag.documents._resources.vectors, await rag.collection()
    generation = (await rag.row("a.txt")).sealed
    if back_to:
        row = await rag.documents._resources.ledger.rag(rag.id)
        points = [
            Point(
                f"00000000-0000-4000-8000-{number:012}",
                bytes(4 * (row.dimension - 1)) + b"\0\0\x80\x3f",
                {"text": f"lost {number}"},
            )
            for number in range((await rag.row("a.txt")).chunks)
        ]
        await vectors.upsert(collection, "a.txt", back_to, points)
    await vectors.delete_generation(collection, "a.txt", generation)


async def test_a_worker_that_begins_finds_lost_points_of_an_edited_document(library, open_library):
    """Its former points are back: that there are enough says nothing."""
    rag = library.rag()
    await rag.take("a.txt", paragraphs("old one", "old two"))
    await rag.take("a.txt", paragraphs("new one", "new two"))
    await lose(rag, back_to=1)
    assert (await rag.points("a.txt"), await texts(rag)) == (2, [])
    await open_library(of=library)

    async def found_again():
        return len(await texts(rag)) == 2 and (await rag.row("a.txt")).state == "indexed"

    await eventually(found_again)
    await is_exactly(rag, "new one", "new two")


async def test_a_job_that_is_tried_again_after_its_seal_finds_lost_points(library, monkeypatch):
    rag = library.rag()
    finished_files, broken = library.documents._intake.finished_files, [StoreAway("no disk")]
    store = finished_files.store

    async def once_away(*told):
        if broken:
            raise broken.pop()
        return await store(*told)

    monkeypatch.setattr(finished_files, "store", once_away)
    job_id = await rag.send("a.txt", paragraphs("one", "two"))
    await library.is_now(job_id, "retrying")
    await lose(rag)
    assert await texts(rag) == []
    await library.hurry(job_id)
    assert (await library.ended(job_id))["status"] == "done"
    await is_exactly(rag, "one", "two")


async def test_a_copy_whose_points_were_lost_is_made_again_before_the_swap(library):
    async with EmbeddingApi(4) as api:
        rag = library.rag(embeddings=behind(api))
        await rag.take("a.txt", paragraphs("one", "two"))
        await rag.take("b.txt", paragraphs("held"))
        ledger, vectors = library.documents._resources.ledger, library.documents._resources.vectors
        release = asyncio.Event()

        async def hold(asked):
            if any("About held" in text for text in asked["input"]):
                await release.wait()

        api.before = hold
        rebuild = await library.documents.reindex(rag.id)

        async def copied():
            return "a.txt" in await ledger.rebuilds.copies(rag.id, rebuild.collection)

        await eventually(copied)
        await vectors.delete_generation(rebuild.collection, "a.txt", 1)
        release.set()

        async def swapped():
            return await rag.collection() == rebuild.collection

        await eventually(swapped)
        assert await texts(rag) == sorted(paragraphs("one", "two", "held").split("\n\n"))
        assert await rag.total() == 3


async def test_a_version_that_is_sealed_amid_a_search_is_found_by_it(library, monkeypatch):
    rag = library.rag()
    await rag.take("a.txt", paragraphs("old"))
    ledger = library.documents._resources.ledger
    visible, sealed = ledger.visible, []

    async def after_a_seal(*told):
        if not sealed:
            sealed.append(None)
            await rag.take("a.txt", paragraphs("new"))
        return await visible(*told)

    monkeypatch.setattr(ledger, "visible", after_a_seal)
    assert await texts(rag) == [paragraphs("new")]
    assert sealed


async def test_a_worker_given_up_as_dead_gives_up_nothing_that_is_done(library):
    """It wakes up and fails for good, when another has done the same job to its end."""
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        release, asked = asyncio.Event(), []

        async def refuse_the_first(call):
            asked.append(call)
            if len(asked) == 1:
                await release.wait()
                return {"status": 401, "body": {}}
            return None

        api.before = refuse_the_first
        rag.put("a.txt", paragraphs("one", "two"))
        job_id = await rag.push("a.txt", job_id=f"rag-{rag.id}-1-000000cc")
        await eventually(lambda: asked)
        await rag.push("a.txt", job_id=job_id)

        async def indexed():
            return (await rag.row("a.txt")).state == "indexed"

        await eventually(indexed)
        release.set()

        async def nobody_runs():
            return (await library.documents.health()).processing == 0

        await eventually(nobody_runs)
        await is_exactly(rag, "one", "two")
        assert (await library.job_row(job_id)).state == "done"
        assert rag.files() == {"processed": ["a.txt"]}


async def test_who_only_looks_waits_for_no_writer(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs("one"))
    file = library.home / "tables.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        try:
            async with asyncio.timeout(60), Documents(library.app) as other:
                assert (await other.rag(rag.id)).chunks == 1
        finally:
            writer.execute("ROLLBACK")


async def test_a_ledger_that_is_full_costs_those_attempts_that_met_it(open_library, monkeypatch):
    library = await open_library()
    rag, ledger = library.rag(), library.documents._resources.ledger
    begin, prove, is_full, asked = ledger.begin, ledger.prove, True, []

    async def full_begin(*told):
        if is_full:
            raise StoreFull("the disk is full")
        return await begin(*told)

    async def full_prove():
        asked.append(None)
        if is_full:
            raise StoreFull("the disk is full")
        await prove()

    monkeypatch.setattr(ledger, "begin", full_begin)
    monkeypatch.setattr(ledger, "prove", full_prove)
    first = await rag.send("a.txt", paragraphs("one"))
    await library.is_now(first, "retrying")
    second = await rag.send("b.txt", paragraphs("two"))
    await eventually(lambda: len(asked) >= 2)
    assert (await library.documents.status(second))["status"] == "queued"
    is_full = False
    told = await library.ended(second)
    assert (told["status"], told["retry_count"]) == ("done", 0)
