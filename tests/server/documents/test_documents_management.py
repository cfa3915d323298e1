"""Jobs that are cancelled or tried again, documents that are forgotten, folders kept in step."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.fakes.embedding_api import EmbeddingApi
from tests.kit.library import paragraphs
from tests.kit.pdf_files import written

from penstock.errors import FileRefused, JobMissing
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def held():
    """An API that keeps its callers waiting: `api.before = held` and `held.release.set()`."""

    async def hold(_):
        hold.waiting += 1
        await hold.release.wait()

    hold.waiting, hold.release = 0, asyncio.Event()
    return hold


def behind(api: EmbeddingApi) -> dict[str, object]:
    return {"provider": "http", "model": "m", "url": api.url, "dimension": 4, "cache": False}


# ---- cancel


async def test_a_job_that_waits_is_cancelled_at_once(library):
    rag = library.rag()
    async with library.paused():
        job_id = await rag.send("a.txt", paragraphs("a"))
        assert (await library.documents.status(job_id))["status"] == "queued"
        assert await library.documents.cancel(job_id) == [job_id]
        assert (await library.documents.status(job_id))["status"] == "cancelled"
        assert await library.documents.cancel(job_id) == []
    assert (await library.job_row(job_id)).state == "cancelled"
    assert await rag.search("a") == []
    assert "processed" not in rag.files()
    told = await rag.take("a.txt", paragraphs("a"))  # nothing is in the way of another one
    assert (told["status"], told["chunks_created"]) == ("done", 1)
    assert rag.files()["processed"] == ["a.txt"]


async def test_a_job_that_runs_is_cancelled_and_leaves_nothing(library, held):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        api.before = held
        job_id = await rag.send("a.txt", paragraphs("a", "b"))
        await eventually(lambda: held.waiting)
        assert (await library.documents.status(job_id))["status"] == "processing"
        assert await library.documents.cancel(job_id) == [job_id]
        told = await library.is_now(job_id, "cancelled")
        assert (told["error"], told["retry_count"]) == (None, 0)
        held.release.set()
        assert await rag.total() == 0
        assert await rag.search("a") == []
        assert (await rag.take("a.txt", paragraphs("a", "b")))["status"] == "done"
        assert await rag.total() == 2


async def test_a_cancelled_change_leaves_the_former_version(library, held):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        await rag.take("a.txt", paragraphs("old"))
        api.before = held
        job_id = await rag.send("a.txt", paragraphs("new"))
        await eventually(lambda: held.waiting)
        await library.documents.cancel(job_id)
        await library.is_now(job_id, "cancelled")
        held.release.set()
        assert [found.text for found in await rag.search("x")] == [paragraphs("old")]
        row = await rag.row("a.txt")
        assert (row.sealed, row.chunks) == (1, 1)
        assert (await rag.take("a.txt", paragraphs("old")))["status"] == "done"
        assert [found.text for found in await rag.search("x")] == [paragraphs("old")]
        assert await rag.total() == 1


async def test_a_whole_batch_is_cancelled(library):
    rag = library.rag()
    for number in range(5):
        rag.write(f"{number}.txt", paragraphs(f"number {number}"))
    async with library.paused():
        submission = await rag.submit(rag.outside)
        cancelled = await library.documents.cancel(submission.batch_id)
        assert sorted(cancelled) == sorted(job.job_id for job in submission.jobs)
        view = await library.documents.batch(submission.batch_id)
        assert (view.counts, view.is_final) == ({"cancelled": 5}, True)
        assert (view.status, view.as_json()["status"]) == ("cancelled", "cancelled")
    assert await rag.finds("number") == []


# ---- retry


async def test_a_failed_job_is_tried_again_with_its_file(library):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        api.then(status=401, body={})
        told = await rag.take("a.txt", paragraphs("a"))
        assert (told["status"], rag.files()) == ("failed", {"failed": ["a.txt"]})
        assert await library.documents.replay(told["job_id"]) == [told["job_id"]]
        await eventually(lambda: "processed" in rag.files())
        again = await library.is_now(told["job_id"], "done")
        assert (again["chunks_created"], again["error"]) == (1, None)
        assert rag.files() == {"processed": ["a.txt"]}
        assert list((rag.folder / "failed").iterdir()) == []
        assert (await rag.row("a.txt")).state == "indexed"
        assert (await library.job_row(told["job_id"])).state == "done"
        with pytest.raises(JobMissing):
            await library.documents.replay(told["job_id"])


async def test_all_failed_jobs_of_a_rag_are_tried_again(library):
    async with EmbeddingApi() as api:
        rag, other = library.rag(embeddings=behind(api)), library.rag()
        failed = await other.take("x.pdf", "no PDF")

        async def refuse(_):
            return {"status": 403, "body": {}}

        api.before = refuse
        for number in range(3):
            told = await rag.take(f"{number}.txt", paragraphs(f"number {number}"))
            assert told["error_code"] == "ERR_EMBEDDER_FORBIDDEN"
        api.before = None
        jobs = await library.documents.replay(rag_id=rag.id)
        assert len(jobs) == 3
        for job_id in jobs:
            await library.is_now(job_id, "done")
    assert rag.files() == {"processed": ["0.txt", "1.txt", "2.txt"]}
    assert await rag.total() == 3
    assert (await library.documents.status(failed["job_id"]))["status"] == "failed"
    assert await library.documents.replay(rag_id=rag.id) == []


async def test_a_batch_is_tried_again_as_far_as_it_failed(library):
    rag = library.rag()
    rag.write("good.txt", paragraphs("good"))
    rag.write("bad.pdf", "no PDF")
    submission = await rag.submit(rag.outside)
    view = await library.documents.wait(submission.batch_id)
    assert (view.status, view.counts) == ("failed", {"done": 1, "failed": 1})
    (job_id,) = await library.documents.replay(submission.batch_id)
    view = await library.documents.wait(submission.batch_id)
    (bad,) = [file for file in view.files if file.job_id == job_id]
    assert (bad.document, bad.status, bad.error_code) == ("bad.pdf", "failed", "ERR_PDF_INVALID")
    assert rag.files() == {"failed": ["bad.pdf"], "processed": ["good.txt"]}


# ---- forget


async def test_a_forgotten_document_is_gone_and_may_come_again(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs("a", "b"), metadata={"author": "Ann"})
    await rag.take("b.txt", paragraphs("c"))
    assert await library.documents.forget(rag.id, ["a.txt", "nothing.txt"]) == ["a.txt"]
    assert (await rag.points("a.txt"), await rag.total()) == (0, 1)
    assert set(await rag.finds("a")) == {"b.txt"}
    row = await rag.row("a.txt")
    assert (row.state, row.sealed, row.chunks) == ("forgotten", 0, 0)
    assert "a.txt" in rag.files()["processed"]
    assert await library.documents.forget(rag.id, ["a.txt"]) == []
    told = await rag.take("a.txt", paragraphs("a", "b"))
    assert (told["status"], told["chunks_created"], told["embeddings_generated"]) == ("done", 2, 2)
    assert (await rag.points("a.txt"), await rag.total()) == (2, 3)
    assert (await rag.row("a.txt")).state == "indexed"
    best = (await rag.search("About a", documents=["a.txt"]))[0]
    assert best.metadata == {}


async def test_files_of_a_forgotten_document_go_with_it(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs("one"))
    await rag.take("a.txt", paragraphs("two"))
    await rag.take("ab.txt", paragraphs("other"))
    assert len(rag.files()["processed"]) == 3
    assert await library.documents.forget(rag.id, ["a.txt"], files=True) == ["a.txt"]
    left = sorted(path.name for path in (rag.folder / "processed").iterdir())
    assert left == ["ab.txt", "ab.txt.meta.json"]


async def test_a_document_that_is_forgotten_while_it_comes_in_stays_so(library, held):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        await rag.take("a.txt", paragraphs("old"))
        api.before = held
        job_id = await rag.send("a.txt", paragraphs("new"))
        await eventually(lambda: held.waiting)
        assert await library.documents.forget(rag.id, ["a.txt"]) == ["a.txt"]
        held.release.set()
        told = await library.ended(job_id)
        assert told["status"] == "done"
        assert (await rag.points("a.txt"), await rag.total()) == (0, 0)
        assert await rag.search("x") == []
        assert (await rag.row("a.txt")).state == "forgotten"


# ---- sync


async def synced(library, rag, **words):
    """Sync the folder and wait; the report."""
    report = await library.documents.sync(rag.id, rag.outside, **words)
    if report.submission is not None:
        await library.documents.wait(report.submission.batch_id)
    return report


async def test_a_folder_is_kept_in_step(library):
    rag = library.rag()
    rag.write("same.txt", paragraphs("same"))
    rag.write("sub/changed.txt", paragraphs("before"))
    rag.write("gone.txt", paragraphs("gone"))
    rag.write("bad.pdf", "no PDF")
    rag.write("ignored.exe", "MZ")
    report = await synced(library, rag)
    assert report.new == ("bad.pdf", "gone.txt", "same.txt", "sub/changed.txt")
    assert (report.changed, report.gone, report.bad, report.unchanged) == ((), (), (), 0)
    assert await rag.total() == 3
    report = await synced(library, rag)
    assert (report.new, report.changed, report.gone, report.unchanged) == ((), (), (), 3)
    assert (report.bad, report.submission) == (("bad.pdf",), None)
    rag.write("new.txt", paragraphs("new"))
    rag.write("sub/changed.txt", paragraphs("after"))
    rag.write("bad.pdf", written(["Good by now."]))
    (rag.outside / "gone.txt").unlink()
    expected = (("new.txt",), ("bad.pdf", "sub/changed.txt"), ("gone.txt",), 1)
    dry = await library.documents.sync(rag.id, rag.outside, delete=True, dry_run=True)
    assert (dry.new, dry.changed, dry.gone, dry.unchanged) == expected
    assert (dry.submission, dry.forgotten, dry.dry_run) == (None, 0, True)
    report = await synced(library, rag, delete=True)
    assert (report.new, report.changed, report.gone, report.unchanged) == expected
    assert report.forgotten == 1
    assert await rag.total() == 4
    states = {row.doc_id: row.state for row in await library.documents.documents(rag.id)}
    assert states == {
        "bad.pdf": "indexed",
        "gone.txt": "forgotten",
        "new.txt": "indexed",
        "same.txt": "indexed",
        "sub/changed.txt": "indexed",
    }
    assert not any("before" in found.text for found in await rag.search("x", top_k=50))
    assert (rag.outside / "new.txt").exists()
    assert "incoming" not in rag.files()


async def test_sync_deletes_only_what_came_from_the_folder(library):
    rag = library.rag()
    await rag.take("by-hand.txt", paragraphs("by hand"))
    (rag.outside / "by-hand.txt").unlink()
    rag.write("one/a.txt", paragraphs("one"))
    rag.write("two/b.txt", paragraphs("two"))
    for folder in ("one", "two"):
        report = await library.documents.sync(rag.id, rag.outside / folder)
        await library.documents.wait(report.submission.batch_id)
    (rag.outside / "one" / "a.txt").unlink()
    (rag.outside / "two" / "b.txt").unlink()
    report = await library.documents.sync(rag.id, rag.outside / "one", delete=True)
    assert (report.gone, report.forgotten) == (("a.txt",), 1)
    assert set(await rag.finds("x")) == {"by-hand.txt", "b.txt"}
    assert await rag.total() == 2


async def test_what_is_no_folder_is_not_synced_and_nothing_is_deleted(library):
    rag = library.rag()
    rag.write("a.txt", paragraphs("a"))
    await synced(library, rag)
    moved = rag.outside.rename(rag.outside.with_name(f"{rag.id}-away"))
    with pytest.raises(FileRefused):
        await library.documents.sync(rag.id, rag.outside, delete=True)
    assert await rag.total() == 1
    moved.rename(rag.outside)
    assert (await synced(library, rag, delete=True)).unchanged == 1


async def test_other_chunks_are_wanted_after_the_file_of_a_rag_has_changed(library):
    rag = library.rag()
    rag.write("a.txt", paragraphs("a", "b"))
    await synced(library, rag)
    assert await rag.total() == 2
    library.rag(rag.id, chunking={"size": 1_000, "overlap": 0})
    report = await synced(library, rag)
    assert (report.changed, report.unchanged) == (("a.txt",), 0)
    assert await rag.total() == 1


# ---- RAGs


async def test_a_rag_whose_embedder_cannot_be_opened_hides_no_other(library):
    good, bad = library.rag(), library.rag()
    await bad.take("a.txt", paragraphs("a"))
    library.rag(bad.id, embeddings={"provider": "python", "model": "no_such_module:embed"})
    new = library.rag(embeddings={"provider": "python", "model": "no_such_module:embed"})
    views = {view.rag_id: view for view in await library.documents.rags()}
    assert views[good.id].trouble == ""
    assert "no_such_module" in views[bad.id].trouble
    assert (views[bad.id].chunks, views[bad.id].documents) == (1, {"indexed": 1})
    assert views[bad.id].model == (await library.documents.rag(good.id)).model
    assert "no_such_module" in views[new.id].trouble
    assert views[new.id].dimension == 0
