"""Hundreds of documents, and workers that are killed all the time."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.kit.crews.document_site import RAG
from tests.kit.crews.papers import write_papers

from penstock.testing.eventually import eventually

CRASHED = "ERR_WORKER_CRASHED"


async def storm(site, batch_id, *, kills, every_s, progress):
    """Kill a worker after a while and some progress, and start another; how many were killed."""
    chance = random.Random(11)  # noqa: S311
    killed = 0
    while killed < kills:
        view = await site.documents.batch(batch_id)
        if view.is_final:
            break
        ended = view.ended
        beginning = asyncio.get_running_loop().time()

        async def goes_on(ended=ended, beginning=beginning):
            view = await site.documents.batch(batch_id)
            waited_s = asyncio.get_running_loop().time() - beginning
            return view.is_final or (waited_s >= every_s and view.ended >= ended + progress)

        await eventually(goes_on, what="progress")
        await chance.choice(site.living).kill()
        killed += 1
        await site.hire()
    return killed


async def weather(site, tmp_path, papers, **options):
    drop = tmp_path / "drop"
    expected = await site.fresh_counts(drop / paper.name for paper in papers)
    for paper in papers:
        if paper.code:
            assert expected[paper.name] == paper.code
    indexed = {name: count for name, count in expected.items() if isinstance(count, int)}
    failed = {name: code for name, code in expected.items() if isinstance(code, str)}
    submission = await site.submit(drop)
    assert len(submission.jobs) == len(papers)
    await site.hire(4)
    killed = await storm(site, submission.batch_id, **options)
    await site.ended(submission.batch_id, 120)
    await site.settled()
    # Whoever was in the hands of those that were killed as often as it may be tried has failed for
    # that, and is brought back.
    for job_id in await site.documents.replay(rag_id=RAG):
        code = (await site.documents.status(job_id)).get("error_code", "")
        assert code in {"", CRASHED, *failed.values()}
    await site.ended(submission.batch_id, 120)
    await site.check(indexed, failed)
    await site.check_statuses(submission.jobs, failed)
    await site.check_found(paper for paper in papers if paper.name in indexed)
    await site.dismiss()
    return killed


async def test_every_document_ends_up_in_one_place_however_often_workers_are_killed(
    make_site, valkey_server, tmp_path
):
    papers = write_papers(tmp_path / "drop", 60, debian=6)
    # Slowed down, or all may be done after four kills.
    async with make_site(valkey_server.url, pause_s=0.2) as site:
        killed = await weather(site, tmp_path, papers, kills=10, every_s=0.1, progress=3)
        assert killed >= 5


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_300_documents_survive_a_kill_every_second(make_site, valkey_server, tmp_path):
    papers = write_papers(tmp_path / "drop", 300, debian=60)
    # Slowed down, or all would be done after four kills.
    async with make_site(valkey_server.url, pause_s=0.7) as site:
        killed = await weather(site, tmp_path, papers, kills=300, every_s=1.0, progress=0)
        assert killed >= 10
