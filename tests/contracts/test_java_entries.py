"""Entries of the Java library redis-streaming, as it writes them: we read these, it reads ours."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
import pytest

from penstock import Penstock
from penstock.delivery.retries import Fixed, RetryPolicy
from penstock.testing.eventually import eventually
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.java.payload_sweep import PayloadSweep
from penstock.topics.message import Message
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys
from penstock.topics.subscription import Subscription

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3,9})?Z")
QUICK = RetryPolicy(max_attempts=3, backoff=Fixed(0.02))

# What version 0.1.1 of io.github.cuihairu.redis-streaming:mq writes, by its MessageQueueFactory.
ABOUT_PAYLOAD = '"x-payload-original-size":"15","x-payload-storage-type":"inline"'
PLAIN = {
    "partitionId": "0",
    "maxRetries": "3",
    "payload": '{"orderId":123}',
    "topic": "orders",
    "retryCount": "0",
    "headers": f"{{{ABOUT_PAYLOAD}}}",
    "timestamp": "2025-11-13T08:00:00.123456789Z",
}
WITH_KEY = PLAIN | {"key": "customer-7", "headers": f'{{"trace":"t-1",{ABOUT_PAYLOAD}}}'}
RETRIED = {
    "payload": r'"{\"orderId\":123}"',
    "timestamp": "2025-11-13T08:00:01.123456789Z",
    "retryCount": "1",
    "maxRetries": "3",
    "topic": "orders",
    "partitionId": "0",
    "key": "customer-7",
    "headers": f'{{"trace":"t-1","partitionId":"0",{ABOUT_PAYLOAD}}}',
    "originalMessageId": "1763020800000-0",
}
LETTER = {
    "originalTopic": "orders",
    "partitionId": "0",
    "payload": r'"\"\\\"{\\\\\\\"orderId\\\\\\\":123}\\\"\""',
    "failedAt": "2025-11-13T08:05:00.123456789Z",
    "retryCount": "3",
    "originalMessageId": "1763020800000-0",
    "headers": f'{{"trace":"t-1","partitionId":"0",{ABOUT_PAYLOAD}}}',
    "key": "customer-7",
    "timestamp": "2025-11-13T08:00:00.123456789Z",
}
UUID = "0b5ffdf6-6e0a-4c2c-9a3f-3f0a2f6a9c11"

pytestmark = pytest.mark.settings(topics={"balance_s": 0.05, "claim_above": 64 * 1024})


class Order(msgspec.Struct, rename="camel"):
    order_id: int


@pytest.fixture
async def app(settings, opened):
    """As outside of this folder: keys have a namespace."""
    return await opened.enter_async_context(Penstock(settings=settings))


@pytest.fixture
async def orders(app):
    topic = app.topic("orders", partitions=1, type=Order, interop=True)
    await topic.metadata()
    return topic


async def write(app, fields):
    words = [word for item in fields.items() for word in item]
    return await app.redis.call(
        "XADD", PartitionKeys.of(app.redis.keys, "orders", 0).stream, "*", *words
    )


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
    assert retried.attempt == 1, "nothing says which group has tried it before"


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


def quoted(payload: str, times: int) -> str:
    """What the library makes of a payload by so many retries."""
    for _ in range(times):
        payload = msgspec.json.encode(payload).decode()
    return payload


@pytest.mark.parametrize("payload", ["plain", '"with quotes"', '{"orderId":123}', '"', ""])
async def test_a_text_is_the_same_at_every_retry_of_the_java_library(app, orders, payload):
    topic = app.topic("orders", type=str)
    for times in range(4):
        retried = {"payload": quoted(payload, times), "retryCount": str(times)}
        await write(app, RETRIED | retried)
    assert [message.payload for message in await take(topic, 4)] == [payload] * 4


async def test_retries_by_a_java_group_use_up_no_attempts_of_another_group(app, orders):
    await write(app, RETRIED | {"payload": quoted(PLAIN["payload"], 3), "retryCount": "3"})
    [message] = await take(orders, 1)
    assert (message.payload, message.attempt) == (Order(123), 1)
    assert (await orders.dead_letters.list()).letters == []


async def test_what_fails_here_after_retries_of_java_is_replayed_as_it_was_sent(app, orders):
    await write(app, RETRIED)

    def fails(_: Any) -> None:
        raise ValueError("no")

    await take(orders, 1, handle=fails)
    [letter] = (await orders.dead_letters.list()).letters
    assert letter.payload.text == PLAIN["payload"]
    await orders.dead_letters.replay()
    [message] = await take(orders, 1)
    assert message.payload == Order(123)


def large_entry(keys, body, name=UUID):
    headers = {
        "trace": "t-1",
        "x-payload-storage-type": "hash",
        "x-payload-hash-ref": keys.payload(name),
        "x-payload-original-size": str(len(body)),
    }
    return PLAIN | {"payload": "", "headers": msgspec.json.encode(headers).decode()}


@pytest.mark.parametrize("left", [{}, {"payload": ""}], ids=["no field", "an empty text"])
async def test_a_large_payload_is_read_by_its_reference(app, orders, left):
    keys = PartitionKeys.of(app.redis.keys, "orders", 0)
    body = '{"orderId":123,"text":"' + "x" * 70_000 + '"}'
    await app.redis.call("SET", keys.payload(UUID), body)
    fields = large_entry(keys, body)
    del fields["payload"]
    await write(app, fields | left)
    [message] = await take(orders, 1)
    assert message.payload == Order(123)
    assert message.headers == {"trace": "t-1"}


async def test_a_large_text_of_the_java_library_is_the_text_without_quotes(app, orders):
    topic = app.topic("orders", type=str)
    keys = PartitionKeys.of(app.redis.keys, "orders", 0)
    text = 'say "hello" ' * 6_000
    await app.redis.call("SET", keys.payload(UUID), msgspec.json.encode(text))
    await write(app, large_entry(keys, text))
    [message] = await take(topic, 1)
    assert message.payload == text
    page = await app.topics.browse("orders")
    assert page.messages[0].payload.text == text[: len(page.messages[0].payload.text)]


async def test_a_large_payload_of_the_java_library_is_freed_when_every_group_is_past_it(
    app, orders
):
    keys, topic = (
        PartitionKeys.of(app.redis.keys, "orders", 0),
        TopicKeys.of(app.redis.keys, "orders"),
    )
    times = TopicsKeys.of(app.redis.keys).payload_times
    key = keys.payload(UUID)
    body = '{"orderId":123,"text":"' + "x" * 70_000 + '"}'
    await app.redis.call("SET", key, body)
    await app.redis.call("SADD", topic.payload_index, key)
    await app.redis.call("ZADD", times, 1763020800000, key)
    await write(app, large_entry(keys, body))
    await take(orders, 1)
    assert (await app.topics.trim("orders")).freed == 1
    assert await app.redis.call("EXISTS", key) == 0
    await PayloadSweep(app.redis, "orders").run()
    assert await app.redis.call("SCARD", topic.payload_index) == 0
    assert await app.redis.call("ZSCORE", times, key) is None


async def test_large_payloads_whose_messages_were_trimmed_unread_are_swept(app, orders):
    keys, topic = (
        PartitionKeys.of(app.redis.keys, "orders", 0),
        TopicKeys.of(app.redis.keys, "orders"),
    )
    times = TopicsKeys.of(app.redis.keys).payload_times
    old, new = keys.payload(UUID), keys.payload(UUID.replace("0b", "0c"))
    now_ms = time.time_ns() // 1_000_000
    for key, at_ms in ((old, now_ms - 3 * 86_400_000), (new, now_ms)):
        await app.redis.call("SET", key, "{}")
        await app.redis.call("SADD", topic.payload_index, key)
        await app.redis.call("ZADD", times, at_ms, key)
    await write(app, PLAIN)
    assert await PayloadSweep(app.redis, "orders").run() == 1
    assert await app.redis.call("EXISTS", old) == 0
    assert await app.redis.call("SMEMBERS", topic.payload_index) == [new.encode()]


@pytest.mark.parametrize("type_", [Order, str])
async def test_a_large_payload_that_is_gone_becomes_a_dead_letter(app, orders, type_):
    topic = app.topic("orders", type=type_)
    reference = PartitionKeys.of(app.redis.keys, "orders", 0).payload("missing")
    headers = {"x-payload-storage-type": "hash", "x-payload-hash-ref": reference}
    await write(app, PLAIN | {"payload": "", "headers": msgspec.json.encode(headers).decode()})
    assert await take(topic, 1, handle=lambda message: message.payload)
    [letter] = (await orders.dead_letters.list()).letters
    assert letter.reason == "undecodable"


async def test_our_entries_have_exactly_the_fields_of_the_java_library(app, orders):
    await orders.send(Order(1))
    await orders.send(Order(1), key="customer-7", headers={"trace": "t-1"})
    await orders.send(Order(1), key="customer-7", idempotency_key="once")
    plain, keyed, once = await stored(app, PartitionKeys.of(app.redis.keys, "orders", 0).stream)
    assert set(plain) == set(PLAIN) - {"headers"}
    assert set(keyed) == set(WITH_KEY)
    assert set(once) == set(WITH_KEY) - {"headers"}
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
    assert len(await stored(app, PartitionKeys.of(app.redis.keys, "orders", 0).stream)) == 1


async def test_our_dead_letters_have_every_field_of_the_java_library(app, orders):
    sent = await orders.send(Order(1), key="customer-7", headers={"trace": "t-1"})

    def fails(_: Any) -> None:
        raise ValueError("no")

    await take(orders, 1, handle=fails)
    [letter] = await stored(app, TopicKeys.of(app.redis.keys, "orders").dlq)
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


async def bury(app, letter):
    words = [word for item in letter.items() for word in item]
    await app.redis.call("XADD", TopicKeys.of(app.redis.keys, "orders").dlq, "*", *words)


async def test_dead_letters_of_the_java_library_are_shown_and_replayed(app, orders):
    await bury(app, LETTER)
    [letter] = (await orders.dead_letters.list()).letters
    assert letter.payload.text == PLAIN["payload"]
    assert (letter.partition, letter.message_id) == (0, f"0-{LETTER['originalMessageId']}")
    assert (letter.attempts, letter.group, letter.key) == (4, None, "customer-7")
    assert (await orders.dead_letters.replay()).replayed == 1
    [message] = await take(orders, 1)
    assert (message.payload, message.attempt) == (Order(123), 1)


BODY = '{"orderId":123,"text":"' + "x" * 70_000 + '"}'


async def bury_large(app):
    """A dead letter whose payload the library has stored beside it; the payload's key."""
    topic = TopicKeys.of(app.redis.keys, "orders")
    key = topic.letter_payload(UUID)
    await app.redis.call("SET", key, quoted(BODY, 4))  # three retries, and as all that is large
    await app.redis.call("SADD", topic.letter_payload_index, key)
    await app.redis.call("ZADD", TopicsKeys.of(app.redis.keys).payload_times, 1763020800000, key)
    headers = {
        "partitionId": "0",
        "x-payload-storage-type": "hash",
        "x-payload-hash-ref": key,
        "x-payload-original-size": str(len(BODY)),
    }
    await bury(app, LETTER | {"payload": "", "headers": msgspec.json.encode(headers).decode()})
    return key


