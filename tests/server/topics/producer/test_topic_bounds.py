"""How many topics, groups, delayed messages, idempotency keys and headers there may be."""

import asyncio

import pytest
from tests.kit.settings import QUICK_TOPICS

from penstock.errors import InvalidMessage, TooMany
from penstock.testing.eventually import eventually
from penstock.topics.storage.group_registration import register_group
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys
from penstock.topics.storage.metadata import ensure_topic, read_metadata


def bounded(**topics):
    return pytest.mark.settings(topics={**QUICK_TOPICS, **topics})


@bounded(max_topics=2)
async def test_a_topic_too_many_is_refused_and_leaves_nothing(app):
    for name in ("one", "two"):
        await app.topic(name).send("x")
    for attempt in (
        app.topic("three").send("x"),
        app.topic("three").send("x", delay=60),
        app.topic("three").send_batch(["x"]),
        app.topics.create("three"),
    ):
        with pytest.raises(TooMany, match=r"at most 2 topics .* topics\.max_topics"):
            await attempt
    keys = TopicKeys.of(app.redis.keys, "three")
    assert await app.redis.call("EXISTS", keys.meta) == 0
    assert await app.redis.call("SCARD", TopicsKeys.of(app.redis.keys).registry) == 2
    await app.topic("one").send("y")
    await app.topics.delete("two")
    await app.topic("three").send("x")


@bounded(max_topics=1)
async def test_of_many_that_create_topics_one_is_allowed(app):
    tries = (ensure_topic(app.redis, f"t{number}") for number in range(50))
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(one, TooMany) for one in results) == 49


@bounded(max_groups=2)
async def test_a_group_too_many_is_refused_and_the_others_go_on(app, consume):
    topic = app.topic("orders", partitions=2)
    seen = asyncio.Queue()

    async def handle(payload):
        await seen.put(payload)

    for group in ("one", "two"):
        await consume(topic, handle, group)
    groups = TopicKeys.of(app.redis.keys, "orders").groups

    async def are_there():
        return await app.redis.call("HLEN", groups) == 2

    await eventually(are_there)
    with pytest.raises(TooMany, match=r"at most 2 groups of topic orders .* topics\.max_groups"):
        await register_group(app.redis, await read_metadata(app.redis, "orders"), "three", "0")
    await topic.send("x")
    assert [await asyncio.wait_for(seen.get(), 60) for _ in range(2)] == ["x", "x"]
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    assert len(await app.redis.call("XINFO", "GROUPS", stream)) == 2


@bounded(max_delayed=3)
async def test_a_delayed_message_too_many_is_refused(app):
    topic = app.topic("orders")
    for number in range(3):
        await topic.send(number, delay=3_600)
    with pytest.raises(TooMany, match=r"delayed messages per partition .* topics\.max_delayed"):
        await topic.send(3, delay=3_600)
    with pytest.raises(TooMany):
        await topic.send(3, delay=3_600, idempotency_key="k")
    await topic.send("now")
    keys = PartitionKeys.of(app.redis.keys, "orders", 0)
    assert await app.redis.call("ZCARD", keys.delayed) == 3
    assert await app.redis.call("HLEN", keys.delayed_bodies) == 3
    assert await app.redis.call("EXISTS", keys.dedup, keys.dedup_times) == 0


@bounded(max_remembered=2)
async def test_an_idempotency_key_too_many_is_refused_and_a_repeat_is_not(app):
    topic = app.topic("orders")
    ids = [await topic.send(key, idempotency_key=key) for key in "ab"]
    with pytest.raises(TooMany, match=r"idempotency keys per partition .* topics\.max_remembered"):
        await topic.send("c", idempotency_key="c")
    assert [await topic.send(key, idempotency_key=key) for key in "ab"] == ids
    await topic.send("without")
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    assert await app.redis.call("XLEN", stream) == 3


@bounded(max_remembered=30)
async def test_keys_that_are_no_longer_remembered_are_not_counted(app):
    topic = app.topic("orders")
    await topic.send("x")
    keys = PartitionKeys.of(app.redis.keys, "orders", 0)
    for number in range(100):
        await app.redis.call("HSET", keys.dedup, f"old{number}", "1-0")
        await app.redis.call("ZADD", keys.dedup_times, 1, f"old{number}")
    for number in range(30):
        await topic.send("x", idempotency_key=f"new{number}")
    with pytest.raises(TooMany):
        await topic.send("x", idempotency_key="more")


@bounded(max_topics=0, max_groups=0, max_delayed=0, max_remembered=0)
async def test_no_limit_is_no_limit(app):
    topic = app.topic("orders")
    for number in range(5):
        await topic.send("x", delay=60, idempotency_key=f"k{number}")
    assert (await read_metadata(app.redis, "orders")).partitions == 1


@pytest.mark.parametrize("way", [{}, {"delay": 60}, {"idempotency_key": "k"}])
async def test_headers_are_bounded(app, way):
    topic = app.topic("orders")
    await topic.send("x", headers={f"h{n}": "v" for n in range(100)}, **way)
    with pytest.raises(InvalidMessage, match="101 headers: at most 100"):
        await topic.send("x", headers={f"h{n}": "v" for n in range(101)}, **way)
    await topic.send("x", headers={"name": "v" * 8_188})
    with pytest.raises(InvalidMessage, match="header 'name': longer than 8192"):
        await topic.send("x", headers={"name": "v" * 8_189}, **way)
