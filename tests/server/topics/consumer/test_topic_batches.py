"""Batch handlers: lists of messages, of which some may fail."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from penstock.delivery.retries import DeadLetter, Fixed, Retry, RetryPolicy
from penstock.errors import ConfigError
from penstock.testing.eventually import eventually
from penstock.topics.message import Message
from penstock.topics.storage.keys import PartitionKeys

QUICK = RetryPolicy(max_attempts=3, backoff=Fixed(0.02))


class Order(msgspec.Struct):
    n: int


async def letters_of(topic):
    return (await topic.dead_letters.list()).letters


async def test_a_batch_handler_gets_lists_of_payloads_in_order(app, consume):
    orders = app.topic("orders", type=Order)
    await orders.send_batch([Order(n) for n in range(10)])
    batches: list[list[Order]] = []

    async def handle(batch: list[Order]) -> None:
        batches.append(batch)

    consumer = await consume(orders, handle, batch=4)
    await eventually(lambda: consumer.counts.handled == 10)
    assert [order.n for batch in batches for order in batch] == list(range(10))
    assert max(map(len, batches)) == 4


async def test_it_may_ask_for_messages_or_for_both(app, consume):
    orders = app.topic("orders", type=Order)
    await orders.send_batch([Order(n) for n in range(4)])
    seen: list[Any] = []

    async def whole(batch: list[Message]) -> None:
        seen.extend((message.payload.n, message.attempt) for message in batch)

    async def both(batch: list[Order], messages: list[Message]) -> None:
        seen.extend(zip([order.n for order in batch], [m.id for m in messages], strict=True))

    def in_a_thread(batch: list[Order]) -> None:
        seen.extend(order.n for order in batch)

    for name, handler in (("whole", whole), ("both", both), ("thread", in_a_thread)):
        seen.clear()
        consumer = await consume(orders, handler, group=name, batch=3)
        await eventually(lambda c=consumer: c.counts.handled == 4)
        numbers = [one if name == "thread" else one[0] for one in seen]
        assert numbers == [0, 1, 2, 3]


async def test_only_those_that_failed_come_again_and_alone(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch(list(range(6)))
    calls: list[list[tuple[int, int]]] = []

    async def handle(batch: list[int], messages: list[Message]) -> Any:
        calls.append([(m.payload, m.attempt) for m in messages])
        return {
            message: ValueError("odd")
            for message in messages
            if message.payload % 2 and message.attempt < 3
        }

    consumer = await consume(orders, handle, batch=10, retry=QUICK)
    await eventually(lambda: consumer.counts.handled == 6)
    attempts: dict[int, list[int]] = {}
    for call in calls:
        for number, attempt in call:
            attempts.setdefault(number, []).append(attempt)
    assert attempts == {n: [1, 2, 3] if n % 2 else [1] for n in range(6)}
    assert all(len(call) == 1 for call in calls if call[0][1] > 1)
    assert await letters_of(orders) == []


async def test_a_batch_handler_names_what_to_give_up_and_when_to_come_back(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1, 2])
    done: list[tuple[int, int]] = []

    async def handle(batch: list[Message]) -> Any:
        outcome = {}
        for message in batch:
            if message.payload == 1:
                outcome[message] = DeadLetter("no such customer")
            elif message.payload == 2 and message.attempt == 1:
                outcome[message] = Retry(after=0.01)
            else:
                done.append((message.payload, message.attempt))
        return outcome

    consumer = await consume(orders, handle, batch=10, retry=RetryPolicy(backoff=Fixed(60)))
    await eventually(lambda: consumer.counts.handled == 3)
    assert done == [(0, 1), (2, 2)]
    [letter] = await letters_of(orders)
    assert (letter.payload.text, letter.reason) == ("1", "requested")
    assert letter.error_message == "no such customer"


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_a_batch_that_fails_as_a_whole_comes_again_as_a_whole_or_one_by_one(
    app, consume, how
):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1, 2])
    calls: list[list[tuple[int, int]]] = []

    async def handle(batch: list[Message]) -> Any:
        calls.append([(m.payload, m.attempt) for m in batch])
        if batch[0].attempt > 1:
            return None
        if how == "raised":
            raise Retry(after=0.01)
        return Retry(after=0.01)

    consumer = await consume(orders, handle, batch=10, retry=QUICK)
    await eventually(lambda: consumer.counts.handled == 3)
    assert sorted(one for call in calls for one in call if one[1] > 1) == [(0, 2), (1, 2), (2, 2)]


async def test_a_batch_that_always_fails_is_dead_lettered_message_by_message(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1, 2])

    async def handle(batch: list[int]) -> None:
        raise ValueError("never")

    consumer = await consume(orders, handle, batch=10, retry=QUICK)
    await eventually(lambda: consumer.counts.dead == 3)
    letters = await letters_of(orders)
    assert sorted(letter.payload.text for letter in letters) == ["0", "1", "2"]
    assert {(letter.reason, letter.attempts) for letter in letters} == {("exhausted", 3)}


@pytest.mark.parametrize(
    "outcome",
    [["0"], {"0": ValueError("of a payload, not of a message")}, True],
    ids=["a list", "unknown keys", "a flag"],
)
async def test_an_outcome_that_cannot_be_read_never_passes_for_success(app, consume, outcome):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1])

    async def handle(batch: list[int]) -> Any:
        return outcome

    consumer = await consume(orders, handle, batch=10, retry=RetryPolicy(max_attempts=1))
    await eventually(lambda: consumer.counts.dead == 2)
    for letter in await letters_of(orders):
        assert "batch handler" in letter.error_message


async def test_one_undecodable_message_does_not_fail_its_batch(app, consume):
    orders = app.topic("orders", type=Order)
    await orders.send(Order(1))
    raw = app.topic("orders", type=bytes)
    await raw.send(b'{"n": "no number"}')
    await raw.send(b"\xff\x00 no JSON at all")
    await orders.send(Order(2))
    seen: list[int] = []

    async def handle(batch: list[Order]) -> None:
        seen.extend(order.n for order in batch)

    consumer = await consume(orders, handle, batch=10, retry=QUICK)
    await eventually(lambda: consumer.counts.handled == 4)
    assert seen == [1, 2]
    wrong, binary = await letters_of(orders)
    assert {wrong.reason, binary.reason} == {"undecodable"}
    assert wrong.payload.text == '{"n": "no number"}'
    assert wrong.error_message != binary.error_message
    assert wrong.attempts == binary.attempts == 1


async def test_what_an_earlier_owner_left_and_large_payloads_reach_a_batch_handler(app, consume):
    orders = app.topic("orders", type=str)
    await orders.send("left")
    await orders.send("x" * 70_000)
    stream = PartitionKeys.of(app.redis.keys, "orders", 0).stream
    await app.redis.call("XGROUP", "CREATE", stream, "group", 0)
    read = ("XREADGROUP", "GROUP", "group", "penstock", "COUNT", 1, "STREAMS", stream, ">")
    await app.redis.call(*read)
    seen: list[tuple[int, int]] = []

    async def handle(batch: list[str], messages: list[Message]) -> None:
        seen.extend((len(text), m.attempt) for text, m in zip(batch, messages, strict=True))

    consumer = await consume(orders, handle, batch=5)
    await eventually(lambda: consumer.counts.handled == 2)
    assert sorted(seen) == [(4, 2), (70_000, 1)]
    assert consumer.counts.dead == 0


async def test_ordered_retries_hold_back_the_rest_of_the_partition(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1, 2, 3])
    ended: list[int] = []

    async def handle(batch: list[Message]) -> Any:
        failed = {m: Retry(after=0.05) for m in batch if m.payload == 1 and m.attempt == 1}
        ended.extend(m.payload for m in batch if m not in failed)
        return failed

    consumer = await consume(orders, handle, batch=2, ordered_retries=True)
    await eventually(lambda: consumer.counts.handled == 4)
    assert ended == [0, 1, 2, 3]


async def test_a_batch_that_takes_too_long_is_tried_again(app, consume):
    orders = app.topic("orders", type=int)
    await orders.send_batch([0, 1])
    calls: list[list[int]] = []

    async def handle(batch: list[Message]) -> None:
        calls.append([m.attempt for m in batch])
        if batch[0].attempt == 1:
            await asyncio.Event().wait()

    consumer = await consume(orders, handle, batch=5, retry=QUICK, timeout_s=0.1)
    await eventually(lambda: consumer.counts.handled == 2)
    assert calls[0] == [1, 1]
    assert {attempt for call in calls[1:] for attempt in call} == {2}


async def test_a_batch_handler_without_a_list_is_told_so_before_anything_runs(app):
    orders = app.topic("orders")
    with pytest.raises(ConfigError, match="list"):

        @orders.subscribe("group", batch=10)
        async def handle(order: Order) -> None: ...
