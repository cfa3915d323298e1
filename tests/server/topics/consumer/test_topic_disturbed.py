"""Consumers while something happens to their topic, their group, their server or themselves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock.delivery.retries import Fixed, Retry, RetryPolicy
from penstock.errors import TopicMissing
from penstock.testing.eventually import eventually
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.message import Message, Outgoing
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.subscription import Subscription

ONCE = RetryPolicy(max_attempts=1)
LATER = RetryPolicy(max_attempts=5, backoff=Fixed(60))


class Notes:
    """A handler that notes payload and attempt of each message."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, int]] = []

    async def __call__(self, message: Message) -> None:
        self.seen.append((message.payload, message.attempt))

    @property
    def payloads(self) -> list[Any]:
        return [payload for payload, _ in self.seen]


async def pending(app, topic="orders", group="group"):
    stream = PartitionKeys.of(app.redis.keys, topic, 0).stream
    return (await app.redis.call("XPENDING", stream, group))[0]


# ---- the owner changes


@pytest.mark.parametrize("options", [{"ordering": "key"}, {"ordered_retries": True}], ids=str)
async def test_an_ordered_retry_keeps_its_place_when_the_owner_changes(app, consume, options):
    orders = app.topic("orders", type=int)
    await orders.send_batch([Outgoing(n, key="k") for n in range(5)])

    async def fails(message: Message) -> None:
        raise Retry(after=0.5)

    first = await consume(orders, fails, retry=LATER, **options)
    await eventually(lambda: first.counts.retried == 1)
    await first.stop()
    notes = Notes()
    second = await consume(orders, notes, retry=LATER, **options)
    await eventually(lambda: second.counts.handled == 5)
    assert notes.seen == [(0, 2), (1, 1), (2, 1), (3, 1), (4, 1)]


async def test_a_retry_that_was_taken_over_does_not_wait_for_a_clock_that_is_set_back(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send(1)

    async def fails(message: Message) -> None:
        raise Retry(after=1.0)

    first = await consume(orders, fails, retry=LATER)
    await eventually(lambda: first.counts.retried == 1)
    await first.stop()
    notes = Notes()
    second = await consume(orders, notes, retry=LATER)
    await eventually(lambda: [held.readable for held in second._serving] == [True])
    keys = PartitionKeys.of(app.redis.keys, "orders", 0)
    [id_] = await app.redis.call("ZRANGE", keys.retry("group"), 0, -1)
    await app.redis.call("ZINCRBY", keys.retry("group"), 3_600_000, id_)  # as the clock sees it now
    await eventually(lambda: notes.seen == [(1, 2)])


async def test_an_unordered_retry_does_not_hold_up_the_next_owner(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1, 2])

    async def fails(message: Message) -> None:
        raise Retry(after=0.6)

    first = await consume(orders, fails, retry=LATER)
    await eventually(lambda: first.counts.retried == 3)
    await first.stop()
    await orders.send(3)
    notes = Notes()
    second = await consume(orders, notes, retry=LATER)
    await eventually(lambda: second.counts.handled == 4)
    assert notes.seen[0][0] == 3
    assert sorted(notes.payloads) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "options",
    [{}, {"ordering": "key"}, {"ordering": "none"}, {"ordered_retries": True}],
    ids=str,
)
async def test_nothing_is_remembered_of_messages_that_have_ended(app, consume, options):
    orders = app.topic("orders", type=int)
    await orders.send_batch([Outgoing(n, key=str(n % 5)) for n in range(100)])
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XGROUP", "CREATE", stream, "group", 0)
    read = ("XREADGROUP", "GROUP", "group", "penstock", "COUNT", 40, "STREAMS", stream, ">")
    [[_, entries]] = await app.redis.call(*read)
    await app.redis.call("XDEL", stream, *[id_ for id_, _ in entries[:10]])
    failed: set[bytes] = set()

    async def handle(message: Message) -> None:
        if message.payload % 3 == 0 and message.id not in failed:
            failed.add(message.id)
            raise ValueError

    policy = RetryPolicy(backoff=Fixed(0.01))
    consumer = await consume(orders, handle, retry=policy, **options)
    await eventually(lambda: consumer.counts.handled == 100)
    [held] = consumer._serving
    assert not any(vars(held.attempts).values()), vars(held.attempts)
    assert not list(held.queued())
    assert not held.unacknowledged_ids()
    await eventually(lambda: held.budget.buffered == 0)


# ---- answers get lost


