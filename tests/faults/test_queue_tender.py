"""The process that looks after an idle queue is killed: others find what wakes nobody."""

from __future__ import annotations

import time

import pytest

from penstock.testing.eventually import eventually

from .queues.crew import BEAT_S, QUEUE, SILENCE_S, TASK

QUICK = {"silence_s": SILENCE_S, "beat_s": BEAT_S, "poll_s": 0.05}
DEFAULTS = {"silence_s": 5.0, "beat_s": 1.0, "poll_s": 0.1}


async def tender_of(crew):
    """The worker that looks after the queue."""

    async def found():
        name = await crew.app.redis.call("HGET", crew.keys.state, "tender")
        pid = int(name.decode().split("-")[-2]) if name else 0
        return next((hand for hand in crew.hands if hand.pid == pid and hand.code is None), None)

    return await eventually(found, 10, what="a process to tend the queue")


async def without_wake_ups(crew, kill):
    """Kill while the queue has jobs for which no token is left: sent, pushed by others, and due."""
    call, keys = crew.app.redis.call, crew.keys
    await crew.app.queues.pause(QUEUE)
    jobs = [await crew.send(where=where) for where in ({}, {"priority": "high"}, {"group": "ann"})]
    jobs.append(await crew.send(where={"delay": 0.5}))
    pushed = f'{{"task":"{TASK}","id":"pushed-{len(crew.confirmed)}","args":[{{"n":0}}]}}'
    await call("RPUSH", keys.waiting, pushed)

    async def are_taken():
        return await call("EXISTS", keys.wakeup) == 0

    await eventually(are_taken, what="the tokens to be taken")
    await kill()
    await call("HDEL", keys.state, "paused")  # unlike `resume`, this wakes nobody
    return [*jobs, pushed.split('"')[7]]


@pytest.mark.parametrize(
    ("settings", "bound_s"),
    [
        # The lease, the pause between two signs of life of an idle worker, and a look; five times.
        pytest.param(QUICK, 2.5, id="quick"),
        # The lease of 2 s, a sign of life within 3 s, and a look, on a machine that is busy.
        pytest.param(DEFAULTS, 7.0, id="defaults"),
    ],
)
async def test_others_find_what_the_killed_tender_would_have(
    make_queue_crew, valkey_server, figure, settings, bound_s
):
    crew = make_queue_crew(valkey_server.url, kind="lanes", queues=settings)
    async with crew:
        await crew.at_work(*await crew.hire(3))
        longest_s = 0.0
        for _ in range(2):
            tender = await tender_of(crew)
            jobs = await without_wake_ups(crew, tender.kill)
            began = time.monotonic()
            for job_id in jobs:
                await crew.started(job_id)
            longest_s = max(longest_s, time.monotonic() - began)
        await crew.drained()
        assert longest_s < bound_s
        figure(
            "queue faults",
            "jobs without a wake-up after a tender's death",
            longest_s,
            "s",
            "<=",
            bound_s,
        )
