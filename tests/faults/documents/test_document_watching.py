"""Several workers watch the same folder, and some of them die."""

from __future__ import annotations

import random

import pytest
from tests.kit.crews.document_site import RAG
from tests.kit.crews.papers import write_bad, write_notes

from penstock.testing.eventually import eventually


async def watched(site, tmp_path, *, count, kills, workers=2):
    """Put files into `incoming/` while watchers die."""
    papers = write_notes(tmp_path / "drop", count)
    bad = write_bad(tmp_path / "drop")
    (tmp_path / "drop" / "empty.txt").touch()
    expected = await site.fresh_counts(sorted((tmp_path / "drop").iterdir()))
    indexed = {name: chunks for name, chunks in expected.items() if isinstance(chunks, int)}
    failed = {name: code for name, code in expected.items() if isinstance(code, str)}
    assert failed == {"empty.txt": "ERR_EMPTY_FILE", **{paper.name: paper.code for paper in bad}}
    await site.hire(workers, watch=True)
    chance = random.Random(3)  # noqa: S311
    incoming = site.place / "incoming"
    names = sorted(expected)
    chance.shuffle(names)
    step = -(-len(names) // kills)
    for start in range(0, len(names), step):
        dropped = names[start : start + step]
        for name in dropped:
            (tmp_path / "drop" / name).rename(incoming / name)
        half = len(dropped) // 2
        await eventually(lambda d=dropped, h=half: len(set(d) - site.files("incoming")) >= h)
        await chance.choice(site.living).kill()
        await site.hire(watch=True)
    await eventually(lambda: not site.files("incoming"), 90, what="incoming/ to be empty")
    await site.settled()
    # A job that died with its workers too often is in failed/ as well; it is brought back.
    for row in await site.resources.ledger.jobs.failed_in(RAG):
        if row.doc_id in indexed:
            assert row.error_code == "ERR_WORKER_CRASHED"
            await site.documents.replay(row.job_id)
    await site.settled(60)
    await site.check(indexed, failed)
    await site.check_found(papers[:: max(1, count // 20)])
    rows = await site.documents.documents(RAG, limit=10_000)
    assert {row.generation for row in rows} == {1}
    await site.dismiss()


async def test_files_that_several_watchers_see_are_taken_in_once(
    make_site, valkey_server, tmp_path
):
    async with make_site(valkey_server.url) as site:
        await watched(site, tmp_path, count=40, kills=4)


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_200_files_are_taken_in_once_while_watchers_die(make_site, valkey_server, tmp_path):
    async with make_site(valkey_server.url) as site:
        await watched(site, tmp_path, count=200, kills=20)
