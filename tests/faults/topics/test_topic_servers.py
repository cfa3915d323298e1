"""Servers are killed, replaced and full: nothing that was confirmed is lost, consumers go on."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.crews.topic_crew import TOPIC
from tests.kit.crews.worker_crew import Load

from penstock.errors import OutOfMemory, PenstockError
from penstock.testing.eventually import eventually
from penstock.topics.producer.durability import replicated
from penstock.topics.storage.keys import PartitionKeys

TIMEOUTS = {"connect_s": 1.0, "command_s": 1.0}


async def test_a_killed_server_loses_nothing_that_was_confirmed(make_crew, start_server):
    server = start_server()
    async with make_crew(server.url, timeouts=TIMEOUTS) as crew:
        verdict = await crew.survive_kills(server, 2, 200)
        assert verdict.counts.sent_ok >= 600


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_twenty_killed_servers_lose_nothing_that_was_confirmed(
    make_crew, start_server, figure
):
    server = start_server()
    async with make_crew(server.url, timeouts=TIMEOUTS, max_attempts=30) as crew:
        verdict = await crew.survive_kills(server, 20, 2_000)
        counts = verdict.counts
        figure("topic faults", "20 server kills: confirmed and lost", counts.lost, "", "<=", 0)
        figure("topic faults", "20 server kills: confirmed", counts.sent_ok, "", ">=", 40_000)


async def failovers(crew, cluster, rounds, between):
    hands = await crew.hire(2)
    await crew.at_work(*hands)
    async with Load(crew) as load:
        for number in range(rounds):
            await load.confirms(between)
            stream = PartitionKeys.of(crew.app.redis.keys, TOPIC, number % crew.partitions).stream
            slot = cluster.slot_of(stream)
            primary = cluster.primary_of(slot)
            with crew.nemesis.losing():
                primary.kill()
            await asyncio.to_thread(cluster.primary_of, slot)
            # All but what the dead one owned goes on; this waits for its partitions as well.
            await eventually(lambda: cluster_answers(crew))
            await asyncio.to_thread(primary.restart)
            await asyncio.to_thread(cluster.wait_until_well)
        await load.confirms(between)
    assert [hand.code for hand in hands] == [None, None]
    # What was acknowledged may be handled again: the copy that took over may not know of it.
    return await crew.hold(waive={"I12"})


async def cluster_answers(crew):
    try:
        return await crew.left() >= 0
    except PenstockError:
        return False


def make_cluster_crew(make_crew, cluster):
    return make_crew(
        cluster.url,
        partitions=4,
        max_attempts=30,
        durability=replicated(1),
        timeouts=TIMEOUTS,
        topics={"lease_ttl_s": 2.0, "durability_s": 2.0},
    )


async def test_a_failover_loses_nothing_that_was_replicated(make_crew, start_cluster):
    cluster = start_cluster(primaries=3, replicas=1)
    async with make_cluster_crew(make_crew, cluster) as crew:
        verdict = await failovers(crew, cluster, 1, 200)
        assert verdict.counts.sent_ok >= 400


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_ten_failovers_lose_nothing_that_was_replicated(make_crew, start_cluster, figure):
    cluster = start_cluster(primaries=3, replicas=1)
    async with make_cluster_crew(make_crew, cluster) as crew:
        verdict = await failovers(crew, cluster, 10, 1_000)
        counts = verdict.counts
        figure("topic faults", "10 failovers: confirmed and lost", counts.lost, "", "<=", 0)
        figure("topic faults", "10 failovers: confirmed", counts.sent_ok, "", ">=", 10_000)


# Redis 6.2 knows no scripts that may run on a full server.
@pytest.mark.parametrize("binary", ["valkey", "redis7"])
async def test_a_full_server_refuses_messages_and_drains(make_crew, start_server, binary):
    server = start_server(binary)
    crew = make_crew(server.url, partitions=2, max_attempts=3, backoff_s=0.05, work_s=0.002)
    async with crew:
        (victim,) = await crew.hire()
        await crew.at_work(victim)
        await fill_up(crew, server)
        assert await crew.left() > 0
        # A worker that begins on the full server takes over from one that dies on it.
        (heir,) = await crew.hire()
        await victim.kill()
        await crew.owned_by({heir})
        await crew.drained()
        with pytest.raises(OutOfMemory):
            await crew.send("key-1")
        assert (await heir.counts())["leases_lost"] == 0
        server.command("CONFIG", "SET", "maxmemory", "0")
        await crew.send("key-1")
        verdict = await crew.hold()
        letters = (await crew.topic.dead_letters.list(1_000)).letters
        assert len(letters) == verdict.counts.dead >= 200
        assert verdict.counts.sent_ok == verdict.counts.finished + len(letters) == 601


async def fill_up(crew, server):
    """Send more than is handled meanwhile, some to be retried or buried, then take the memory."""
    for number in range(600):
        orders = ({}, {"fail": True, "attempts": 1}, {"dead": True})[number % 3]
        await crew.send(f"key-{number % 8}", pause=0.005, **orders)
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    assert int(server.info("memory")["used_memory"]) > 1_000_000
    with pytest.raises(OutOfMemory):
        await crew.send("key-1")
