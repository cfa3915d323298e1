"""Every typed call of a script passes as many keys and arguments as the script's header lists."""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tests.kit.script_headers import declared
from tests.kit.scripts import CALLERS, NAMES, load_script

from penstock.coordination.cache.keys import CacheKeys
from penstock.coordination.limits.keys import LimitKeys
from penstock.coordination.runs.keys import RunKeys
from penstock.coordination.slots.keys import SlotKeys
from penstock.coordination.windows.scripts import BatchArguments
from penstock.queues.storage.keys import QueueKeyring
from penstock.redis.client import Client
from penstock.redis.prepared_call import Prepared, SharedLink
from penstock.redis.script import ScriptCaller
from penstock.settings import Settings

client = Client(Settings(namespace="n"))
VALUES = {
    str: "text",
    int: 7,
    float: 1.5,
    bytes: b"bytes",
    bool: True,
    type(None): None,
    QueueKeyring: QueueKeyring.of(client.keys, "q"),
    RunKeys: RunKeys.of(client.keys, "r"),
    LimitKeys: LimitKeys.of(client.keys, "endpoint", "client"),
    SlotKeys: SlotKeys.of(client.keys, "s"),
    SharedLink: SharedLink(client),
    CacheKeys: CacheKeys.of(client.keys, "space", "key"),
    BatchArguments: BatchArguments(("key",) * 9, ("argument",) * 18),
}


class Sent(Exception):
    """The call was recorded: there is no server that could reply."""


@dataclass
class Call:
    keys: int
    arguments: int
    is_prepared: bool = False
    """Whether more arguments come with each call."""


@pytest.fixture
def calls(monkeypatch):
    """Calls by script."""
    recorded: dict[str, list[Call]] = {}

    def note(name, keys, arguments, *, is_prepared=False):
        recorded.setdefault(name, []).append(Call(len(keys), len(arguments), is_prepared))

    async def run_script(self, script, keys, arguments, *_, **__):
        note(script.name, keys, arguments)
        raise Sent

    async def run_many(self, name, calls, *_, **__):
        note(name, *calls[0])  # all of them are alike
        raise Sent

    async def send(self, *tail):
        arguments = (*self._arguments, *tail)
        note(self._script.name, self._keys, arguments, is_prepared=not tail)
        raise Sent

    monkeypatch.setattr(Client, "run_script", run_script)
    monkeypatch.setattr(ScriptCaller, "run_many", run_many)
    monkeypatch.setattr(Prepared, "send", send)
    return recorded


def value_of(kind, length):
    """Some value of a type; of sequences one with so many members."""
    origin = typing.get_origin(kind)
    if origin in {typing.Union, types.UnionType}:
        kinds = typing.get_args(kind)
        sequences = [one for one in kinds if typing.get_origin(one) is Sequence]
        return value_of((sequences or kinds)[0], length)
    if origin is Sequence:
        return [value_of(typing.get_args(kind)[0], length)] * length
    if origin is tuple:
        return tuple(value_of(one, length) for one in typing.get_args(kind))
    if hasattr(kind, "_fields"):  # a named tuple
        return kind(*(value_of(one, length) for one in typing.get_type_hints(kind).values()))
    return VALUES[kind]


def send(method, length):
    hints = typing.get_type_hints(method)
    names = list(inspect.signature(method).parameters)[1:]
    caller = next(one for one in CALLERS if method in vars(one).values())
    arguments = {name: value_of(hints[name], length) for name in names}

    async def sent():
        called = method(caller(client), **arguments)
        if inspect.isawaitable(called):
            called = await called
        if isinstance(called, Prepared):
            await called.send()

    with pytest.raises(Sent):
        asyncio.run(sent())


@pytest.mark.parametrize("name", NAMES)
def test_a_call_passes_the_keys_and_arguments_that_the_header_lists(name, calls):
    method = next(vars(caller)[name] for caller in CALLERS if name in vars(caller))
    for length in (1, 2, 3):
        send(method, length)
    header, (one, two, three) = declared(load_script(name)), calls[name]
    assert {one.keys, two.keys, three.keys} == {header.keys}
    growth = two.arguments - one.arguments
    assert three.arguments - two.arguments == growth
    if one.is_prepared and not growth:  # the rest comes with each call, and is checked there
        assert one.arguments <= header.arguments
    else:
        assert (growth > 0) == header.has_tail
        assert one.arguments - growth == header.arguments