async def test_a_large_dead_letter_of_the_java_library_is_shown_and_replayed(app, orders):
    key = await bury_large(app)
    [letter] = (await orders.dead_letters.list(max_bytes=100)).letters
    assert letter.payload.text == BODY[:100]
    assert (letter.payload.size, letter.payload.is_cut) == (len(BODY), True)
    assert (await orders.dead_letters.show(letter.id, max_bytes=10**6)).payload.text == BODY
    changed = await orders.dead_letters.edit(letter.id, headers={"trace": "t-2"})
    assert not (await orders.dead_letters.show(changed)).payload.is_missing
    replayed = await orders.dead_letters.replay()
    assert (replayed.replayed, replayed.skipped) == (1, {})
    assert await app.redis.call("EXISTS", key) == 0
    [message] = await take(orders, 1)
    assert (message.payload, message.headers["trace"]) == (Order(123), "t-2")


@pytest.mark.parametrize("way", ["purge", "delete the topic"])
async def test_a_large_dead_letter_of_the_java_library_leaves_nothing_behind(app, orders, way):
    key = await bury_large(app)
    topic, times = (
        TopicKeys.of(app.redis.keys, "orders"),
        TopicsKeys.of(app.redis.keys).payload_times,
    )
    if way == "purge":
        [letter] = (await orders.dead_letters.list()).letters
        assert await orders.dead_letters.purge([letter.id]) == 1
    else:
        assert await app.topics.delete("orders")
    for left in (key, topic.letter_payload_index, times):
        assert await app.redis.call("EXISTS", left) == 0
