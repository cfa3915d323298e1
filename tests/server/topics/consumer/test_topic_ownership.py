"""Who owns which partition: fair shares, hand-over without loss, takeover in order."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from penstock.delivery.retries import RetryPolicy
from penstock.settings import WorkerSettings
from penstock.testing.eventually import eventually
from penstock.topics.consumer.owned_partition import PartitionState
from penstock.topics.message import Message, Outgoing
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.scripts import CONSUMER

ONCE = RetryPolicy(max_attempts=1)


async def no_op(_: Any) -> None: ...


def owned(consumers):
    return [consumer.partitions for consumer in consumers]


def shares_are(consumers, *expected):
    """Every partition has one owner, and the shares are as expected."""
    partitions = [index for consumer in consumers for index in consumer.partitions]
    return sorted(partitions) == list(range(sum(expected))) and sorted(
        map(len, owned(consumers)), reverse=True
    ) == list(expected)


async def pending_counts(app, partition=0, group="group"):
    stream = PartitionKeys.of(app.redis.keys, "orders", partition).stream
    rows = await app.redis.call("XPENDING", stream, group, "-", "+", 1_000)
    return [row[3] for row in rows]


async def send_numbers(topic, count, partitions):
    for n in range(count):
        await topic.send(n, key=str(n), headers={"x-force-partition-id": str(n % partitions)})


# ---- shares


async def test_consumers_share_partitions_and_take_over_from_who_leaves(app, consume):
    orders = app.topic("orders", partitions=6, type=int)
    first = await consume(orders, no_op)
    await eventually(lambda: first.partitions == [0, 1, 2, 3, 4, 5])
    second = await consume(orders, no_op)
    await eventually(lambda: shares_are([first, second], 3, 3))
    third = await consume(orders, no_op)
    await eventually(lambda: shares_are([first, second, third], 2, 2, 2))
    await first.stop()
    await eventually(lambda: shares_are([second, third], 3, 3))
    await third.stop()
    await eventually(lambda: second.partitions == [0, 1, 2, 3, 4, 5])


async def test_a_newcomer_takes_its_share_and_nothing_else_moves(app, consume):
    orders = app.topic("orders", partitions=8, type=int)
    consumers = [await consume(orders, no_op)]
    await eventually(lambda: shares_are(consumers, 8))
    for expected in ((4, 4), (3, 3, 2), (2, 2, 2, 2)):
        before = owned(consumers)
        consumers.append(await consume(orders, no_op))
        await eventually(lambda e=expected: shares_are(consumers, *e))
        after = owned(consumers)
        assert all(set(now) <= set(then) for then, now in zip(before, after, strict=False))


async def test_more_consumers_than_partitions_wait_for_their_turn(app, consume):
    orders = app.topic("orders", partitions=2, type=int)
    consumers = [await consume(orders, no_op) for _ in range(4)]
    await eventually(lambda: shares_are(consumers, 1, 1, 0, 0))
    for consumer in [one for one in consumers if one.partitions]:
        await consumer.stop()
    rest = [one for one in consumers if not one.ended]
    await eventually(lambda: shares_are(rest, 1, 1))


async def test_one_of_two_consumers_handles_all_of_one_partition(app, consume):
    orders = app.topic("orders", type=int)
    seen: list[tuple[str, int]] = []
    consumers = []
    for name in ("a", "b"):

        async def handle(number: int, name: str = name) -> None:
            seen.append((name, number))

        consumers.append(await consume(orders, handle))
    await eventually(lambda: not any(one.trouble() for one in consumers))
    # The one partition goes to the first by name, be it the one that came later.
    first = min(consumers, key=lambda one: one._assignment.name)
    await eventually(lambda: first.partitions == [0])
    for n in range(10):
        await orders.send(n)
    await eventually(lambda: len(seen) == 10)
    assert len({name for name, _ in seen}) == 1
    assert [n for _, n in seen] == list(range(10))


async def test_a_retry_that_was_due_at_the_takeover_is_handled_once(app, consume):
    count = 450  # more than a page of what is pending
    orders = app.topic("orders", partitions=1, type=int)
    await orders.send_batch(range(count))
    call, keys = app.redis.call, PartitionKeys.of(app.redis.keys, "orders", 0)
    await call("XGROUP", "CREATE", keys.stream, "group", 0)
    read = ("XREADGROUP", "GROUP", "group", CONSUMER, "STREAMS", keys.stream, ">")
    [(_, entries)] = await call(*read)
    await call("ZADD", keys.retry("group"), 1, entries[-1][0])
    attempts: list[int] = []
    others_ended = asyncio.Event()

    async def handle(number: int, message: Message) -> None:
        if number == count - 1:
            attempts.append(message.attempt)
            await others_ended.wait()

    consumer = await consume(orders, handle, ordering="none")
    await eventually(lambda: consumer.counts.handled == count - 1)
    await eventually(lambda: [held.readable for held in consumer._serving] == [True])
    others_ended.set()
    await eventually(lambda: consumer.counts.handled == count)
    assert attempts == [2]


async def test_a_cap_and_a_pin_are_kept(app, consume):
    orders = app.topic("orders", partitions=8, type=int)
    capped = await consume(orders, no_op, max_partitions=1)
    await eventually(lambda: len(capped.partitions) == 1)
    pinned = await consume(orders, no_op, pin=(4, 1))
    other = await consume(orders, no_op)
    await eventually(lambda: pinned.partitions == [1, 5])
    await eventually(lambda: len(capped.partitions) == 1 and len(other.partitions) == 5)
    everything = sorted(capped.partitions + pinned.partitions + other.partitions)
    assert everything == list(range(8))


async def test_a_pin_takes_its_partitions_from_who_has_them(app, consume):
    orders = app.topic("orders", partitions=4, type=int)
    first = await consume(orders, no_op)
    await eventually(lambda: first.partitions == [0, 1, 2, 3])
    pinned = await consume(orders, no_op, pin=(2, 1))
    await eventually(lambda: (first.partitions, pinned.partitions) == ([0, 2], [1, 3]))


async def test_who_gives_a_partition_up_before_it_was_read_is_ready_without_it(app, consume):
    orders = app.topic("orders", partitions=1, type=int)
    first = await consume(orders, no_op)
    await eventually(lambda: first.partitions == [0] and not first.trouble())
    [held], [reader] = first._serving, first._readers.values()
    held.state, reader.begun = PartitionState.OPENING, False  # as while it is taken over
    await reader.read_again()
    pinned = await consume(orders, no_op, pin=(1, 0))
    await eventually(lambda: pinned.partitions == [0])
    await eventually(lambda: not first.trouble())


async def test_groups_do_not_share_with_each_other(app, consume):
    orders = app.topic("orders", partitions=2, type=int)
    consumers = [await consume(orders, no_op, group=group) for group in ("a", "b")]
    await eventually(lambda: owned(consumers) == [[0, 1], [0, 1]])


# ---- handing over


@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_a_partition_is_handed_over_when_its_handler_has_ended(app, consume, ordering):
    orders = app.topic("orders", partitions=2, type=int)
    await send_numbers(orders, 20, 2)
    seen: list[tuple[str, int, int]] = []
    release, began = asyncio.Event(), asyncio.Event()

    async def slow(message: Message) -> None:
        began.set()
        await release.wait()
        seen.append(("slow", message.payload, message.attempt))

    async def quick(message: Message) -> None:
        seen.append(("quick", message.payload, message.attempt))

    options = {"ordering": ordering, "concurrency": 2, "retry": ONCE}
    first = await consume(orders, slow, **options)
    await began.wait()
    await eventually(lambda: len(first.partitions) == 2)
    second = await consume(orders, quick, **options)
    await eventually(lambda: len(first.partitions) == 1)
    assert second.partitions == []
    assert seen == []
    release.set()
    await eventually(lambda: len(second.partitions) == 1)
    await eventually(lambda: len(seen) == 20)
    assert sorted(number for _, number, _ in seen) == list(range(20))
    assert {attempt for _, _, attempt in seen} == {1}
    assert {name for name, _, _ in seen} == {"slow", "quick"}


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
@pytest.mark.faults
async def test_a_rolling_restart_under_load_handles_everything_exactly_once(app, consume, ordering):
    """With one attempt each: nothing is charged that was fetched but not begun."""
    orders = app.topic("orders", partitions=4, type=int)
    seen: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.payload, message.attempt))
        await asyncio.sleep(0.0005)

    async def produce() -> None:
        for first in range(0, 3_000, 50):
            await orders.send_batch([Outgoing(n, key=str(n)) for n in range(first, first + 50)])
            await asyncio.sleep(0.005)

    options = {"ordering": ordering, "retry": ONCE}
    crew = [await consume(orders, handle, **options) for _ in range(3)]
    producing = asyncio.create_task(produce())
    for place in (0, 1, 2):
        await eventually(lambda p=place: len(seen) > 500 * (p + 1))
        await crew[place].stop()
        crew[place] = await consume(orders, handle, **options)
    await producing
    await eventually(lambda: len(seen) >= 3_000)
    await eventually(lambda: sum(c.counts.handled for c in crew) > 0)
    assert Counter(number for number, _ in seen) == Counter(range(3_000))
    assert {attempt for _, attempt in seen} == {1}
    assert (await orders.dead_letters.list()).letters == []


async def test_a_stop_releases_at_once_and_charges_nothing_that_was_not_begun(
    open_app, place, consume
):
    app = await open_app(place, lease_ttl_s=100, worker=WorkerSettings(poll_s=5))
    orders = app.topic("orders", type=int)
    await orders.send_batch(list(range(30)))
    began, release = asyncio.Event(), asyncio.Event()
    first_seen: list[int] = []

    async def slow(number: int) -> None:
        first_seen.append(number)
        began.set()
        await release.wait()

    first = await consume(orders, slow)
    await began.wait()
    await eventually(lambda: pending_counts(app))
    stopping = asyncio.create_task(first.stop())
    await eventually(lambda: first.stopping)
    release.set()
    async with asyncio.timeout(60):
        await stopping
    assert first_seen == [0]
    assert set(await pending_counts(app)) <= {0}
    seen: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.payload, message.attempt))

    second = await consume(orders, handle, retry=ONCE)
    await eventually(lambda: second.counts.handled == 29)
    assert seen == [(n, 1) for n in range(1, 30)]


async def test_an_idle_consumer_stops_at_once_however_long_it_polls(open_app, place, consume):
    app = await open_app(place, worker=WorkerSettings(poll_s=30))
    orders = app.topic("orders", partitions=3, type=int)
    consumer = await consume(orders, no_op)
    await eventually(lambda: consumer.partitions == [0, 1, 2])
    async with asyncio.timeout(20):
        await consumer.stop()


async def test_a_partition_newly_taken_is_read_at_once_however_long_the_poll(
    open_app, place, consume
):
    app = await open_app(place, worker=WorkerSettings(poll_s=30))
    orders = app.topic("orders", partitions=2, type=int)
    first = await consume(orders, no_op)
    await eventually(lambda: first.partitions == [0, 1])
    second = await consume(orders, no_op)
    await eventually(lambda: shares_are([first, second], 1, 1))
    await first.stop()
    await eventually(lambda: second.partitions == [0, 1])
    await send_numbers(orders, 10, 2)
    await eventually(lambda: first.counts.handled + second.counts.handled == 10, 20)


# ---- taking over


async def read_by_hand(app, count, partition=0):
    """Leave messages as an owner does that was killed: delivered, never acknowledged."""
    stream = PartitionKeys.of(app.redis.keys, "orders", partition).stream
    await app.redis.call("XGROUP", "CREATE", stream, "group", 0)
    read = ("XREADGROUP", "GROUP", "group", "penstock", "COUNT", count, "STREAMS", stream, ">")
    await app.redis.call(*read)


@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_what_a_dead_owner_left_comes_first_and_in_order(app, consume, ordering):
    orders = app.topic("orders", type=int)
    await orders.send_batch([Outgoing(n, key="k") for n in range(700)])
    await read_by_hand(app, 450)
    seen: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.payload, message.attempt))

    consumer = await consume(orders, handle, ordering=ordering)
    await eventually(lambda: consumer.counts.handled == 700)
    assert seen == [(n, 2) for n in range(450)] + [(n, 1) for n in range(450, 700)]
    assert consumer.counts.recovered == 450


async def test_messages_that_a_foreign_consumer_took_are_handled(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1])
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XGROUP", "CREATE", stream, "group", 0)
    read = ("XREADGROUP", "GROUP", "group", "somebody-else", "STREAMS", stream, ">")
    await app.redis.call(*read)
    seen: list[int] = []

    async def handle(number: int) -> None:
        seen.append(number)

    consumer = await consume(orders, handle)
    await eventually(lambda: consumer.counts.handled == 2)
    assert seen == [0, 1]


async def test_messages_that_were_trimmed_while_pending_are_counted_not_waited_for(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1, 2])
    await read_by_hand(app, 2)
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XTRIM", stream, "MAXLEN", "=", 1)
    seen: list[int] = []

    async def handle(number: int) -> None:
        seen.append(number)

    consumer = await consume(orders, handle)
    await eventually(lambda: seen == [2])
    await eventually(lambda: consumer.counts.vanished == 2)

    async def all_acked():
        return await pending_counts(app) == []

    await eventually(all_acked)


async def test_a_lease_that_nobody_renews_passes_on(app, consume):
    orders = app.topic("orders", type=int)
    await orders.metadata()
    lease = PartitionKeys.of(app.redis.keys, "orders", 0).lease("group")
    await app.redis.call("SET", lease, "a-consumer-that-was-killed", "PX", 500)
    consumer = await consume(orders, no_op)
    await orders.send(1)
    await eventually(lambda: consumer.counts.handled == 1)


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "in a thread"])
async def test_a_handler_that_outlasts_many_leases_runs_once(open_app, consume, place, blocking):
    lease_s, begun, ended = 0.4, [], []

    async def slow(number: int) -> None:
        begun.append(number)
        await asyncio.sleep(5 * lease_s)
        ended.append(number)

    def slow_in_a_thread(number: int) -> None:
        begun.append(number)
        time.sleep(5 * lease_s)
        ended.append(number)

    app = await open_app(place, lease_ttl_s=lease_s)
    orders = app.topic("orders", type=int)
    handler = slow_in_a_thread if blocking else slow
    consumers = [await consume(orders, handler) for _ in range(2)]
    await orders.send(1)
    await eventually(lambda: sum(one.counts.handled for one in consumers) == 1)
    assert (begun, ended) == ([1], [1])
    assert sum(one.counts.leases_lost for one in consumers) == 0


async def test_an_owner_that_lost_its_partition_changes_nothing_and_says_so(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1])
    began, release = asyncio.Event(), asyncio.Event()

    async def slow(_: int) -> None:
        began.set()
        await release.wait()

    consumer = await consume(orders, slow)
    await began.wait()
    keys = PartitionKeys.of(app.redis.keys, "orders", 0)
    await app.redis.call("HINCRBY", keys.epochs, "group", 5)
    await app.redis.call("SET", keys.lease("group"), "another", "PX", 60_000)
    await eventually(lambda: consumer.counts.leases_lost == 1)
    release.set()
    await eventually(lambda: consumer.partitions == [])

    async def uncharged():
        return await pending_counts(app) == [0, 0]

    await eventually(uncharged)
    assert consumer.counts.handled == 0


async def test_a_consumer_that_is_cancelled_leaves_its_partitions_at_once(open_app, place, consume):
    app = await open_app(place, lease_ttl_s=60)
    orders = app.topic("orders", partitions=2, type=int)
    first = await consume(orders, no_op)
    await eventually(lambda: first.partitions == [0, 1])
    first._task.cancel()
    await asyncio.wait([first._task])
    second = await consume(orders, no_op)
    await eventually(lambda: second.partitions == [0, 1], 40)


# ---- growing


@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_each_key_keeps_its_order_while_its_topic_grows(open_app, place, consume, ordering):
    app = await open_app(place, refresh_s=0.1)
    orders = app.topic("orders", type=int)
    keys = [f"k{n}" for n in range(20)]
    seen: dict[str | None, list[int]] = {key: [] for key in keys}

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.001)
        seen[message.key].append(message.payload)

    crew = [await consume(orders, handle, ordering=ordering, retry=ONCE) for _ in range(2)]
    sent = 0

    async def send_for_each_key(times: int) -> None:
        nonlocal sent
        for _ in range(times):
            await orders.send_batch([Outgoing(sent, key=key) for key in keys])
            sent += 1

    await send_for_each_key(10)
    growing = asyncio.create_task(app.topics.grow("orders", 5))
    while not growing.done():
        await send_for_each_key(1)
        await asyncio.sleep(0.01)
    await growing
    await send_for_each_key(10)
    await eventually(lambda: all(len(numbers) == sent for numbers in seen.values()))
    assert all(numbers == list(range(sent)) for numbers in seen.values())
    await eventually(lambda: shares_are(crew, 3, 2))
    assert (await orders.dead_letters.list()).letters == []
