"""Topics beside live consumers, producers and admins of the Java library redis-streaming."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock.errors import TopicError
from penstock.testing.eventually import eventually
from penstock.topics.admin.retention import trim_partition
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys
from penstock.topics.storage.metadata import Retention

KEEP = Retention()


async def no_op(_: Any) -> None: ...


# ---- leases


async def test_a_longer_lease_of_a_java_consumer_is_respected_until_it_ends(
    open_app, valkey_server, consume
):
    app = await open_app(valkey_server, lease_ttl_s=0.2)
    orders = app.topic("orders", partitions=2, type=int)
    await orders.metadata()
    lease = PartitionKeys.of(app.redis.keys, "orders", 0).lease("group")
    began = time.monotonic()
    await app.redis.call("SET", lease, "consumer-7f3a", "PX", 1_500)
    ours = await consume(orders, no_op)
    await eventually(lambda: ours.partitions == [0, 1])
    assert time.monotonic() - began >= 1.4


async def test_a_lease_that_a_java_consumer_left_without_ttl_is_taken_over(
    open_app, valkey_server, consume, caplog
):
    app = await open_app(valkey_server, lease_ttl_s=0.2, endless_lease_s=0.4)
    orders = app.topic("orders", type=int)
    await orders.metadata()
    lease = PartitionKeys.of(app.redis.keys, "orders", 0).lease("group")
    began = time.monotonic()
    await app.redis.call("SET", lease, "consumer-7f3a")
    ours = await consume(orders, no_op)
    await eventually(lambda: ours.partitions == [0])
    assert time.monotonic() - began >= 0.4
    assert "consumer-7f3a" in caplog.text
    assert 0 < await app.redis.call("PTTL", lease) <= 200


async def test_a_late_ttl_on_a_lease_that_was_taken_over_does_not_end_it(
    open_app, valkey_server, consume
):
    """What a Java consumer does that was only paused: EXPIRE, without a look at the owner."""
    app = await open_app(valkey_server, lease_ttl_s=1.0, endless_lease_s=0.2)
    orders = app.topic("orders", type=int)
    await orders.metadata()
    lease = PartitionKeys.of(app.redis.keys, "orders", 0).lease("group")
    await app.redis.call("SET", lease, "consumer-7f3a")
    ours = await consume(orders, no_op)
    await eventually(lambda: ours.partitions == [0])
    await app.redis.call("PEXPIRE", lease, 15_000)

    async def is_renewed():
        return await app.redis.call("PTTL", lease) <= 1_000

    await eventually(is_renewed)
    await orders.send(1)
    await eventually(lambda: ours.counts.handled == 1)
    assert ours.counts.leases_lost == 0


# ---- growth


async def test_a_topic_does_not_grow_under_java_consumers_unless_forced(open_app, valkey_server):
    app = await open_app(valkey_server, refresh_s=0.05)
    orders = app.topic("orders", partitions=2, type=int)
    await orders.metadata()
    parts = [PartitionKeys.of(app.redis.keys, "orders", index) for index in range(2)]
    await app.redis.call("XGROUP", "CREATE", parts[1].stream, "java-group", "0")
    await app.redis.call("SET", parts[1].lease("java-group"), "consumer-7f3a", "PX", 15_000)
    with pytest.raises(TopicError, match="consumer-7f3a"):
        await app.topics.grow("orders", 3)
    assert not (await app.topics.describe("orders")).growing_to
    await app.topics.grow("orders", 3, force=True)
    assert len((await app.topics.describe("orders")).partitions) == 3


# ---- deletion


async def delete_as_java(app, partitions):
    keys = TopicKeys.of(app.redis.keys, "orders")
    streams = [
        PartitionKeys.of(app.redis.keys, "orders", index).stream for index in range(partitions)
    ]
    for key in (*streams, keys.dlq, keys.meta, keys.partitions):
        await app.redis.call("DEL", key)
    await app.redis.call("SREM", TopicsKeys.of(app.redis.keys).registry, "orders")


async def create_as_java(app):
    keys = app.redis.keys
    await app.redis.call("SADD", TopicsKeys.of(keys).registry, "orders")
    await app.redis.call("HSET", TopicKeys.of(keys, "orders").meta, "partitionCount", 1)
    await app.redis.call("XADD", PartitionKeys.of(keys, "orders", 0).stream, "*", "payload", "java")


@pytest.mark.parametrize("creator", ["penstock", "java"])
@pytest.mark.parametrize("who", ["a new process", "a running one"])
async def test_nothing_of_a_topic_that_java_deleted_reaches_the_next_one(
    open_app, valkey_server, consume, creator, who
):
    app = await open_app(valkey_server, refresh_s=0.05, claim_above=100)
    orders = app.topic("orders", partitions=1, type=str)
    await orders.send("large " * 100)
    assert await orders.send("paid", idempotency_key="once")
    await orders.send("late", delay=0.2)
    await delete_as_java(app, 1)
    if creator == "java":
        await create_as_java(app)
    other = await open_app(valkey_server, refresh_s=0.05)
    again = other.topic("orders", partitions=1, type=str)
    if who == "a running one" and creator == "java":
        life = (await again.metadata()).life

        async def knows():
            return (await orders.metadata()).life == life

        await eventually(knows)
        again = orders
    await again.send("paid", idempotency_key="once")
    seen: list[str] = []

    async def note(payload: str) -> None:
        seen.append(payload)

    await again.send("later", delay=0.3)
    await consume(again, note)
    await eventually(lambda: "later" in seen)
    assert [one for one in seen if one != "java"] == ["paid", "later"]
    bodies = PartitionKeys.of(app.redis.keys, "orders", 0).payload("_").removesuffix("_")
    assert await app.redis.call("KEYS", f"{bodies}*") == [], "payloads of the earlier life"


# ---- messages that a Java producer's MAXLEN cuts off


async def lost_in(app):
    return (await app.topics.describe("orders")).lost


async def add(app, count, most):
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    for _ in range(count):
        await app.redis.call("XADD", stream, "MAXLEN", "=", most, "*", "payload", "1")


@pytest.fixture
async def slow(open_app, valkey_server):
    """A topic with a group that has read two messages and is away."""
    app = await open_app(valkey_server)
    orders = app.topic("orders", partitions=1, type=int)
    await orders.metadata()
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XGROUP", "CREATE", stream, "group", "0")
    await add(app, 2, 100)
    await trim_partition(app.redis, "orders", 0, KEEP)
    await app.redis.call("XREADGROUP", "GROUP", "group", "c", "COUNT", 2, "STREAMS", stream, ">")
    return app


async def test_messages_that_another_program_trimmed_unread_count_as_lost(slow):
    await add(slow, 10, 3)
    assert await trim_partition(slow.redis, "orders", 0, KEEP) == (0, 7, 0)
    assert await trim_partition(slow.redis, "orders", 0, KEEP) == (0, 0, 0)
    assert await lost_in(slow) == 7
    await add(slow, 2, 3)
    await trim_partition(slow.redis, "orders", 0, KEEP)
    assert await lost_in(slow) == 9
    [group] = await slow.topics.groups("orders")
    assert (group.lag, group.approximate) == (3, False)


async def test_nothing_counts_as_lost_that_every_group_has_read(slow):
    await add(slow, 10, 1)
    await trim_partition(slow.redis, "orders", 0, KEEP)
    stream = PartitionKeys.of(slow.redis.keys, "orders", 0).stream
    await slow.redis.call("XREADGROUP", "GROUP", "group", "c", "STREAMS", stream, ">")
    before = await lost_in(slow)
    await trim_partition(slow.redis, "orders", 0, KEEP)
    await slow.redis.call("XTRIM", stream, "MAXLEN", 0)
    await trim_partition(slow.redis, "orders", 0, KEEP)
    await add(slow, 1, 1)
    await trim_partition(slow.redis, "orders", 0, KEEP)
    assert await lost_in(slow) == before == 9


async def test_a_new_group_has_lost_nothing_of_what_was_trimmed_before(slow, consume):
    await add(slow, 10, 3)
    await trim_partition(slow.redis, "orders", 0, KEEP)
    before = await lost_in(slow)
    reader = await consume(slow.topic("orders", type=int), no_op, group="late")
    await eventually(lambda: reader.counts.handled == 3)
    await trim_partition(slow.redis, "orders", 0, KEEP)
    assert await lost_in(slow) == before


async def test_a_loss_is_logged_by_the_consumer(slow, consume, caplog):
    await add(slow, 10, 3)
    await consume(slow.topic("orders", type=int), no_op, group="other")
    await eventually(lambda: "7 messages were dropped" in caplog.text)


async def test_a_hard_cap_counts_each_loss_once(slow):
    await add(slow, 10, 100)
    cap = Retention(hard_length=4)
    assert (await trim_partition(slow.redis, "orders", 0, cap))[1] == 6 + 2
    assert await trim_partition(slow.redis, "orders", 0, cap) == (0, 0, 0)
    assert await lost_in(slow) == 8
