"""One side of a connection ends, or one direction falls silent: nothing is lost or out of order."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from penstock import Penstock
from penstock.settings import Settings
from penstock.testing.eventually import eventually
from penstock.topics.consumer import Consumer
from penstock.topics.message import Message
from penstock.topics.subscription import Subscription

POLL_S = 1.0
RECOVERY_S = POLL_S + 1.0
COMMAND_S = 0.4

FAULTS = {
    "the client's side is reset": lambda proxy, command: proxy.cut(
        reset=True, side="client", command=command
    ),
    "the client's side is closed": lambda proxy, command: proxy.cut(side="client", command=command),
    "the end reaches the server late": lambda proxy, command: proxy.cut(
        side="client", keep_s=0.7, command=command
    ),
    "the server's side is reset": lambda proxy, command: proxy.cut(
        reset=True, side="server", command=command
    ),
    "replies vanish": lambda proxy, command: proxy.drop(way="to_client", command=command),
    "requests vanish": lambda proxy, command: proxy.drop(way="to_server", command=command),
}


@pytest.fixture
async def behind(namespace, fault_proxy):
    """`await behind(server)` gives an application behind a proxy, one that is not, the proxy."""
    async with AsyncExitStack() as opened:

        async def open_both(server, **settings):
            proxy = fault_proxy(server)
            far = {
                "worker.poll_s": POLL_S,
                "timeouts.connect_s": COMMAND_S,
                "timeouts.command_s": COMMAND_S,
                **settings,
            }
            apps = [
                Penstock(settings=Settings.load({"url": url, "namespace": namespace, **options}))
                for url, options in ((proxy.url, far), (server.url, {}))
            ]
            for app in apps:
                await opened.enter_async_context(app)
            return *apps, proxy

        yield open_both


class Handled:
    """Notes what a handler gets, and the order of each key."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def __call__(self, message: Message) -> None:
        self.seen.append(message.payload)


# ---- topics


async def blocked(server, command: str) -> None:
    """Wait until a client of the server waits in a command."""

    def is_waiting() -> bool:
        lines = server.command("CLIENT", "LIST").splitlines()
        return any(f"cmd={command}" in line and "flags=b" in line for line in lines)

    await eventually(is_waiting)


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_read_that_outlives_its_client_takes_no_message(behind, any_server, fault, pause_s):
    """Only the connection that waits for messages is affected, and messages come then."""
    app, producer, proxy = await behind(any_server)
    handled = Handled()
    topic = app.topic("orders", type=int, partitions=1)
    async with Consumer(topic, handled, Subscription(group="billing")):
        sending = producer.topic("orders", type=int)
        await sending.send(0, key="k")
        await eventually(lambda: handled.seen == [0])
        await blocked(any_server, "xreadgroup")
        FAULTS[fault](proxy, "XREADGROUP")
        await asyncio.sleep(pause_s)
        for number in range(1, 6):
            await sending.send(number, key="k")
            await asyncio.sleep(0.01)
        await eventually(lambda: len(handled.seen) == 6, RECOVERY_S)
        assert handled.seen == [0, 1, 2, 3, 4, 5]
        await eventually(lambda: pending(producer), RECOVERY_S)


async def pending(app):
    stream = app.redis.keys.partition("orders", 0).stream
    return (await app.redis.call("XPENDING", stream, "billing"))[0] == 0
