"""Clocks jump, on the server and on a worker: no promise is broken, and nobody waits for hours."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.kit.crews.wrong_clock import server_offset_s

from penstock.testing.eventually import eventually

HOUR = 3600
QUEUES = {"silence_s": 0.6, "beat_s": 0.1}


async def jump(crew, clock, server, offset_s):
    with crew.nemesis.losing():
        clock.set(offset_s)
        # It looks at the clock now and then.
        await eventually(lambda: abs(server_offset_s(server) - offset_s) < 5)


@pytest.mark.parametrize("kind", ["status", "plain"])
async def test_jumps_of_the_servers_clock_break_no_promise(make_queue_crew, clock, server, kind):
    crew = make_queue_crew(server.url, kind=kind, queues=QUEUES, work_s=0.001)
    async with crew:
        hands = await crew.hire(2)
        await crew.at_work(*hands)
        for round_number, offset_s in enumerate((HOUR, 0, -2 * HOUR)):
            async with asyncio.TaskGroup() as group:
                group.create_task(crew.send_many(200, seed=round_number, pace_s=0.005, failing=0))
                await asyncio.sleep(0.1)
                await jump(crew, clock, server, offset_s)
            await crew.drained()
        verdict = await crew.hold()
        assert verdict.counts.finished == 600


@pytest.mark.parametrize("offset_s", [HOUR, -2 * HOUR])
async def test_a_jump_takes_no_job_from_a_worker_that_lives(
    make_queue_crew, clock, server, offset_s
):
    """With one attempt allowed, a job that is taken from its worker is a dead letter."""
    crew = make_queue_crew(server.url, queues=QUEUES, max_attempts=1)
    async with crew:
        await crew.at_work(*await crew.hire(3))
        jobs = [await crew.send(pause=1.5) for _ in range(9)]
        for job_id in jobs:
            await crew.started(job_id)
        await jump(crew, clock, server, offset_s)
        verdict = await crew.hold(attempt_gaps=False)
        assert verdict.counts.started == verdict.counts.finished == 9


@pytest.mark.parametrize("offset_s", [-2 * HOUR, HOUR])
async def test_jobs_of_a_dead_worker_restart_after_the_clock_jumped(
    make_queue_crew, clock, server, offset_s, figure
):
    """Its last sign of life then seems to lie two hours ahead."""
    crew = make_queue_crew(server.url, queues=QUEUES)
    async with crew:
        (victim,) = await crew.hire()
        job_id = await crew.send(pause=20, attempts=1)
        await crew.started(job_id)
        await crew.at_work(*await crew.hire())
        await jump(crew, clock, server, offset_s)
        await victim.kill()
        began = time.monotonic()
        again = await crew.started(job_id, 2)
        figure(
            "queue faults",
            f"killed worker's job starts again after a jump of {offset_s} s",
            again.t_mono - began,
            "s",
            "<=",
            2 * QUEUES["silence_s"] + 1,
        )
        await crew.hold()


@pytest.mark.parametrize("offset_s", [-HOUR, HOUR])
async def test_a_worker_with_a_wrong_clock_works_as_any_other(
    make_queue_crew, valkey_server, offset_s
):
    crew = make_queue_crew(valkey_server.url, queues=QUEUES, work_s=0.001)
    async with crew:
        (right,) = await crew.hire()
        (wrong,) = await crew.hire(clock_s=offset_s)
        await crew.at_work(right, wrong)
        await crew.send_many(400, pace_s=0.002)
        verdict = await crew.hold(attempt_gaps=False)
        assert verdict.counts.duplicated == 0
        assert (crew.counted["stale"], crew.counted["reaped"]) == (0, 0)
