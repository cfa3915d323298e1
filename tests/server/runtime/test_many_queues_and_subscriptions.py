"""Many queues with lanes and as many subscriptions in one worker process."""

from __future__ import annotations

import pytest
from tests.kit.workplace import Workplace

from penstock.testing.eventually import eventually

LANES = ({}, {"priority": "high"}, {"group": "tenant"})
RARELY = {"poll_s": 10.0, "silence_s": 600.0, "beat_s": 30.0}
"""Nothing is found by looking within the time of a test."""


def application(app, many, messages, jobs):
    for number in range(many):

        @app.topic(f"topic-{number}", type=int).subscribe("group")
        async def handle(value: int) -> None:
            messages.append(value)

        @app.task(queue=f"queue-{number}", name=f"note-{number}")
        async def note(value: int) -> None:
            jobs.append(value)

        yield note


def blocked(server):
    """The commands that wait on the server, and how many connections there are."""
    lines = str(server.command("CLIENT", "LIST")).splitlines()
    waiting = [line.partition(" cmd=")[2].split()[0] for line in lines if " flags=b " in line]
    return waiting, len(lines)


@pytest.mark.parametrize("many", [50, pytest.param(200, marks=pytest.mark.torture)])
async def test_each_of_many_queues_and_subscriptions_is_woken_at_once(
    start_server, namespace, many
):
    server, messages, jobs = start_server("valkey"), [], []
    async with Workplace(server.url, namespace) as place:
        app = await place.open(worker_poll_s=100.0, **RARELY)
        tasks = list(application(app, many, messages, jobs))
        worker = place.begin(app)
        await eventually(lambda: worker.readiness().ready)
        # What is ready waits on the server for all of it, over as few connections as can be.
        await eventually(lambda: blocked(server)[0].count("xreadgroup") == many)
        waiting, connections = blocked(server)
        assert 1 <= waiting.count("blpop") <= 2
        assert connections < many + 10
        for number, task in enumerate(tasks):
            await app.topic(f"topic-{number}", type=int).send(number)
            await task.with_options(**LANES[number % len(LANES)]).send(number)
        await eventually(lambda: len(messages) == len(jobs) == many)
        assert sorted(messages) == sorted(jobs) == list(range(many))
        # Whatever was woken before waits for the next one, and no connections are added.
        for number, task in enumerate(tasks):
            await task.with_options(**LANES[(number + 1) % len(LANES)]).send(number)
        await eventually(lambda: len(jobs) == 2 * many)
        assert blocked(server)[1] < many + 10
