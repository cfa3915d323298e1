"""Clocks jump, on the server and on a worker: no promise is broken, and nobody waits for hours."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.kit.crews.wrong_clock import server_offset_s

from penstock.testing.eventually import eventually

HOUR = 3600
LEASE_S = 0.6


def make_clock_crew(make_crew, server, **options):
    return make_crew(
        server.url, partitions=4, topics={"lease_ttl_s": LEASE_S}, work_s=0.001, **options
    )


async def jump(crew, clock, server, offset_s):
    with crew.nemesis.losing():
        clock.set(offset_s)
        # It looks at the clock now and then.
        await eventually(lambda: abs(server_offset_s(server) - offset_s) < 5)


@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_jumps_of_the_servers_clock_break_no_promise(make_crew, clock, server, ordering):
    crew = make_clock_crew(make_crew, server, subscription={"ordering": ordering})
    async with crew:
        hands = await crew.hire(2)
        await crew.at_work(*hands)
        for round_number, offset_s in enumerate((HOUR, 0, -HOUR, 0, -2 * HOUR)):
            async with asyncio.TaskGroup() as group:
                group.create_task(crew.send_many(300, seed=round_number, pace_s=0.005, failing=0))
                await asyncio.sleep(0.1)
                await jump(crew, clock, server, offset_s)
            await crew.drained()
        await crew.dismiss()
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)
        assert verdict.counts.finished == 1_500


async def test_retries_do_not_wait_for_a_clock_that_was_set_back(make_crew, clock, server):
    crew = make_clock_crew(make_crew, server, backoff_s=1.0)
    async with crew:
        hands = await crew.hire(2)
        await crew.at_work(*hands)

        async def shares_are_equal():
            owners = list((await crew.owners()).values())
            return [owners.count(hand) for hand in hands] == [2, 2]

        # Who notes a retry, or takes it over, knows when it is due. If it changes hands while the
        # clock jumps, the next owner has only the server's word for it.
        await eventually(shares_are_equal)
        for number in range(8):
            await crew.send(f"key-{number}", fail=True, attempts=1)
        await eventually(lambda: len(crew.events("retry", "accepted")) == 8)
        await jump(crew, clock, server, -HOUR)
        await crew.drained()
        await crew.dismiss()
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)


@pytest.mark.parametrize("offset_s", [-2 * HOUR, HOUR])
async def test_a_dead_owner_is_replaced_after_the_clock_jumped(
    make_crew, clock, server, offset_s, figure
):
    """Its lease then seems to hold for two hours more."""
    crew = make_clock_crew(make_crew, server)
    async with crew:
        victim, heir = await crew.hire(2)
        await crew.at_work(victim, heir)
        await jump(crew, clock, server, offset_s)
        await victim.kill()
        began = time.monotonic()
        await crew.owned_by({heir})
        took_s = time.monotonic() - began
        figure(
            "topic faults",
            f"dead owner replaced after a jump of {offset_s} s",
            took_s,
            "s",
            "<=",
            2 * LEASE_S + 2,
        )
        await crew.send_many(100)
        await crew.drained()
        await crew.dismiss()
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)


@pytest.mark.parametrize("offset_s", [HOUR, -HOUR])
async def test_a_worker_with_a_wrong_clock_works_as_any_other(make_crew, valkey_server, offset_s):
    crew = make_clock_crew(make_crew, valkey_server)
    async with crew:
        (right,) = await crew.hire()
        (wrong,) = await crew.hire(clock_s=offset_s)
        await crew.at_work(right, wrong)
        await crew.send_many(600, pace_s=0.002)
        await crew.drained()
        counted = await crew.dismiss()
        verdict = await crew.verdict(attempt_gaps=False)
        assert verdict.ok, str(verdict)
        assert verdict.counts.duplicated == 0
        assert (counted["leases_lost"], counted["refused"]) == (0, 0)
