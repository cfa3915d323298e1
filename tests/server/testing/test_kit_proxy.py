"""Each switch of the fault proxy does what it says, seen by a client over a raw socket."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import hiredis
import pytest

from penstock.testing.proxy import FaultProxy
from penstock.testing.resp import REFUSALS, RespClient, pack
from penstock.testing.servers import ServerProcess, free_port, wait_until


@pytest.fixture(params=["tcp", "unix"])
def proxy(
    request, valkey_server: ServerProcess, fault_proxy: Callable[..., FaultProxy]
) -> FaultProxy:
    return fault_proxy(valkey_server, unix=request.param == "unix")


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[RespClient]:
    with RespClient(proxy.address) as connected:
        yield connected


def test_without_a_switch_everything_passes(proxy, client, namespace):
    key = f"{namespace}:key"
    value = "v" * 300_000
    assert client.call("SET", key, value) == "OK"
    assert client.call("GET", key) == value
    client.socket.sendall(b"ECHO inline\r\n" + pack("ECHO", "a") + pack("ECHO", "b"))
    assert [client.receive() for _ in range(3)] == ["inline", "a", "b"]
    assert proxy.open_connections == 1


def test_resp3_and_its_pushes_pass(proxy, client, namespace):
    assert client.call("HELLO", 3)["proto"] == 3
    client.call("CLIENT", "TRACKING", "ON")
    client.call("GET", f"{namespace}:key")
    client.send("SET", f"{namespace}:key", "value")
    replies = [client.receive(), client.receive()]
    assert "OK" in replies
    assert ["invalidate", [f"{namespace}:key"]] in replies


def test_a_subscription_passes(proxy, client, namespace, valkey_server):
    assert client.call("SUBSCRIBE", namespace) == ["subscribe", namespace, 1]
    for number in range(3):
        valkey_server.command("PUBLISH", namespace, number)
        assert client.receive() == ["message", namespace, str(number)]


def test_a_replica_can_follow_through_it_and_lose_touch(start_server, fault_proxy):
    primary = start_server("valkey")  # an empty one: a replica that loads answers nothing else
    proxy = fault_proxy(primary)
    replica = start_server("valkey", "--replicaof", "127.0.0.1", str(proxy.port))
    primary.command("SET", "1", "seen")
    wait_until(lambda: replica.command("GET", "1") == "seen", what="replication")

    proxy.refuse()
    proxy.cut()
    wait_until(
        lambda: replica.info("replication")["master_link_status"] == "down", what="a broken link"
    )


@pytest.mark.parametrize("seconds", [0.002, 0.2])
def test_latency_counts_each_way(proxy, client, seconds):
    proxy.latency(seconds)
    assert 2 * seconds <= _duration_s(client)
    proxy.latency(0, way="to_server")
    assert seconds <= _duration_s(client)
    proxy.heal()
    assert min(_duration_s(client) for _ in range(20)) < seconds


def test_latency_delays_a_pipeline_once_not_per_command(proxy, client):
    proxy.latency(0.2)
    began = time.monotonic()
    for number in range(20):
        client.send("ECHO", number)
    assert [client.receive() for _ in range(20)] == [str(number) for number in range(20)]
    assert time.monotonic() - began < 20 * 0.2  # if each waited, twice that


def test_bytes_can_come_one_by_one(proxy, client):
    proxy.bytewise()
    client.send("ECHO", "x" * 3000)
    pieces = []
    while not b"".join(pieces).endswith(b"x\r\n"):
        pieces.append(client.socket.recv(10_000))
    assert b"".join(pieces) == b"$3000\r\n" + b"x" * 3000 + b"\r\n"
    assert len(pieces) > 1


def test_a_black_hole_for_replies_lets_the_server_work(proxy, client, valkey_server, namespace):
    proxy.blackhole(way="to_client")
    client.send("SET", f"{namespace}:key", "value")
    wait_until(lambda: valkey_server.command("GET", f"{namespace}:key"), what="the write")
    assert _is_silent(client)
    proxy.heal()
    assert client.receive() == "OK"


def test_a_black_hole_for_requests_keeps_them_from_the_server(
    proxy, client, valkey_server, namespace
):
    proxy.blackhole(way="to_server")
    client.send("SET", f"{namespace}:key", "value")
    assert _is_silent(client)
    assert valkey_server.command("GET", f"{namespace}:key") is None
    with RespClient(proxy.address) as another:
        another.send("PING")
        assert _is_silent(another)
        proxy.heal()
        assert another.receive() == "PONG"
    assert client.receive() == "OK"


def test_the_end_of_a_client_is_lost_in_a_black_hole(proxy, valkey_server, namespace):
    with RespClient(proxy.address) as client:
        client.call("CLIENT", "SETNAME", namespace)
        proxy.blackhole()
    assert namespace in valkey_server.command("CLIENT", "LIST")
    proxy.heal()
    wait_until(
        lambda: namespace not in valkey_server.command("CLIENT", "LIST"), what="the server to know"
    )


def test_refused_connections_are_reset_and_counted(proxy, client):
    client.call("PING")
    began = time.monotonic()
    proxy.refuse()
    for _ in range(3):
        with pytest.raises(OSError):  # noqa: PT011  a reset, or an end on unix sockets
            _ping_anew(proxy)
    assert client.call("PING") == "PONG"
    assert len(proxy.attempts) == 4
    assert began < proxy.attempts[-1] < time.monotonic()
    assert proxy.most_attempts_within(60) == 4
    proxy.heal()
    assert _ping_anew(proxy) == "PONG"


def test_the_busiest_stretch_is_found(valkey_server):
    proxy = FaultProxy(valkey_server.address)
    assert proxy.most_attempts_within(1) == 0
    proxy.attempts = [0.0, 0.6, 1.1, 1.2, 3.0]
    assert proxy.most_attempts_within(1) == 3
    proxy.close()


def test_a_closed_port_refuses_and_opens_again(proxy, client):
    client.call("PING")
    proxy.stop_listening()
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        RespClient(proxy.address)
    assert client.call("PING") == "PONG"
    proxy.heal()
    assert _ping_anew(proxy) == "PONG"


def test_a_cut_ends_all_connections(proxy, client):
    client.call("PING")
    proxy.cut()
    assert client.socket.recv(10) == b""
    assert proxy.open_connections == 0
    assert _ping_anew(proxy) == "PONG"


def test_a_cut_by_reset_is_a_reset(valkey_server, fault_proxy):
    proxy = fault_proxy(valkey_server)
    with RespClient(proxy.address) as client:
        client.call("PING")
        proxy.cut(reset=True)
        with pytest.raises(ConnectionResetError):
            client.socket.recv(10)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_reset_after_some_bytes_of_a_reply(valkey_server, fault_proxy, count):
    proxy = fault_proxy(valkey_server)
    with RespClient(proxy.address) as client:
        client.call("PING")
        proxy.reset_after(count, way="to_client")
        client.send("ECHO", "0123456789")
        assert _received_until_reset(client) == b"$10\r\n0123456789"[:count]
    assert _ping_anew(proxy) == "PONG"


def test_a_reset_within_a_request_leaves_nothing_done(valkey_server, fault_proxy, namespace):
    proxy = fault_proxy(valkey_server)
    with RespClient(proxy.address) as client:
        client.call("PING")
        proxy.reset_after(20, way="to_server")
        with pytest.raises(ConnectionResetError):
            client.call("SET", f"{namespace}:key", "value")
    assert valkey_server.command("GET", f"{namespace}:key") is None


def test_a_swallowed_command_is_done_but_never_answered(proxy, client, valkey_server, namespace):
    rule = proxy.swallow("XADD")
    assert client.call("SET", f"{namespace}:key", "value") == "OK"
    with pytest.raises(OSError):  # noqa: PT011  a reset, or an end on unix sockets
        client.call("xadd", f"{namespace}:stream", "*", "field", "value")
    assert rule.hits == 1
    assert valkey_server.command("XLEN", f"{namespace}:stream") == 1

    with RespClient(proxy.address) as again:
        again.call("XADD", f"{namespace}:stream", "*", "field", "value")
    assert valkey_server.command("XLEN", f"{namespace}:stream") == 2


def test_replies_before_a_swallowed_one_arrive(valkey_server, fault_proxy, namespace):
    proxy = fault_proxy(valkey_server)
    proxy.swallow("INCR")
    with RespClient(proxy.address) as client:
        client.socket.sendall(
            pack("ECHO", "a") + pack("ECHO", "b") + pack("INCR", f"{namespace}:n") + pack("PING")
        )
        assert [client.receive(), client.receive()] == ["a", "b"]
        with pytest.raises(ConnectionResetError):
            client.receive()
    assert valkey_server.command("GET", f"{namespace}:n") == "1"


def test_a_command_cut_off_before_the_server_is_not_done(proxy, client, valkey_server, namespace):
    rule = proxy.cut_before("SET")
    with pytest.raises(OSError):  # noqa: PT011  a reset, or an end on unix sockets
        client.call("SET", f"{namespace}:key", "value")
    assert rule.hits == 1
    assert valkey_server.command("GET", f"{namespace}:key") is None


@pytest.mark.parametrize("code", REFUSALS)
def test_an_answer_is_given_in_place_of_the_server(
    valkey_server, fault_proxy, namespace, code: str
):
    proxy = fault_proxy(valkey_server)
    rule = proxy.answer("SET", REFUSALS[code], times=2)
    with RespClient(proxy.address) as client:
        for _ in range(2):
            with pytest.raises(hiredis.ReplyError, match=f"^{code} "):
                client.call("SET", f"{namespace}:key", "value")
        assert client.call("GET", f"{namespace}:key") is None
        assert client.call("SET", f"{namespace}:key", "value") == "OK"
    assert rule.hits == 2


def test_answers_keep_their_place_in_a_pipeline(proxy, client):
    proxy.answer("ECHO", "+instead", times=None)
    client.socket.sendall(b"".join(pack(*command) for command in [("PING",), ("ECHO", "a")] * 3))
    assert [client.receive() for _ in range(6)] == ["PONG", "instead"] * 3
    proxy.heal()
    assert client.call("ECHO", "a") == "a"


def test_a_request_in_pieces_is_recognised(proxy, client):
    proxy.answer("ECHO", "+instead")
    client.call("PING")
    request = pack("ECHO", "a")
    for position in range(len(request)):
        client.socket.sendall(request[position : position + 1])
    assert client.receive() == "instead"


def test_rules_can_name_a_subcommand_or_any_command(proxy, client):
    proxy.answer("client id", "+subcommand")
    assert client.call("CLIENT", "GETNAME") is None
    assert client.call("CLIENT", "ID") == "subcommand"
    proxy.answer("*", "+any")
    assert client.call("PING") == "any"


def test_an_answer_waits_for_latency_and_black_holes_too(proxy, client):
    proxy.answer("PING", "+instead", times=None)
    proxy.latency(0.05)
    assert _duration_s(client) >= 0.1
    proxy.blackhole(way="to_server")
    client.send("PING")
    assert _is_silent(client)
    proxy.heal()
    assert client.receive() == "PONG"


def test_a_dead_server_behind_the_proxy_is_a_reset(fault_proxy):
    proxy = fault_proxy(("127.0.0.1", free_port()))
    with pytest.raises(ConnectionError):
        _ping_anew(proxy)
    assert len(proxy.attempts) == 1


def test_the_end_of_the_server_reaches_the_client(start_server, fault_proxy):
    server = start_server()
    proxy = fault_proxy(server)
    with RespClient(proxy.address) as client:
        client.call("PING")
        server.kill()
        with pytest.raises(ConnectionError):
            client.receive()
    server.restart()
    assert _ping_anew(proxy) == "PONG"


# ---- one side only


def _blocked(server: ServerProcess) -> bool:
    return any("cmd=blpop" in line for line in server.command("CLIENT", "LIST").splitlines())


def _block(client: RespClient, server: ServerProcess) -> None:
    client.send("BLPOP", "list", 0)
    wait_until(lambda: _blocked(server), what="a client that waits")


@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_of_the_clients_side_leaves_the_server_waiting_for_it(
    start_server, fault_proxy, reset
):
    server = start_server("valkey")
    proxy = fault_proxy(server)
    with RespClient(proxy.address) as client:
        _block(client, server)
        proxy.cut(reset=reset, side="client")
        with pytest.raises(ConnectionError):
            client.receive()
    assert _blocked(server)
    server.command("RPUSH", "list", "one")
    assert server.command("LLEN", "list") == 0  # it went to a client that is gone
    assert _ping_anew(proxy) == "PONG"


def test_an_end_can_come_late_to_the_other_side(start_server, fault_proxy):
    server = start_server("valkey")
    proxy = fault_proxy(server)
    with RespClient(proxy.address) as client:
        _block(client, server)
        proxy.cut(side="client", keep_s=0.3)
        assert _blocked(server)
        wait_until(lambda: not _blocked(server), what="the late end")


def test_requests_that_had_left_still_arrive_after_a_cut_of_the_clients_side(
    proxy, client, namespace, valkey_server
):
    proxy.latency(0.2, way="to_server")
    client.send("SET", f"{namespace}:key", "late")
    wait_until(lambda: proxy.open_connections == 1, what="the connection")
    time.sleep(0.05)  # the proxy has the request by then
    proxy.cut(reset=True, side="client")
    assert valkey_server.command("GET", f"{namespace}:key") is None
    wait_until(
        lambda: valkey_server.command("GET", f"{namespace}:key") == "late", what="the late request"
    )


@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_of_the_servers_side_leaves_the_client_waiting(start_server, fault_proxy, reset):
    server = start_server("valkey")
    proxy = fault_proxy(server)
    with RespClient(proxy.address) as client:
        _block(client, server)
        proxy.cut(reset=reset, side="server")
        wait_until(lambda: not _blocked(server), what="the end at the server")
        assert _is_silent(client)
        client.send("SET", "key", "vanishes")
        assert _is_silent(client)
    assert server.command("GET", "key") is None


def test_bytes_vanish_in_one_direction_while_the_connection_stays(
    proxy, client, namespace, valkey_server
):
    key = f"{namespace}:key"
    client.call("PING")
    proxy.drop(way="to_client")
    client.send("SET", key, "done")
    assert _is_silent(client)
    assert valkey_server.command("GET", key) == "done"
    with RespClient(proxy.address) as other:
        other.call("PING")
        proxy.drop(way="to_server")
        other.send("SET", key, "vanishes")
        assert _is_silent(other)
    assert valkey_server.command("GET", key) == "done"
    assert _ping_anew(proxy) == "PONG"
    proxy.heal()  # what vanished does not come back
    assert _is_silent(client)


def test_faults_can_be_kept_to_connections_by_their_latest_command(proxy, client, namespace):
    with RespClient(proxy.address) as other:
        client.call("GET", namespace)
        other.call("PING")
        proxy.cut(reset=True, side="client", command="GET")
        with pytest.raises(ConnectionError):
            client.receive()
        assert other.call("PING") == "PONG"
        proxy.drop(way="to_client", command="get")
        assert other.call("PING") == "PONG"


async def test_switches_turn_inside_a_running_loop(proxy, client):
    proxy.answer("PING", "+instead")
    assert client.call("PING") == "instead"
    proxy.cut()
    proxy.heal()


def test_closing_twice_and_without_a_start_is_harmless(valkey_server):
    FaultProxy(valkey_server.address).close()
    with FaultProxy(valkey_server.address, unix=True) as proxy:
        proxy.close()


def test_closing_amid_new_connections_leaves_none_open(valkey_server):
    for _ in range(20):
        proxy = FaultProxy(valkey_server.address)
        proxy.start()
        clients = [RespClient(proxy.address) for _ in range(5)]
        proxy.close()
        for client in clients:
            client.close()
    gc.collect()  # what was left open would warn now, and a warning fails the test


def _duration_s(client: RespClient) -> float:
    began = time.monotonic()
    client.call("PING")
    return time.monotonic() - began


def _received_until_reset(client: RespClient) -> bytes:
    received = b""
    try:
        while True:
            received += client.socket.recv(100)
    except ConnectionResetError:
        return received


def _is_silent(client: RespClient) -> bool:
    client.socket.settimeout(0.1)
    try:
        client.receive()
    except TimeoutError:
        return True
    finally:
        client.socket.settimeout(5)
    return False


def _ping_anew(proxy: FaultProxy) -> str:
    with RespClient(proxy.address) as client:
        return client.call("PING")
