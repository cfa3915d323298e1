"""How long a partition waits for its next owner."""

from __future__ import annotations

import signal
import time

import pytest
from tests.kit.history import read_history

from penstock.testing.eventually import eventually


def first_start_after(crew, moment, partitions):
    """When a message of each of these partitions was first started after a moment."""
    firsts = {}
    for event in read_history(crew.folder):
        if event.op == "start" and event.t_mono > moment and event.partition in partitions:
            firsts.setdefault(event.partition, event.t_mono)
    return firsts if firsts.keys() == set(partitions) else None


async def takeover_s(crew, victim, end):
    """Let a worker end; how long it took until each of its partitions was worked on again."""
    orphans = [index for index, owner in (await crew.owners()).items() if owner is victim]
    assert orphans
    began = time.monotonic()
    await end(victim)
    for index in orphans:
        await crew.send(crew.key_in(index))
    firsts = await eventually(lambda: first_start_after(crew, began, orphans))
    return max(firsts.values()) - began


async def kill(hand):
    await hand.kill()


async def ask_to_end(hand):
    hand.signal(signal.SIGTERM)


async def measure(crew, rounds, end):
    worst = 0.0
    hands = await crew.hire(3)
    for _ in range(rounds):
        await crew.at_work(*hands)
        worst = max(worst, await takeover_s(crew, hands[0], end))
        await hands[0].ended()
        hands = hands[1:] + await crew.hire()
    await crew.drained()
    await crew.dismiss()
    verdict = await crew.verdict()
    assert verdict.ok, str(verdict)
    return worst


def make_takeover_crew(make_crew, server, lease_s):
    worker = {"poll_s": 1.0, "grace_s": 10.0}  # as it is by default
    return make_crew(
        server.url, partitions=6, topics={"lease_ttl_s": lease_s, "balance_s": 0.5}, worker=worker
    )


async def test_a_killed_owner_is_replaced_when_its_lease_is_over(make_crew, valkey_server, figure):
    async with make_takeover_crew(make_crew, valkey_server, 1.0) as crew:
        worst = await measure(crew, 1, kill)
        figure("topic faults", "takeover after kill -9 less lease", worst - 1, "s", "<=", 1.0)


async def test_an_owner_that_leaves_is_replaced_within_a_second(make_crew, valkey_server, figure):
    async with make_takeover_crew(make_crew, valkey_server, 15.0) as crew:
        worst = await measure(crew, 1, ask_to_end)
        figure("topic faults", "takeover after a graceful end", worst, "s", "<=", 1.0)


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_thirty_killed_owners_are_replaced_in_time(make_crew, valkey_server, figure):
    async with make_takeover_crew(make_crew, valkey_server, 3.0) as crew:
        worst = await measure(crew, 30, kill)
        figure("topic faults", "30 × takeover after kill -9 less lease", worst - 3, "s", "<=", 1.0)


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_thirty_leaving_owners_are_replaced_in_time(make_crew, valkey_server, figure):
    async with make_takeover_crew(make_crew, valkey_server, 15.0) as crew:
        worst = await measure(crew, 30, ask_to_end)
        figure("topic faults", "30 × takeover after a graceful end", worst, "s", "<=", 1.0)
