"""The kit starts, harms and restarts real servers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hiredis
import pytest
from tests.kit.patience import patient

from penstock.errors import BinaryMissing, StartFailed
from penstock.testing.binaries import find_binary
from penstock.testing.resp import RespClient
from penstock.testing.servers import ServerProcess, free_port, wait_until

StartServer = Callable[..., ServerProcess]


def test_each_server_answers_on_its_socket_and_its_port(any_server, namespace):
    any_server.command("SET", f"{namespace}:key", "välue")
    with RespClient(any_server.address) as over_tcp:
        assert over_tcp.call("GET", f"{namespace}:key") == "välue"
    assert any_server.url == f"redis://127.0.0.1:{any_server.port}"


def test_the_versions_are_the_promised_ones(any_server):
    info = any_server.info("server")
    version = info.get("valkey_version") or info["redis_version"]
    assert version == ".".join(map(str, any_server.binary.version))


@pytest.mark.parametrize("binary", ["valkey", "redis7", "redis62"])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_server_restarts_with_its_data(start_server: StartServer, binary: str, end: str):
    server = start_server(binary)
    server.command("SET", "key", "value")
    before = server.pid

    getattr(server, end)()
    assert not server.is_running
    with pytest.raises(OSError):  # noqa: PT011  refused or no such file, by the way it ended
        server.command("PING")

    server.restart()
    assert server.pid != before
    assert server.command("GET", "key") == "value"


def test_a_server_starts_within_a_fraction_of_a_second(start_server: StartServer):
    took_s = []
    for _ in range(4):  # the first one reads the binary from disk
        began = time.monotonic()
        start_server()
        took_s.append(time.monotonic() - began)
    assert min(took_s) < patient(2)


def test_a_server_needs_no_port(start_server: StartServer):
    server = start_server("valkey", tcp=False)
    assert server.port == 0
    assert server.command("CONFIG", "GET", "port") == ["port", "0"]


def test_a_server_with_a_password_is_ready_and_lets_the_kit_in(start_server: StartServer):
    server = start_server("valkey", password="s3cret")
    assert server.command("PING") == "PONG"
    with RespClient(server.address) as stranger, pytest.raises(hiredis.ReplyError, match="NOAUTH"):
        stranger.call("PING")


def test_users_of_the_access_list_can_be_given(start_server: StartServer):
    server = start_server("valkey", "--user", "reader", "on", ">pw", "~*", "+get", "+auth")
    with RespClient(server.address) as client:
        client.call("AUTH", "reader", "pw")
        with pytest.raises(hiredis.ReplyError, match="NOPERM"):
            client.call("SET", "key", "value")


def test_arguments_win_over_those_of_the_kit(start_server: StartServer):
    server = start_server("valkey", "--appendonly", "no")
    assert server.command("CONFIG", "GET", "appendonly") == ["appendonly", "no"]


def test_a_frozen_server_answers_again_when_it_goes_on(start_server: StartServer):
    server = start_server()
    with server.connect(timeout_s=0.1) as client:
        server.pause()
        with pytest.raises(TimeoutError):
            client.call("PING")
        server.resume()
        assert client.receive() == "PONG"


def test_a_frozen_server_can_be_stopped(start_server: StartServer):
    server = start_server()
    server.pause()
    server.stop()
    assert not server.is_running


@pytest.mark.parametrize("password", [None, "s3cret"])
def test_a_loading_server_can_be_met(start_server: StartServer, password: str | None):
    server = start_server(
        *("valkey", "--appendonly", "no", "--key-load-delay", "2000"),
        *("--loading-process-events-interval-bytes", "1024"),
        password=password,
    )
    server.command("DEBUG", "POPULATE", 300)
    server.command("SAVE")
    server.restart(wait_loaded=False)
    with pytest.raises(hiredis.ReplyError, match="LOADING"):
        server.command("GET", "key:1")
    server.wait_ready()
    assert server.command("GET", "key:1") == "value:1"


def test_a_server_that_cannot_start_shows_its_log():
    with pytest.raises(StartFailed, match=r"(?s)ended at once.*no-such-option"):
        ServerProcess("valkey", "--no-such-option", "1").__enter__()


def test_closing_leaves_no_folder(start_server: StartServer):
    server = start_server()
    server.close()
    assert not server.folder.exists()
    assert not server.is_running
    server.close()


def test_an_unknown_server_is_named():
    with pytest.raises(BinaryMissing, match="'redis1' is not one of valkey, redis7"):
        find_binary("redis1")


def test_ports_are_never_handed_out_twice():
    ports = [free_port() for _ in range(200)]
    assert len(set(ports)) == len(ports)


def test_a_wait_that_ends_in_vain_says_what_for():
    with pytest.raises(TimeoutError, match="the moon"):
        wait_until(lambda: False, what="the moon", timeout_s=0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="a feature of Linux")
def test_no_server_outlives_an_aborted_run():
    program = (
        "from penstock.testing.servers import ServerProcess\n"
        "server = ServerProcess('valkey')\n"
        "server.start()\n"
        "print(server.pid, server.folder, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        pid, folder = run.stdout.readline().split()
        assert _state(int(pid)) in "SR"
        run.kill()
    wait_until(lambda: _state(int(pid)) in "ZX", what="the server to end", timeout_s=5)
    shutil.rmtree(folder)


def _state(pid: int) -> str:
    """Say how a process fares; an orphan may stay a zombie (Z) where nobody reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"
