"""Workers are killed with kill -9 under load: no job is lost, none is started too often."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest
from tests.kit.crews.queue_crew import SILENCE_S
from tests.kit.history import read_history

from penstock.testing.eventually import eventually


async def kill_members(crew, kills, seed, every_s):
    """Kill some worker of the queue again and again, each time hiring another one."""
    chance = random.Random(seed)  # noqa: S311  repeatable, not secret
    for _ in range(kills):

        async def somebody():
            living = {hand for hand in await crew.members() if hand.code is None}
            return sorted(living, key=lambda hand: hand.actor)

        victim = chance.choice(await eventually(somebody))
        await asyncio.sleep(chance.uniform(0, every_s))  # somewhere within its work
        await victim.kill()
        await crew.hire()


async def storm(make_queue_crew, server, kind, *, kills, jobs, every_s, pace_s, work_s=0.02):
    crew = make_queue_crew(server.url, kind=kind, max_attempts=8, work_s=work_s)
    async with crew:
        await crew.hire(3)
        async with asyncio.TaskGroup() as group:
            group.create_task(crew.send_many(jobs, seed=kills, pace_s=pace_s, dying=0.002))
            await kill_members(crew, kills, kills, every_s)
        verdict = await crew.hold(60)
        seen = Counter(event.op for event in read_history(crew.folder))
        crew.cut_off = seen["start"] - seen["finish"]
        return crew, verdict


def hold(verdict, jobs):
    assert verdict.counts.sent_ok == jobs
    for invariant in ("I01", "I02", "I04", "I07", "I08", "I11", "I12"):
        assert verdict.examined[invariant] > 0, invariant


@pytest.mark.parametrize("kind", ["plain", "status", "lanes"])
async def test_a_storm_of_kills_loses_no_job(make_queue_crew, valkey_server, kind):
    crew, verdict = await storm(
        make_queue_crew,
        valkey_server,
        kind,
        kills=5,
        jobs=1_200,
        every_s=0.1,
        pace_s=0.006,
        work_s=0.1,
    )
    hold(verdict, 1_200)
    assert crew.cut_off > 0


async def test_a_storm_of_kills_on_a_cluster(make_queue_crew, cluster):
    crew, verdict = await storm(
        make_queue_crew,
        cluster,
        "status",
        kills=3,
        jobs=600,
        every_s=0.1,
        pace_s=0.01,
        work_s=0.1,
    )
    hold(verdict, 600)
    assert crew.cut_off > 0


@pytest.mark.parametrize(
    "limits",
    [
        {"lane_limit": 3},
        {"limit": 7},
        {"push": "left"},
        {"levels": "strict"},
    ],
)
async def test_kills_cost_no_lane_its_places_or_its_turn(make_queue_crew, valkey_server, limits):
    crew = make_queue_crew(
        valkey_server.url, kind="lanes", max_attempts=8, work_s=0.004, queue=limits
    )
    async with crew:
        await crew.hire(3)
        async with asyncio.TaskGroup() as group:
            group.create_task(crew.send_many(600, pace_s=0.006, dying=0.005))
            await kill_members(crew, 4, 3, 0.1)
        await crew.hold(60)  # which finds places that nobody holds
        assert await crew.app.redis.call("LLEN", crew.keys.ring) == 0
        assert await crew.app.redis.call("ZCARD", crew.keys.parked) == 0


async def test_jobs_of_a_killed_worker_restart_in_front_of_all_others(
    make_queue_crew, valkey_server, figure
):
    crew = make_queue_crew(valkey_server.url, queue={"concurrency": 2})
    async with crew:
        (victim,) = await crew.hire()
        first = [await crew.send(pause=30, attempts=1) for _ in range(2)]
        for job_id in first:
            await crew.started(job_id)
        later = [await crew.send() for _ in range(50)]
        (busy,) = await crew.hire(queue={**crew.orders["queue"], "concurrency": 1})
        await crew.at_work(busy)
        began = time.monotonic()
        await victim.kill()
        again = [await crew.started(job_id, 2) for job_id in first]
        took_s = max(one.t_mono for one in again) - began
        figure(
            "queue faults", "killed worker's job starts again", took_s, "s", "<=", SILENCE_S + 1.0
        )
        blocked = [await crew.send() for _ in range(5)]
        verdict = await crew.hold()
        order = [event.msg for event in crew.events("start") if event.actor == busy.actor]
        assert [one for one in order if one in first] == first, "their order is kept"
        assert max(map(order.index, first)) < min(map(order.index, blocked))
        assert [event.attempt for job_id in first for event in crew.starts_of(job_id)] == [1, 2] * 2
        assert verdict.counts.finished == len(first) + len(later) + len(blocked)


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["plain", "status", "lanes"])
async def test_two_hundred_kills_over_a_hundred_thousand_jobs(
    make_queue_crew, valkey_server, kind, figure
):
    crew, verdict = await storm(
        make_queue_crew, valkey_server, kind, kills=200, jobs=100_000, every_s=0.3, pace_s=0.008
    )
    hold(verdict, 100_000)
    counts, suite, name = verdict.counts, "queue faults", f"200 kills, {kind} queue"
    figure(suite, f"{name}: jobs confirmed", counts.sent_ok, "jobs", ">=", 100_000)
    figure(suite, f"{name}: lost", counts.lost, "jobs", "<=", 0)
    figure(suite, f"{name}: starts above the limit", verdict.totals["I11"], "jobs", "<=", 0)
    figure(suite, f"{name}: stale words accepted", verdict.totals["I08"], "words", "<=", 0)
    figure(suite, f"{name}: done twice", counts.duplicated, "jobs", "<=", 2_000)
    # No promise of ours, but of the test: that kills hit workers which were at work.
    figure(suite, f"{name}: runs cut off", crew.cut_off, "runs", ">=", 100)
