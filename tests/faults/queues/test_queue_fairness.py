"""A burst of one tenant starves nobody: measured with a worker process."""

from __future__ import annotations

import msgspec
import pytest
from tests.kit.crews.queue_crew import QUEUE
from tests.kit.history import payload_hash

from penstock.testing.eventually import eventually


async def push_burst(crew, group, count, start=0):
    """Queue many jobs of a group; they are not part of the history."""
    sender = crew.task.with_options(group=group)
    jobs = [{"n": number, "group": group} for number in range(start, start + count)]
    for first in range(0, count, 5_000):
        await sender.send_many((job,) for job in jobs[first : first + 5_000])
    return {payload_hash(msgspec.json.encode(job)) for job in jobs}


@pytest.mark.parametrize("burst", [5_000, pytest.param(100_000, marks=pytest.mark.torture)])
async def test_one_job_behind_a_burst_of_another_group_starts_within_one_round(
    make_queue_crew, valkey_server, figure, burst
):
    crew = make_queue_crew(valkey_server.url, kind="lanes", queue={"concurrency": 1}, work_s=0.001)
    async with crew:
        await push_burst(crew, "ann", burst)
        (hand,) = await crew.hire()
        await eventually(lambda: len(crew.events("start")) > 20)
        before = len(crew.events("start"))
        bob = await crew.send(where={"group": "bob"})
        await crew.started(bob)
        order = [event.msg for event in crew.events("start")]
        # Jobs that were claimed ahead when bob's came were before it; then it is bob's turn.
        ahead = order.index(bob) - before
        figure("queue faults", f"jobs before bob's, burst of {burst}", ahead, "jobs", "<=", 60)
        await hand.kill()


async def test_weights_hold_within_five_percent(make_queue_crew, valkey_server, figure):
    crew = make_queue_crew(valkey_server.url, kind="lanes")
    async with crew:
        await crew.app.queues.set_weight(QUEUE, "ann", 3)
        anns = await push_burst(crew, "ann", 3_000)
        await push_burst(crew, "bob", 3_000, 3_000)
        await crew.hire(2)
        await eventually(lambda: len(crew.events("start")) >= 2_400)
        began = [event.payload_hash in anns for event in crew.events("start")[:2_400]]
        ratio = sum(began) / (len(began) - sum(began))
        figure("queue faults", "share of weight 3 over weight 1", ratio, "", ">=", 2.85)
        figure("queue faults", "share of weight 3 over weight 1, most", ratio, "", "<=", 3.15)


async def test_a_kill_does_not_cost_a_group_its_turn(make_queue_crew, valkey_server):
    """Every lane with jobs is in the ring once, whatever became of those who claimed from it."""
    crew = make_queue_crew(valkey_server.url, kind="lanes", max_attempts=8, work_s=0.002)
    async with crew:
        groups = [f"tenant-{number}" for number in range(12)]
        for group in groups:
            await crew.send(where={"group": group}, pause=10, attempts=1)
            for _ in range(20):
                await crew.send(where={"group": group})
        for _ in range(3):
            (victim,) = await crew.hire()
            await eventually(lambda: len(crew.events("start")) >= 12)
            await victim.kill()
        await crew.hire()
        verdict = await crew.hold()
        assert verdict.counts.finished == 12 * 21
        assert await crew.app.redis.call("LLEN", crew.keys.ring) == 0
