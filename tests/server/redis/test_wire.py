"""One connection: replies in order, whatever the size, the pace and the number of callers."""

import asyncio
import gc
import random
import socket
import tracemalloc
import warnings

import pytest

from penstock.errors import (
    AuthenticationFailed,
    CommandRefused,
    OutcomeUnknown,
    Unreachable,
)
from penstock.redis.address import Credentials, Endpoint
from penstock.testing.eventually import eventually


def endpoint_of(place):
    address = place.address
    return Endpoint(path=address) if isinstance(address, str) else Endpoint(*address)


@pytest.fixture
async def wire(open_wire, valkey_server):
    return await open_wire(valkey_server)


async def test_ten_thousand_commands_in_one_go_are_answered_in_order(wire):
    replies = await wire.call_many([("ECHO", str(number)) for number in range(10_000)])
    assert replies == [str(number).encode() for number in range(10_000)]
    assert wire.idle


async def test_it_speaks_to_every_supported_server(open_wire, any_server, namespace):
    wire = await open_wire(any_server, database=3)
    assert wire.hello["role"] == "master"
    assert await wire.call("SET", f"{namespace}:key", 1.5) == b"OK"
    assert await wire.call("GET", f"{namespace}:key") == b"1.5"
    assert b"db=3" in await wire.call("CLIENT", "INFO")
    assert b"name=penstock" in await wire.call("CLIENT", "INFO")


async def test_an_idle_connection_is_kept_alive(wire):
    peer = wire._transport.get_extra_info("socket")
    assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60


async def test_it_goes_over_a_unix_socket_too(open_wire, valkey_server):
    wire = await open_wire(Endpoint(path=valkey_server.socket_path))
    assert await wire.call("PING") == b"PONG"


async def test_tasks_of_one_turn_of_the_loop_share_a_write(wire, monkeypatch):
    writes = []
    real = wire._transport.write
    monkeypatch.setattr(
        wire,
        "_transport",
        Recorder(wire._transport, lambda data: (writes.append(data), real(data))),
    )
    replies = await asyncio.gather(*(wire.call("ECHO", str(number)) for number in range(500)))
    assert replies == [str(number).encode() for number in range(500)]
    assert len(writes) == 1 + 499 // 16 + 1  # the first leaves at once, the others by sixteens


class Recorder:
    """A transport whose writes are seen."""

    def __init__(self, transport, write):
        self._transport, self.write = transport, write

    def __getattr__(self, name):
        return getattr(self._transport, name)


async def test_a_lone_command_is_not_held_back(wire, monkeypatch):
    sent = []
    real = wire._transport.write
    monkeypatch.setattr(
        wire, "_transport", Recorder(wire._transport, lambda data: (sent.append(data), real(data)))
    )
    reply = wire.send([("PING",)])
    assert sent == [b"*1\r\n$4\r\nPING\r\n"]
    assert await reply == [b"PONG"]


async def test_any_bytes_survive(wire, namespace):
    value = bytes(range(256)) * 5 + b"\r\n$3\r\nfoo\r\n"
    key = b"%s:\xff\x00\r\n" % namespace.encode()
    await wire.call("SET", key, value)
    assert await wire.call("GET", key) == value


async def test_a_reply_of_fifty_megabytes(wire, namespace):
    value = random.Random(1).randbytes(1024) * 1024 * 50  # noqa: S311
    await wire.call("SET", f"{namespace}:huge", value)
    assert await wire.call("GET", f"{namespace}:huge") == value
    await wire.call("DEL", f"{namespace}:huge")


async def test_errors_stand_in_their_places(wire, namespace):
    await wire.call("SET", f"{namespace}:text", "x")
    replies = await wire.call_many(
        [("PING",), ("LPUSH", f"{namespace}:text", 1), ("NOSUCH",), ("ECHO", "after")]
    )
    assert replies[0] == b"PONG"
    assert isinstance(replies[1], CommandRefused)
    assert isinstance(replies[2], CommandRefused)
    assert replies[3] == b"after"
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await wire.call("LPUSH", f"{namespace}:text", 1)
    assert await wire.call("PING") == b"PONG"


async def test_errors_inside_a_list_stay_inside_it(wire, namespace):
    *_, executed = await wire.call_many(
        [("MULTI",), ("SET", f"{namespace}:t", "x"), ("LPUSH", f"{namespace}:t", 1), ("EXEC",)]
    )
    assert executed[0] == b"OK"
    assert isinstance(executed[1], CommandRefused)


@pytest.mark.parametrize("command", [("SET", "key", None), ("SET", "key", True), ("SET", {})])
async def test_what_cannot_be_packed_is_refused_before_anything_is_sent(wire, command):
    with pytest.raises(TypeError):
        wire.send([("ECHO", "first"), command])
    assert await wire.call("ECHO", "next") == b"next"


async def test_an_empty_command_is_refused_as_it_would_shift_all_replies(wire):
    with pytest.raises(ValueError, match="empty"):
        await wire.call()
    with pytest.raises(ValueError, match="empty"):
        await wire.call_many([("PING",), ()])
    assert await wire.call("ECHO", "next") == b"next"


async def test_no_commands_get_no_replies(wire):
    assert await wire.call_many([]) == []


async def test_replies_byte_by_byte_and_glued(open_wire, valkey_server, fault_proxy):
    proxy = fault_proxy(valkey_server)
    wire = await open_wire(proxy)
    expected = [f"{number}\r\n-ERR +OK {number}".encode() for number in range(200)]
    proxy.bytewise(way="to_client")
    assert await wire.call_many([("ECHO", text) for text in expected[:20]]) == expected[:20]
    proxy.heal()
    proxy.blackhole(way="to_client")
    replies = wire.send([("ECHO", text) for text in expected])
    proxy.heal()
    assert await replies == expected


