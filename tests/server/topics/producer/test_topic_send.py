"""Sending to topics: what is stored, where, and what is refused before anything is."""

import asyncio
import os
import tracemalloc
from dataclasses import dataclass

import msgspec
import pytest

from penstock.errors import (
    ConfigError,
    EncodeError,
    InvalidMessage,
    InvalidName,
    OutOfMemory,
    Rejected,
    SendBatchFailed,
    TopicError,
    TopicMismatch,
    TopicMissing,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings, Settings, TopicSettings
from penstock.testing.eventually import eventually
from penstock.topics.message import Outgoing
from penstock.topics.partitioners import Crc32, RoundRobin
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys
from penstock.topics.storage.metadata import Retention, open_partitions
from penstock.topics.topic import Topic

LARGE = 2_000
TOO_LARGE = os.urandom(2 * LARGE).hex()
"""Too large for the stream, compressed too."""


def settings_for(url, namespace, **topics):
    given = {"claim_above": LARGE, "refresh_s": 0.2, **topics}
    return Settings(url=url, namespace=namespace, topics=TopicSettings(**given))


@pytest.fixture(params=["valkey_server", "cluster"])
async def topic_client(request, namespace):
    server = request.getfixturevalue(request.param)
    async with Client(settings_for(server.url, namespace)) as client:
        yield client


@pytest.fixture
async def any_client(any_server, namespace):
    async with Client(settings_for(any_server.url, namespace)) as client:
        yield client


@pytest.fixture
async def make_topic(topic_client):
    made = []

    def make(name="orders", client=topic_client, **options):
        made.append(Topic(client, Codec(client.settings.codec), name, **options))
        return made[-1]

    yield make
    for topic in made:
        await topic.close()


async def entries(client, topic="orders", partitions=4):
    """Every stored entry by partition, as pairs of id and fields."""
    found = {}
    for index in range(partitions):
        replies = await client.call(
            "XRANGE", PartitionKeys.of(client.keys, topic, index).stream, "-", "+"
        )
        found[index] = [
            (f"{index}-{id_.decode()}", dict(zip(fields[::2], fields[1::2], strict=True)))
            for id_, fields in replies
        ]
    return found


async def all_entries(client, topic="orders", partitions=4):
    found = await entries(client, topic, partitions)
    return [entry for index in sorted(found) for entry in found[index]]


async def keys_of(client):
    """Every key in the client's namespace."""
    found = []
    for node in await client.primaries():
        wire = await node.wire("default")
        pattern = f"{client.settings.namespace}*"
        found += (await wire.call("SCAN", 0, "MATCH", pattern, "COUNT", 1_000_000))[1]
    return found


@dataclass
class Order:
    number: int
    note: str = ""


async def test_a_message_is_stored_with_payload_key_and_headers(topic_client, make_topic):
    topic = make_topic(partitions=4, type=Order)
    id_ = await topic.send(Order(7), key="ann", headers={"trace": "t-1"})
    ((stored, fields),) = await all_entries(topic_client)
    assert stored == id_
    assert fields == {
        b"payload": b'{"number":7,"note":""}',
        b"key": b"ann",
        b"headers": b'{"trace":"t-1"}',
    }


async def test_a_bare_message_stores_the_payload_alone(topic_client, make_topic):
    await make_topic(partitions=4).send([1, "two"])
    ((_, fields),) = await all_entries(topic_client)
    assert fields == {b"payload": b'[1,"two"]'}


async def test_equal_keys_meet_in_the_partition_that_the_partitioner_names(
    topic_client, make_topic
):
    topic = make_topic(partitions=4)
    keys = [f"key-{number}" for number in range(20)]
    for key in keys:
        await topic.send(key, key=key)
    stored = await entries(topic_client)
    for index, found in stored.items():
        for _, fields in found:
            assert Crc32().partition(fields[b"key"].decode(), 4) == index
    assert sum(map(len, stored.values())) == len(keys)


async def test_a_header_forces_the_partition_whatever_the_key(topic_client, make_topic):
    topic = make_topic(partitions=4)
    for wanted in ("2", "6", "-2"):
        await topic.send(1, key="ann", headers={"x-force-partition-id": wanted})
    assert [len(found) for found in (await entries(topic_client)).values()] == [0, 0, 3, 0]


async def test_many_tasks_send_at_once_and_each_gets_its_own_id(topic_client, make_topic):
    topic = make_topic(partitions=4)
    ids = await asyncio.gather(*(topic.send(number, key=str(number)) for number in range(500)))
    stored = {
        (index, id_): fields[b"payload"]
        for index, found in (await entries(topic_client)).items()
        for id_, fields in found
    }
    assert len(stored) == 500
    for number, id_ in enumerate(ids):
        assert stored[Crc32().partition(str(number), 4), id_] == b"%d" % number


async def test_the_topic_is_made_with_the_first_message_and_its_options_are_stored(
    topic_client, make_topic
):
    await make_topic(partitions=3, retention=Retention(max_length=5)).send(1)
    facts = await make_topic().metadata()
    assert facts.partitions == 3
    assert facts.options.retention.max_length == 5
    registry = TopicsKeys.of(topic_client.keys).registry
    assert await topic_client.call("SMEMBERS", registry) == [b"orders"]


async def test_another_number_of_partitions_is_told_before_anything_is_stored(
    topic_client, make_topic
):
    await make_topic(partitions=2).metadata()
    with pytest.raises(TopicMismatch, match="has 2 partitions, not 3"):
        await make_topic(partitions=3).send(1)
    assert await all_entries(topic_client, partitions=2) == []


@pytest.mark.parametrize("partitions", [0, -1, 10**6, True, 2.0])
async def test_a_number_of_partitions_that_cannot_be_is_refused(
    topic_client, make_topic, partitions
):
    with pytest.raises(InvalidMessage, match="partitions = "):
        await make_topic(partitions=partitions).send(1)
    assert await keys_of(topic_client) == []


@pytest.mark.parametrize(
    "name", ["a:b", "a{b}", "}", "two words", "a*", "[ab]", "?", "x" * 300, ""]
)
async def test_a_topic_name_that_cannot_be_is_refused_at_once(topic_client, make_topic, name):
    with pytest.raises(InvalidName):
        make_topic(name)


@pytest.mark.parametrize("key", [7, b"bytes", ["list"], "x" * 1025, "\ud800"])
async def test_a_key_that_cannot_be_is_refused(topic_client, make_topic, key):
    topic = make_topic(partitions=1)
    for options in ({}, {"idempotency_key": "k"}, {"headers": {"a": "b"}}):
        with pytest.raises(InvalidMessage, match="key"):
            await topic.send(1, key=key, **options)
    with pytest.raises(InvalidMessage, match="key"):
        await topic.send_batch([Outgoing(1, key=key)])
    assert await all_entries(topic_client, partitions=1) == []


@pytest.mark.parametrize(
    "headers",
    [{"a": 1}, {1: "a"}, {"a": "\ud800"}, {"x-force-partition-id": "first"}],
    ids=["number", "name", "surrogate", "partition"],
)
async def test_headers_that_cannot_be_are_refused(topic_client, make_topic, headers):
    topic = make_topic(partitions=1)
    with pytest.raises(InvalidMessage):
        await topic.send(1, headers=headers)
    assert await all_entries(topic_client, partitions=1) == []


@pytest.mark.parametrize("key", ["", "x" * 257, 5, "\ud800"])
async def test_an_idempotency_key_that_cannot_be_is_refused(make_topic, key):
    with pytest.raises(InvalidMessage, match="idempotency_key"):
        await make_topic(partitions=1).send(1, idempotency_key=key)


@pytest.mark.parametrize(
    "payload",
    [object(), float("nan"), "\ud800", {1j: 2}],
    ids=["object", "NaN", "half a pair", "complex key"],
)
async def test_a_payload_that_cannot_be_stored_is_told_before_anything_is_sent(
    topic_client, make_topic, payload
):
    topic = make_topic(partitions=1)
    with pytest.raises(EncodeError):
        await topic.send(payload)
    with pytest.raises(EncodeError):
        await topic.send_batch([1, payload])
    assert await keys_of(topic_client) == [] or not await all_entries(topic_client, partitions=1)


async def test_a_payload_above_the_limit_is_refused_and_copied_at_most_once(
    valkey_server, namespace
):
    size = 600 * 1024 * 1024
    payload = bytes(size)
    async with Client(settings_for(valkey_server.url, namespace)) as client:
        topic = Topic(client, Codec(client.settings.codec), "orders", type=bytes)
        tracemalloc.start()
        try:
            with pytest.raises(EncodeError, match="max_inflated"):
                await topic.send(payload)
            assert tracemalloc.get_traced_memory()[1] < size // 10
        finally:
            tracemalloc.stop()
        assert await keys_of(client) == []


async def test_a_large_payload_is_kept_beside_the_stream(topic_client, make_topic):
    topic = make_topic(partitions=1, type=bytes)
    body = os.urandom(2 * LARGE)
    id_ = await topic.send(body, key="ann", headers={"trace": "t"})
    ((stored, fields),) = await all_entries(topic_client, partitions=1)
    assert stored == id_
    assert b"payload" not in fields
    headers = msgspec.json.decode(fields[b"headers"])
    assert headers["trace"] == "t"
    assert headers["x-payload-storage-type"] == "hash"
    assert headers["x-payload-original-size"] == str(len(body))
    assert await topic_client.call("GET", headers["x-payload-hash-ref"]) == body
    index = PartitionKeys.of(topic_client.keys, "orders", 0).payloads
    ((member, score),) = [await topic_client.call("ZRANGE", index, 0, -1, "WITHSCORES")]
    entry_id = id_.removeprefix("0-")
    assert member.decode().endswith(f" {entry_id}")
    assert score.decode() == entry_id.partition("-")[0]


async def test_a_batch_keeps_the_order_of_each_key_over_chunks(topic_client, make_topic):
    topic = make_topic(partitions=4)
    ids = await topic.send_batch(range(1_700), key=lambda number: str(number % 7))
    stored = await entries(topic_client)
    assert len(ids) == 1_700
    for index, found in stored.items():
        assert [id_ for id_, _ in found] == [
            id_ for number, id_ in enumerate(ids) if Crc32().partition(str(number % 7), 4) == index
        ]
        numbers = [int(fields[b"payload"]) for _, fields in found]
        assert numbers == sorted(numbers)


async def test_a_batch_mixes_payloads_and_messages_small_and_large(topic_client, make_topic):
    topic = make_topic(partitions=1)
    ids = await topic.send_batch(
        [
            1,
            Outgoing(2, key="ann"),
            Outgoing(TOO_LARGE, key="bob"),
            Outgoing(4, headers={"a": "b"}),
            5,
        ]
    )
    stored = await all_entries(topic_client, partitions=1)
    assert [id_ for id_, _ in stored] == ids
    assert [fields.get(b"key") for _, fields in stored] == [None, b"ann", b"bob", None, None]
    assert [fields.get(b"payload") for _, fields in stored] == [b"1", b"2", None, b"4", b"5"]


async def test_an_empty_batch_is_no_work(make_topic):
    assert await make_topic(partitions=1).send_batch([]) == []


async def test_a_batch_that_fails_late_tells_the_end_of_each_message(topic_client, make_topic):
    topic = make_topic(partitions=1)
    messages = [*range(1_200), object(), 5]
    with pytest.raises(SendBatchFailed) as caught:
        await topic.send_batch(messages)
    outcomes = caught.value.outcomes
    stored = [id_ for id_, _ in await all_entries(topic_client, partitions=1)]
    assert [outcome for outcome in outcomes if isinstance(outcome, str)] == stored
    assert len(stored) == 1_000
    assert isinstance(caught.value.__cause__, EncodeError)
    assert all(isinstance(outcome, Rejected | EncodeError) for outcome in outcomes[1_000:])
    assert "1000 of 1202 messages are confirmed" in str(caught.value)


async def test_a_repeat_under_the_same_idempotency_key_is_stored_once(any_client):
    topic = Topic(any_client, Codec(CodecSettings()), "orders", partitions=4)
    first = await topic.send("a", idempotency_key="order-1")
    assert await topic.send("b", idempotency_key="order-1") == first
    await topic.send("c", idempotency_key="order-2")
    payloads = [fields[b"payload"] for _, fields in await all_entries(any_client)]
    assert sorted(payloads) == [b'"a"', b'"c"']
    await topic.close()


async def test_fifty_sends_at_once_under_one_key_store_one_message(topic_client, make_topic):
    topics = [make_topic(partitions=4), make_topic(partitions=4, partitioner=RoundRobin())]
    ids = await asyncio.gather(
        *(topics[n % 2].send(n, idempotency_key="only") for n in range(50)),
    )
    assert len(set(ids)) == 1
    assert len(await all_entries(topic_client)) == 1


async def test_a_large_payload_under_an_idempotency_key_leaves_one_body(topic_client, make_topic):
    topic = make_topic(partitions=1)
    for _ in range(3):
        await topic.send(TOO_LARGE, idempotency_key="k")
    assert len(await all_entries(topic_client, partitions=1)) == 1
    bodies = [key for key in await keys_of(topic_client) if b":payload:" in key]
    assert len(bodies) == 1


async def test_an_idempotency_key_is_forgotten_after_a_while(valkey_server, namespace):
    settings = settings_for(valkey_server.url, namespace, remember_s=0.05)
    async with Client(settings) as client:
        topic = Topic(client, Codec(client.settings.codec), "orders")
        first = await topic.send(1, idempotency_key="k")

        async def stored_anew():
            return await topic.send(2, idempotency_key="k") != first

        await eventually(stored_anew)
        keys = PartitionKeys.of(client.keys, "orders", 0)
        assert await client.call("HLEN", keys.dedup) == await client.call("ZCARD", keys.dedup_times)


async def test_a_server_without_memory_refuses_and_stores_nothing(
    start_server, required_servers, namespace
):
    for name in ("valkey", "redis62"):
        server = start_server(name)
        async with Client(settings_for(server.url, namespace)) as client:
            topic = Topic(client, Codec(client.settings.codec), "orders", partitions=1)
            await topic.send(1)
            server.command("CONFIG", "SET", "maxmemory", "1")
            for send in (
                topic.send(2),
                topic.send(2, idempotency_key="k"),
                topic.send(2, delay=60),
                topic.send(TOO_LARGE),
            ):
                with pytest.raises(OutOfMemory):
                    await send
            with pytest.raises(SendBatchFailed) as caught:
                await topic.send_batch([2, 3])
            assert [type(outcome) for outcome in caught.value.outcomes] == [OutOfMemory] * 2
            server.command("CONFIG", "SET", "maxmemory", "0")
            assert len(await all_entries(client, partitions=1)) == 1
            left = {key for key in await keys_of(client) if b":p:0:" in key or b"delay" in key}
            assert left == {PartitionKeys.of(client.keys, "orders", 0).counters.encode()}
            await topic.close()


async def test_a_deleted_topic_is_missing_and_does_not_come_back(topic_client, make_topic):
    topic = make_topic(partitions=2)
    await topic.send(1)
    for key in await keys_of(topic_client):
        await topic_client.call("DEL", key)
    for send in (
        topic.send(2),
        topic.send(2, idempotency_key="k"),
        topic.send(2, delay=0.01),
        topic.send(TOO_LARGE),
    ):
        with pytest.raises(TopicMissing):
            await send
    with pytest.raises(TopicError):
        await topic.send_batch([1, 2, 3])
    assert await keys_of(topic_client) == []


async def test_a_stream_that_somebody_removed_is_made_again(topic_client, make_topic):
    topic = make_topic(partitions=1)
    await topic.send(1)
    for send in (lambda: topic.send(2), lambda: topic.send_batch([2])):
        await topic_client.call("DEL", PartitionKeys.of(topic_client.keys, "orders", 0).stream)
        await send()
        assert len(await all_entries(topic_client, partitions=1)) == 1


async def test_a_topic_that_grew_is_used_in_full_soon(topic_client, make_topic):
    topic = make_topic(partitions=1)
    await topic.send(1)
    meta = TopicKeys.of(topic_client.keys, "orders").meta
    await open_partitions(topic_client, "orders", range(1, 2))
    await topic_client.call("HSET", meta, "partitionCount", 2, "generation", 2)

    async def placed_in_the_new_one():
        await topic.send_batch(range(4))
        return (await entries(topic_client, partitions=2))[1]

    await eventually(placed_in_the_new_one)


async def test_sends_are_held_while_a_growing_topic_changes_over(topic_client, make_topic):
    topic = make_topic(partitions=1)
    meta = TopicKeys.of(topic_client.keys, "orders").meta
    await topic.send(1)
    now_s, micros = map(int, await topic_client.call("TIME"))
    await topic_client.call(
        "HSET", meta, "growing", 2, "switchAt", now_s * 1000 + micros // 1000 + 400
    )

    async def held():
        """Whether a send does not end for longer than knowledge is trusted."""
        try:
            async with asyncio.timeout(0.3):
                await asyncio.shield(asyncio.ensure_future(topic.send(2)))
        except TimeoutError:
            return True
        return False

    await eventually(held)
    before = len(await all_entries(topic_client, partitions=1))
    waiting = asyncio.create_task(topic.send(3, headers={"x-force-partition-id": "1"}))
    await open_partitions(topic_client, "orders", range(1, 2))
    assert len(await all_entries(topic_client, partitions=1)) == before
    await topic_client.call("HSET", meta, "partitionCount", 2, "generation", 2)
    await topic_client.call("HDEL", meta, "growing", "switchAt")
    await waiting
    assert len((await entries(topic_client, partitions=2))[1]) >= 1


@pytest.mark.parametrize(("limit", "slack"), [(5, 0), (50, 10)])
async def test_retention_is_applied_while_writing(topic_client, make_topic, limit, slack):
    topic = make_topic(partitions=1, retention=Retention(max_length=limit))
    stream = PartitionKeys.of(topic_client.keys, "orders", 0).stream

    async def within_limits():
        return await topic_client.call("XLEN", stream) <= limit + slack

    for number in range(limit * 2):
        await topic.send(number)
    await eventually(within_limits)
    await topic.send_batch(range(300))
    await eventually(within_limits)
    assert await topic_client.call("XLEN", stream) >= limit


async def test_retention_keeps_what_a_group_has_not_read(topic_client, make_topic):
    topic = make_topic(partitions=1, retention=Retention(max_length=5))
    await topic.metadata()
    stream = PartitionKeys.of(topic_client.keys, "orders", 0).stream
    await topic_client.call("XGROUP", "CREATE", stream, "slow", "0")
    for number in range(40):
        await topic.send(number)
    assert await topic_client.call("XLEN", stream) == 40


async def test_a_partitioner_that_names_no_partition_is_told(topic_client, make_topic):
    class Wild:
        def partition(self, key, partitions):
            return partitions

    topic = make_topic(partitions=2, partitioner=Wild())
    for options in ({}, {"headers": {"a": "b"}}):
        with pytest.raises(ConfigError, match="partitioner"):
            await topic.send(1, **options)
    assert await all_entries(topic_client, partitions=2) == []
