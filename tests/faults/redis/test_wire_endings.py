"""How a connection ends, and that each command learns the truth about itself."""

import asyncio
import socket

import pytest

from penstock.errors import (
    CommandRefused,
    OutcomeUnknown,
    TlsFailed,
    Unreachable,
)
from penstock.redis.address import Endpoint
from penstock.redis.wire import Wire
from penstock.testing.eventually import eventually
from penstock.testing.servers import free_port


@pytest.fixture
async def fake_server():
    """`await fake_server(greeting, answer)`: a listener that says what no Redis server says."""
    servers = []

    async def start(*, at_once=b"", answer=b"", hang_up=True):
        async def talk(reader, writer):
            writer.write(at_once)
            if answer:
                await reader.read(100)
                writer.write(answer)
            if not hang_up:
                await reader.read()
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        servers.append(server)
        return Endpoint(*server.sockets[0].getsockname())

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


async def test_no_reply_within_the_limit_means_unknown_and_ends_the_wire(open_wire, start_server):
    server = start_server()
    wire = await open_wire(server, command_s=0.8)
    server.pause()
    now, ends = asyncio.get_running_loop().time, []
    started = now()

    async def call(*words):
        try:
            await wire.call(*words)
        finally:
            ends.append(now() - started)

    first, second = await asyncio.gather(
        call("SET", "key", "1"), call("PING"), return_exceptions=True
    )
    assert isinstance(first, OutcomeUnknown)
    assert isinstance(second, OutcomeUnknown)
    assert "0.8 s" in str(first)
    assert ends[0] >= 0.8
    assert ends[1] - ends[0] < 0.4  # not one after the other
    assert not wire.alive
    with pytest.raises(Unreachable):
        await wire.call("PING")


async def test_a_read_that_blocks_has_its_own_limit(open_wire, valkey_server, namespace):
    wire = await open_wire(valkey_server, command_s=0.1)
    assert await wire.call("BLPOP", f"{namespace}:none", 0.4, timeout_s=2) is None
    assert await wire.call("PING") == b"PONG"


async def test_after_a_long_read_the_usual_limit_counts_again(open_wire, start_server):
    server = start_server()
    wire = await open_wire(server, command_s=0.3)
    server.command("RPUSH", "list", "item")
    assert await wire.call("BLPOP", "list", 0, timeout_s=60) == [b"list", b"item"]
    server.pause()
    async with asyncio.timeout(30):
        with pytest.raises(OutcomeUnknown):
            await wire.call("PING")


async def test_what_stands_behind_a_long_read_has_its_own_limit_once_that_is_over(
    open_wire, valkey_server, namespace
):
    wire = await open_wire(valkey_server, command_s=0.2)
    long = wire.send([("BLPOP", f"{namespace}:one", 0.5)], timeout_s=60)
    behind = wire.send([("BLPOP", f"{namespace}:two", 60)])
    assert await long == [None]
    async with asyncio.timeout(30):
        assert isinstance((await behind)[0], OutcomeUnknown)


async def test_slow_replies_that_keep_coming_do_not_trip_the_limit(
    open_wire, valkey_server, fault_proxy, namespace
):
    proxy = fault_proxy(valkey_server)
    wire = await open_wire(proxy, command_s=0.25)
    proxy.bytewise(way="to_client")
    took_s, size = 0.0, 20_000
    while took_s <= 0.5:  # however fast the machine is, one reply takes longer than the limit
        size *= 2
        valkey_server.command("SET", f"{namespace}:value", "x" * size)
        started = asyncio.get_running_loop().time()
        assert len(await wire.call("GET", f"{namespace}:value")) == size
        took_s = asyncio.get_running_loop().time() - started


async def test_a_slow_way_to_the_server_does_not_trip_the_limit():
    """A large value over a thin link takes longer than any reply should."""
    slow = await _SlowReader.start(piece=400_000, every_s=0.05)
    wire = Wire(slow.endpoint, command_s=0.3)
    await wire._connect(None)
    size = 2_000_000
    reply = wire.send([("SET", "key", b"x" * size)])
    assert await reply == [b"OK"]
    assert slow.took_s > 0.6
    await wire.close()
    await slow.close()


class _SlowReader:
    """A server that takes a request in small pieces, then answers OK."""

    @classmethod
    async def start(cls, *, piece, every_s):
        self = cls()
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        listener.setblocking(False)
        self.endpoint, self.took_s = Endpoint(*listener.getsockname()), 0.0

        async def serve():
            peer, _ = await loop.sock_accept(listener)
            started, received, end = loop.time(), 0, b""
            with peer, listener:
                while not end.endswith(b"x\r\n"):
                    data = await loop.sock_recv(peer, piece)
                    received += len(data)
                    end = data[-3:]
                    await asyncio.sleep(every_s)  # this is the thin link itself
                self.took_s = loop.time() - started
                await loop.sock_sendall(peer, b"+OK\r\n")
                await loop.sock_recv(peer, 1)

        self._task = asyncio.create_task(serve())
        return self

    async def close(self):
        await self._task


async def test_what_had_not_left_yet_was_rejected_and_what_had_is_unknown(
    open_wire, valkey_server, namespace
):
    wire = await open_wire(valkey_server)
    sent = wire.send([("INCR", f"{namespace}:sent")])
    kept = wire.send([("INCR", f"{namespace}:kept"), ("PING",)])
    wire.abort("a fault")
    assert [type(end) for end in await sent] == [OutcomeUnknown]
    assert [type(end) for end in await kept] == [Unreachable, Unreachable]
    assert valkey_server.command("GET", f"{namespace}:kept") is None


