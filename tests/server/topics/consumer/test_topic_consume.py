"""Consuming: what handlers get, in which order, and how many at once."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import threading
import time
from typing import Any

import msgspec
import pytest
from tests.kit.lifecycle import check_lifecycle

from penstock.delivery.retries import Fixed, RetryPolicy
from penstock.settings import WorkerSettings
from penstock.testing.eventually import eventually
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.message import Message, Outgoing
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.subscription import Subscription

QUICK = RetryPolicy(max_attempts=3, backoff=Fixed(0.02))


class Order(msgspec.Struct):
    n: int
    customer: str = ""


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Together:
    """Counts how many run at once; each waits until as many as are expected do."""

    def __init__(self, expected: int) -> None:
        self.expected, self.now, self.most = expected, 0, 0
        self.met = asyncio.Event()

    async def __call__(self, _: Any) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self.expected:
            self.met.set()
        await self.met.wait()
        self.now -= 1


def numbers_of(seen: list[Any], key: str) -> list[int]:
    return [number for who, number in seen if who == key]


# ---- what a handler gets


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        (Order, Order(1, "ann")),
        (Point, Point(1, 2)),
        (dict, {"a": [1, None, "ä"]}),
        (str, "text with \x00 and \N{SNOWMAN}"),
        (bytes, b"\x00\xff raw"),
        (int, 2**60),
        (list[Order], [Order(1), Order(2)]),
        (Any, {"any": 1}),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
async def test_payloads_arrive_as_the_type_of_the_topic(app, consume, type_, payload):
    topic = app.topic("things", type=type_)
    await topic.send(payload)
    seen: list[Any] = []
    consumer = await consume(topic, lambda thing: seen.append(thing))  # noqa: PLW0108  a function
    await eventually(lambda: consumer.counts.handled == 1)
    assert seen == [payload]
    assert type(seen[0]) is type(payload)


async def test_a_message_tells_all_that_is_known_of_it(app, consume):
    orders = app.topic("orders", partitions=4, type=Order)
    before = time.time()
    sent = await orders.send(Order(7), key="ann", headers={"trace": "abc"})
    seen: list[Message] = []

    async def handle(order: Order, message: Message) -> None:
        assert message.payload is order
        seen.append(message)

    await consume(orders, handle, group="billing")
    [message] = await eventually(lambda: seen)
    assert message.id == sent
    assert (message.topic, message.group, message.key) == ("orders", "billing", "ann")
    assert message.headers == {"trace": "abc"}
    assert message.attempt == 1
    assert message.partition in range(4)
    assert abs(message.sent_ms / 1000 - before) < 5


async def test_handlers_of_every_shape_run(app, consume):
    orders = app.topic("orders", type=Order)
    await orders.send(Order(7))
    seen: list[str] = []

    async def payload(order: Order) -> None:
        seen.append(f"payload {order.n}")

    async def message(message: Message) -> None:
        seen.append(f"message {message.payload.n}")

    def blocking(order: Order, message: Message) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(f"blocking {order.n} {message.attempt}")

    async def more(prefix: str, order: Order) -> None:
        seen.append(f"{prefix} {order.n}")

    class Callable:
        async def __call__(self, order: Order) -> None:
            seen.append(f"object {order.n}")

    async def inner(order: Order) -> None:
        seen.append(f"wrapped {order.n}")

    @functools.wraps(inner)
    def returns_a_coroutine(order: Order) -> Any:
        return inner(order)

    handlers = (payload, message, blocking, functools.partial(more, "partial"), Callable())
    for number, handler in enumerate((*handlers, returns_a_coroutine)):
        await consume(orders, handler, group=f"g{number}")
    shapes = ["blocking 7 1", "message 7", "object 7", "partial 7", "payload 7", "wrapped 7"]
    await eventually(lambda: sorted(seen) == shapes)


async def test_a_plain_function_that_calls_an_async_one_fails_as_that_one_does(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send(1)
    attempts: list[int] = []

    async def inner(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 2:
            raise ValueError

    for ordering in ("partition", "key"):
        attempts.clear()

        def outer(message: Message) -> Any:
            return inner(message)

        consumer = await consume(orders, outer, group=ordering, ordering=ordering, retry=QUICK)
        await eventually(lambda c=consumer: c.counts.handled == 1)
        assert attempts == [1, 2]


async def test_every_group_gets_every_message(app, consume):
    orders = app.topic("orders", partitions=3, type=int)
    await orders.send_batch([Outgoing(n, key=str(n)) for n in range(50)])
    seen: dict[str, list[int]] = {"a": [], "b": []}
    for group, numbers in seen.items():

        async def handle(number: int, numbers: list[int] = numbers) -> None:
            numbers.append(number)

        await consume(orders, handle, group=group)
    await eventually(lambda: all(sorted(numbers) == list(range(50)) for numbers in seen.values()))


async def test_a_topic_is_made_by_its_consumer_and_new_messages_reach_it(app, consume):
    orders = app.topic("orders", partitions=2, type=int)
    seen: list[int] = []
    consumer = await consume(orders, lambda n: seen.append(n))  # noqa: PLW0108  a function
    await eventually(lambda: consumer.partitions == [0, 1])
    for number in range(5):
        await orders.send(number, key="k")
        await eventually(lambda n=number: seen == list(range(n + 1)))
    await eventually(lambda: consumer.counts.handled == 5)
    assert consumer.trouble() is None


# ---- order


async def test_a_partition_is_handled_strictly_one_by_one(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch(list(range(200)))
    running, seen = 0, []

    async def handle(number: int) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        seen.append(number)
        running -= 1

    await consume(orders, handle)
    await eventually(lambda: len(seen) == 200)
    assert seen == list(range(200))


async def test_partitions_run_side_by_side(app, consume):
    orders = app.topic("orders", partitions=4, type=int)
    for index in range(4):
        await orders.send(index, headers={"x-force-partition-id": str(index)})
    together = Together(4)
    consumer = await consume(orders, together)
    await eventually(lambda: consumer.counts.handled == 4)
    assert together.most == 4


async def test_blocking_handlers_run_side_by_side_too_however_few_cores_there_are(app, consume):
    orders = app.topic("orders", partitions=16, type=int)
    for index in range(16):
        await orders.send(index, headers={"x-force-partition-id": str(index)})
    barrier = threading.Barrier(16)

    def handle(_: int) -> None:
        barrier.wait(5)

    consumer = await consume(orders, handle, retry=RetryPolicy(max_attempts=1))
    await eventually(lambda: consumer.counts.handled == 16)
    assert consumer.counts.dead == 0


async def test_a_key_that_is_stuck_holds_up_no_other_key(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch(
        [Outgoing(n, key=key) for n in range(20) for key in ("stuck", "a", "b", None)]
    )
    seen: list[tuple[str | None, int]] = []
    release = asyncio.Event()

    async def handle(number: int, message: Message) -> None:
        if message.key == "stuck":
            await release.wait()
        seen.append((message.key, number))

    await consume(orders, handle, ordering="key", concurrency=4)
    await eventually(lambda: len(seen) == 60)
    assert numbers_of(seen, "stuck") == []
    release.set()
    await eventually(lambda: len(seen) == 80)
    for key in ("stuck", "a", "b"):
        assert numbers_of(seen, key) == list(range(20))


async def test_without_order_a_stuck_message_holds_up_nothing(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([Outgoing(n, key="one") for n in range(30)])
    seen: list[int] = []
    release = asyncio.Event()

    async def handle(number: int) -> None:
        if number == 0:
            await release.wait()
        seen.append(number)

    await consume(orders, handle, ordering="none", concurrency=3)
    await eventually(lambda: len(seen) == 29)
    release.set()
    await eventually(lambda: len(seen) == 30)
    assert seen[-1] == 0


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_no_more_handlers_run_at_once_than_allowed(app, consume, ordering):
    orders = app.topic("orders", partitions=6, type=int)
    for n in range(30):
        headers = {"x-force-partition-id": str(n % 6)}
        await orders.send(n, key=str(n), headers=headers)
    together = Together(3)
    consumer = await consume(orders, together, ordering=ordering, concurrency=3)
    await eventually(lambda: consumer.counts.handled == 30)
    assert together.most == 3


# ---- how much is fetched


@pytest.mark.parametrize("ordering", ["partition", "key"])
@pytest.mark.parametrize("most", [1, 5])
async def test_nothing_more_is_read_than_may_be_in_flight(app, consume, ordering, most):
    orders = app.topic("orders", partitions=3, type=int)
    for n in range(60):
        await orders.send(n, key=str(n), headers={"x-force-partition-id": str(n % 3)})
    release = asyncio.Event()
    began = asyncio.Event()

    async def handle(_: int) -> None:
        began.set()
        await release.wait()

    consumer = await consume(orders, handle, ordering=ordering, max_inflight=most)
    await began.wait()

    async def pending() -> int:
        counts = [
            await app.redis.call(
                "XPENDING", PartitionKeys.of(app.redis.keys, "orders", i).stream, "group"
            )
            for i in range(3)
        ]
        return sum(count[0] for count in counts)

    await eventually(pending)
    for _ in range(5):
        assert await pending() <= most
        await asyncio.sleep(0.05)
    release.set()
    await eventually(lambda: consumer.counts.handled == 60)


async def test_a_busy_partition_does_not_wait_for_quiet_ones(open_app, consume, place):
    app = await open_app(place, worker=WorkerSettings(poll_s=90))
    orders = app.topic("orders", partitions=4, type=int)
    await orders.send_batch([Outgoing(n, key="one") for n in range(20_000)])
    consumer = await consume(orders, no_op)
    await eventually(lambda: consumer.counts.handled == 20_000)


async def no_op(_: int) -> None: ...


async def test_many_partitions_are_read_however_few_connections_there_are(app, consume):
    orders = app.topic("orders", partitions=64, type=int)
    for index in range(64):
        await orders.send(index, headers={"x-force-partition-id": str(index)})
    consumer = await consume(orders, no_op)
    await eventually(lambda: consumer.counts.handled == 64)


# ---- where a group starts


async def test_a_group_starts_at_the_beginning_at_the_end_or_at_an_id(app, consume):
    orders = app.topic("orders", type=int)
    ids = [await orders.send(n) for n in range(4)]
    seen: dict[str, list[int]] = {"earliest": [], "latest": [], ids[1]: []}
    consumers = []
    for number, (start, numbers) in enumerate(seen.items()):

        async def handle(payload: int, numbers: list[int] = numbers) -> None:
            numbers.append(payload)

        consumers.append(await consume(orders, handle, group=f"g{number}", start=start))
    await eventually(lambda: all(consumer.partitions for consumer in consumers))
    await orders.send(4)
    await eventually(
        lambda: seen == {"earliest": [0, 1, 2, 3, 4], "latest": [4], ids[1]: [2, 3, 4]}
    )


async def test_a_group_that_is_known_goes_on_where_it_was(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1])
    first: list[int] = []
    consumer = await consume(orders, lambda n: first.append(n))  # noqa: PLW0108
    await eventually(lambda: consumer.counts.handled == 2)
    await consumer.stop()
    await orders.send_batch([2, 3])
    second: list[int] = []
    again = await consume(orders, lambda n: second.append(n), start="latest")  # noqa: PLW0108
    await eventually(lambda: again.counts.handled == 2)
    assert (first, second) == ([0, 1], [2, 3])


async def test_a_group_that_somebody_destroyed_goes_on_where_all_was_settled(app, consume, caplog):
    orders = app.topic("orders", type=int)
    seen: list[int] = []
    consumer = await consume(orders, lambda n: seen.append(n))  # noqa: PLW0108
    await orders.send_batch([0, 1, 2])
    await eventually(lambda: consumer.counts.handled == 3)
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    with caplog.at_level(logging.ERROR):
        assert await app.redis.call("XGROUP", "DESTROY", stream, "group") == 1
        await orders.send_batch([3, 4])
        await eventually(lambda: seen == [0, 1, 2, 3, 4])
    assert "was lost" in caplog.text


# ---- life


async def test_a_consumer_keeps_the_contract_of_a_service(app):
    orders = app.topic("orders", partitions=2, type=int)
    await orders.send_batch(list(range(10)))
    for ordering in ("partition", "key"):
        told = Subscription(group=ordering, ordering=ordering)
        await check_lifecycle(lambda told=told: Consumer(orders, no_op, told), within_s=20)


async def test_a_worker_runs_every_subscription_until_asked_to_stop(app):
    orders = app.topic("orders", partitions=2, type=int)
    seen: list[tuple[str, int]] = []

    @orders.subscribe("billing")
    async def bill(number: int) -> None:
        seen.append(("billing", number))

    @app.subscribe("orders", "mail", ordering="key")
    async def mail(number: int) -> None:
        seen.append(("mail", number))

    await orders.send_batch([1, 2])
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    expected = sorted((group, n) for group in ("billing", "mail") for n in (1, 2))
    await eventually(lambda: sorted(seen) == expected)
    await orders.send(3, delay=0.05)
    await eventually(lambda: len(seen) == 6)
    worker.ask_to_stop()
    async with asyncio.timeout(60):
        assert await running == 0


async def test_a_handler_that_blocks_the_loop_past_the_lease_handles_each_message_once(
    app, consume
):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1, 2])
    seen: list[int] = []

    async def handle(number: int) -> None:
        seen.append(number)
        if number == 0:
            time.sleep(2)  # noqa: ASYNC251  that is the mistake

    consumer = await consume(orders, handle)
    await eventually(lambda: consumer.counts.handled == 3)
    assert seen == [0, 1, 2]


async def test_a_server_that_goes_away_and_comes_back_is_waited_for(
    open_app, consume, fault_proxy, valkey_server
):
    proxy = fault_proxy(valkey_server)
    app = await open_app(proxy.url)
    direct = await open_app(valkey_server)
    orders, sender = app.topic("orders", type=int), direct.topic("orders", type=int)
    seen: list[int] = []
    consumer = await consume(orders, lambda n: seen.append(n))  # noqa: PLW0108
    await sender.send_batch(list(range(100)))
    await eventually(lambda: consumer.counts.handled == 100)
    proxy.refuse()
    proxy.cut()
    await sender.send_batch(list(range(100, 200)))
    await eventually(lambda: consumer.trouble() is not None)
    proxy.heal()
    await eventually(lambda: consumer.counts.handled == 200)
    assert seen == list(range(200))
    await eventually(lambda: consumer.trouble() is None)


# ---- every supported server


@pytest.fixture
async def any_app(any_server, open_app):
    return await open_app(any_server)


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_every_server_delivers_retries_and_buries(any_app, consume, ordering):
    orders = any_app.topic("orders", partitions=3, type=int)
    await orders.send_batch([Outgoing(n, key=str(n % 7)) for n in range(100)])
    seen: list[tuple[int, int]] = []

    async def handle(number: int, message: Message) -> None:
        seen.append((number, message.attempt))
        if number == 13 or (number == 7 and message.attempt == 1):
            raise ValueError(number)

    consumer = await consume(orders, handle, ordering=ordering, retry=QUICK)
    await eventually(lambda: consumer.counts.handled == 100)
    assert sorted(seen) == sorted([(n, 1) for n in range(100)] + [(7, 2), (13, 2), (13, 3)])
    [letter] = (await orders.dead_letters.list()).letters
    assert (letter.payload.text, letter.attempts) == ("13", 3)


async def test_every_server_serves_batches(any_app, consume):
    orders = any_app.topic("orders", partitions=2, type=int)
    await orders.send_batch(list(range(50)))
    seen: list[int] = []

    async def handle(batch: list[int]) -> None:
        seen.extend(batch)

    consumer = await consume(orders, handle, batch=8)
    await eventually(lambda: consumer.counts.handled == 50)
    assert sorted(seen) == list(range(50))


async def test_no_server_gives_a_partition_that_was_handed_over_to_its_old_owner(
    any_app, consume, open_app, any_server
):
    """A read that blocks while its partition passes on must not be served afterwards."""
    other = await open_app(any_server, worker=WorkerSettings(poll_s=5))
    orders = other.topic("orders", partitions=2, type=int)
    seen: list[int] = []
    first = await consume(orders, lambda n: seen.append(n))  # noqa: PLW0108
    await eventually(lambda: first.partitions == [0, 1])
    second = await consume(any_app.topic("orders", type=int), lambda n: seen.append(n))  # noqa: PLW0108
    await eventually(lambda: len(first.partitions) == len(second.partitions) == 1)
    for n in range(10):
        await orders.send(n, headers={"x-force-partition-id": str(n % 2)})
    await eventually(lambda: sorted(seen) == list(range(10)))
    await eventually(lambda: first.counts.handled + second.counts.handled == 10)
