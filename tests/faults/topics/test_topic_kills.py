"""Consumers are killed with kill -9 under load: nothing is lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from tests.kit.history import read_history

from penstock.testing.eventually import eventually


async def kill_owners(crew, kills, seed, every_s):
    """Kill some owner of a partition again and again, each time hiring another worker."""
    chance = random.Random(seed)  # noqa: S311  repeatable, not secret
    for _ in range(kills):

        async def somebody():
            owners = await crew.owners()
            living = {hand for hand in owners.values() if hand is not None and hand.code is None}
            return sorted(living, key=lambda hand: hand.actor)

        victim = chance.choice(await eventually(somebody))
        await asyncio.sleep(chance.uniform(0, every_s))  # somewhere within its work
        await victim.kill()
        await crew.hire()


async def storm(make_crew, server, ordering, *, kills, messages, every_s, lease_s, pace_s):
    crew = make_crew(
        server.url,
        partitions=6,
        max_attempts=6,
        subscription={"ordering": ordering},
        topics={"lease_ttl_s": lease_s},
        work_s=0.004,
    )
    async with crew:
        await crew.hire(3)
        async with asyncio.TaskGroup() as group:
            group.create_task(crew.send_many(messages, seed=kills, pace_s=pace_s, dying=0.002))
            await kill_owners(crew, kills, kills, every_s)
        await crew.drained(60)
        await crew.dismiss()
        return await crew.verdict(), interrupted(crew)


def interrupted(crew):
    """How many handlers were cut off in their midst."""
    seen = Counter(event.op for event in read_history(crew.folder))
    return seen["start"] - seen["finish"]


def hold(verdict, messages):
    assert verdict.ok, str(verdict)
    assert verdict.counts.sent_ok == messages
    assert verdict.counts.lost == 0
    for invariant in ("I01", "I05", "I06", "I08", "I11"):
        assert verdict.examined[invariant] > 0, invariant


@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_a_storm_of_kills_loses_nothing_and_keeps_the_order(
    make_crew, valkey_server, ordering
):
    verdict, cut_off = await storm(
        make_crew,
        valkey_server,
        ordering,
        kills=12,
        messages=4_000,
        every_s=0.1,
        lease_s=0.5,
        pace_s=0.006,
    )
    hold(verdict, 4_000)
    assert cut_off > 0


async def test_a_storm_of_kills_on_a_cluster(make_crew, cluster):
    verdict, cut_off = await storm(
        make_crew,
        cluster,
        "key",
        kills=6,
        messages=1_500,
        every_s=0.1,
        lease_s=0.5,
        pace_s=0.01,
    )
    hold(verdict, 1_500)
    assert cut_off > 0


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_two_hundred_kills_over_a_hundred_thousand_messages(
    make_crew, valkey_server, ordering, figure
):
    verdict, cut_off = await storm(
        make_crew, valkey_server, ordering,
        kills=200, messages=100_000, every_s=0.3, lease_s=0.5, pace_s=0.012,
    )  # fmt: skip
    hold(verdict, 100_000)
    counts = verdict.counts
    suite, name = "topic faults", f"200 kills, ordering {ordering}"
    figure(suite, f"{name}: messages confirmed", counts.sent_ok, "messages", ">=", 100_000)
    figure(suite, f"{name}: lost", counts.lost, "messages", "<=", 0)
    figure(suite, f"{name}: order broken", verdict.totals["I05"], "times", "<=", 0)
    figure(suite, f"{name}: starts above the limit", verdict.totals["I11"], "messages", "<=", 0)
    figure(suite, f"{name}: stale acks accepted", verdict.totals["I08"], "acks", "<=", 0)
    # No promise of ours, but of the test: that kills hit workers which were at work.
    figure(suite, f"{name}: handlers cut off", cut_off, "runs", ">=", 100)
