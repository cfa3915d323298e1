"""Files that come again: unchanged, edited, under another name, or in two versions at once."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.library import paragraphs

pytestmark = pytest.mark.asyncio(loop_scope="module")

THREE = ("the ferry", "the marmot", "the chapel")


async def test_the_same_file_twice_at_once_is_one_job(library):
    rag = library.rag()
    path = rag.write("a.txt", paragraphs(*THREE))
    async with library.paused():
        first = await rag.submit(path)
        second = await rag.submit(path)
        (one,), (two,) = first.jobs, second.jobs
        assert (one.created, two.created, two.job_id) == (True, False, one.job_id)
    told = await library.ended(one.job_id)
    assert (told["status"], told["chunks_created"]) == ("done", 3)
    for batch_id in (first.batch_id, second.batch_id):
        view = await library.documents.wait(batch_id)
        assert [(file.job_id, file.status) for file in view.files] == [(one.job_id, "done")]
    assert await rag.total() == 3
    assert rag.files() == {"processed": ["a.txt"]}


async def test_an_unchanged_file_costs_nothing(library):
    rag = library.rag()
    first = await rag.take("a.txt", paragraphs(*THREE))
    before = library.documents.metrics.view()
    second = await rag.take("a.txt", paragraphs(*THREE))
    after = library.documents.metrics.view()
    assert second["job_id"] != first["job_id"]
    assert (second["status"], second["chunks_created"]) == ("done", 3)
    assert (second["embeddings_generated"], second["tokens_used"]) == (0, 0)
    assert (after.chunks, after.embedded) == (before.chunks, before.embedded)
    assert after.documents == before.documents + 1
    row = await rag.row("a.txt")
    assert (row.state, row.generation, row.sealed, row.stored) == ("indexed", 1, 1, "a.txt")
    assert rag.files() == {"processed": ["a.txt"]}
    assert await rag.total() == 3
    assert (await library.job_row(second["job_id"])).state == "done"


async def test_an_unchanged_file_comes_back_to_processed_if_it_was_lost_there(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs(*THREE))
    (rag.folder / "processed" / "a.txt").unlink()
    told = await rag.take("a.txt", paragraphs(*THREE))
    assert (told["status"], told["embeddings_generated"]) == ("done", 0)
    assert rag.files() == {"processed": ["a.txt"]}
    assert (await rag.row("a.txt")).stored == "a.txt"


async def test_reindex_takes_an_unchanged_file_in_anew(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs(*THREE))
    told = await rag.take("a.txt", paragraphs(*THREE), reindex=True)
    assert (told["status"], told["chunks_created"]) == ("done", 3)
    row = await rag.row("a.txt")
    assert (row.generation, row.sealed) == (2, 2)
    assert await rag.total() == 3


async def test_of_an_edited_file_only_what_changed_is_embedded(library):
    rag = library.rag()
    subjects = [f"item {number}" for number in range(10)]
    await rag.take("a.txt", paragraphs(*subjects))
    before = library.documents.metrics.view()
    subjects[4] = "a dragonfly"
    told = await rag.take("a.txt", paragraphs(*subjects))
    after = library.documents.metrics.view()
    assert (told["chunks_created"], told["embeddings_generated"]) == (10, 1)
    note = next((rag.folder / "processed").glob("a--*.meta.json"))
    assert rag.note(f"processed/{note.name}")["embeddings_reused"] == 9
    assert (after.embedded - before.embedded, after.reused - before.reused) == (1, 9)
    assert await rag.points("a.txt") == await rag.total() == 10
    row = await rag.row("a.txt")
    assert (row.generation, row.sealed, row.chunks) == (2, 2, 10)
    assert row.stored == f"a--{told['job_id']}.txt"
    assert rag.files() == {"processed": [row.stored, "a.txt"]}
    assert "dragonfly" in (await rag.search("dragonfly"))[0].text
    found = await rag.search("About item 4", top_k=50)
    assert not any("item 4" in one.text for one in found)
    assert len(found) == 10


async def test_of_a_shrunk_file_nothing_stale_is_left(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs(*THREE, "a secret", "another"))
    told = await rag.take("a.txt", paragraphs("the ferry"))
    assert (told["chunks_created"], told["embeddings_generated"]) == (1, 0)
    assert await rag.points("a.txt") == await rag.total() == 1
    found = await rag.search("a secret", top_k=50)
    assert [one.text for one in found] == [paragraphs("the ferry")]


async def test_texts_that_a_document_repeats_are_all_there(library):
    rag = library.rag()
    told = await rag.take("a.txt", paragraphs("echo", "echo", "echo", "other"))
    assert (told["chunks_created"], await rag.total()) == (4, 4)
    assert len(await rag.search("echo", top_k=50)) == 2  # each text once
    told = await rag.take("a.txt", paragraphs("echo", "echo", "other"))
    assert (told["chunks_created"], told["embeddings_generated"]) == (3, 0)
    assert await rag.total() == 3


async def test_a_renamed_file_is_another_document(library):
    rag = library.rag()
    await rag.take("old.txt", paragraphs(*THREE))
    told = await rag.take("new.txt", paragraphs(*THREE))
    assert (told["status"], told["duplicate_of"]) == ("done", "old.txt")
    assert await library.documents.forget(rag.id, ["old.txt"], files=True) == ["old.txt"]
    assert await rag.finds("the marmot") == ["new.txt"] * 3
    assert await rag.total() == 3
    assert rag.files() == {"processed": ["new.txt"]}


async def test_the_same_content_under_two_names_is_told_and_found_once(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs(*THREE))
    told = await rag.take("copies/b.txt", paragraphs(*THREE))
    assert (told["status"], told["duplicate_of"], told["chunks_created"]) == ("done", "a.txt", 3)
    row = await rag.row("b.txt")
    assert (row.state, row.duplicate_of) == ("indexed", "a.txt")
    found = await rag.search("the marmot", top_k=50)
    assert len(found) == 3
    assert {(one.document, one.also_in) for one in found} <= {
        ("a.txt", ("b.txt",)),
        ("b.txt", ("a.txt",)),
    }
    assert (await rag.points("a.txt"), await rag.points("b.txt")) == (3, 3)
    explained = await library.documents.explain(told["job_id"])
    assert "the same content as a.txt" in explained.lines


async def test_the_same_name_in_two_rags_is_two_documents(library):
    one, two = library.rag(), library.rag()
    await one.take("a.txt", paragraphs("the ferry"))
    told = await two.take("a.txt", paragraphs("the marmot"))
    assert "duplicate_of" not in told
    assert [found.text for found in await one.search("marmot")] == [paragraphs("the ferry")]
    assert [found.text for found in await two.search("marmot")] == [paragraphs("the marmot")]


async def test_metadata_is_kept_unless_it_is_not_to_be(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs("one"), metadata={"author": "Ann", "year": 1})
    await rag.take("a.txt", paragraphs("two"), metadata={"year": 2})
    assert (await rag.search("two"))[0].metadata == {"author": "Ann", "year": 2}
    await rag.take("a.txt", paragraphs("three"), preserve_metadata=False, metadata={"year": 3})
    assert (await rag.search("three"))[0].metadata == {"year": 3}


async def test_new_metadata_for_an_unchanged_file_counts(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs("one"), metadata={"author": "Ann"})
    told = await rag.take("a.txt", paragraphs("one"), metadata={"author": "Bea"})
    assert (told["status"], told["embeddings_generated"]) == ("done", 0)
    assert (await rag.search("one"))[0].metadata == {"author": "Bea"}
    assert await rag.total() == 1


async def test_a_file_that_changes_between_submit_and_run_is_taken_as_it_is(library):
    rag = library.rag()
    async with library.paused():
        path = rag.put("a.txt", paragraphs("before"))
        (job,) = (await rag.submit(path)).jobs
        rag.put("a.txt", paragraphs("after"))
    told = await library.ended(job.job_id)
    assert (told["status"], told["changed_since_submit"]) == ("done", "True")
    assert rag.note("processed/a.txt.meta.json")["changed_since_submit"] is True
    assert [one.text for one in await rag.search("before")] == [paragraphs("after")]
    assert await rag.total() == 1


@pytest.mark.parametrize("folder", ["incoming", "elsewhere"])
async def test_two_versions_that_wait_at_once_end_as_the_later_one(library, folder):
    rag = library.rag()
    write = rag.put if folder == "incoming" else rag.write
    async with library.paused():
        (first,) = (await rag.submit(write("a.txt", paragraphs("before", "both")))).jobs
        (second,) = (await rag.submit(write("a.txt", paragraphs("after", "both")))).jobs
        assert first.job_id != second.job_id
    one, two = await asyncio.gather(library.ended(first.job_id), library.ended(second.job_id))
    assert (one["status"], two["status"]) == ("done", "done")
    assert sorted(found.text for found in await rag.search("both", top_k=9)) == sorted(
        paragraphs("after", "both").split("\n\n")
    )
    assert await rag.points("a.txt") == await rag.total() == 2
    assert "incoming" not in rag.files()
    assert (await rag.row("a.txt")).state == "indexed"
