"""Messages that were delivered but are in no one's hands are brought in, whatever took them."""

from __future__ import annotations

import asyncio

import pytest

from penstock.delivery.retries import Fixed, RetryPolicy
from penstock.testing.eventually import eventually
from penstock.topics.consumer.owned_partition import PartitionState
from penstock.topics.message import Message, Outgoing
from penstock.topics.storage.keys import PartitionKeys

ORDERINGS = ["partition", "key", "none"]
QUICK = {"audit_s": 0.1}


class Notes:
    """Notes payload and attempt of each message; 'wait' makes it wait."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.go_on = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.seen.append((message.payload, message.attempt))
        if message.payload == "wait":
            await self.go_on.wait()


async def take_away(app, topic):
    """Read as the consumer does, but without its fence."""
    stream = PartitionKeys.of(app.redis.keys, topic, 0).stream
    command = ("XREADGROUP", "GROUP", "group", "penstock", "COUNT", 10, "STREAMS", stream, ">")
    return await app.redis.call(*command)


async def stolen(app, orders, consumer, payload):
    """Send a message so that another program is sure to get it."""
    [held] = consumer._serving
    held.state = PartitionState.OPENING  # while the consumer does not read
    await next(iter(consumer._readers.values())).exclude(held)
    await orders.send(payload, key="k")
    assert await take_away(app, orders.name)
    held.start_reading()
    await next(iter(consumer._readers.values())).read_again()


async def is_settled(app, topic="orders"):
    stream = PartitionKeys.of(app.redis.keys, topic, 0).stream
    return (await app.redis.call("XPENDING", stream, "group"))[0] == 0


@pytest.mark.parametrize("ordering", ORDERINGS)
async def test_a_message_that_another_program_took_is_handled_as_a_first_delivery(
    open_app, place, consume, ordering
):
    app, notes = await open_app(place, **QUICK), Notes()
    orders = app.topic("orders", type=str, partitions=1)
    consumer = await consume(orders, notes, ordering=ordering)
    await orders.send("first", key="k")
    await eventually(lambda: notes.seen == [("first", 1)])
    await stolen(app, orders, consumer, "taken")
    await orders.send("next", key="k")
    await eventually(lambda: len(notes.seen) == 3)
    assert sorted(notes.seen[1:]) == [("next", 1), ("taken", 1)]
    await eventually(lambda: is_settled(app))
    assert consumer.counts.strays == 1
    await eventually(lambda: consumer.trouble() is None)


@pytest.mark.parametrize("ordering", ["key", "none"])
async def test_one_behind_a_handler_that_takes_long_is_found_too(
    open_app, place, consume, ordering
):
    app, notes = await open_app(place, **QUICK), Notes()
    orders = app.topic("orders", type=str, partitions=1)
    consumer = await consume(orders, notes, ordering=ordering)
    await orders.send("wait", key="slow")
    await eventually(lambda: notes.seen == [("wait", 1)])
    await stolen(app, orders, consumer, "taken")
    await eventually(lambda: notes.seen == [("wait", 1), ("taken", 1)])
    notes.go_on.set()
    await eventually(lambda: is_settled(app))


@pytest.mark.parametrize("ordering", ORDERINGS)
async def test_what_takes_long_or_waits_for_a_retry_is_no_stray(open_app, place, consume, ordering):
    app = await open_app(place, **QUICK)
    orders = app.topic("orders", type=int, partitions=1)
    begun = []

    async def handle(message: Message) -> None:
        begun.append(message.payload)
        if message.payload % 2:
            raise ValueError
        await asyncio.sleep(1)

    later = RetryPolicy(max_attempts=3, backoff=Fixed(60))
    first = await consume(orders, handle, retry=later, ordering=ordering)
    await orders.send_batch([Outgoing(n, key=str(n)) for n in (1, 3)])
    await eventually(lambda: begun == [1, 3])
    await first.stop()
    second = await consume(orders, handle, retry=later, ordering=ordering)
    await orders.send_batch([Outgoing(n, key=str(n)) for n in (5, 7, 2, 4)])
    await eventually(lambda: len(begun) >= 6)
    [held] = second._serving
    fence = held.fence
    await asyncio.sleep(1)  # ten looks
    assert second.counts.strays == 0
    assert held.fence == fence
    assert len(begun) == 6


async def test_one_that_was_trimmed_away_meanwhile_is_counted_and_settled(open_app, place, consume):
    app, notes = await open_app(place, **QUICK), Notes()
    orders = app.topic("orders", type=str, partitions=1)
    consumer = await consume(orders, notes)
    await eventually(lambda: consumer.partitions == [0])
    await eventually(lambda: [held.readable for held in consumer._serving] == [True])
    await stolen(app, orders, consumer, "taken")
    await app.redis.call("XTRIM", PartitionKeys.of(app.redis.keys, "orders", 0).stream, "MAXLEN", 0)
    await eventually(lambda: is_settled(app))
    assert consumer.counts.vanished == 1
    assert notes.seen == []


async def test_what_was_found_is_logged(open_app, valkey_server, consume, caplog):
    app, notes = await open_app(valkey_server, **QUICK), Notes()
    parcels = app.topic("parcels", type=str, partitions=1)
    consumer = await consume(parcels, notes)
    await eventually(lambda: [held.readable for held in consumer._serving] == [True])
    await stolen(app, parcels, consumer, "taken")
    await eventually(lambda: notes.seen == [("taken", 1)])
    await eventually(lambda: "1 messages were delivered but did not arrive" in caplog.text)
    assert [one.levelname for one in caplog.records if "arrive" in one.message] == ["WARNING"]


async def test_a_server_that_has_forgotten_the_latest_fence_is_read_on(open_app, place, consume):
    """A replica that took over, or a server that lost its last second, knows an earlier one."""
    app, notes = await open_app(place), Notes()
    orders = app.topic("orders", type=str, partitions=1)
    consumer = await consume(orders, notes)
    await eventually(lambda: [held.readable for held in consumer._serving] == [True])
    [held] = consumer._serving
    held.suspect_strays()
    await eventually(lambda: held.readable)
    keys = PartitionKeys.of(app.redis.keys, "orders", 0)
    assert held.fence == keys.fence("group", held.epoch + 1)
    await app.redis.call("HDEL", keys.epochs, "group:fence")
    await app.redis.call("DEL", held.fence)
    await orders.send("next")
    await eventually(lambda: notes.seen == [("next", 1)])
    assert consumer.counts.leases_lost == 0
