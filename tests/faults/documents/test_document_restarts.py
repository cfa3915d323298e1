"""Workers are stopped, killed and poisoned amid many documents; all is done afterwards."""

from __future__ import annotations

import asyncio
import signal

from tests.kit.crews.document_site import RAG
from tests.kit.crews.papers import POISON, Paper, write_notes

from penstock.testing.eventually import eventually

MANY = 110


async def test_workers_that_are_told_to_stop_finish_what_they_have_and_charge_nothing(
    make_site, valkey_server, tmp_path
):
    papers = write_notes(tmp_path / "drop", MANY)
    async with make_site(valkey_server.url) as site:
        submission, expected = await site.takes_in(tmp_path / "drop", workers=3)
        for _ in range(3):
            if await site.goes_on(submission.batch_id, 8):
                leaving = site.living
                for hand in leaving:
                    await hand.up()
                    hand.signal(signal.SIGTERM)
                assert [await hand.ended(60) for hand in leaving] == [0] * len(leaving)
                await site.hire(3)
        await site.ended(submission.batch_id)
        await site.check(expected, {})
        await site.check_found(papers[::20])
        for job in submission.jobs:
            status = await site.documents.status(job.job_id)
            assert (status["status"], status["retry_count"]) == ("done", 0), status
        await site.dismiss()


async def test_all_workers_are_killed_at_once_and_others_do_the_rest(
    make_site, valkey_server, tmp_path
):
    write_notes(tmp_path / "drop", 3 * MANY)  # more than is done before the kill
    async with make_site(valkey_server.url) as site:
        submission, expected = await site.takes_in(tmp_path / "drop", workers=3)
        await site.goes_on(submission.batch_id, 10)
        await asyncio.gather(*(hand.kill() for hand in site.living))
        # Nobody works, and nobody says otherwise for long.
        view = await site.documents.batch(submission.batch_id)
        assert not view.is_final
        await site.hire(3)
        await site.ended(submission.batch_id)
        await site.check(expected, {})
        await site.check_statuses(submission.jobs, {})
        await site.dismiss()


async def test_server_and_workers_are_killed_together(make_site, start_server, tmp_path):
    server = start_server()
    write_notes(tmp_path / "drop", MANY)
    async with make_site(server.url) as site:
        submission, expected = await site.takes_in(tmp_path / "drop", workers=2)
        await site.goes_on(submission.batch_id, 10)
        server.kill()
        await asyncio.gather(*(hand.kill() for hand in site.living))
        await asyncio.to_thread(server.restart)
        await eventually(lambda: site.view(submission.batch_id))
        await site.hire(2)
        await site.ended(submission.batch_id)
        await site.check(expected, {})
        await site.dismiss()


async def test_a_document_that_kills_its_worker_is_set_aside_and_harms_no_other(
    make_site, valkey_server, tmp_path
):
    papers = write_notes(tmp_path / "drop", 30)
    poison = Paper("poison.txt", code="ERR_WORKER_CRASHED")
    (tmp_path / "drop" / poison.name).write_text(f"{POISON} is in this very text.\n")
    failed = {poison.name: poison.code}
    async with make_site(valkey_server.url, poison=True, documents={"concurrency": 2}) as site:
        submission, expected = await site.takes_in(tmp_path / "drop", workers=2)
        del expected[poison.name]
        replacing = asyncio.create_task(replace_the_dead(site))
        try:
            view = await site.ended(submission.batch_id, 90)
            assert view.counts == {"done": 30, "failed": 1}
            await site.settled()
        finally:
            replacing.cancel()
        # Its last attempt ended with the process: it is the Tidier of another that set it aside.
        await site.check(expected, failed)
        await site.check_found(papers[::10])
        (job,) = [job for job in submission.jobs if job.document == poison.name]
        status = await site.documents.status(job.job_id)
        assert (status["status"], status["error_code"]) == ("failed", poison.code), status
        body = site.note("failed", poison.name, ".error.json")
        assert body["retry_count"] == body["max_retries"] == 3
        assert body["reason"] == "exhausted"
        assert sum(worker.code == 9 for worker in site.workers) == 4
        await site.dismiss()


async def replace_the_dead(site):
    """What a supervisor does."""
    while True:
        if len(site.living) < 2:
            await site.hire(2 - len(site.living))
        await asyncio.sleep(0.1)


async def test_a_poisoned_document_can_be_queued_again_when_the_poison_is_known(
    make_site, valkey_server, tmp_path
):
    (tmp_path / "poison.txt").write_text(f"{POISON} is in this very text.\n")
    async with make_site(valkey_server.url) as site:
        expected = await site.fresh_counts([tmp_path / "poison.txt"])
        submission = await site.submit(tmp_path / "poison.txt")
        for _ in range(4):
            (victim,) = await site.hire(poison=True)
            assert await victim.ended(60) == 9
        await site.hire()
        await site.ended(submission.batch_id)
        await site.check({}, {"poison.txt": "ERR_WORKER_CRASHED"})
        assert await site.documents.replay(submission.jobs[0].job_id)
        view = await site.ended(submission.batch_id)
        assert view.counts == {"done": 1}
        await site.check(expected, {})
        (row,) = await site.documents.documents(RAG)
        assert row.error_code == ""
        await site.dismiss()