@pytest.mark.parametrize("seed", range(3))
async def test_cancelled_callers_never_shift_the_replies_of_others(
    open_wire, valkey_server, fault_proxy, seed
):
    """The incident in which one user saw another's data: a reply left unread in the socket."""
    chance = random.Random(seed)  # noqa: S311
    proxy = fault_proxy(valkey_server)
    wire = await open_wire(proxy)
    if seed == 1:
        proxy.latency(0.002)
    answered = 0

    async def caller(name):
        nonlocal answered
        for number in range(20):
            nonce = f"{seed}:{name}:{number}"
            if chance.random() < 0.5:
                assert await wire.call("ECHO", nonce) == nonce.encode()
            else:
                asked = [f"{nonce}:{part}" for part in range(chance.randrange(1, 5))]
                replies = await wire.call_many([("ECHO", text) for text in asked])
                assert replies == [text.encode() for text in asked]
            answered += 1

    tasks = [asyncio.create_task(caller(name)) for name in range(400)]
    for victim in chance.sample(tasks, 300):
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        victim.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = sum(isinstance(result, asyncio.CancelledError) for result in results)
    assert {type(result) for result in results} == {type(None), asyncio.CancelledError}
    assert answered >= 100 * 20
    assert cancelled > 100
    assert await wire.call("ECHO", "last") == b"last"
    assert wire.idle


async def test_a_frozen_server_makes_callers_wait_instead_of_filling_the_memory(
    open_wire, start_server, namespace
):
    server = start_server()
    wire = await open_wire(server, command_s=20)
    value = b"x" * 100_000
    server.pause()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        calls = [
            asyncio.create_task(wire.call("SET", f"{namespace}:{number}", value))
            for number in range(1_000)
        ]
        waiting = asyncio.create_task(wire.writable())
        await eventually(lambda: wire.behind)
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before < 16_000_000  # of 100 MB
        assert not any(call.done() for call in calls)
        server.resume()
        await asyncio.gather(*calls)
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before < 32_000_000
    finally:
        tracemalloc.stop()
    await waiting
    assert await wire.call("DBSIZE") == 1_000


async def test_callers_that_wait_for_the_socket_can_be_cancelled(open_wire, start_server):
    server = start_server()
    wire = await open_wire(server, command_s=20)
    server.pause()
    calls = [asyncio.create_task(wire.call("SET", "k", b"x" * 1_000_000)) for _ in range(20)]
    await eventually(lambda: wire.behind)
    for call in calls[1:]:
        call.cancel()
    server.resume()
    assert await calls[0] == b"OK"
    assert await wire.call("ECHO", "next") == b"next"


async def test_closing_tells_those_who_wait_that_the_outcome_is_unknown(open_wire, start_server):
    server = start_server()
    wire = await open_wire(server)
    server.pause()
    sent = asyncio.create_task(wire.call("SET", "key", "value"))
    await eventually(lambda: not wire.idle)
    await wire.close()
    await wire.close()
    with pytest.raises(OutcomeUnknown, match="it was closed"):
        await sent
    with pytest.raises(Unreachable, match="it was closed"):
        await wire.call("PING")
    server.resume()
    # What was sent has left: closing does not take it back.
    await eventually(lambda: server.command("GET", "key") == "value")


async def test_a_wire_that_finishes_takes_no_more_but_gives_what_it_owes(
    open_wire, valkey_server, namespace
):
    wire = await open_wire(valkey_server)
    blocked = wire.send([("BLPOP", f"{namespace}:list", 0)])
    await eventually(lambda: valkey_server.info("clients")["blocked_clients"] != "0")
    wire.finish()
    assert not wire.alive
    with pytest.raises(Unreachable):
        wire.send([("PING",)])
    valkey_server.command("RPUSH", f"{namespace}:list", "item")
    assert await blocked == [[f"{namespace}:list".encode(), b"item"]]
    await eventually(lambda: wire.ended)


async def test_a_wire_that_is_dropped_leaves_no_warning(open_wire, valkey_server):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wire = await open_wire(valkey_server)
        wire.send([("PING",)])
        wire.abort("enough")
        await eventually(lambda: wire.ended)
        gc.collect()
    assert caught == []


async def test_users_and_passwords(open_wire, start_server):
    server = start_server(password="right")
    server.command("ACL", "SETUSER", "alice", "on", ">secret", "~*", "+@all")
    server.command("ACL", "SETUSER", "guest", "on", "nopass", "~*", "+@all")
    for username, password in [(None, "right"), ("alice", "secret"), ("guest", None)]:
        wire = await open_wire(server, credentials=Credentials(username, password))
        who = await wire.call("ACL", "WHOAMI")
        assert who.decode() == (username or "default")
    for username, password in [(None, "wrong"), ("alice", None), ("nobody", "x"), (None, None)]:
        with pytest.raises(AuthenticationFailed) as raised:
            await open_wire(server, credentials=Credentials(username, password))
        assert "secret" not in str(raised.value)
        assert "wrong" not in str(raised.value)


async def test_closing_lets_what_was_sent_leave_first(open_wire, valkey_server, namespace):
    wire = await open_wire(valkey_server)
    large = b"x" * 8_000_000
    owed = wire.send([("SET", f"{namespace}:large", large)])
    await wire.close()
    assert wire.ended
    [reply] = await owed
    assert isinstance(reply, OutcomeUnknown)
    await eventually(lambda: valkey_server.command("STRLEN", f"{namespace}:large") == len(large))
