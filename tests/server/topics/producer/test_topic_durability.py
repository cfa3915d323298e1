"""How safe a message is when its send returns: what is promised, what is missed, what cannot be."""

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from penstock.errors import (
    ConfigError,
    DurabilityMissed,
    DurabilityUnavailable,
    OutcomeUnknown,
    SendBatchFailed,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.embedded import keeper
from penstock.settings import EmbeddedSettings, Settings, TopicSettings
from penstock.testing.eventually import eventually
from penstock.testing.servers import ServerProcess, wait_until
from penstock.topics.message import Outgoing
from penstock.topics.producer.durability import replicated
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.topic import Topic

LARGE = 2_000


@asynccontextmanager
async def topic_on(url, namespace, durability, *, limit_s=5.0, partitions=1, **settings):
    topics = TopicSettings(durability_s=limit_s, claim_above=LARGE)
    async with Client(Settings(url=url, namespace=namespace, topics=topics, **settings)) as client:
        topic = Topic(
            client,
            Codec(client.settings.codec),
            "orders",
            partitions=partitions,
            durability=durability,
        )
        try:
            yield topic, client
        finally:
            await topic.close()


async def lengths(client, partitions=1):
    streams = [PartitionKeys.of(client.keys, "orders", index).stream for index in range(partitions)]
    return [await client.call("XLEN", stream) for stream in streams]


async def everything(topic):
    """Send in each way that there is."""
    await topic.send("plain", key="ann")
    first = await topic.send("once", idempotency_key="k")
    assert await topic.send("twice", idempotency_key="k") == first
    await topic.send(os.urandom(LARGE).hex(), headers={"a": "b"})
    await topic.send("later", delay=600)
    await topic.send_batch([1, Outgoing(2, key="bob"), 3])


@pytest.fixture(scope="module")
def syncing_server():
    with ServerProcess("valkey", "--appendfsync", "always") as server:
        yield server


@pytest.fixture(scope="module")
def running_pair():
    with ServerProcess() as primary:
        following = ("--replicaof", "127.0.0.1", str(primary.port))
        with ServerProcess("valkey", *following) as replica:
            yield primary, replica


@pytest.fixture
def pair(running_pair):
    """A primary and its replica, which a test may freeze for a while."""
    primary, _ = running_pair
    wait_until(
        lambda: primary.info("replication")["connected_slaves"] == "1" and primary.is_in_step,
        what="the replica to follow",
    )
    return running_pair


def waits_of(server, command):
    """How often the server was told to wait."""
    found = server.info("commandstats").get(f"cmdstat_{command}", "calls=0,")
    return int(found.partition("=")[2].partition(",")[0])


async def test_synced_waits_for_the_servers_disk_in_every_way_of_sending(syncing_server, namespace):
    async with topic_on(syncing_server.url, namespace, "synced") as (topic, client):
        before = waits_of(syncing_server, "waitaof")
        await everything(topic)
        assert await lengths(client) == [6]
        assert waits_of(syncing_server, "waitaof") - before >= 6


async def test_sends_that_come_together_share_one_wait(syncing_server, namespace):
    async with topic_on(syncing_server.url, namespace, "synced") as (topic, client):
        await topic.send(0)
        before = waits_of(syncing_server, "waitaof")
        ids = await asyncio.gather(*(topic.send(number) for number in range(200)))
        assert len(set(ids)) == 200
        assert waits_of(syncing_server, "waitaof") - before < 20
        assert await lengths(client) == [201]


@pytest.mark.parametrize(
    ("binary", "arguments", "reason"),
    [
        ("valkey", ("--appendonly", "no", "--appendfsync", "always"), "no append-only file"),
        ("valkey", ("--appendfsync", "no"), "appendfsync no"),
        ("redis7", ("--appendfsync", "always"), "older than 7.2"),
        ("redis62", ("--appendfsync", "always"), "older than 7.2"),
    ],
)
async def test_a_server_that_cannot_tell_refuses_synced_before_anything_is_stored(
    start_server, namespace, binary, arguments, reason
):
    server = start_server(binary, *arguments)
    async with topic_on(server.url, namespace, "synced") as (topic, client):
        for send in (topic.send(1), topic.send(1, idempotency_key="k"), topic.send(1, delay=9)):
            with pytest.raises(DurabilityUnavailable, match=reason):
                await send
        with pytest.raises(SendBatchFailed) as caught:
            await topic.send_batch([1, 2])
        assert isinstance(caught.value.__cause__, DurabilityUnavailable)
        assert await lengths(client) == [0]
        assert await client.call("EXISTS", PartitionKeys.of(client.keys, "orders", 0).delayed) == 0


async def test_the_embedded_server_is_synced_by_the_sender_itself(home, namespace, monkeypatch):
    synced = []
    sync_data = keeper.sync_data
    monkeypatch.setattr(keeper, "sync_data", lambda home: (synced.append(home), sync_data(home)))
    async with topic_on(
        None, namespace, "synced", home=str(home), embedded=EmbeddedSettings(linger_s=0.1)
    ) as (topic, client):
        await everything(topic)
        assert set(synced) == {home}
        before = len(synced)
        await asyncio.gather(*(topic.send(number) for number in range(200)))
        assert len(synced) - before < 20
        assert await lengths(client) == [206]


async def test_a_disk_that_cannot_be_synced_is_told(home, namespace, monkeypatch):
    def fail(home):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(keeper, "sync_data", fail)
    async with topic_on(
        None, namespace, "synced", home=str(home), embedded=EmbeddedSettings(linger_s=0.1)
    ) as (topic, client):
        with pytest.raises(
            DurabilityMissed, match=r"stored as \d-\d+-0, but .* Input/output error"
        ):
            await topic.send(1)
        assert await lengths(client) == [1]


async def test_replicated_waits_for_the_replica_in_every_way_of_sending(pair, namespace):
    primary, replica = pair
    async with topic_on(primary.url, namespace, replicated(1)) as (topic, client):
        await everything(topic)
        stream = PartitionKeys.of(client.keys, "orders", 0).stream
        assert replica.command("XLEN", stream) == 6


async def test_a_replica_that_does_not_follow_is_told_and_the_message_is_stored(pair, namespace):
    primary, replica = pair
    async with topic_on(primary.url, namespace, replicated(1), limit_s=0.2) as (topic, client):
        await topic.send(0)
        replica.pause()
        try:
            with pytest.raises(DurabilityMissed, match="0 of 1 replicas"):
                await topic.send(1)
            with pytest.raises(DurabilityMissed):
                await topic.send(2, idempotency_key="k")
            with pytest.raises(SendBatchFailed) as caught:
                await topic.send_batch([3, 4])
            assert all(isinstance(end, DurabilityMissed) for end in caught.value.outcomes)
            assert issubclass(DurabilityMissed, OutcomeUnknown)
            assert await lengths(client) == [5]
        finally:
            replica.resume()


async def test_the_repeat_of_a_key_is_no_safer_than_its_first_send(pair, namespace):
    """A repeat writes nothing new; the wait has to cover what another connection wrote."""
    primary, replica = pair
    async with (
        topic_on(primary.url, namespace, "accepted") as (careless, _),
        topic_on(primary.url, namespace, replicated(1), limit_s=0.2) as (careful, _),
    ):
        await careful.send(0)
        replica.pause()
        try:
            await careless.send(1, idempotency_key="k")
            with pytest.raises(DurabilityMissed):
                await careful.send(1, idempotency_key="k")
        finally:
            replica.resume()
        await careful.send(1, idempotency_key="k")


async def test_fewer_replicas_than_asked_for_are_told_before_anything_is_stored(pair, namespace):
    primary, _ = pair
    async with topic_on(primary.url, namespace, replicated(2)) as (topic, client):
        with pytest.raises(DurabilityUnavailable, match="has 1 replicas, 2 must have"):
            await topic.send(1)
        assert await lengths(client) == [0]


async def test_on_a_cluster_each_node_waits_for_its_own(start_cluster, namespace):
    cluster = start_cluster(3, 1)
    async with topic_on(cluster.url, namespace, replicated(1), partitions=6) as (topic, client):
        await asyncio.gather(*(topic.send(number) for number in range(60)))
        await topic.send_batch(range(60))
        await topic.send("once", idempotency_key="k")
        assert sum(await lengths(client, 6)) == 121

        slot = cluster.slot_of(PartitionKeys.of(client.keys, "orders", 0).stream)
        owner = cluster.primary_of(slot)
        other = next(node for node in cluster.living if node is not owner and _is_primary(node))
        cluster.move_slot(slot, other)
        forced = {"x-force-partition-id": "0"}
        before = (await lengths(client, 1))[0]
        await topic.send("moved", headers=forced)
        await topic.send_batch([Outgoing("moved", headers=forced)] * 3)
        assert (await lengths(client, 1))[0] == before + 4


def _is_primary(node):
    return node.info("replication")["role"] == "master"


async def test_a_connection_that_ends_while_it_waits_leaves_no_doubt_about_what_is_known(
    pair, fault_proxy, namespace
):
    primary, _ = pair
    proxy = fault_proxy(primary)
    async with topic_on(proxy.url, namespace, replicated(1)) as (topic, client):
        await topic.send(0)
        proxy.swallow("WAIT")
        with pytest.raises(OutcomeUnknown):
            await topic.send(1)
        await topic.send(2)
        assert await lengths(client) == [3]


async def test_closing_ends_a_wait_that_is_under_way(pair, namespace):
    primary, replica = pair
    async with topic_on(primary.url, namespace, replicated(1), limit_s=60) as (topic, client):
        await topic.send(0)
        replica.pause()
        try:
            sending = asyncio.create_task(topic.send(1))
            stored = PartitionKeys.of(client.keys, "orders", 0).stream

            async def is_stored():
                return await client.call("XLEN", stored) == 2

            await eventually(is_stored)
            await topic.close()
            with pytest.raises(OutcomeUnknown):
                await sending
        finally:
            replica.resume()


@pytest.mark.parametrize("durability", ["safe", None, 1])
async def test_a_level_that_is_none_is_refused(valkey_server, namespace, durability):
    with pytest.raises(ConfigError, match="durability"):
        async with topic_on(valkey_server.url, namespace, durability):
            pass


@pytest.mark.parametrize("replicas", [0, -1, True, "1"])
def test_a_number_of_replicas_that_cannot_be_is_refused(replicas):
    with pytest.raises(ConfigError, match="whole number"):
        replicated(replicas)
