"""A key that fails, or whose handler takes long, delays its own messages alone."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from penstock.delivery.retries import Fixed, RetryPolicy
from penstock.testing.eventually import eventually
from penstock.topics.admin.retention import trim_partition
from penstock.topics.consumer.owned_partition import PartitionState
from penstock.topics.message import Message, Outgoing
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.metadata import Retention

BACKLOG, HEALTHY_KEYS, HEALTHY = 5_000, 50, 500
LATER = RetryPolicy(max_attempts=5, backoff=Fixed(3_600))


class Notes:
    """Notes number and attempt of each message by key; fails or waits for one key."""

    def __init__(self, *, fails: str = "", waits: str = "") -> None:
        self.fails, self.waits = fails, waits
        self.go_on = asyncio.Event()
        self.seen: dict[str, list[tuple[int, int]]] = {}

    async def __call__(self, message: Message) -> None:
        key = message.key or ""
        self.seen.setdefault(key, []).append((message.payload, message.attempt))
        if key.startswith(self.waits) and self.waits:
            await self.go_on.wait()
        if key.startswith(self.fails) and self.fails:
            raise ValueError

    def healthy(self):
        """How many messages of the other keys were begun."""
        held_up = self.fails or self.waits
        return sum(len(seen) for key, seen in self.seen.items() if not key.startswith(held_up))


async def send_backlog(orders, key, backlog=BACKLOG):
    """A backlog of one key, then messages of fifty others."""
    await orders.send_batch([Outgoing(number, key=key) for number in range(backlog)])
    await orders.send_batch(
        [Outgoing(number, key=f"fine-{number % HEALTHY_KEYS}") for number in range(HEALTHY)]
    )


async def pending(app, count=BACKLOG + HEALTHY):
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    return await app.redis.call("XPENDING", stream, "group", "-", "+", count)


async def are_pending(app, count):
    return len(await pending(app)) == count


async def let_retry_be_due(app):
    """Let what waits for a retry be due for the next owner."""
    retries = PartitionKeys.of(app.redis.keys, "orders", 0).retry("group")
    for id_ in await app.redis.call("ZRANGE", retries, 0, -1):
        await app.redis.call("ZADD", retries, 1, id_)


async def test_a_failing_key_with_a_backlog_delays_its_key_alone(open_app, place, consume):
    app, notes = await open_app(place, audit_s=0.1), Notes(fails="bad")
    orders = app.topic("orders", type=int, partitions=1)
    await send_backlog(orders, "bad")
    first = await consume(orders, notes, ordering="key", retry=LATER)
    await eventually(lambda: notes.healthy() == HEALTHY)
    assert notes.seen["bad"] == [(0, 1)]
    [held] = first._serving
    await eventually(lambda: held.budget.buffered == 0)
    assert first._budget.left == first._max_inflight
    assert not list(held.queued())
    assert len(first._runner.left(held)) < 64  # ids that the server does not know of yet
    await eventually(lambda: are_pending(app, BACKLOG))
    parked = await pending(app)
    assert sum(row[3] for row in parked[1:]) < 64  # all others count as not delivered
    fence = held.fence
    await asyncio.sleep(0.4)  # a few looks for strays
    assert (first.counts.strays, held.fence) == (0, fence)
    await first.stop()
    assert [row[3] for row in await pending(app)] == [1] + [0] * (BACKLOG - 1)

    await let_retry_be_due(app)
    after = Notes()
    await consume(orders, after, ordering="key", retry=LATER)
    await eventually(lambda: len(after.seen.get("bad", ())) == BACKLOG)
    assert after.seen["bad"] == [(0, 2), *((number, 1) for number in range(1, BACKLOG))]
    await eventually(lambda: is_settled(app))


async def is_settled(app):
    return await pending(app, 1) == []


async def test_a_failing_key_goes_on_in_order_where_it_is(open_app, place, consume):
    app, notes = await open_app(place), Notes(fails="bad")
    orders = app.topic("orders", type=int, partitions=1)
    await send_backlog(orders, "bad", 1_000)
    policy = RetryPolicy(max_attempts=100, backoff=Fixed(0.2))
    await consume(orders, notes, ordering="key", retry=policy)
    await eventually(lambda: notes.healthy() == HEALTHY and len(notes.seen["bad"]) > 2)
    notes.fails = ""
    await orders.send(1_000, key="bad")
    await eventually(lambda: is_settled(app))
    failed = notes.seen["bad"].index((0, 1)), len(notes.seen["bad"]) - 1_000
    assert notes.seen["bad"][: failed[1]] == [(0, n) for n in range(1, failed[1] + 1)]
    assert notes.seen["bad"][failed[1] :] == [(number, 1) for number in range(1, 1_001)]


async def test_a_key_whose_handler_takes_long_delays_its_key_alone(open_app, place, consume):
    app, notes = await open_app(place), Notes(waits="slow")
    orders = app.topic("orders", type=int, partitions=1)
    await send_backlog(orders, "slow")
    consumer = await consume(orders, notes, ordering="key")
    await eventually(lambda: notes.healthy() == HEALTHY)
    assert notes.seen["slow"] == [(0, 1)]
    notes.go_on.set()
    await eventually(lambda: is_settled(app))
    assert notes.seen["slow"] == [(number, 1) for number in range(BACKLOG)]
    assert consumer.counts.strays == 0
    [held] = consumer._serving
    await eventually(lambda: held.budget.buffered == 0)
    assert consumer._budget.left == consumer._max_inflight


async def test_failing_keys_that_are_more_than_may_be_in_flight_delay_no_others(
    open_app, place, consume
):
    app, notes = await open_app(place), Notes(fails="bad")
    orders = app.topic("orders", type=int, partitions=1)
    await orders.send_batch([Outgoing(number, key=f"bad-{number}") for number in range(200)])
    await orders.send_batch([Outgoing(number, key=f"fine-{number}") for number in range(20)])
    policy = RetryPolicy(max_attempts=50, backoff=Fixed(0.5))
    await consume(orders, notes, ordering="key", retry=policy, max_inflight=20)
    await eventually(lambda: notes.healthy() == 20)
    await eventually(lambda: all(len(seen) > 1 for key, seen in notes.seen.items() if key < "f"))
    notes.fails = ""
    await eventually(lambda: is_settled(app))
    for key, seen in notes.seen.items():
        assert [attempt for _, attempt in seen] == list(range(1, len(seen) + 1)), key


async def test_retries_that_never_pause_leave_half_of_the_time_to_others(
    open_app, valkey_server, consume
):
    app, notes = await open_app(valkey_server), Notes(fails="bad")
    orders = app.topic("orders", type=int, partitions=1)
    await orders.send_batch([Outgoing(number, key=f"bad-{number}") for number in range(100)])
    await orders.send_batch([Outgoing(number, key="fine") for number in range(50)])
    policy = RetryPolicy(max_attempts=100_000, backoff=Fixed(0))
    consumer = await consume(orders, notes, ordering="key", retry=policy, max_inflight=20)
    await eventually(lambda: notes.healthy() == 50)
    assert consumer.counts.retried > 50
    notes.fails = ""
    await eventually(lambda: is_settled(app))


async def test_a_failing_key_of_large_messages_leaves_bytes_to_others(
    open_app, valkey_server, consume
):
    app = await open_app(valkey_server, fetch_bytes=65_536, max_inflight_bytes=65_536)
    orders, notes = app.topic("orders", partitions=1), Notes(fails="bad")
    large = "".join(map(str, range(8_000)))
    await orders.send_batch([Outgoing(f"{number} {large}", key="bad") for number in range(30)])
    await orders.send_batch([Outgoing(number, key=f"fine-{number}") for number in range(20)])
    await consume(orders, notes, ordering="key", retry=LATER)
    await eventually(lambda: notes.healthy() == 20)
    assert len(notes.seen["bad"]) == 1


async def test_parked_messages_that_are_trimmed_away_are_counted_and_settled(
    open_app, valkey_server, consume
):
    app, notes = await open_app(valkey_server), Notes(waits="slow")
    orders = app.topic("orders", type=int, partitions=1)
    await send_backlog(orders, "slow", 500)
    consumer = await consume(orders, notes, ordering="key")
    await eventually(lambda: notes.healthy() == HEALTHY)
    await trim_partition(app.redis, "orders", 0, Retention(hard_length=HEALTHY + 100))
    notes.go_on.set()
    await eventually(lambda: is_settled(app))
    assert consumer.counts.vanished == 399  # but the first one, which is being handled
    assert notes.seen["slow"] == [(0, 1), *((number, 1) for number in range(400, 500))]


async def test_a_stray_beside_parked_messages_is_found(open_app, valkey_server, consume):
    app, notes = await open_app(valkey_server, audit_s=0.1), Notes(fails="bad")
    orders = app.topic("orders", type=int, partitions=1)
    await send_backlog(orders, "bad", 1_000)
    consumer = await consume(orders, notes, ordering="key", retry=LATER)
    await eventually(lambda: notes.healthy() == HEALTHY)
    [held] = consumer._serving
    held.state = PartitionState.OPENING
    await next(iter(consumer._readers.values())).exclude(held)
    await orders.send(1, key="fine-1")
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XREADGROUP", "GROUP", "group", "penstock", "STREAMS", stream, ">")
    held.start_reading()
    await next(iter(consumer._readers.values())).read_again()
    await eventually(lambda: notes.healthy() == HEALTHY + 1)
    assert consumer.counts.strays == 1
    assert notes.seen["bad"] == [(0, 1)]


@pytest.mark.torture
async def test_a_backlog_of_a_hundred_thousand_takes_little_memory(
    open_app, valkey_server, consume, figure
):
    app, notes = await open_app(valkey_server), Notes(fails="bad")
    orders = app.topic("orders", partitions=1)
    body = "x" * 1_000
    for first in range(0, 100_000, 5_000):
        await orders.send_batch([Outgoing(body, key="bad")] * 5_000)
        del first
    await send_backlog(orders, "bad", 1)
    tracemalloc.start()
    await consume(orders, notes, ordering="key", retry=LATER)
    await eventually(lambda: notes.healthy() == HEALTHY, 110)
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    figure("topics", "memory of 100,000 parked messages", current / 1e6, "MB", "<=", 15)
