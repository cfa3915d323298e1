"""A key that fails, with a backlog, in processes that are killed and partitions that move."""

from __future__ import annotations

import pytest
from tests.kit.history import read_history

from penstock.testing.eventually import eventually

BACKLOG = 1_500


def finished(crew):
    """How many messages of healthy keys were handled."""
    return len(
        {
            (event.partition, event.msg)
            for event in read_history(crew.folder)
            if event.op == "finish" and event.phase == "ok" and event.key.startswith("fine")
        }
    )


@pytest.mark.parametrize("ends", ["killed", "asked to end", "joined by others"])
async def test_a_failing_key_with_a_backlog_keeps_order_and_charge_over_a_change_of_owners(
    make_crew, valkey_server, ends
):
    crew = make_crew(
        valkey_server.url,
        partitions=2,
        max_attempts=20,
        subscription={"ordering": "key"},
        topics={"lease_ttl_s": 0.5, "audit_s": 0.2},
        backoff_s=0.5,
    )
    async with crew:
        bad = crew.key_in(0)
        await crew.send(bad, fail=True, attempts=6)
        for _ in range(BACKLOG):
            await crew.send(bad)
        for number in range(100):
            await crew.send(f"fine-{number % 50}")
        (first,) = await crew.hire()
        await eventually(lambda: finished(crew) == 100)
        if ends == "killed":
            await first.kill()
        elif ends == "asked to end":
            await first.stop()
        await crew.hire(2)
        for number in range(100):
            await crew.send(f"fine-{number % 50}")
        await eventually(lambda: finished(crew) == 200)
        await crew.drained(60)
        counts = await crew.dismiss()
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)
        assert verdict.counts.finished == 1 + BACKLOG + 200
        assert counts["strays"] == 0
        starts = [
            event for event in read_history(crew.folder) if event.op == "start" and event.key == bad
        ]
        # What was parked was never begun: a death charges nothing but what was in memory then.
        charged = {event.msg for event in starts if event.attempt > 1}
        assert len(charged) < 130
