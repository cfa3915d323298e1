"""A worker ends right before or right after each step of a document; another one goes on."""

from __future__ import annotations

import signal

import pytest
from tests.kit.crews.document_site import RAG
from tests.kit.crews.papers import Paper, write_bad, write_paper

STEPS = (
    *("before open", "after begin", "before upsert", "after upsert", "after write", "before seal"),
    *("after seal", "before delete_before", "after delete_before", "before store", "before move"),
    *("after move", "after store", "before done", "after done", "after forget_parts"),
    *("after perform", "before finish_jobs", "after finish_jobs"),
)
NEW = [
    pytest.param(point, marks=pytest.mark.short if point == "after move" else ())
    for point in STEPS
    if "delete_before" not in point
]
FAILING = (
    *("before failed", "after failed", "before delete_generation", "after delete_generation"),
    *("before set_aside", "before move", "after move", "after set_aside", "before end_job"),
    *("after end_job", "before bury_job", "after bury_job"),
)
OTHER = "The comet of Valparaiso counts marble dice on Thursdays."


async def crash(site, point):
    (victim,) = await site.hire(crash=point)
    code = await victim.ended(60)
    assert code == -signal.SIGKILL, f"{point} was never reached:\n{victim.log}"


async def finish(site, submission):
    """Let another worker do the rest."""
    await site.hire()
    view = await site.ended(submission.batch_id)
    await site.settled()
    await site.dismiss()
    return view


@pytest.mark.parametrize("point", NEW)
async def test_a_new_document_is_taken_in_once_wherever_its_worker_ends(
    make_site, valkey_server, tmp_path, point
):
    paper = write_paper(tmp_path, 1, "md", words=1_500)
    async with make_site(valkey_server.url, documents={"upsert": 4}) as site:
        expected = await site.fresh_counts([tmp_path / paper.name])
        assert expected[paper.name] > 8
        submission = await site.submit(tmp_path / paper.name)
        await crash(site, point)
        view = await finish(site, submission)
        assert view.counts == {"done": 1}
        await site.check(expected, {})
        await site.check_statuses(submission.jobs, {})
        await site.check_found([paper])
        (row,) = await site.documents.documents(RAG)
        assert row.generation == 1


@pytest.mark.parametrize("point", STEPS)
async def test_an_edit_replaces_a_document_wherever_its_worker_ends(
    make_site, valkey_server, tmp_path, point
):
    paper = write_paper(tmp_path, 1, "md", words=1_500)
    path = tmp_path / paper.name
    async with make_site(valkey_server.url, documents={"upsert": 4}) as site:
        first = await site.submit(path)
        await finish(site, first)
        before = path.read_text()
        path.write_text(
            before[: len(before) // 2].replace(paper.sentence, OTHER) + f"\n\n# More\n\n{OTHER}\n"
        )
        expected = await site.fresh_counts([path])
        submission = await site.submit(path)
        await crash(site, point)
        view = await finish(site, submission)
        assert view.counts == {"done": 1}
        await site.check(expected, {}, versions=2)
        (row,) = await site.documents.documents(RAG)
        assert row.generation == 2
        kept = site.files("processed")
        assert len(kept) == 2
        assert (site.place / "processed" / row.stored).read_text() == path.read_text()
        found = await site.documents.search(RAG, paper.sentence, top_k=50)
        assert not any(paper.sentence in one.text for one in found)
        await site.check_found([Paper(paper.name, OTHER)])


@pytest.mark.parametrize("point", FAILING)
async def test_a_bad_document_is_set_aside_once_wherever_its_worker_ends(
    make_site, valkey_server, tmp_path, point
):
    (locked, *_) = write_bad(tmp_path)
    failed = {locked.name: locked.code}
    async with make_site(valkey_server.url) as site:
        submission = await site.submit(tmp_path / locked.name)
        await crash(site, point)
        view = await finish(site, submission)
        assert view.counts == {"failed": 1}
        await site.check({}, failed)
        await site.check_statuses(submission.jobs, failed)


@pytest.mark.parametrize("point", FAILING)
async def test_a_bad_edit_leaves_the_version_that_is_found(
    make_site, valkey_server, tmp_path, point
):
    paper = write_paper(tmp_path, 1, "pdf")
    path = tmp_path / paper.name
    async with make_site(valkey_server.url) as site:
        expected = await site.fresh_counts([path])
        await finish(site, await site.submit(path))
        path.write_bytes(path.read_bytes()[:60])
        failed = await site.fresh_counts([path])
        assert failed == {paper.name: "ERR_PDF_INVALID"}
        submission = await site.submit(path)
        await crash(site, point)
        view = await finish(site, submission)
        assert view.counts == {"failed": 1}
        await site.check(expected, failed)
        await site.check_statuses(submission.jobs, failed)
        await site.check_found([paper])


async def test_three_crashes_in_a_row_are_no_reason_to_give_up(make_site, valkey_server, tmp_path):
    paper = write_paper(tmp_path, 1, "pdf")
    async with make_site(valkey_server.url) as site:
        expected = await site.fresh_counts([tmp_path / paper.name])
        submission = await site.submit(tmp_path / paper.name)
        for point in ("after upsert", "before seal", "after seal"):
            await crash(site, point)
        view = await finish(site, submission)
        assert view.counts == {"done": 1}
        await site.check(expected, {})


async def test_a_large_document_goes_on_after_the_parts_that_it_has(
    make_site, valkey_server, tmp_path
):
    """A file of many parts whose worker ends between two of them."""
    from tests.kit.pdf_files import written  # noqa: PLC0415

    pages = [
        f"Page {n} of the ledger.\n" + ("water level record " * 30 + "\n") * 40 for n in range(60)
    ]
    (tmp_path / "long.pdf").write_bytes(written(pages))
    async with make_site(valkey_server.url, documents={"part_pages": 10}) as site:
        expected = await site.fresh_counts([tmp_path / "long.pdf"])
        submission = await site.submit(tmp_path / "long.pdf")
        await crash(site, "after write 3")
        await finish(site, submission)
        await site.check(expected, {})
