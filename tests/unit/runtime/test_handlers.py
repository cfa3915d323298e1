"""Which functions can be handlers, and what they are called with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from penstock.errors import ConfigError
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings
from penstock.topics.consumer.handler import as_handler
from penstock.topics.message import Message, Source


class Order(msgspec.Struct):
    n: int


def a_message(payload: bytes = b'{"n":1}', type_: Any = Order) -> Message:
    decode = Codec(CodecSettings()).decoder(type_)
    return Message(Source("orders", 0, "group", decode), b"1-0", [b"payload", payload])


async def payload_only(order: Order) -> Any:
    return order


async def payload_and_message(order: Order, message: Message) -> Any:
    return order, message


async def message_only(message: Message) -> Any:
    return message


async def nothing_said(order) -> Any:
    return order


async def positional_only(order: Order, /) -> Any:
    return order


async def with_defaults(order: Order, limit: int = 3, *, log: Any = None) -> Any:
    return order


async def with_more_before(prefix: str, order: Order) -> Any:
    return order


class Service:
    async def handle(self, order: Order) -> Any:
        return order

    @staticmethod
    async def alone(order: Order) -> Any:
        return order


class CallableObject:
    async def __call__(self, order: Order) -> Any:
        return order


@dataclasses.dataclass
class CallableRecord:
    order: str = "a field that is called like the argument"

    async def __call__(self, order: Order) -> Any:
        return order


def logged(function):
    @functools.wraps(function)
    async def around(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return around


@pytest.mark.parametrize(
    "function",
    [
        payload_only,
        positional_only,
        with_defaults,
        functools.partial(with_more_before, "x"),
        functools.partial(functools.partial(with_more_before), "x"),
        Service().handle,
        Service.alone,
        CallableObject(),
        CallableRecord(),
        functools.partial(CallableObject()),
        logged(payload_only),
    ],
    ids=lambda function: getattr(function, "__qualname__", type(function).__name__),
)
async def test_one_argument_is_the_payload_as_its_annotation_says(function):
    handler = as_handler(function, batch=False, default_type=Any)
    assert handler.payload_type is Order
    assert handler.is_async
    assert await handler.invoke(a_message()) == Order(1)


async def test_two_arguments_are_the_payload_and_its_message():
    handler = as_handler(payload_and_message, batch=False, default_type=Any)
    message = a_message()
    assert await handler.invoke(message) == (Order(1), message)
    assert handler.payload_type is Order


async def test_one_argument_of_type_message_is_the_message():
    handler = as_handler(message_only, batch=False, default_type=Order)
    message = a_message()
    assert await handler.invoke(message) is message
    assert handler.payload_type is Order


async def test_without_an_annotation_the_type_is_that_of_the_topic():
    assert as_handler(nothing_said, batch=False, default_type=Order).payload_type is Order
    assert as_handler(lambda order: order, batch=False, default_type=Order).payload_type is Order


async def test_a_batch_handler_takes_lists():
    async def payloads(orders: list[Order]) -> Any:
        return orders

    async def messages(batch: Sequence[Message]) -> Any:
        return batch

    async def both(orders: list[Order], batch: list[Message]) -> Any:
        return orders, batch

    async def bare(orders: list) -> Any:
        return orders

    batch = [a_message(), a_message(b'{"n":2}')]
    handler = as_handler(payloads, batch=True, default_type=Any)
    assert handler.payload_type is Order
    assert await handler.invoke(batch) == [Order(1), Order(2)]
    assert await as_handler(messages, batch=True, default_type=Order).invoke(batch) is batch
    handler = as_handler(both, batch=True, default_type=Any)
    assert await handler.invoke(batch) == ([Order(1), Order(2)], batch)
    assert as_handler(bare, batch=True, default_type=Order).payload_type is Order


def test_a_plain_function_is_known_to_block():
    def blocks(order: Order) -> None: ...

    assert not as_handler(blocks, batch=False, default_type=Any).is_async


def no_arguments(): ...
def three(a, b, c): ...
def any_number(*args): ...
def needs_more(order, *, database): ...
def the_wrong_way_round(message: Message, order: Order): ...
def two_payloads(order: Order, other: Order): ...
def yields(order):
    yield order


async def yields_later(order):
    yield order


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_arguments, "takes 0 arguments"),
        (three, "takes 3 arguments"),
        (any_number, "takes 0 arguments"),
        (needs_more, "database"),
        (the_wrong_way_round, "second is the message"),
        (two_payloads, "second is the message"),
        (yields, "yields"),
        (yields_later, "yields"),
        ("no function at all", "not a callable"),
        (None, "not a callable"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_what_cannot_be_a_handler_is_told_at_once(function, said):
    with pytest.raises(ConfigError, match=said):
        as_handler(function, batch=False, default_type=Any)


def test_a_batch_handler_of_single_payloads_is_refused():
    async def single(order: Order) -> None: ...

    with pytest.raises(ConfigError, match="list"):
        as_handler(single, batch=True, default_type=Any)


def test_an_annotation_that_cannot_be_looked_up_says_what_to_do():
    class Hidden: ...

    async def handle(order: Hidden) -> None: ...

    with pytest.raises(ConfigError, match="module level"):
        as_handler(handle, batch=False, default_type=Any)