@pytest.fixture
async def behind_proxy(open_app, fault_proxy, valkey_server):
    """A proxy, an app behind it, and one that speaks to the server directly."""
    proxy = fault_proxy(valkey_server)
    return proxy, await open_app(proxy.url), await open_app(valkey_server)


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_messages_whose_delivery_got_lost_are_found_and_not_charged(
    behind_proxy, consume, ordering
):
    proxy, app, direct = behind_proxy
    orders, sender = app.topic("orders", type=int), direct.topic("orders", type=int)
    notes = Notes()
    consumer = await consume(orders, notes, ordering=ordering, retry=ONCE)
    await eventually(lambda: consumer.partitions == [0])
    rule = proxy.swallow("XREADGROUP", times=None)
    await eventually(lambda: rule.hits)
    for first in (0, 20):
        hits = rule.hits
        await sender.send_batch([Outgoing(n, key=str(n % 3)) for n in range(first, first + 20)])
        await eventually(lambda f=first: consumer.counts.handled == f + 20)
        assert rule.hits > hits
    assert sorted(notes.seen) == [(n, 1) for n in range(40)]
    assert (await orders.dead_letters.list()).letters == []


@pytest.mark.parametrize("options", [{}, {"ordering": "key"}, {"batch": 5}], ids=str)
async def test_an_acknowledgement_whose_answer_got_lost_repeats_no_message(
    behind_proxy, consume, options
):
    proxy, app, direct = behind_proxy
    orders, sender = app.topic("orders", type=int), direct.topic("orders", type=int)
    seen: list[int] = []

    async def one(number: int) -> None:
        proxy.swallow("EVALSHA")
        seen.append(number)

    async def many(numbers: list[int]) -> None:
        proxy.swallow("EVALSHA")
        seen.extend(numbers)

    handler = many if "batch" in options else one
    consumer = await consume(orders, handler, **options)
    await eventually(lambda: consumer.partitions == [0])
    for n in range(10):
        await sender.send(n)
    await eventually(lambda: len(seen) == 10)
    proxy.heal()
    await eventually(lambda: consumer.counts.handled == 10)
    assert sorted(seen) == list(range(10))
    assert await pending(direct) == 0


async def test_a_failure_is_recorded_once_the_server_is_back(behind_proxy, consume):
    proxy, app, direct = behind_proxy
    orders, sender = app.topic("orders", type=int), direct.topic("orders", type=int)
    attempts: list[int] = []

    async def fails(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            proxy.refuse()
            proxy.cut()
        raise ValueError

    policy = RetryPolicy(max_attempts=2, backoff=Fixed(0.05))
    consumer = await consume(orders, fails, retry=policy)
    await sender.send(1)
    await eventually(lambda: attempts == [1])
    await eventually(lambda: consumer.trouble() is not None)
    proxy.heal()
    await eventually(lambda: consumer.counts.dead == 1)
    assert attempts == [1, 2]
    [letter] = (await sender.dead_letters.list()).letters
    assert letter.attempts == 2


# ---- somebody changes the topic


async def test_a_group_that_is_reset_handles_everything_again(app, consume):
    orders = app.topic("orders", partitions=2, type=int)
    await orders.send_batch([Outgoing(n, key=str(n)) for n in range(10)])
    notes = Notes()
    consumer = await consume(orders, notes)
    await eventually(lambda: consumer.counts.handled == 10)
    await app.topics.reset_group("orders", "group", "0")
    await eventually(lambda: consumer.counts.handled == 20)
    assert sorted(notes.payloads) == sorted([*range(10), *range(10)])
    assert {attempt for _, attempt in notes.seen} == {1}


async def test_a_group_that_is_deleted_begins_anew(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1])
    notes = Notes()
    consumer = await consume(orders, notes)
    await eventually(lambda: consumer.counts.handled == 2)
    await app.topics.delete_group("orders", "group", force=True)
    await orders.send(2)
    await eventually(lambda: notes.payloads == [0, 1, 0, 1, 2])


async def test_a_consumer_says_that_its_topic_is_gone_and_goes_on_with_the_next(app, consume):
    orders = app.topic("orders", partitions=2, type=int)
    await orders.send(0)
    notes = Notes()
    consumer = await consume(orders, notes)
    await eventually(lambda: consumer.counts.handled == 1)
    assert await app.topics.delete("orders")
    await eventually(lambda: "orders" in (consumer.trouble() or ""))
    with pytest.raises(TopicMissing):
        await app.topics.describe("orders")
    await app.topics.create("orders", 3)
    await eventually(lambda: consumer.partitions == [0, 1, 2])
    again = app.topic("orders", type=int)
    for n in range(3):
        await again.send(n, headers={"x-force-partition-id": str(n)})
    await eventually(lambda: sorted(notes.payloads) == [0, 0, 1, 2])
    await eventually(lambda: consumer.trouble() is None)


