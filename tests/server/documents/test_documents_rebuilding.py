"""A RAG that is built anew: searches see the old one, then the new one, and never anything else."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.kit.fakes.embedding_api import EmbeddingApi
from tests.kit.library import paragraphs

from penstock.errors import DocumentRefused, Unreachable
from penstock.pipelines.documents.ingest import rebuilding
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

WHOLE = {"chunking": {"size": 2_000, "overlap": 0}}
"""Chunks that are whole documents, instead of single paragraphs."""


def of_model(api: EmbeddingApi, model: str) -> dict[str, object]:
    return {
        "provider": "http",
        "model": model,
        "url": api.url,
        "dimension": api.dimension,
        "cache": False,
    }


async def rebuilt(library, rag) -> None:
    """Wait until the rebuild that is under way is over, and the old collection gone."""

    async def over() -> bool:
        row = await library.documents._resources.ledger.rag(rag.id)
        return not (row.shadow or row.former)

    await eventually(over)


async def texts(rag) -> set[str]:
    return {found.text for found in await rag.search("anything", top_k=50)}


async def collections(library, rag) -> list[str]:
    there = await library.documents._resources.vectors.collections()
    return sorted(one.name for one in there if one.name.startswith(f"{rag.id}--"))


async def test_searches_see_the_old_or_the_new_collection_and_never_both(library):
    rag = library.rag()
    documents = {f"{n}.txt": paragraphs(f"first of {n}", f"second of {n}") for n in range(8)}
    for name, text in documents.items():
        await rag.take(name, text)
    old = {part for text in documents.values() for part in text.split("\n\n")}
    new = set(documents.values())
    assert await texts(rag) == old
    library.rag(rag.id, **WHOLE)
    seen: list[list[set[str]]] = [[], [], []]
    ended = asyncio.Event()

    async def ask(answers: list[set[str]]) -> None:
        while not ended.is_set():
            answers.append(await texts(rag))
            await asyncio.sleep(0)

    askers = [asyncio.create_task(ask(answers)) for answers in seen]
    try:
        rebuild = await library.documents.reindex(rag.id)
        assert (rebuild.jobs, rebuild.missing, rebuild.swapped) == (8, 8, False)
        assert rebuild.collection == f"{rag.id}--v2"
        await rebuilt(library, rag)
        await eventually(lambda: all(answers[-1] == new for answers in seen))
    finally:
        ended.set()
        await asyncio.gather(*askers)
    for answers in seen:
        assert answers[0] == old
        assert all(answer in (old, new) for answer in answers)
        assert sum(one != two for one, two in pairwise(answers)) == 1
    view = await library.documents.wait(rebuild.batch_id)
    assert view.counts == {"done": 8}
    assert await collections(library, rag) == [f"{rag.id}--v2"]
    assert await rag.total() == 8
    assert {(await rag.row(name)).chunks for name in documents} == {1}
    about = await library.documents.rag(rag.id)
    assert (about.chunks, about.rebuilding, about.documents) == (8, "", {"indexed": 8})
    assert rag.files() == {"processed": sorted(documents)}
    # What is there counts as it is now.
    told = await rag.take("0.txt", documents["0.txt"])
    assert (told["status"], told["embeddings_generated"]) == ("done", 0)


async def test_a_copy_that_ends_while_others_are_being_queued_queues_none_again(
    library, monkeypatch
):
    async with EmbeddingApi(4) as small, EmbeddingApi(8) as large:
        rag = library.rag(embeddings=of_model(small, "small"))
        await rag.take("a.txt", paragraphs("one"))
        await rag.take("b.txt", paragraphs("two"))
        library.rag(rag.id, embeddings=of_model(large, "large"))
        release, queued = asyncio.Event(), []

        async def hold(asked):
            if any("About two" in text for text in asked["input"]):
                await release.wait()

        async def send(queue, messages):
            queued.append([message.document for message in messages])
            sent = await rebuilding_send(queue, messages)
            await library.ended(sent[0].job_id)
            return sent

        large.before, rebuilding_send = hold, rebuilding.send
        monkeypatch.setattr(rebuilding, "send", send)
        rebuild = await library.documents.reindex(rag.id)
        release.set()
        await rebuilt(library, rag)
        assert queued == [["a.txt", "b.txt"]]
        assert (await library.documents.wait(rebuild.batch_id)).counts == {"done": 2}


@pytest.mark.parametrize("end", ["refused", "died"])
async def test_a_rebuild_whose_jobs_were_not_queued_goes_on(library, monkeypatch, end):
    rag = library.rag()
    await rag.take("a.txt", paragraphs("one", "two"))
    library.rag(rag.id, **WHOLE)
    ledger, asked = library.documents._resources.ledger, asyncio.Event()

    async def send(queue, messages):
        asked.set()
        if end == "refused":
            raise Unreachable("the server is away")
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "send", send)
        task = asyncio.create_task(library.documents.reindex(rag.id))
        await asked.wait()
        if end == "died":
            task.cancel()
        with pytest.raises(Unreachable if end == "refused" else asyncio.CancelledError):
            await task
    jobs = await ledger.jobs.of_batch((await ledger.rag(rag.id)).batch_id)
    assert [job.state for job in jobs] == ([] if end == "refused" else ["open"])
    await ledger._write(
        "UPDATE rag_jobs SET submitted_ms = submitted_ms - 61000 WHERE rag_id = ?", rag.id
    )
    await library.cleanup.clean()
    await rebuilt(library, rag)
    assert await texts(rag) == {paragraphs("one", "two")}


async def test_another_model_is_told_and_takes_over_by_a_rebuild(library):
    async with EmbeddingApi(4) as small, EmbeddingApi(8) as large:
        rag = library.rag(embeddings=of_model(small, "small"))
        await rag.take("a.txt", paragraphs("one", "two"))
        about = await library.documents.rag(rag.id)
        assert (about.model, about.dimension, about.needs_reindex) == ("small", 4, "")
        library.rag(rag.id, embeddings=of_model(large, "large"))
        about = await library.documents.rag(rag.id)
        assert (about.model, about.dimension) == ("small", 4)
        assert about.needs_reindex == "it is indexed with small, its file has large"
        # Until then all goes on as it was.
        assert (await rag.take("b.txt", paragraphs("three")))["status"] == "done"
        assert (await rag.search(paragraphs("three")))[0].document == "b.txt"
        assert large.texts == []
        rebuild = await library.documents.reindex(rag.id)
        assert rebuild.jobs == 2
        await rebuilt(library, rag)
        about = await library.documents.rag(rag.id)
        assert (about.model, about.dimension, about.needs_reindex) == ("large", 8, "")
        assert (about.chunks, await rag.total()) == (3, 3)
        best = (await rag.search(paragraphs("two")))[0]
        assert (best.text, round(best.score, 3)) == (paragraphs("two"), 1.0)
        asked = len(small.texts)
        assert (await rag.take("c.txt", paragraphs("four")))["status"] == "done"
        assert len(small.texts) == asked
        assert await collections(library, rag) == [f"{rag.id}--v2"]


async def test_documents_with_other_chunks_than_the_file_asks_for_are_told(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs("one", "two"))
    await rag.take("b.txt", paragraphs("three", "four"))
    assert (await library.documents.rag(rag.id)).needs_reindex == ""
    library.rag(rag.id, **WHOLE)
    needs = (await library.documents.rag(rag.id)).needs_reindex
    assert needs == "2 documents are split or read otherwise than its file says now"
    await rag.take("b.txt", paragraphs("three", "four", "five"))
    needs = (await library.documents.rag(rag.id)).needs_reindex
    assert needs == "1 document is split or read otherwise than its file says now"
    await library.documents.reindex(rag.id)
    await rebuilt(library, rag)
    assert (await library.documents.rag(rag.id)).needs_reindex == ""
    library.rag(rag.id, **WHOLE, sources={"ocr": True})
    assert (await library.documents.rag(rag.id)).needs_reindex.startswith("2 documents")
    await library.documents.forget(rag.id, ["a.txt", "b.txt"])
    assert (await library.documents.rag(rag.id)).needs_reindex == ""


async def test_what_happens_during_a_rebuild_is_right_after_it(library):
    async with EmbeddingApi(4) as small, EmbeddingApi(8) as large:
        rag = library.rag(embeddings=of_model(small, "small"))
        for name in ("changed", "forgotten", "same", "shrunk"):
            await rag.take(f"{name}.txt", paragraphs(f"{name} one", f"{name} two"))
        release, waiting = asyncio.Event(), []

        async def hold(asked):
            waiting.append(asked)
            await release.wait()

        large.before = hold
        library.rag(rag.id, embeddings=of_model(large, "large"))
        rebuild = await library.documents.reindex(rag.id)
        assert rebuild.jobs == 4
        await eventually(lambda: waiting)
        again = await library.documents.reindex(rag.id)  # goes on with the one under way
        assert (again.batch_id, again.collection) == (rebuild.batch_id, rebuild.collection)
        assert (await rag.take("added.txt", paragraphs("added")))["status"] == "done"
        assert (await rag.take("changed.txt", paragraphs("after", "later")))["status"] == "done"
        assert (await rag.take("shrunk.txt", paragraphs("shrunk one")))["status"] == "done"
        assert await library.documents.forget(rag.id, ["forgotten.txt"]) == ["forgotten.txt"]
        expected = {"added", "after", "later", "same one", "same two", "shrunk one"}
        assert await texts(rag) == {paragraphs(subject) for subject in expected}
        assert (await library.documents.rag(rag.id)).rebuilding == rebuild.collection
        release.set()
        await rebuilt(library, rag)
        assert (await library.documents.rag(rag.id)).dimension == 8
        assert await texts(rag) == {paragraphs(subject) for subject in expected}
        names = ("added", "changed", "forgotten", "same", "shrunk")
        assert {name: await rag.points(f"{name}.txt") for name in names} == {
            "added": 1,
            "changed": 2,
            "forgotten": 0,
            "same": 2,
            "shrunk": 1,
        }
        assert await rag.total() == 6
        assert await collections(library, rag) == [rebuild.collection]


async def test_a_version_that_comes_in_across_the_swap_is_in_the_new_collection(library):
    async with EmbeddingApi(4) as small, EmbeddingApi(8) as large:
        rag = library.rag(embeddings=of_model(small, "small"))
        await rag.take("a.txt", paragraphs("before"))
        release, waiting = asyncio.Event(), []

        async def hold(asked):
            if any("About after" in text for text in asked["input"]):
                waiting.append(asked)
                await release.wait()

        small.before = hold
        job_id = await rag.send("a.txt", paragraphs("after", "later"))
        await eventually(lambda: waiting)
        library.rag(rag.id, embeddings=of_model(large, "large"))
        await library.documents.reindex(rag.id)
        await rebuilt(library, rag)
        assert await texts(rag) == {paragraphs("before")}
        release.set()
        # Its collection has gone under it: it begins anew.
        told = await library.is_now(job_id, "retrying")
        assert (told["error_type"], told["retry_count"]) == ("StoreMismatch", 1)
        await library.hurry(job_id)
        told = await library.ended(job_id)
        assert (told["status"], told["chunks_created"], told["error"]) == ("done", 2, None)
        assert await texts(rag) == {paragraphs("after"), paragraphs("later")}
        assert await rag.points("a.txt") == await rag.total() == 2
        assert await collections(library, rag) == [f"{rag.id}--v2"]
        told = await rag.take("a.txt", paragraphs("after", "later"))
        assert told["embeddings_generated"] == 0


async def test_a_swap_waits_for_all_unless_it_is_forced(library):
    rag = library.rag()
    await rag.take("good.txt", paragraphs("good"))
    await rag.take("lost.txt", paragraphs("lost"))
    with pytest.raises(DocumentRefused) as refused:
        await library.documents.swap(rag.id)
    assert refused.value.error_code == "ERR_NO_REBUILD"
    (rag.folder / "processed" / "lost.txt").unlink()
    rebuild = await library.documents.reindex(rag.id)
    view = await library.documents.wait(rebuild.batch_id)
    assert {file.document: (file.status, file.error_code) for file in view.files} == {
        "good.txt": ("done", ""),
        "lost.txt": ("failed", "ERR_FILE_NOT_FOUND"),
    }
    assert set(await rag.finds("x")) == {"good.txt", "lost.txt"}
    with pytest.raises(DocumentRefused) as refused:
        await library.documents.swap(rag.id)
    assert refused.value.error_code == "ERR_REBUILD_INCOMPLETE"
    assert "lost.txt" in str(refused.value)
    assert await library.documents.swap(rag.id, force=True) == rebuild.collection
    assert await rag.finds("x") == ["good.txt"]
    row = await rag.row("lost.txt")
    assert (row.state, row.error_code, row.sealed) == ("failed", "ERR_NOT_REBUILT", 0)
    assert await rag.total() == 1
    told = await rag.take("lost.txt", paragraphs("lost"))
    assert (told["status"], await rag.total()) == ("done", 2)


async def test_a_rag_without_documents_is_rebuilt_at_once(library):
    rag = library.rag()
    rebuild = await library.documents.reindex(rag.id)
    assert (rebuild.jobs, rebuild.missing, rebuild.swapped) == (0, 0, True)
    assert await rag.collection() == f"{rag.id}--v2"
    assert await collections(library, rag) == [f"{rag.id}--v2"]
    assert (await rag.take("a.txt", paragraphs("a")))["status"] == "done"


async def test_a_file_that_was_changed_in_processed_is_not_taken_for_the_document(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs("a"))
    (rag.folder / "processed" / "a.txt").write_text(paragraphs("tampered"))
    rebuild = await library.documents.reindex(rag.id)
    (file,) = (await library.documents.wait(rebuild.batch_id)).files
    assert (file.status, file.error_code) == ("failed", "ERR_STORED_CHANGED")
    assert await texts(rag) == {paragraphs("a")}


async def test_an_embedder_that_fails_during_a_rebuild_costs_retries_only(library):
    async with EmbeddingApi(4) as small, EmbeddingApi(8) as large:
        rag = library.rag(embeddings=of_model(small, "small"))
        await rag.take("a.txt", paragraphs("one", "two"))
        library.rag(rag.id, embeddings=of_model(large, "large"))
        large.then(status=500, body={})
        rebuild = await library.documents.reindex(rag.id)
        (file,) = (await library.documents.batch(rebuild.batch_id)).files
        told = await library.is_now(file.job_id, "retrying")
        assert (told["retry_count"], told["error_type"]) == (1, "EmbedderFailed")
        assert len(await texts(rag)) == 2
        await library.hurry(file.job_id)
        await rebuilt(library, rag)
        assert (await library.documents.rag(rag.id)).model == "large"
        assert await rag.total() == 2


async def test_chunks_that_change_during_a_rebuild_are_those_that_are_found_after_it(library):
    async with EmbeddingApi(4) as api:
        rag = library.rag(embeddings=of_model(api, "m"))
        text = paragraphs("one", "two")
        await rag.take("a.txt", text)
        await rag.take("b.txt", text)
        async with library.paused():
            first = await library.documents.reindex(rag.id)
            library.rag(rag.id, embeddings=of_model(api, "m"), **WHOLE)
            second = await library.documents.reindex(rag.id)
            assert second.collection != first.collection
            assert (second.jobs, second.missing) == (2, 2)
        await rebuilt(library, rag)
        assert await texts(rag) == {text}
        assert await rag.total() == 2
        assert await collections(library, rag) == [second.collection]
        assert (await library.documents.wait(first.batch_id)).counts == {"done": 2}


async def test_a_worker_that_has_not_seen_the_file_change_leaves_its_copy_to_another(
    library, monkeypatch
):
    rag = library.rag()
    text = paragraphs("one", "two")
    await rag.take("a.txt", text)
    await rag.take("b.txt", paragraphs("three"))
    before = library.documents._resources.config.rags[rag.id]
    library.rag(rag.id, **WHOLE)
    known, stale = library.documents._resources.rag, [before]

    def seen(rag_id):
        after = known(rag_id)
        return stale.pop() if stale and rag_id == rag.id else after

    async with library.paused():
        first = await library.documents.reindex(rag.id)
        monkeypatch.setattr(library.documents._resources, "rag", seen)
    await rebuilt(library, rag)
    assert await texts(rag) == {text, paragraphs("three")}
    assert await rag.total() == 2
    assert await collections(library, rag) == [first.collection]
