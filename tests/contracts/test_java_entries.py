"""Entries of the Java library redis-streaming, as it writes them: we read these, it reads ours."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from penstock import Penstock
from penstock.delivery.retries import Fixed, RetryPolicy
from penstock.settings import Settings, TopicSettings, WorkerSettings
from penstock.testing.eventually import eventually
from penstock.topics.consumer import Consumer
from penstock.topics.message import Message
from penstock.topics.subscription import Subscription

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3,9})?Z")
QUICK = RetryPolicy(max_attempts=3, backoff=Fixed(0.02))

PLAIN = {
    "payload": '{"orderId":123}',
    "timestamp": "2025-11-13T08:00:00.123456Z",
    "retryCount": "0",
    "maxRetries": "3",
    "topic": "orders",
    "partitionId": "0",
}
WITH_KEY = PLAIN | {
    "key": "customer-7",
    "headers": '{"trace":"t-1","x-payload-original-size":"15","x-payload-storage-type":"inline"}',
}
RETRIED = WITH_KEY | {"retryCount": "1", "originalMessageId": "1763020800000-0"}
LETTER = {
    "originalTopic": "orders",
    "payload": '{"orderId":123}',
    "timestamp": "2025-11-13T08:00:00.123456Z",
    "failedAt": "2025-11-13T08:05:00.123456Z",
    "retryCount": "3",
    "partitionId": "0",
    "headers": '{"trace":"t-1","key":"customer-7"}',
    "originalMessageId": "1763020800000-0",
    "maxRetries": "3",
}


class Order(msgspec.Struct, rename="camel"):
    order_id: int


@pytest.fixture(params=["one server", "cluster"])
async def app(request, namespace):
    server = request.getfixturevalue(
        {"one server": "valkey_server", "cluster": "cluster"}[request.param]
    )
    settings = Settings(
        url=server.url,
        namespace=namespace,
        topics=TopicSettings(balance_s=0.05, claim_above=64 * 1024),
        worker=WorkerSettings(poll_s=0.2),
    )
    async with Penstock(settings=settings) as app:
        yield app


@pytest.fixture
async def orders(app):
    topic = app.topic("orders", partitions=1, type=Order, interop=True)
    await topic.facts()
    return topic


async def write(app, fields):
    words = [word for item in fields.items() for word in item]
    return await app.redis.call("XADD", app.redis.keys.partition("orders", 0).stream, "*", *words)


async def stored(app, key):
    return [
        {
            name.decode(): value.decode()
            for name, value in zip(fields[::2], fields[1::2], strict=True)
        }
        for _, fields in await app.redis.call("XRANGE", key, "-", "+")
    ]


async def take(topic, count, handle=None, **options):
    """Handle so many messages and return what the handler got."""
    got: list[Message] = []

    async def note(message: Message) -> None:
        got.append(message)
        if handle is not None:
            handle(message)

    told = Subscription(group="penstock-group", retry=QUICK, **options)
    async with Consumer(topic, note, told) as consumer:
        await eventually(lambda: consumer.counts.handled == count)
    return got


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_entries_of_the_java_library_are_read(app, orders, ordering):
    ids = [await write(app, fields) for fields in (PLAIN, WITH_KEY, RETRIED)]
    plain, keyed, retried = sorted(
        await take(orders, 3, ordering=ordering), key=lambda message: message.id
    )
    assert [plain.entry_id, keyed.entry_id, retried.entry_id] == ids
    assert plain.id == f"0-{ids[0].decode()}"
    assert {message.payload.order_id for message in (plain, keyed, retried)} == {123}
    assert (plain.key, plain.headers, plain.attempt) == (None, {}, 1)
    assert (keyed.key, keyed.headers) == ("customer-7", {"trace": "t-1"})
    assert retried.attempt == 2, "it was tried once before"


@pytest.mark.parametrize(
    "odd",
    [
        {"retryCount": "many", "maxRetries": ""},
        {"headers": "no JSON"},
        {"headers": "[1, 2]"},
        {"headers": '{"n":1,"nested":{"a":null}}'},
        {"timestamp": "yesterday", "partitionId": "x", "topic": ""},
    ],
    ids=str,
)
async def test_optional_fields_that_cannot_be_read_are_tolerated(app, orders, odd):
    await write(app, PLAIN | odd)
    [message] = await take(orders, 1)
    assert message.payload == Order(123)
    assert message.attempt == 1
    assert isinstance(message.headers, dict)


async def test_missing_optional_fields_are_tolerated(app, orders):
    await write(app, {"payload": PLAIN["payload"]})
    await write(app, {"timestamp": PLAIN["timestamp"], "payload": PLAIN["payload"]})
    assert [message.payload for message in await take(orders, 2)] == [Order(123)] * 2


@pytest.mark.parametrize("left", [{}, {"payload": ""}], ids=["no field", "an empty text"])
async def test_a_large_payload_is_read_by_its_reference(app, orders, left):
    keys = app.redis.keys.partition("orders", 0)
    body = '{"orderId":123,"text":"' + "x" * 70_000 + '"}'
    await app.redis.call("SET", keys.payload("c0ffee"), body)
    fields = {name: value for name, value in PLAIN.items() if name != "payload"} | left
    fields["headers"] = msgspec.json.encode(
        {
            "trace": "t-1",
            "x-payload-storage-type": "hash",
            "x-payload-hash-ref": keys.payload("c0ffee"),
            "x-payload-original-size": str(len(body)),
        }
    ).decode()
    await write(app, fields)
    [message] = await take(orders, 1)
    assert message.payload == Order(123)
    assert message.headers == {"trace": "t-1"}


@pytest.mark.parametrize("type_", [Order, str])
async def test_a_large_payload_that_is_gone_becomes_a_dead_letter(app, orders, type_):
    topic = app.topic("orders", type=type_)
    reference = app.redis.keys.partition("orders", 0).payload("missing")
    headers = {"x-payload-storage-type": "hash", "x-payload-hash-ref": reference}
    await write(app, PLAIN | {"payload": "", "headers": msgspec.json.encode(headers).decode()})
    assert await take(topic, 1, handle=lambda message: message.payload)
    [letter] = (await orders.dead_letters.list()).letters
    assert letter.reason == "undecodable"


async def test_an_entry_that_was_tried_too_often_becomes_a_dead_letter(app, orders):
    await write(app, WITH_KEY | {"retryCount": "3"})
    assert await take(orders, 1) == []
    [letter] = (await orders.dead_letters.list()).letters
    assert (letter.reason, letter.key) == ("exhausted", "customer-7")


async def test_our_entries_have_exactly_the_fields_of_the_java_library(app, orders):
    await orders.send(Order(1))
    await orders.send(Order(1), key="customer-7", headers={"trace": "t-1"})
    await orders.send(Order(1), key="customer-7", idempotency_key="once")
    plain, keyed, once = await stored(app, app.redis.keys.partition("orders", 0).stream)
    assert set(plain) == set(PLAIN)
    assert set(keyed) == set(WITH_KEY)
    assert set(once) == {*PLAIN, "key"}
    for entry in (plain, keyed, once):
        assert INSTANT.fullmatch(entry["timestamp"])
        fixed = {name: entry[name] for name in ("topic", "partitionId", "retryCount", "maxRetries")}
        assert fixed == {name: PLAIN[name] for name in fixed}
        assert entry["payload"] == '{"orderId":1}'


async def test_a_retry_writes_nothing_that_the_java_library_would_see(app, orders):
    await orders.send(Order(1))
    attempts: list[int] = []

    def fails_twice(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise ValueError

    await take(orders, 1, handle=fails_twice)
    assert attempts == [1, 2, 3]
    assert len(await stored(app, app.redis.keys.partition("orders", 0).stream)) == 1


async def test_our_dead_letters_have_every_field_of_the_java_library(app, orders):
    sent = await orders.send(Order(1), key="customer-7", headers={"trace": "t-1"})

    def fails(_: Any) -> None:
        raise ValueError("no")

    await take(orders, 1, handle=fails)
    [letter] = await stored(app, app.redis.keys.topic("orders").dlq)
    assert set(LETTER) <= set(letter)
    assert INSTANT.fullmatch(letter["timestamp"])
    assert INSTANT.fullmatch(letter["failedAt"])
    known = {
        "originalTopic": "orders",
        "payload": '{"orderId":1}',
        "retryCount": "2",
        "partitionId": "0",
        "originalMessageId": sent.partition("-")[2],
        "maxRetries": "2",
    }
    assert {name: letter[name] for name in known} == known
    assert msgspec.json.decode(letter["headers"])["trace"] == "t-1"


async def test_dead_letters_of_the_java_library_are_shown_and_replayed(app, orders):
    words = [word for item in LETTER.items() for word in item]
    await app.redis.call("XADD", app.redis.keys.topic("orders").dlq, "*", *words)
    [letter] = (await orders.dead_letters.list()).letters
    assert letter.payload.text == LETTER["payload"]
    assert (letter.partition, letter.message_id) == (0, f"0-{LETTER['originalMessageId']}")
    assert (letter.attempts, letter.group) == (4, None)
    assert (await orders.dead_letters.replay()).replayed == 1
    [message] = await take(orders, 1)
    assert (message.payload, message.attempt) == (Order(123), 1)
