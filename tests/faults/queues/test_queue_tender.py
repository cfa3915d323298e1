"""The process that looks after an idle queue is killed: others find what wakes nobody."""

from __future__ import annotations

import time

import pytest
from tests.kit.crews.queue_crew import BEAT_S, QUEUE, SILENCE_S, TASK
from tests.kit.patience import patient
from tests.kit.workplace import Workplace

from penstock.queues.storage.keys import QueueKeyring
from penstock.redis.keys.hash_slot import key_slot
from penstock.testing.eventually import eventually

QUICK = {"silence_s": SILENCE_S, "beat_s": BEAT_S, "poll_s": 0.05}
HANGS_FOR_LONG = ("--cluster-node-timeout", "60000", "--cluster-require-full-coverage", "no")
DEFAULTS = {"silence_s": 5.0, "beat_s": 1.0, "poll_s": 0.1}


async def tender_of(crew):
    """The worker that looks after the queue."""

    async def found():
        name = await crew.app.redis.call("HGET", crew.keys.state, "tender")
        pid = int(name.decode().split("-")[-2]) if name else 0
        return next((worker for worker in crew.living if worker.pid == pid), None)

    return await eventually(found, what="a process to tend the queue")


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
        figure(
            "queue faults",
            "jobs without a wake-up after a tender's death",
            longest_s,
            "s",
            "<=",
            patient(bound_s),
        )


async def test_a_node_that_hangs_holds_up_no_look_at_queues_of_another(start_cluster, namespace):
    cluster, ran = start_cluster(2, 0, *HANGS_FOR_LONG), []
    async with Workplace(cluster.url, namespace) as place:
        app = await place.open()
        halves: list[list[QueueKeyring]] = [[], []]
        for number in range(8):

            @app.queue(f"q{number}").handler
            async def handle(job: int) -> None:
                ran.append(job)

            keys = QueueKeyring.of(app.redis.keys, f"q{number}")
            halves[key_slot(keys.waiting) * 2 // 16384].append(keys)
        worker = await place.start(app)
        hung, living = cluster.nodes[0], halves[1][0]
        assert halves[0]
        hung.pause()
        try:
            began = time.monotonic()
            for number in range(6):  # by a program that wakes nobody, so that they are looked for
                await app.redis.call("RPUSH", living.list_of("high"), number)
                await eventually(lambda number=number: len(ran) == number + 1)
            # Each look at the other queues takes the two seconds of `timeouts.command_s`.
            assert time.monotonic() - began < 8  # six of them: twelve seconds
        finally:
            hung.resume()
        await eventually(lambda: worker.readiness().ready)
