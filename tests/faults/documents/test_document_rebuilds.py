"""RAGs are made anew while documents come in and workers die."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest
from tests.kit.crews.document_site import RAG
from tests.kit.crews.papers import Paper, write_notes

from penstock.testing.eventually import eventually


async def swapped(site, within_s=90.0):
    """Wait until a rebuild has taken over; the row of the RAG."""

    async def so():
        row = await site.resources.ledger.rag(RAG)
        return row if row is not None and not row.shadow and not row.former else None

    try:
        return await eventually(so, within_s, what="the swap")
    except AssertionError:
        row = await site.resources.ledger.rag(RAG)
        raise AssertionError(f"{row}\n{await site.state(row.batch_id)}") from None


async def all_are_found(site, papers, ended: asyncio.Event):
    """Whoever asks meanwhile finds each document, in one version, at any time."""
    asked = 0
    while not ended.is_set():
        for paper in papers:
            found = await site.documents.search(RAG, paper.sentence, top_k=50)
            assert found[0].document == paper.name, paper
            assert len({(one.document, one.start, one.text) for one in found}) == len(found)
            asked += 1
    return asked


async def test_a_rebuild_among_new_documents_and_kills_is_exact(make_site, valkey_server, tmp_path):
    papers = write_notes(tmp_path / "drop", 24)
    late = write_notes(tmp_path / "late", 12, first=30)
    async with make_site(valkey_server.url) as site:
        submission, expected = await site.takes_in(tmp_path / "drop", workers=3)
        await site.ended(submission.batch_id)
        before = await swapped(site)
        ended = asyncio.Event()
        asking = asyncio.create_task(all_are_found(site, papers[:6], ended))
        try:
            rebuild = await site.documents.reindex(RAG)
            assert rebuild.jobs == 24
            edit = tmp_path / "drop" / papers[0].name
            edit.write_text(edit.read_text() + "\n\nThe gardener of Ulm waters seven cacti.\n")
            expected |= await site.fresh_counts([edit, *sorted((tmp_path / "late").iterdir())])
            more = await site.submit(tmp_path / "late", edit)
            chance = random.Random(5)  # noqa: S311
            for _ in range(5):
                await site.goes_on(more.batch_id, 2)
                await chance.choice(site.living).kill()
                await site.hire()
            await site.ended(more.batch_id)
            after = await swapped(site)
        finally:
            ended.set()
        assert await asking > 0
        assert after.physical != before.physical
        assert after.version > before.version
        await site.settled()
        await site.check(expected, {}, versions=2)
        await site.check_found([*papers, *late])
        await site.dismiss()


POINTS = (
    *("before fill", "after fill", "after upsert", "before copied", "after copied"),
    *("before swap", "after swap", "before alias", "before drop", "after drop"),
    *("before drop_former", "after drop_former", "after perform"),
)


@pytest.mark.parametrize(
    "point",
    POINTS,
)
async def test_a_rebuild_goes_on_wherever_a_worker_ends(make_site, valkey_server, tmp_path, point):
    papers = write_notes(tmp_path / "drop", 5)
    async with make_site(valkey_server.url) as site:
        submission, expected = await site.takes_in(tmp_path / "drop")
        await site.ended(submission.batch_id)
        await site.dismiss()
        before = await swapped(site)
        await site.documents.reindex(RAG)
        if point.endswith("fill"):
            # Something that came in after the rebuild had begun.
            (late,) = write_notes(tmp_path / "late", 1, first=9)
            papers.append(late)
            expected |= await site.fresh_counts([tmp_path / "late" / late.name])
            await site.submit(tmp_path / "late" / late.name)
        (victim,) = await site.hire(crash=point)
        assert await victim.ended(60) == -signal.SIGKILL, f"{point} not reached:\n{victim.log}"
        await site.hire()
        after = await swapped(site)
        assert after.physical != before.physical
        await site.check(expected, {})
        await site.check_found(papers)
        await site.dismiss()


OTHER = "The gardener of Ulm waters seven cacti at dawn."


async def edited(site, path):
    """Change a document; the submission, and how many chunks it has then."""
    path.write_text(path.read_text() + f"\n\n# Garden\n\n{' '.join([OTHER] * 8)}\n")
    return await site.submit(path), await site.fresh_counts([path])


async def one_document(site, tmp_path):
    (paper,) = write_notes(tmp_path / "drop", 1)
    submission, _ = await site.takes_in(tmp_path / "drop")
    await site.ended(submission.batch_id)
    await site.dismiss()
    return paper, tmp_path / "drop" / paper.name


async def check_edit(site, paper, expected):
    await swapped(site)
    await site.check(expected, {}, versions=2)
    await site.check_found([paper, Paper(paper.name, OTHER)])
    await site.dismiss()


async def test_an_edit_that_is_sealed_while_a_rebuild_takes_over_is_in_the_new_collection(
    make_site, valkey_server, tmp_path
):
    """An attempt begins before the swap and ends after it: what it wrote went elsewhere."""
    async with make_site(valkey_server.url) as site:
        paper, path = await one_document(site, tmp_path)
        edit, expected = await edited(site, path)
        await site.hire(pause_s=4.0)
        await site.comes_to(edit.jobs[0].job_id, status="processing")
        await site.documents.reindex(RAG)
        await site.hire()
        await site.ended(edit.batch_id)
        await check_edit(site, paper, expected)


async def test_a_document_that_is_edited_before_its_copy_is_made_is_copied_as_it_is_then(
    make_site, valkey_server, tmp_path
):
    """The job of the rebuild was queued for a version that is not found any more."""
    async with make_site(valkey_server.url) as site:
        paper, path = await one_document(site, tmp_path)
        edit, expected = await edited(site, path)
        edit_id = edit.jobs[0].job_id
        await site.documents.reindex(RAG)
        (hand,) = await site.hire(documents={**site.orders["documents"], "concurrency": 1})
        await site.ended(edit.batch_id)
        assert (await site.documents.status(edit_id))["status"] == "done"
        await check_edit(site, paper, expected)
        assert hand.code == 0


@pytest.mark.parametrize(
    "point",
    [
        "before move",
        "after seal",
        "after move",
    ],
)
async def test_a_rebuild_waits_for_a_document_whose_worker_died_before_its_file_was_stored(
    make_site, valkey_server, tmp_path, point
):
    async with make_site(valkey_server.url) as site:
        paper, path = await one_document(site, tmp_path)
        edit, expected = await edited(site, path)
        (victim,) = await site.hire(crash=point)
        assert await victim.ended(60) == -signal.SIGKILL
        await site.documents.reindex(RAG)
        await site.hire(2)
        await site.ended(edit.batch_id)
        await check_edit(site, paper, expected)
