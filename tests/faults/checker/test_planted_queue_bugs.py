"""The checker can be trusted with jobs as well: planted bugs are convicted, their cures are not."""

from __future__ import annotations

import pytest

from .planted import jobs
from .planted.jobs import MAX_ATTEMPTS, JobStage, JobWorker


@pytest.fixture
async def stage(valkey_server, open_client, namespace, tmp_path):
    stage = JobStage(await open_client(valkey_server.url), namespace, tmp_path)
    yield stage
    stage.close()


async def crash_in_the_handler(stage, make):
    await stage.push("one", "two")
    await stage.work(make, crash_at="in_handler")
    await stage.work(make)


async def crash_before_the_ack(stage, make):
    await stage.push("one", "two")
    await stage.work(make, crash_at="before_ack")
    await stage.work(make)


async def crash_on_every_attempt(stage, make):
    await stage.push("poison")
    for _ in range(MAX_ATTEMPTS + 2):
        await stage.work(make, crash_at="in_handler")


async def crash_while_a_retry_is_stored(stage, make):
    await stage.push("one", "two")
    point = "between_ack_and_retry" if make is jobs.AcksThenQueuesRetry else "between_retry_and_ack"
    await stage.work(make, fails={"one"}, crash_at=point)
    await stage.work(make)


async def crash_while_a_dead_letter_is_written(stage, make):
    await stage.push("one", "two")
    await stage.work(make, fails={"one"}, crash_at="between_ack_and_bury")
    await stage.work(make)


async def a_worker_stands_still_until_it_is_given_up(stage, make):
    await stage.push("one")
    sleeper, heir = await stage.hire(make), await stage.hire(make)
    job = await sleeper.claim()
    sleeper.start(job)
    await stage.bury_the_dead(sleeper)
    again = await heir.claim()
    heir.start(again)
    sleeper.finish(job)
    await sleeper.end("ack", job)
    heir.finish(again)
    await heir.end("ack", again)


async def a_job_takes_its_time(stage, make):
    await stage.push("one")
    slow, other = await stage.hire(make), await stage.hire(make)
    job = await slow.claim()
    slow.start(job)
    if isinstance(slow, jobs.HidesForAWhile):
        await slow.time_passes()
    await other.run_one()
    slow.finish(job)
    await slow.end("ack", job)


CASES = [
    (crash_in_the_handler, jobs.PopsJobs, {"I01"}),
    (crash_in_the_handler, jobs.AcksBeforeWork, {"I01"}),
    (crash_on_every_attempt, jobs.CountsExceptionsOnly, {"I11", "I12"}),
    (
        a_worker_stands_still_until_it_is_given_up,
        jobs.CompletesWithoutFence,
        {"I08", "I09", "I16"},
    ),
    (a_job_takes_its_time, jobs.HidesForAWhile, {"I04", "I08", "I09", "I16"}),
    (crash_before_the_ack, jobs.ReadsThenMoves, {"I04", "I12", "I16"}),
    (crash_while_a_retry_is_stored, jobs.QueuesRetryThenAcks, {"I04", "I12", "I16"}),
    (crash_while_a_retry_is_stored, jobs.AcksThenQueuesRetry, {"I01"}),
    (crash_while_a_dead_letter_is_written, jobs.BuriesAfterAck, {"I01", "I15"}),
]


@pytest.mark.parametrize(
    ("scenario", "bug", "expected"),
    [pytest.param(*case, id=case[1].__name__) for case in CASES],
)
async def test_a_planted_bug_is_convicted(stage, scenario, bug, expected):
    await scenario(stage, bug)
    verdict = await stage.verdict()
    assert verdict.convicted == expected, str(verdict)


@pytest.mark.parametrize("scenario", sorted({case[0] for case in CASES}, key=str))
async def test_the_cure_passes_the_same_scenario(stage, scenario):
    await scenario(stage, JobWorker)
    verdict = await stage.verdict()
    assert verdict.ok, str(verdict)
    assert verdict.examined["I01"]
