"""The network between a consumer and its server breaks: nothing is lost, stuck or out of order."""

from __future__ import annotations

import asyncio

import pytest

from penstock.testing.eventually import eventually


def make_network_crew(make_crew, server, proxy, **options):
    """Consumers talk through the proxy; the producer and the test do not."""
    return make_crew(
        server.url,
        **{
            "partitions": 3,
            "topics": {"lease_ttl_s": 1.0},
            "timeouts": {"connect_s": 0.5, "command_s": 0.5},
            "work_s": 0.001,
            "consumer_url": proxy.url,
            **options,
        },
    )


async def hold(crew, messages, **rules):
    verdict = await crew.hold(**rules)
    assert verdict.counts.finished == messages
    return verdict


async def lose_words(crew, proxy, fault, command, hits):
    """Break the connection around some commands, under load; the lease holds all the while."""
    await crew.at_work(*await crew.hire())
    async with asyncio.TaskGroup() as group:
        group.create_task(crew.send_many(100 * hits, pace_s=0.02, failing=0))
        for _ in range(hits):
            rule = getattr(proxy, fault)(command)
            await eventually(lambda rule=rule: rule.hits)
    verdict = await hold(crew, 100 * hits, attempt_gaps=False)
    assert verdict.counts.started == 100 * hits


SHORT = [("partition", "swallow", "XREADGROUP"), ("key", "swallow", "EVALSHA")]
LONG = [
    (ordering, fault, command)
    for ordering in ("partition", "key", "none")
    for fault in ("swallow", "cut_before")
    for command in ("XREADGROUP", "EVALSHA")
]


def make_losing_crew(make_crew, server, proxy, ordering):
    return make_network_crew(
        make_crew,
        server,
        proxy,
        subscription={"ordering": ordering},
        topics={"lease_ttl_s": 10.0},
    )


@pytest.mark.parametrize(("ordering", "fault", "command"), SHORT)
async def test_lost_answers_and_questions_cost_no_message_and_no_repetition(
    make_crew, valkey_server, fault_proxy, ordering, fault, command
):
    """The answer to a read is lost with messages in it, that to an acknowledgement after it."""
    proxy = fault_proxy(valkey_server)
    async with make_losing_crew(make_crew, valkey_server, proxy, ordering) as crew:
        await lose_words(crew, proxy, fault, command, 1)


@pytest.mark.torture
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ordering", "fault", "command"), LONG)
async def test_many_lost_answers_and_questions(
    make_crew, valkey_server, fault_proxy, ordering, fault, command
):
    proxy = fault_proxy(valkey_server)
    async with make_losing_crew(make_crew, valkey_server, proxy, ordering) as crew:
        await lose_words(crew, proxy, fault, command, 20)


async def test_cut_connections_are_made_anew(make_crew, valkey_server, fault_proxy):
    proxy = fault_proxy(valkey_server)
    async with make_network_crew(make_crew, valkey_server, proxy) as crew:
        await crew.at_work(*await crew.hire(2))
        async with asyncio.TaskGroup() as group:
            group.create_task(crew.send_many(300, pace_s=0.03))
            for number in range(4):
                await asyncio.sleep(0.2)
                with crew.nemesis.losing():
                    proxy.cut(reset=number % 2 == 0)
        await hold(crew, 300)


@pytest.mark.parametrize(
    "way",
    [
        "to_client",
        "to_server",
        None,
    ],
)
async def test_a_black_hole_longer_than_the_lease_is_survived(
    make_crew, valkey_server, fault_proxy, way
):
    """Both sides believe that the connection is fine; another consumer has a better way."""
    proxy = fault_proxy(valkey_server)
    async with make_network_crew(make_crew, valkey_server, proxy) as crew:
        (cut_off,) = await crew.hire()
        (fine,) = await crew.hire(url=valkey_server.url)
        await crew.at_work(cut_off, fine)
        async with asyncio.TaskGroup() as group:
            group.create_task(crew.send_many(300, pace_s=0.04))
            await asyncio.sleep(0.2)
            crew.nemesis.write("lose", victim=cut_off.actor)
            proxy.blackhole(way=way)
            await crew.owned_by({fine})
        proxy.heal()
        await crew.at_work(cut_off, fine)
        await hold(crew, 300)


async def test_a_slow_way_keeps_its_leases(make_crew, valkey_server, fault_proxy):
    proxy = fault_proxy(valkey_server)
    proxy.latency(0.05)
    async with make_network_crew(make_crew, valkey_server, proxy) as crew:
        await crew.at_work(*await crew.hire(2))
        await crew.send_many(300, failing=0)
        verdict = await hold(crew, 300, attempt_gaps=False)
        assert verdict.counts.started == 300


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_a_minute_of_every_fault_of_the_network(
    make_crew, valkey_server, fault_proxy, ordering, figure
):
    proxy = fault_proxy(valkey_server)
    crew = make_network_crew(
        make_crew,
        valkey_server,
        proxy,
        max_attempts=20,
        subscription={"ordering": ordering},
    )
    async with crew:
        verdict = await crew.survive_network(proxy, "XREADGROUP", "EVALSHA")
        assert verdict.counts.finished == 20_000
        name = f"60 faults of the network, ordering {ordering}"
        figure("topic faults", f"{name}: lost", verdict.counts.lost, "messages", "<=", 0)
        figure("topic faults", f"{name}: order broken", verdict.totals["I05"], "", "<=", 0)