async def test_a_batch_keeps_the_replies_that_came_before_the_end(
    open_wire, valkey_server, fault_proxy, namespace
):
    proxy = fault_proxy(valkey_server)
    wire = await open_wire(proxy)
    proxy.swallow("APPEND")
    counter = f"{namespace}:n"
    ends = await wire.call_many(
        [("INCR", counter), ("INCR", counter), ("APPEND", f"{namespace}:a", "x"), ("INCR", counter)]
    )
    assert ends[:2] == [1, 2]
    assert [type(end) for end in ends[2:]] == [OutcomeUnknown, OutcomeUnknown]
    assert valkey_server.command("GET", counter) in {"2", "3"}
    assert valkey_server.command("GET", f"{namespace}:a") == "x"


@pytest.mark.parametrize("reset", [True, False])
async def test_a_lost_connection_ends_every_caller(open_wire, valkey_server, fault_proxy, reset):
    proxy = fault_proxy(valkey_server)
    wire = await open_wire(proxy)
    proxy.blackhole(way="to_server")
    calls = [asyncio.create_task(wire.call("PING")) for _ in range(50)]
    await eventually(lambda: not wire.idle)
    proxy.cut(reset=reset)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(end) for end in ends} == {OutcomeUnknown}
    assert not wire.alive


async def test_the_server_says_why_it_hangs_up(open_wire, start_server):
    server = start_server("valkey", "--maxclients", "3")
    wires = [await open_wire(server) for _ in range(3)]
    with pytest.raises(Unreachable, match="max number of clients"):
        await open_wire(server)
    await wires[0].close()

    async def opened():
        try:
            return await open_wire(server)
        except Unreachable:
            return None

    assert await eventually(opened)


@pytest.mark.parametrize(
    ("talk", "words"),
    [
        ({"answer": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"}, "Redis protocol"),
        ({"at_once": b"SSH-2.0-OpenSSH_9.2\r\n"}, "Redis protocol"),
        ({"answer": b"+OK\r\n"}, "greet"),
        ({"answer": b":1\r\n"}, "greet"),
        ({"at_once": b"-ERR go away\r\n"}, "go away"),
        ({"answer": b"\x15\x03\x01\x00\x02\x02\x16"}, "Redis protocol"),
        ({}, "connection"),
        ({"hang_up": False}, "no answer within 0.3 s"),
    ],
    ids=["http", "ssh", "ok", "number", "hangs up", "tls alert", "silent end", "silence"],
)
async def test_what_is_no_redis_server_is_named_in_one_line(open_wire, fake_server, talk, words):
    endpoint = await fake_server(**talk)
    with pytest.raises((Unreachable, CommandRefused)) as raised:
        await open_wire(endpoint, connect_s=0.3)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_a_server_without_hello_is_too_old(open_wire, fake_server):
    endpoint = await fake_server(answer=b"-ERR unknown command `HELLO`\r\n", hang_up=False)
    with pytest.raises(CommandRefused, match=r"older than Redis 6\.2"):
        await open_wire(endpoint)


async def test_plain_text_to_a_tls_port(open_wire, valkey_server, tls_proxy):
    with pytest.raises(Unreachable) as raised:
        await open_wire(tls_proxy(valkey_server), connect_s=1)
    assert "\n" not in str(raised.value)


async def test_tls_to_a_plain_port(open_wire, any_server, certificates):
    with pytest.raises(Unreachable) as raised:
        await open_wire(any_server, connect_s=0.3, tls=certificates.client_context())
    assert isinstance(raised.value, TlsFailed) or "TLS" in str(raised.value)


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint("127.0.0.1", free_port()),
        Endpoint(path="/nowhere/at/all.sock"),
        Endpoint("no-such-host.invalid", 6379),
        Endpoint("a..b", 6379),
        Endpoint("x" * 300, 6379),
        Endpoint(path="/tmp/\0"),
        Endpoint(path="/tmp/" + "x" * 300),
    ],
    ids=["port closed", "no socket", "no host", "empty label", "long label", "zero", "long path"],
)
async def test_a_place_without_a_server_is_unreachable(open_wire, endpoint):
    with pytest.raises(Unreachable) as raised:
        await open_wire(endpoint)
    assert raised.value.outcome == "rejected"


async def test_an_opening_that_is_cancelled_leaves_nothing_open(valkey_server, fault_proxy):
    proxy = fault_proxy(valkey_server)
    proxy.blackhole(way="to_client")
    opening = asyncio.create_task(Wire.open(Endpoint(*proxy.address), connect_s=5, command_s=5))
    await eventually(lambda: proxy.open_connections == 1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    proxy.heal()
    await eventually(lambda: proxy.open_connections == 0)


async def test_why_nobody_could_be_reached_is_said_in_plain_words():
    closed = Endpoint("127.0.0.1", free_port())
    with pytest.raises(Unreachable, match=rf"^{closed}: Connection refused$"):
        await Wire.open(closed, connect_s=5, command_s=5)
    nowhere = Endpoint("no-such-host.invalid", 6379)
    with pytest.raises(Unreachable, match=r"^no-such-host\.invalid:6379: [A-Z][\w ]+$") as refused:
        await Wire.open(nowhere, connect_s=5, command_s=5)
    assert "Unknown error" not in str(refused.value)
