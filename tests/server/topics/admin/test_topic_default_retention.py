"""A topic without a retention: what every group is past goes after a while, nothing else."""

import time

import pytest

from penstock import Retention
from penstock.testing.eventually import eventually
from penstock.topics.admin.retention import trim_partition
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.metadata import read_metadata
from penstock.topics.subscription import Subscription

DAY_MS = 86_400_000


async def add_old(app, count, days=8, topic="orders"):
    """Messages that were sent so many days ago."""
    stream, start = (
        PartitionKeys.of(app.redis.keys, topic, 0).stream,
        int(time.time() * 1000) - days * DAY_MS,
    )
    await app.redis.pipeline(
        [("XADD", stream, f"{start + number}-0", "payload", str(number)) for number in range(count)]
    )


async def length(app, topic="orders"):
    return (await app.topics.describe(topic)).length


@pytest.fixture
async def orders(app):
    topic = app.topic("orders", type=int)
    await topic.metadata()
    return topic


async def test_what_every_group_is_past_is_dropped_by_a_consumer(app, orders, consume):
    await add_old(app, 20)
    await add_old(app, 5, days=6)
    seen = []

    async def handle(order: int) -> None:
        seen.append(order)

    await consume(orders, handle)
    await eventually(lambda: len(seen) == 25)

    async def only_the_young_are_left():
        return await length(app) == 5

    await eventually(only_the_young_are_left)


async def test_what_a_group_has_not_read_or_settled_stays(app, orders):
    await add_old(app, 20)
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    for group in ("behind", "pending", "past"):
        await app.redis.call("XGROUP", "CREATE", stream, group, "0")
    read = ("STREAMS", stream, ">")
    await app.redis.call("XREADGROUP", "GROUP", "past", "c", "COUNT", 20, "NOACK", *read)
    await app.redis.call("XREADGROUP", "GROUP", "behind", "c", "COUNT", 7, "NOACK", *read)
    [[_, entries]] = await app.redis.call("XREADGROUP", "GROUP", "pending", "c", "COUNT", 20, *read)
    await app.redis.call("XACK", stream, "pending", *(id_ for id_, _ in entries[:3]))
    assert (await app.topics.trim("orders")).dropped == 3  # the rest is pending
    await app.redis.call("XACK", stream, "pending", *(id_ for id_, _ in entries))
    assert (await app.topics.trim("orders")).dropped == 4  # the rest is unread
    await app.redis.call("XREADGROUP", "GROUP", "behind", "c", "COUNT", 20, "NOACK", *read)
    assert (await app.topics.trim("orders")).dropped == 13


async def test_a_topic_without_a_group_keeps_its_messages_for_one_to_come(app, orders, consume):
    await add_old(app, 20)
    assert (await app.topics.trim("orders")).dropped == 0
    seen = []

    async def handle(order: int) -> None:
        seen.append(order)

    await consume(orders, handle)
    await eventually(lambda: seen == list(range(20)))


async def test_forever_is_forever(app):
    kept = app.topic("orders", type=int, retention=Retention(forever=True))
    await kept.metadata()
    await add_old(app, 20)
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XGROUP", "CREATE", stream, "past", "$")
    assert (await app.topics.trim("orders")).dropped == 0
    assert (await app.topics.describe("orders")).options.retention.forever
    with pytest.raises(ValueError, match="forever"):
        Retention(forever=True, max_length=5)


async def test_options_that_cannot_be_read_drop_nothing(app, orders):
    await add_old(app, 20)
    await app.redis.call("HSET", TopicKeys.of(app.redis.keys, "orders").meta, "options", "{garbled")
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XGROUP", "CREATE", stream, "past", "$")
    assert (await app.topics.trim("orders")).dropped == 0


async def test_the_default_can_be_changed_and_switched_off(open_app, place):
    app = await open_app(place, retention_s=86_400)
    await app.topic("orders", type=int).metadata()
    await add_old(app, 20, days=2)
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XGROUP", "CREATE", stream, "past", "$")
    never = await open_app(place, retention_s=0)
    assert (await never.topics.trim("orders")).dropped == 0
    assert (await app.topics.trim("orders")).dropped == 20


@pytest.mark.parametrize("grouped", [True, False])
async def test_one_call_drops_a_bounded_number(app, orders, grouped):
    """A server on which nothing was trimmed for years must not stand still for the first trim."""
    await add_old(app, 25_000)
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    if grouped:
        await app.redis.call("XGROUP", "CREATE", stream, "past", "$")
    retention = Retention(max_age_s=86_400)
    calls = [await trim_partition(app.redis, "orders", 0, retention) for _ in range(4)]
    assert [dropped for dropped, *_ in calls] == [10_000, 10_000, 5_000, 0]
    await add_old(app, 25_000, days=1)
    for limit in (Retention(max_length=10), Retention(hard_length=10)):
        calls = [await trim_partition(app.redis, "orders", 0, limit) for _ in range(3)]
        assert max(dropped for dropped, *_ in calls) <= 10_000
    assert await length(app) == 10


async def test_the_retention_of_a_topic_that_an_older_version_made_is_read(app, orders):
    await app.redis.call(
        "HSET",
        TopicKeys.of(app.redis.keys, "orders").meta,
        "options",
        '{"retention":{"max_length":7}}',
    )
    facts = await read_metadata(app.redis, "orders")
    assert facts.options.retention == Retention(max_length=7)


async def test_a_consumer_of_a_large_backlog_drops_it_in_one_round(app, orders, open_app, place):
    await add_old(app, 25_000)
    quick = await open_app(place, janitor_s=0.5)
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XGROUP", "CREATE", stream, "group", "$")

    async def handle(order: int) -> None: ...

    async with Consumer(quick.topic("orders", type=int), handle, Subscription(group="group")):

        async def nothing_is_left():
            return await length(app) == 0

        await eventually(nothing_is_left)
