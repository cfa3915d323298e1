"""An owner that stands still past its lease: it is replaced, and what it says later is refused."""

from __future__ import annotations

import signal
import time

import pytest
from tests.kit.history import read_history

from penstock.testing.eventually import eventually


def events(crew, op, phase="", actor=""):
    return [
        event
        for event in read_history(crew.folder)
        if event.op == op
        and (not phase or event.phase == phase)
        and (not actor or event.actor == actor)
    ]


async def stopped_in_its_handler(crew, key, **orders):
    """Send a message whose first handler freezes its process; that worker, once it is frozen."""
    (sleeper,) = await crew.hire()
    await crew.at_work(sleeper)
    id_ = (await crew.send(key, stop=True, attempts=1, **orders)).partition("-")[2]
    await eventually(lambda: [one for one in events(crew, "start") if one.msg == id_])
    crew.nemesis.write("lose", victim=sleeper.actor)
    return sleeper, id_


@pytest.mark.parametrize("ordering", ["partition", "key"])
@pytest.mark.parametrize("handler", ["handle", "handle_in_thread"])
async def test_a_late_acknowledgement_is_refused_and_counted(
    make_crew, valkey_server, ordering, handler
):
    crew = make_crew(
        valkey_server.url,
        partitions=2,
        handler=handler,
        subscription={"ordering": ordering},
        topics={"lease_ttl_s": 0.4},
    )
    async with crew:
        sleeper, id_ = await stopped_in_its_handler(crew, "k")
        for _ in range(20):
            await crew.send("k")
        (heir,) = await crew.hire()
        await crew.owned_by({heir})
        await crew.drained()
        sleeper.thaw()
        # One of its two it may hand over first, since the other worker has fewer.
        await eventually(lambda: events(crew, "lose", actor=sleeper.actor))
        await crew.drained()
        late = await sleeper.counts()
        assert late["leases_lost"] in (1, 2)
        assert late["handled"] == 0
        if handler == "handle_in_thread":  # a thread cannot be cut, so it comes to its end
            await eventually(lambda: events(crew, "finish", "ok", sleeper.actor))
        await crew.dismiss()
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)
        assert verdict.counts.finished == 21
        runs = [one for one in events(crew, "start") if one.msg == id_]
        assert [(one.actor, one.attempt) for one in runs] == [(sleeper.actor, 1), (heir.actor, 2)]


@pytest.mark.parametrize("ending", [{}, {"dead": True}, {"fail": True}])
async def test_whatever_a_late_handler_decides_counts_for_nothing(make_crew, valkey_server, ending):
    """It wakes up with the outcome in its hands, before it can learn that the lease is over."""
    crew = make_crew(valkey_server.url, partitions=1, topics={"lease_ttl_s": 0.4})
    async with crew:
        sleeper, _ = await stopped_in_its_handler(crew, "k", pause=0, **ending)
        (heir,) = await crew.hire()
        await crew.drained()
        await eventually(lambda: events(crew, "ack", "accepted", heir.actor))
        sleeper.thaw()
        await eventually(lambda: events(crew, "lose", actor=sleeper.actor))
        late = await sleeper.counts()
        assert late["leases_lost"] == 1
        assert (late["handled"], late["retried"], late["dead"]) == (0, 0, 0)
        assert not (await crew.topic.dead_letters.list()).letters
        await crew.dismiss()
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)
        assert verdict.counts.finished == 1


@pytest.mark.parametrize("binary", ["valkey", "redis62"])
async def test_a_read_that_waits_for_messages_gets_none_once_its_owner_is_replaced(
    make_crew, start_server, binary
):
    """Before Redis 7.2 such a read outlives its fence, so it has to end before its lease does."""
    crew = make_crew(
        start_server(binary).url,
        partitions=2,
        topics={"lease_ttl_s": 0.6},
        worker={"poll_s": 30.0, "grace_s": 10.0},
    )
    async with crew:
        (sleeper,) = await crew.hire()
        await crew.at_work(sleeper)
        await crew.send_many(20, failing=0)
        await crew.drained()
        sleeper.freeze()
        (heir,) = await crew.hire()
        await crew.owned_by({heir})
        await crew.send_many(40, seed=1, failing=0)
        await crew.drained(25)
        sleeper.thaw()
        await crew.at_work(sleeper, heir)
        await crew.send_many(40, seed=2, failing=0)
        await crew.drained(25)
        await crew.dismiss()
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)
        assert verdict.counts.started == 100


async def test_a_replaced_owner_that_wakes_up_can_read_nothing(make_crew, valkey_server):
    """Its first word is a read, since messages wait; it learns of its loss by that."""
    crew = make_crew(
        valkey_server.url, partitions=2, topics={"lease_ttl_s": 0.6, "fetch": 10}, work_s=0.003
    )
    async with crew:
        (sleeper,) = await crew.hire()
        await crew.at_work(sleeper)
        sleeper.freeze()
        (heir,) = await crew.hire()
        await crew.owned_by({heir})
        await crew.send_many(600, failing=0)
        sleeper.thaw()
        # One of its two it may hand over first, since the other worker has fewer.
        await eventually(lambda: events(crew, "lose", actor=sleeper.actor))
        assert await crew.left() > 0
        await crew.drained()
        await crew.dismiss()
        verdict = await crew.verdict(attempt_gaps=False)
        assert verdict.ok, str(verdict)
        assert verdict.counts.started == 600


async def test_pauses_shorter_than_the_lease_cost_nothing(make_crew, valkey_server):
    crew = make_crew(valkey_server.url, partitions=4, topics={"lease_ttl_s": 2.0}, work_s=0.001)
    async with crew:
        hands = await crew.hire(2)
        await crew.at_work(*hands)
        for round_number in range(3):
            for hand in hands:
                hand.signal(signal.SIGSTOP)
                await crew.send_many(100, seed=round_number, failing=0)
                hand.signal(signal.SIGCONT)
        await crew.drained()
        counted = await crew.dismiss()
        verdict = await crew.verdict(attempt_gaps=False)
        assert verdict.ok, str(verdict)
        assert verdict.counts.started == 600
        assert (counted["leases_lost"], counted["refused"]) == (0, 0)


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_a_hundred_zombies_write_nothing(make_crew, valkey_server, figure):
    crew = make_crew(
        valkey_server.url, partitions=6, topics={"lease_ttl_s": 0.4}, work_s=0.002, max_attempts=10
    )
    async with crew:
        hands = await crew.hire(3)
        began = time.monotonic()
        for round_number in range(100):
            victim = hands[round_number % 3]
            await crew.at_work(*hands)
            await crew.send_many(200, seed=round_number)
            victim.freeze()
            await crew.owned_by({hand for hand in hands if hand is not victim})
            victim.thaw()
        took_s = time.monotonic() - began
        await crew.drained()
        counted = await crew.dismiss()
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)
        suite = "topic faults"
        figure(suite, "100 zombies: stale writes accepted", verdict.totals["I08"], "", "<=", 0)
        figure(suite, "100 zombies: leases lost", counted["leases_lost"], "", ">=", 100)
        figure(suite, "100 zombies: seconds", took_s, "s", "<=", 600)
