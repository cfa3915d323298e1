"""Retries in place, and what ends in the dead letters."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import msgspec
import pytest
import zstandard

from penstock.delivery.retries import DeadLetter, Fixed, Retry, RetryPolicy
from penstock.testing.eventually import eventually
from penstock.topics.message import Message, Outgoing
from penstock.topics.storage.keys import PartitionKeys, TopicKeys

QUICK = RetryPolicy(max_attempts=3, backoff=Fixed(0.02))
LATER = RetryPolicy(max_attempts=3, backoff=Fixed(60))


class Order(msgspec.Struct):
    n: int


class Busy(Exception):
    retry_after = 0.2


async def letters_of(topic):
    return (await topic.dead_letters.list()).letters


async def stored(app, partition=0):
    stream = PartitionKeys.of(app.redis.keys, "orders", partition).stream
    return await app.redis.call("XRANGE", stream, "-", "+")


class Attempts:
    """Notes every attempt; fails those up to a number."""

    def __init__(self, fail_until: int, error: Exception | None = None) -> None:
        self.fail_until, self.error = fail_until, error or ValueError("no")
        self.seen: list[tuple[Any, int]] = []
        self.ids: list[str] = []

    async def __call__(self, message: Message) -> Any:
        self.seen.append((message.payload, message.attempt))
        self.ids.append(message.id)
        if message.attempt <= self.fail_until:
            raise self.error.with_traceback(None)  # else it grows with each raise


# ---- when a message comes again


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_a_failed_message_comes_again_as_itself(app, consume, ordering):
    orders = app.topic("orders", type=int)
    sent = await orders.send(1, key="k")
    handler = Attempts(2)
    consumer = await consume(orders, handler, ordering=ordering, retry=QUICK)
    await eventually(lambda: consumer.counts.handled == 1)
    assert handler.seen == [(1, 1), (1, 2), (1, 3)]
    assert set(handler.ids) == {sent}
    assert len(await stored(app)) == 1
    assert consumer.counts.retried == 2
    assert await letters_of(orders) == []
    keys = PartitionKeys.of(app.redis.keys, "orders", 0)
    assert await app.redis.call("EXISTS", keys.retry("group"), keys.failures("group")) == 0


async def test_a_retry_concerns_its_own_group_alone(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send(1)
    failing, other = Attempts(2), Attempts(0)
    first = await consume(orders, failing, group="failing", retry=QUICK)
    second = await consume(orders, other, group="other")
    await eventually(lambda: first.counts.handled == second.counts.handled == 1)
    assert failing.seen == [(1, 1), (1, 2), (1, 3)]
    assert other.seen == [(1, 1)]


async def test_two_equal_messages_that_fail_stay_two(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([1, 1])
    handler = Attempts(5)
    consumer = await consume(orders, handler, retry=QUICK)
    await eventually(lambda: consumer.counts.handled == 2)
    assert sorted(handler.seen) == [(1, 1), (1, 1), (1, 2), (1, 2), (1, 3), (1, 3)]
    assert len(await letters_of(orders)) == 2


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_a_handler_says_when_it_wants_a_message_again(app, consume, how):
    orders = app.topic("orders", type=int)
    await orders.send(1)
    moments: list[float] = []

    async def handle(_: int) -> Any:
        moments.append(asyncio.get_running_loop().time())
        if len(moments) == 1:
            if how == "returned":
                return Retry(after=0.3)
            raise Retry(after=0.3)
        return None

    consumer = await consume(orders, handle, retry=LATER)
    await eventually(lambda: consumer.counts.handled == 1)
    assert 0.29 <= moments[1] - moments[0] < 2


async def test_an_error_that_says_how_long_to_stay_away_is_heeded(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send(1)
    moments: list[float] = []

    async def handle(_: int) -> None:
        moments.append(asyncio.get_running_loop().time())
        if len(moments) == 1:
            raise Busy

    consumer = await consume(orders, handle, retry=RetryPolicy(backoff=Fixed(0.001)))
    await eventually(lambda: consumer.counts.handled == 1)
    assert moments[1] - moments[0] >= 0.19


async def test_many_that_fail_together_come_again_together(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch(list(range(500)))
    handler = Attempts(1)
    consumer = await consume(orders, handler, retry=RetryPolicy(backoff=Fixed(0.1)))
    await eventually(lambda: consumer.counts.handled == 500)
    assert len(handler.seen) == 1_000


# ---- order


async def test_a_failed_message_of_a_partition_is_overtaken_unless_told_otherwise(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1, 2])
    ended: dict[bool | None, list[int]] = {None: [], True: []}
    for number, (ordered, numbers) in enumerate(ended.items()):

        async def handle(message: Message, numbers: list[int] = numbers) -> None:
            if message.payload == 0 and message.attempt < 3:
                raise ValueError
            numbers.append(message.payload)

        options = {"ordered_retries": ordered, "retry": QUICK}
        consumer = await consume(orders, handle, group=f"g{number}", **options)
        await eventually(lambda c=consumer: c.counts.handled == 3)
    assert ended == {None: [1, 2, 0], True: [0, 1, 2]}


async def test_a_blocking_handler_that_returns_a_retry_is_not_overtaken(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch(list(range(50)))
    ended: list[int] = []

    def handle(message: Message) -> Any:
        if message.payload % 10 == 5 and message.attempt == 1:
            return Retry(after=0.01)
        ended.append(message.payload)
        return None

    consumer = await consume(orders, handle, ordered_retries=True)
    await eventually(lambda: consumer.counts.handled == 50)
    assert ended == list(range(50))


async def test_later_messages_of_a_failed_key_wait_and_other_keys_flow(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch(
        [Outgoing(n, key=key) for n in range(5) for key in ("bad", "good", None)]
    )
    allowed = asyncio.Event()
    ended: list[tuple[str | None, int]] = []

    async def handle(message: Message) -> None:
        if message.key == "bad" and not allowed.is_set():
            raise Retry(after=0.02)
        ended.append((message.key, message.payload))

    policy = RetryPolicy(max_attempts=1_000)
    consumer = await consume(orders, handle, ordering="key", retry=policy)
    await eventually(lambda: len(ended) == 10)
    assert {key for key, _ in ended} == {"good", None}
    allowed.set()
    await eventually(lambda: consumer.counts.handled == 15)
    for key in ("bad", "good"):
        assert [n for who, n in ended if who == key] == [0, 1, 2, 3, 4]


async def test_a_key_goes_on_after_its_message_is_given_up(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([Outgoing(n, key="k") for n in range(3)])
    ended: list[int] = []

    async def handle(number: int) -> None:
        if number == 0:
            raise ValueError
        ended.append(number)

    consumer = await consume(orders, handle, ordering="key", retry=QUICK)
    await eventually(lambda: consumer.counts.handled == 3)
    assert ended == [1, 2]
    [letter] = await letters_of(orders)
    assert letter.payload.text == "0"


# ---- retries outlive their consumer


@pytest.mark.parametrize("options", [{}, {"ordering": "key"}, {"ordered_retries": True}], ids=str)
@pytest.mark.parametrize("end", ["stopped", "cancelled"])
async def test_a_retry_that_waits_is_picked_up_by_the_next_consumer(app, consume, options, end):
    orders = app.topic("orders", type=int)
    await orders.send(1, key="k")
    first, second = Attempts(9, Retry(after=1)), Attempts(0)
    consumer = await consume(orders, first, retry=LATER, **options)
    await eventually(lambda: consumer.counts.retried == 1)
    if end == "cancelled":
        consumer._task.cancel()
        await asyncio.wait([consumer._task])
    await consumer.stop() if end == "stopped" else None
    began = asyncio.get_running_loop().time()
    successor = await consume(orders, second, retry=LATER, **options)
    await eventually(lambda: successor.counts.handled == 1)
    assert second.seen == [(1, 2)]
    assert asyncio.get_running_loop().time() - began > 0.3, "not before it was due"


async def test_a_stop_does_not_wait_for_a_retry(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([Outgoing(n, key="k") for n in range(3)])
    for group, options in {
        "key": {"ordering": "key"},
        "partition": {"ordered_retries": True},
        "unordered": {},
    }.items():
        consumer = await consume(orders, Attempts(9), group=group, retry=LATER, **options)
        await eventually(lambda c=consumer: c.counts.retried >= 1)
        async with asyncio.timeout(30):
            await consumer.stop()


async def test_a_handler_that_is_cut_short_is_charged_its_attempt(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1])
    began = asyncio.Event()
    seen: list[tuple[int, int]] = []

    async def hangs(_: int) -> None:
        began.set()
        await asyncio.Event().wait()

    async def notes(message: Message) -> None:
        seen.append((message.payload, message.attempt))

    for ordering in ("partition", "key"):
        began.clear()
        seen.clear()
        options = {"group": ordering, "ordering": ordering, "concurrency": 1}
        consumer = await consume(orders, hangs, **options)
        await began.wait()
        consumer._task.cancel()
        await asyncio.wait([consumer._task])
        successor = await consume(orders, notes, **options)
        await eventually(lambda c=successor: c.counts.handled == 2)
        assert seen == [(0, 2), (1, 1)]


# ---- the end


@pytest.mark.parametrize(
    ("policy", "error", "attempts", "reason"),
    [
        (RetryPolicy(max_attempts=1), ValueError("no"), 1, "exhausted"),
        (QUICK, ValueError("no"), 3, "exhausted"),
        (RetryPolicy(give_up_on=(ValueError,)), ValueError("no"), 1, "fatal"),
        (RetryPolicy(retry_on=(KeyError,)), ValueError("no"), 1, "fatal"),
        (LATER, DeadLetter("no such customer"), 1, "requested"),
        (RetryPolicy(max_attempts=2), Retry(after=0), 2, "exhausted"),
    ],
    ids=["one attempt", "exhausted", "hopeless", "not of the kind", "asked for", "asked again"],
)
async def test_a_message_that_is_given_up_becomes_a_dead_letter(
    app, consume, policy, error, attempts, reason
):
    orders = app.topic("orders", partitions=2, type=int)
    sent = await orders.send(1, key="k", headers={"trace": "t"})
    handler = Attempts(99, error)
    consumer = await consume(orders, handler, retry=policy)
    await eventually(lambda: consumer.counts.dead == 1 and consumer.counts.handled == 1)
    assert [attempt for _, attempt in handler.seen] == list(range(1, attempts + 1))
    [letter] = await letters_of(orders)
    assert (letter.reason, letter.attempts, letter.group) == (reason, attempts, "group")
    assert (letter.message_id, letter.key, letter.headers) == (sent, "k", {"trace": "t"})
    assert letter.error_class.endswith(type(error).__name__)
    assert letter.error_message == str(error)
    assert "Traceback" in letter.stack
    stream = PartitionKeys.of(app.redis.keys, "orders", letter.partition).stream
    assert (await app.redis.call("XPENDING", stream, "group"))[0] == 0


async def test_a_handler_that_takes_too_long_has_failed(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send(1)
    attempts: list[int] = []

    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            await asyncio.Event().wait()

    consumer = await consume(orders, handle, retry=QUICK, timeout_s=0.05)
    await eventually(lambda: consumer.counts.handled == 1)
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_a_handler_that_ends_as_cancelled_has_failed(app, consume, ordering):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1])
    ended: list[int] = []

    async def handle(number: int) -> None:
        if number == 0:
            raise asyncio.CancelledError
        ended.append(number)

    options = {"ordering": ordering, "concurrency": 1, "retry": QUICK}
    consumer = await consume(orders, handle, **options)
    await eventually(lambda: consumer.counts.handled == 2)
    assert ended == [1]
    [letter] = await letters_of(orders)
    assert (letter.attempts, letter.reason) == (3, "exhausted")
    assert "but was not cancelled" in letter.error_message


class Odd(BaseException):
    """As some libraries have them."""


@pytest.mark.parametrize(
    "options",
    [{}, {"ordering": "key"}, {"ordering": "none"}, {"batch": 3}, {"ordered_retries": True}],
    ids=str,
)
@pytest.mark.parametrize("error", [StopIteration, Odd])
async def test_no_error_however_odd_ends_a_consumer(app, consume, options, error):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1])

    def blocks(_: list[int]) -> None:
        raise error

    async def awaits(_: list[int]) -> None:
        raise error

    for handler in (blocks, awaits):
        if "batch" not in options:
            handler.__annotations__.clear()
        group = handler.__name__
        consumer = await consume(orders, handler, group=group, retry=QUICK, **options)
        await eventually(lambda c=consumer: c.counts.handled == 2)
        assert (consumer.counts.retried, consumer.counts.dead) == (4, 2)


async def test_a_message_that_ended_its_process_is_given_up_after_its_last_attempt(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send(1)
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XGROUP", "CREATE", stream, "group", 0)
    read = ("XREADGROUP", "GROUP", "group", "penstock", "STREAMS", stream, ">")
    [[_, [[id_, _]]]] = await app.redis.call(*read)
    claim = ("XCLAIM", stream, "group", "penstock", 0, id_, "RETRYCOUNT", 3, "JUSTID")
    await app.redis.call(*claim)
    handler = Attempts(0)
    consumer = await consume(orders, handler, retry=QUICK)
    await eventually(lambda: consumer.counts.dead == 1)
    assert handler.seen == []
    [letter] = await letters_of(orders)
    assert (letter.reason, letter.attempts) == ("crashed", 3)


# ---- what no handler can read

GARBAGE: dict[str, list[Any]] = {
    "no payload": ["colour", "blue"],
    "random bytes": ["payload", b"\x00\xff\xfe\x80 nothing"],
    "binary names": [b"\xff\x00", b"\xfe", "headers", b"\xff"],
    "another type": ["payload", '{"n": "seven"}'],
    "an empty payload": ["payload", ""],
    "garbage numbers": ["payload", "{", "retryCount", "many", "maxRetries", "x", "key", b"\xff"],
    "a huge field": ["blob", b"x" * 1_000_000],
    "headers that are a list": ["payload", "[]", "headers", "[1]"],
    "a body that is not there": [
        "headers",
        '{"x-payload-storage-type":"hash","x-payload-hash-ref":"streaming:mq:payload:no"}',
    ],
    "the word of a barrier": ["payload", '{"n":"x"}', "barrier", "soon"],
    "a pickle": ["payload", pickle.dumps({"n": 3})],
    "a pickle, compressed": ["payload", zstandard.compress(pickle.dumps({"n": 3}))],
    "nested brackets": ["payload", b'{"n":%b}' % (b"[" * 100_000 + b"]" * 100_000)],
    "many digits": ["payload", b'{"n":%b}' % (b"9" * 500_000)],
    "a barrier with a payload": ["barrier", "2", "payload", '{"n":"x"}'],
}


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
@pytest.mark.parametrize("what", GARBAGE)
async def test_what_cannot_be_read_is_kept_aside_and_holds_up_nothing(app, consume, ordering, what):
    orders = app.topic("orders", type=Order)
    await orders.send(Order(1), key="k")
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XADD", stream, "*", *GARBAGE[what])
    await orders.send(Order(2), key="k")
    seen: list[int] = []

    async def handle(order: Order) -> None:
        seen.append(order.n)

    consumer = await consume(orders, handle, ordering=ordering, retry=LATER)
    await eventually(lambda: consumer.counts.handled == 3)
    assert seen == [1, 2]
    [letter] = await letters_of(orders)
    assert (letter.reason, letter.attempts) == ("undecodable", 1)
    [[_, raw]] = await app.redis.call(
        "XRANGE", TopicKeys.of(app.redis.keys, "orders").dlq, "-", "+"
    )
    kept = dict(zip(raw[::2], raw[1::2], strict=True))
    fields = GARBAGE[what]
    told = dict(zip(fields[::2], fields[1::2], strict=True))
    if "payload" in told:
        payload = told["payload"]
        assert kept[b"payload"] == (payload if isinstance(payload, bytes) else payload.encode())
    else:
        assert len(kept[b"fields"]) >= sum(len(part) for part in fields)


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_a_barrier_that_nobody_raised_holds_up_nothing(app, consume, ordering):
    orders = app.topic("orders", type=int)
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    for generation in ("99", "soon", "-1"):
        await app.redis.call("XADD", stream, "*", "barrier", generation)
    await orders.send(1)
    handler = Attempts(0)
    consumer = await consume(orders, handler, ordering=ordering)
    await eventually(lambda: consumer.counts.handled == 4)
    assert handler.seen == [(1, 1)]


async def test_a_consumer_that_decodes_something_else_in_vain_is_tried_again(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send(1)
    attempts: list[int] = []

    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            app.codec.decode(b"{", Order)

    consumer = await consume(orders, handle, retry=QUICK)
    await eventually(lambda: consumer.counts.handled == 1)
    assert attempts == [1, 2]


async def test_a_message_for_another_group_is_passed_over(app, consume):
    orders = app.topic("orders", type=int)
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await orders.send(1)
    for fields in (
        ("targetGroup", "mail", "payload", "2"),
        ("payload", "3", "key", "k", "headers", "{}", "targetGroup", "mail"),
    ):
        await app.redis.call("XADD", stream, "*", *fields)
    await orders.send(4)
    seen: dict[str, list[int]] = {"billing": [], "mail": []}
    for group, numbers in seen.items():

        async def handle(number: int, numbers: list[int] = numbers) -> None:
            numbers.append(number)

        consumer = await consume(orders, handle, group=group)
        await eventually(lambda c=consumer: c.counts.handled == 4)
    assert seen == {"billing": [1, 4], "mail": [1, 2, 3, 4]}
    assert await letters_of(orders) == []