async def test_a_stop_does_not_wait_for_a_retry_that_a_growing_topic_waits_for(
    open_app, place, consume
):
    app = await open_app(place, refresh_s=0.05)
    orders = app.topic("orders", type=int)
    await orders.send(0, key="k")

    async def fails(_: int) -> None:
        raise ValueError

    for ordering in ("key", "partition"):
        options = {"ordering": ordering, "ordered_retries": True, "retry": LATER}
        consumer = await consume(orders, fails, group=ordering, **options)
        await eventually(lambda c=consumer: c.counts.retried == 1)
    await app.topics.grow("orders", 2)
    for ordering in ("key", "partition"):
        options = {"ordering": ordering, "ordered_retries": True, "retry": LATER}
        consumer = await consume(orders, fails, group=ordering, **options)
        await eventually(lambda c=consumer: c.partitions)
        async with asyncio.timeout(30):
            await consumer.stop()


# ---- threads


async def test_a_blocking_handler_that_never_ends_holds_up_its_own_messages_only(app, consume):
    orders = app.topic("orders", partitions=2, type=int)
    released = threading.Event()
    ended: list[int] = []

    def handle(number: int) -> None:
        if number == 0:
            released.wait(10)
        ended.append(number)

    consumer = await consume(orders, handle)
    await orders.send(0, headers={"x-force-partition-id": "0"})
    for n in range(1, 20):
        await orders.send(n, headers={"x-force-partition-id": "1"})
    await eventually(lambda: ended == list(range(1, 20)))
    released.set()
    await eventually(lambda: consumer.counts.handled == 20)


async def test_a_blocking_handler_that_takes_too_long_is_tried_again(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1])
    released = threading.Event()
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.payload, message.attempt))
        if message.payload == 0 and message.attempt == 1:
            released.wait(10)

    policy = RetryPolicy(max_attempts=3, backoff=Fixed(0.02))
    consumer = await consume(orders, handle, retry=policy, timeout_s=0.1)
    await eventually(lambda: consumer.counts.handled == 2)
    released.set()
    assert sorted(seen) == [(0, 1), (0, 2), (1, 1)]


async def test_a_stop_waits_for_a_blocking_handler_and_leaves_the_rest(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch(list(range(10)))
    began, released = threading.Event(), threading.Event()
    ended: list[int] = []

    def handle(number: int) -> None:
        began.set()
        released.wait(10)
        ended.append(number)

    first = await consume(orders, handle)
    await eventually(began.is_set)
    stopping = asyncio.create_task(first.stop())
    await eventually(lambda: first.stopping)
    released.set()
    await stopping
    assert ended == [0]
    notes = Notes()
    second = await consume(orders, notes, retry=ONCE)
    await eventually(lambda: second.counts.handled == 9)
    assert notes.seen == [(n, 1) for n in range(1, 10)]


# ---- a fault of the program, or of the server's data


async def test_a_consumer_that_fails_is_started_again_and_the_others_go_on(app, consume):
    """Something that no consumer expects: a callback with a bug, and a key of another type."""
    orders, news = app.topic("orders", type=int), app.topic("news", type=int)
    await orders.send(1)
    await news.send(2)
    broken, healthy, faults = Notes(), Notes(), [ZeroDivisionError("in a callback")]

    def misbehave(topic: str, partitions: int) -> None:
        if faults:
            raise faults.pop()

    failing = Consumer(orders, broken, Subscription(group="group"))
    failing.when_known = misbehave
    async with failing:
        await consume(news, healthy)
        await eventually(lambda: failing.failing)
        assert "ZeroDivisionError" in (failing.failing or "")
        await eventually(lambda: healthy.payloads == [2])
        await eventually(lambda: broken.payloads == [1])
        await orders.send(3)
        await eventually(lambda: broken.payloads == [1, 3])
        assert await eventually(lambda: failing.partitions)

        members = TopicKeys.of(app.redis.keys, "orders").members("group")
        await app.redis.call("UNLINK", members)
        await app.redis.call("SET", members, "of another program")
        await eventually(lambda: members in f"{failing.failing} {failing.trouble()}")
        await app.redis.call("UNLINK", members)
        await orders.send(4)
        await eventually(lambda: broken.payloads[-1] == 4)
