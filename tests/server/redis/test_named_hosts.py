"""Hosts that a cluster or a sentinel names get the password, so they may be restricted."""

from __future__ import annotations

import ssl

import pytest
import trustme
from tests.kit.fakes.redis_server import ScriptedServer, bulks, slots_of

from penstock.errors import HostNotAllowed, SettingError, TlsFailed
from penstock.redis.client import Client
from penstock.settings import ClusterSettings, Settings, TimeoutSettings, TlsSettings

QUICK = TimeoutSettings(connect_s=2, command_s=2)
PASSWORD = "CANARYPASSWORD"


@pytest.fixture
async def stranger():
    """The server to which another one points."""
    async with ScriptedServer("cluster", host="127.0.0.2") as server:
        server.answer = lambda command: (
            slots_of("127.0.0.2", server.port) * (command[0] == "CLUSTER")
        )
        yield server


def client_of(url, hosts, **settings) -> Client:
    cluster = ClusterSettings(hosts=hosts)
    return Client(Settings(url=url, password=PASSWORD, cluster=cluster, timeouts=QUICK, **settings))


def heard(server) -> bool:
    return any(PASSWORD in word for command in server.commands for word in command)


def redirecting(kind, stranger):
    """A node that owns all slots, and sends away whoever asks for a key."""
    server = ScriptedServer("cluster")

    def answer(command):
        if command[0] == "CLUSTER":
            return slots_of(server.host, server.port)
        if command[0] == "GET":
            return f"-{kind} 1 {stranger.place}\r\n".encode()
        return None

    server.answer = answer
    return server


@pytest.mark.parametrize("kind", ["MOVED", "ASK"])
async def test_a_redirection_to_a_host_that_is_not_allowed_is_an_error(stranger, kind):
    async with (
        redirecting(kind, stranger) as server,
        client_of(f"redis+cluster://{server.place}", "10.0.0.0/8, cache-1") as client,
    ):
        with pytest.raises(HostNotAllowed, match=r"127\.0\.0\.2.*cluster\.hosts"):
            await client.call("GET", "key")
        replies = await client.pipeline([("SET", "key", "x"), ("GET", "key"), ("SET", "a", "y")])
        assert [type(reply) for reply in replies] == [bytes, HostNotAllowed, bytes]
        assert heard(server)
    assert stranger.connections == 0


@pytest.mark.parametrize("hosts", ["", "127.0.0.2", "127.0.0.0/8"])
async def test_a_redirection_to_an_allowed_host_is_followed(stranger, hosts):
    async with (
        redirecting("MOVED", stranger) as server,
        client_of(f"redis+cluster://{server.place}", hosts) as client,
    ):
        assert await client.call("GET", "key") == b"OK"
    assert heard(stranger)


async def test_a_map_with_a_host_that_is_not_allowed_is_refused(stranger):
    def answer(command):
        return slots_of(stranger.host, stranger.port) if command[0] == "CLUSTER" else None

    async with ScriptedServer("cluster", answer=answer) as server:
        with pytest.raises(HostNotAllowed, match=r"cluster\.hosts"):
            await client_of(f"redis+cluster://{server.place}", "10.0.0.0/8").open()
    assert stranger.connections == 0


@pytest.mark.parametrize("hosts", ["10.0.0.0/8", ""])
async def test_a_primary_that_a_sentinel_names(hosts):
    async with ScriptedServer(host="127.0.0.2") as primary:

        def answer(command):
            return bulks(primary.host, str(primary.port)) if command[0] == "SENTINEL" else None

        async with ScriptedServer("sentinel", answer=answer) as sentinel:
            client = client_of(f"redis+sentinel://{sentinel.place}/main", hosts)
            if hosts:
                with pytest.raises(HostNotAllowed, match=r"cluster\.hosts"):
                    await client.open()
                assert primary.connections == 0
            else:
                async with client:
                    assert heard(primary)


async def test_the_hosts_of_the_address_need_not_be_listed(stranger):
    async with client_of(f"redis+cluster://{stranger.place}", "10.0.0.0/8") as client:
        assert await client.call("SET", "key", "x") == b"OK"


async def test_a_pattern_that_is_none_is_refused_when_opening():
    with pytest.raises(SettingError, match=r"cluster\.hosts"):
        await client_of("redis+cluster://127.0.0.1:1", "10.0.0.0/99").open()


async def test_over_tls_a_host_proves_the_name_under_which_it_was_given(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)  # not for 127.0.0.2
    async with ScriptedServer("cluster", host="127.0.0.2", tls=context) as other:
        server = redirecting("MOVED", other)
        server.tls = context
        tls = TlsSettings(ca_file=str(tmp_path / "ca.pem"))
        async with server, client_of(f"rediss+cluster://{server.place}", "", tls=tls) as client:
            with pytest.raises(TlsFailed, match="IP address mismatch"):
                await client.call("GET", "key")
    assert heard(server)
    assert other.commands == []
