"""A slow function is not a dead one: whatever it does for however long, it runs once."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.testing.eventually import eventually


@pytest.mark.parametrize(
    ("kind", "handler"),
    [
        ("plain", "handle"),
        ("status", "handle"),
        ("status", "handle_in_thread"),
    ],
)
async def test_a_function_that_computes_without_a_pause_keeps_its_job(
    make_queue_crew, valkey_server, kind, handler
):
    """It blocks the event loop for three times the silence; another worker looks on."""
    crew = make_queue_crew(
        valkey_server.url,
        kind=kind,
        handler=handler,
        queues={"silence_s": 0.4, "beat_s": 0.05},
        max_attempts=1,
    )
    async with crew:
        (busy,) = await crew.hire()
        await crew.at_work(busy)
        job_id = await crew.send(busy=1.2)
        await crew.started(job_id)
        await crew.hire()
        verdict = await crew.hold(attempt_gaps=False)
        assert verdict.counts.started == verdict.counts.finished == 1
        assert (crew.counted["reaped"], crew.counted["stale"]) == (0, 0)


@pytest.mark.parametrize(
    ("silence_s", "hold_s", "dies_after_s"),
    [
        (0.5, 1.0, 0.0),
        (1.0, 1.9, 0.3),
        pytest.param(5.0, 10.0, 0.1, marks=pytest.mark.torture),
        pytest.param(5.0, 10.0, 3.0, marks=pytest.mark.torture),
        pytest.param(5.0, 10.0, 7.0, marks=pytest.mark.torture),
    ],
)
async def test_a_survivor_that_holds_the_interpreters_lock_keeps_no_dead_worker_alive(
    make_queue_crew, valkey_server, silence_s, hold_s, dies_after_s, figure
):
    """It is late with every sign of life, and the only one that can notice the death.

    `dies_after_s` is when the other dies, counted from the beginning of a function that holds the
    lock: after that one the survivor knows only that both were silent.
    """
    crew = make_queue_crew(
        valkey_server.url,
        queue={"concurrency": 1},
        queues={"silence_s": silence_s, "beat_s": 0.1},
    )
    holds = 8
    async with crew:
        (victim,) = await crew.hire()
        job_id = await crew.send(pause=600, attempts=1)
        await crew.started(job_id)
        (survivor,) = await crew.hire()
        await crew.at_work(survivor)
        first, *_ = [await crew.send(hold=hold_s) for _ in range(holds)]
        await crew.started(first)
        await asyncio.sleep(dies_after_s)
        await victim.kill()
        killed_at = time.monotonic()

        async def returned():
            return (await crew.counters()).get("reaped")

        await eventually(returned, holds * hold_s)
        ended = crew.events("finish", "ok", survivor.actor)
        figure(
            "queue faults",
            f"functions that hold the lock for {hold_s:g} s until a killed worker's job is back, "
            f"{dies_after_s:g} s of the first before the kill",
            sum(one.t_mono > killed_at for one in ended),
            "functions",
            "<=",
            1,
        )
        await survivor.kill()


async def test_a_function_of_twenty_times_the_silence_runs_once(make_queue_crew, valkey_server):
    crew = make_queue_crew(valkey_server.url, queues={"silence_s": 0.2, "beat_s": 0.05})
    async with crew:
        await crew.hire(3)
        for _ in range(10):
            await crew.send(pause=4.0)
        verdict = await crew.hold(attempt_gaps=False)
        assert verdict.counts.started == verdict.counts.finished == 10
        assert crew.counted["reaped"] == 0


async def test_a_server_that_was_away_for_longer_than_the_silence_takes_nobody_for_dead(
    make_queue_crew, start_server
):
    """Nobody could give a sign of life meanwhile, so nobody is judged by it."""
    server = start_server()
    crew = make_queue_crew(
        server.url,
        max_attempts=1,
        kind="status",
        queues={"silence_s": 0.4, "beat_s": 0.1},
        timeouts={"connect_s": 0.5, "command_s": 0.5},
    )
    async with crew:
        hands = await crew.hire(3)
        await crew.at_work(*hands)
        jobs = [await crew.send(pause=1.5) for _ in range(9)]
        for job_id in jobs:
            await crew.started(job_id)
        for _ in range(1):
            server.kill()
            await asyncio.sleep(0.8)
            await asyncio.to_thread(server.restart)
            await crew.at_work(*hands)
            await asyncio.sleep(0.1)
        verdict = await crew.hold(attempt_gaps=False)
        assert verdict.counts.started == verdict.counts.finished == 9
        assert not await crew.letters()


async def test_a_frozen_server_takes_nobody_for_dead(make_queue_crew, start_server):
    server = start_server()
    crew = make_queue_crew(
        server.url,
        max_attempts=1,
        queues={"silence_s": 0.4, "beat_s": 0.1},
        timeouts={"connect_s": 5, "command_s": 5},
    )
    async with crew:
        hands = await crew.hire(3)
        await crew.at_work(*hands)
        jobs = [await crew.send(pause=1.5) for _ in range(9)]
        for job_id in jobs:
            await crew.started(job_id)
        server.pause()
        await asyncio.sleep(1.0)
        server.resume()
        verdict = await crew.hold(attempt_gaps=False)
        assert verdict.counts.started == verdict.counts.finished == 9


async def test_a_worker_that_died_while_the_server_was_away_is_noticed(
    make_queue_crew, start_server
):
    server = start_server()
    crew = make_queue_crew(server.url, queues={"silence_s": 0.4, "beat_s": 0.1})
    async with crew:
        victim, heir = await crew.hire(2)
        await crew.at_work(victim, heir)
        jobs = [await crew.send(pause=1.0) for _ in range(8)]
        for job_id in jobs:
            await crew.started(job_id)
        server.kill()
        await victim.kill()
        await asyncio.sleep(0.6)
        await asyncio.to_thread(server.restart)
        await eventually(lambda: len(crew.events("start")) > 8)
        verdict = await crew.hold()
        assert verdict.counts.finished == 8
