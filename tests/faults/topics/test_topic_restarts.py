"""Consumers come and go in good order: nothing is handled twice, nobody waits for a lease."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.kit.history import read_history

from penstock.runtime.service import Service
from penstock.runtime.worker import Worker


async def rolling_restart(crew, pace_s, rounds=1, least=0):
    """Replace three consumers one by one while messages come in; how many came."""
    hands = await crew.hire(3)
    restarted = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(crew.send_until(restarted, least, keys=64, pace_s=pace_s))
        await crew.at_work(*hands)
        for _ in range(rounds):
            for place, old in enumerate(hands):
                await old.stop()
                hands[place] = (await crew.hire())[0]
                await crew.at_work(*hands)
        restarted.set()
    await crew.drained()
    await crew.dismiss()
    return await crew.verdict(attempt_gaps=False), sending.result()


def hold_once(verdict, crew, messages):
    """Each message was started once, finished once, and no lease had to run out."""
    assert verdict.ok, str(verdict)
    counts = verdict.counts
    assert (counts.sent_ok, counts.started, counts.finished) == (messages, messages, messages)
    assert (counts.duplicated, counts.dead) == (0, 0)
    assert not [event for event in read_history(crew.folder) if event.op == "lose"]


CASES = [
    ("valkey", "key", "handle"),
    ("valkey", "partition", "handle_in_thread"),
    # Before Redis 7.2 a read that waits for messages does not end with its fence.
    ("redis62", "none", "handle"),
]


def make_restart_crew(make_crew, server, ordering, handler):
    """With one attempt allowed, whoever is charged for a mere fetch ends in the dead letters."""
    return make_crew(
        server.url,
        partitions=6,
        max_attempts=1,
        handler=handler,
        subscription={"ordering": ordering},
        topics={"lease_ttl_s": 5.0},
        work_s=0.001,
    )


@pytest.mark.parametrize(("binary", "ordering", "handler"), CASES)
async def test_a_rolling_restart_handles_every_message_exactly_once(
    make_crew, start_server, binary, ordering, handler
):
    crew = make_restart_crew(make_crew, start_server(binary), ordering, handler)
    async with crew:
        verdict, sent = await rolling_restart(crew, 0.008)
        hold_once(verdict, crew, sent)


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("binary", "ordering", "handler"), [("valkey", "partition", "handle"), *CASES]
)
async def test_ten_rolling_restarts_handle_every_message_exactly_once(
    make_crew, start_server, binary, ordering, handler, figure
):
    crew = make_restart_crew(make_crew, start_server(binary), ordering, handler)
    async with crew:
        verdict, sent = await rolling_restart(crew, 0.006, rounds=10, least=40_000)
        hold_once(verdict, crew, sent)
        name = f"30 restarts on {binary}, ordering {ordering}, {handler}"
        figure("topic faults", f"{name}: handled twice", verdict.counts.duplicated, "", "<=", 0)
        figure("topic faults", f"{name}: handled", verdict.counts.finished, "", ">=", 40_000)


class Restless(Service):
    """Support that is always about to time out, as the mover of delayed messages often is."""

    def __init__(self):
        super().__init__("restless")

    async def run(self):
        while not self.stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()


async def test_a_worker_ends_though_its_support_times_out_at_that_moment():
    for turns in range(12):
        worker = Worker(support=[Restless()])
        running = asyncio.create_task(worker.run())
        for _ in range(5 + turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(worker.stop(), 60)
        assert await running == 0
