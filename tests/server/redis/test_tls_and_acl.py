"""TLS and access lists, for real: whom the client trusts, and what it may do."""

import asyncio
import shutil
from contextlib import asynccontextmanager, suppress

import pytest
import trustme
from redis.exceptions import RedisError
from tests.kit.fakes.redis_server import ScriptedServer

from penstock.errors import (
    AuthenticationFailed,
    PermissionRefused,
    ServerError,
    SettingError,
    TlsFailed,
    Unreachable,
)
from penstock.redis.address import Endpoint
from penstock.redis.client import Client
from penstock.redis.node import Role
from penstock.redis.redis_py import redis_py_client
from penstock.settings import Settings, TimeoutSettings, TlsSettings
from penstock.testing.eventually import eventually
from penstock.testing.servers import free_port
from penstock.testing.tls import Certificates


def client_of(port, tls, **settings):
    return Client(Settings(url=f"rediss://localhost:{port}", tls=tls, **settings))


@asynccontextmanager
async def recorded(server):
    """A port that leads to the server, and all bytes that are sent there."""
    wire, tasks = bytearray(), set()

    async def copy(reader, writer, *, keeps):
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if keeps:
                    wire.extend(data)
                writer.write(data)
        writer.close()

    async def relay(reader, writer):
        theirs, ours = await asyncio.open_connection(server.host, server.port)
        tasks.add(asyncio.current_task())
        async with asyncio.TaskGroup() as both:
            both.create_task(copy(reader, ours, keeps=True))
            both.create_task(copy(theirs, writer, keeps=False))

    relaying = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield relaying.sockets[0].getsockname()[1], wire
    finally:
        relaying.close()
        await asyncio.gather(*tasks)


def trusting(certificates, **options):
    return TlsSettings(ca_file=str(certificates.ca_file), **options)


async def test_a_certificate_of_a_trusted_authority_is_accepted(
    valkey_server, tls_proxy, certificates, namespace
):
    proxy = tls_proxy(valkey_server)
    async with client_of(proxy.port, trusting(certificates)) as client:
        value = b"x" * 3_000_000
        await client.call("SET", f"{namespace}:key", value)
        assert await client.call("GET", f"{namespace}:key") == value
        replies = await client.pipeline([("ECHO", str(number)) for number in range(5_000)])
        assert replies == [str(number).encode() for number in range(5_000)]
        async with client.lease(Role.QUEUE) as wire:
            assert await wire.call("PING") == b"PONG"
        assert await (await client.redis_py()).ping()
    await eventually(lambda: proxy.open_connections == 0)


@pytest.mark.parametrize("demand", [False, True])
async def test_a_server_that_speaks_tls_itself(start_server, certificates, demand):
    port = free_port()
    start_server("redis7", *certificates.server_arguments(port, demand_client_certificate=demand))
    with_own = trusting(
        certificates,
        cert_file=str(certificates.client_cert_file),
        key_file=str(certificates.client_key_file),
    )
    async with client_of(port, with_own) as client:
        assert await client.call("PING") == b"PONG"
    if demand:
        # Its alert, or the reset that may overtake it.
        with pytest.raises(Unreachable, match=r"(?i)certificate") as refused:
            await client_of(port, trusting(certificates)).open()
        assert refused.value.outcome == "rejected"


async def test_a_certificate_of_another_authority_is_refused(valkey_server, tls_proxy, tmp_path):
    other = Certificates.create(tmp_path)
    client = client_of(tls_proxy(valkey_server).port, trusting(other))
    with pytest.raises(TlsFailed, match="certificate") as raised:
        await client.open()
    assert not raised.value.transient
    assert raised.value.outcome == "rejected"


async def test_without_a_ca_file_the_systems_authorities_count(valkey_server, tls_proxy):
    with pytest.raises(TlsFailed, match="certificate"):
        await client_of(tls_proxy(valkey_server).port, TlsSettings()).open()


async def test_an_expired_certificate_is_refused(valkey_server, tls_proxy, tmp_path):
    expired = Certificates.create(tmp_path, expired=True)
    with pytest.raises(TlsFailed, match="expired"):
        await client_of(tls_proxy(valkey_server, expired).port, trusting(expired)).open()


async def test_a_certificate_for_another_host_is_refused_unless_told_otherwise(
    valkey_server, tls_proxy, tmp_path
):
    elsewhere = named("elsewhere.example", tmp_path)
    port = tls_proxy(valkey_server, elsewhere).port
    with pytest.raises(TlsFailed, match="Hostname mismatch"):
        await client_of(port, trusting(elsewhere)).open()
    async with client_of(port, trusting(elsewhere, check_hostname=False)) as client:
        assert await client.call("PING") == b"PONG"


def named(host, folder):
    """Certificates of a server that has this name alone."""
    made, authority = Certificates.create(folder), trustme.CA()
    certificate = authority.issue_cert(host)
    authority.cert_pem.write_to_path(made.ca_file)
    certificate.cert_chain_pems[0].write_to_path(made.cert_file)
    certificate.private_key_pem.write_to_path(made.key_file)
    return made


UNTRUSTED = {
    "host": lambda folder: named("elsewhere.example", folder),
    "authority": Certificates.create,
    "date": lambda folder: Certificates.create(folder, expired=True),
}


@pytest.mark.parametrize("way", ["wires", "redis-py"])
@pytest.mark.parametrize("wrong", [*UNTRUSTED, "no TLS at all", "authority, any host", "nothing"])
async def test_a_server_that_is_not_trusted_gets_no_command_and_no_password(
    certificates, tmp_path, way, wrong
):
    kind, _, any_host = wrong.partition(", ")
    theirs = UNTRUSTED[kind](tmp_path) if kind in UNTRUSTED else certificates
    trusted = certificates if kind == "authority" else theirs
    tls = trusting(trusted, check_hostname=not any_host)
    context = None if wrong == "no TLS at all" else theirs.server_context()
    async with ScriptedServer(tls=context) as server, recorded(server) as (port, wire):
        client = client_of(port, tls, username="alice", password="s3cret-of-alice")
        place = Endpoint("localhost", port)
        stock = redis_py_client(
            client.address, place, client.settings, lambda: client.address.credentials, None
        )
        try:
            await (client.open() if way == "wires" else stock.ping())
        except (Unreachable, TlsFailed, RedisError):
            assert wrong != "nothing"
        else:
            assert wrong == "nothing"
        finally:
            await client.close()
            await stock.aclose()
    if wrong == "nothing":  # so much does a server see that is trusted
        assert any("s3cret-of-alice" in command for command in server.commands)
    else:
        assert server.commands == []
    assert wire
    for word in (b"s3cret", b"alice", b"AUTH", b"HELLO", b"PING"):
        assert word not in wire


async def test_a_demanded_client_certificate(valkey_server, tls_proxy, certificates):
    port = tls_proxy(valkey_server, demand_client_certificate=True).port
    with pytest.raises(Unreachable):
        await client_of(port, trusting(certificates)).open()
    own = trusting(
        certificates,
        cert_file=str(certificates.client_cert_file),
        key_file=str(certificates.client_key_file),
    )
    async with client_of(port, own) as client:
        assert await client.call("PING") == b"PONG"


async def test_rotated_certificates_count_without_a_restart(valkey_server, tls_proxy, tmp_path):
    first = Certificates.create(tmp_path / "first")
    second = Certificates.create(tmp_path / "second")
    ca_file = tmp_path / "ca.pem"
    shutil.copy(first.ca_file, ca_file)
    proxy = tls_proxy(valkey_server, first)
    timeouts = TimeoutSettings(connect_s=1, command_s=1)
    tls = TlsSettings(ca_file=str(ca_file))
    async with client_of(proxy.port, tls, timeouts=timeouts) as client:
        proxy.close()
        tls_proxy(valkey_server, second, port=proxy.port)

        async def end_of(kind):
            try:
                await client.call("PING")
            except kind as error:
                return error
            except ServerError:
                return None

        # The server is ahead of us, then our file is half written, then all is well.
        assert await eventually(lambda: end_of(TlsFailed))
        ca_file.write_text("half a certi")
        assert "PEM" in str(await eventually(lambda: _unreadable(client)))
        shutil.copy(second.ca_file, ca_file)

        async def answers():
            return await end_of(TlsFailed) is None and await client.call("PING") == b"PONG"

        assert await eventually(answers)


async def _unreadable(client):
    try:
        await client.call("PING")
    except TlsFailed as error:
        return error if "PEM" in str(error) else None


@pytest.mark.parametrize("option", ["ca_file", "cert_file"])
async def test_files_that_cannot_be_read_show_when_opening(option, tmp_path):
    tls = TlsSettings(**{option: str(tmp_path / "missing.pem")})
    with pytest.raises(SettingError, match=r"missing\.pem"):
        await client_of(free_port(), tls).open()


@pytest.fixture(params=["valkey", "redis7", "redis62"])
def restricted(request, start_server):
    """A server on which alice may read and write under `allowed:` only."""
    server = start_server(request.param)
    server.command(
        *("ACL", "SETUSER", "alice", "on", ">s3cret-of-alice", "~allowed:*", "+@all", "-flushall")
    )
    return server


async def test_what_the_access_list_forbids_is_refused_and_the_connection_lives_on(restricted):
    url = f"redis://alice:s3cret-of-alice@127.0.0.1:{restricted.port}"
    async with Client(Settings(url=url)) as client:
        before = await client.call("CLIENT", "ID")
        assert await client.call("SET", "allowed:key", "value") == b"OK"
        for command in [("SET", "forbidden", "x"), ("GET", "forbidden"), ("FLUSHALL",)]:
            with pytest.raises(PermissionRefused) as raised:
                await client.call(*command)
            assert not raised.value.transient
        ends = await client.pipeline(
            [("GET", "allowed:key"), ("SET", "forbidden", "x"), ("GET", "allowed:key")]
        )
        assert [ends[0], type(ends[1]), ends[2]] == [b"value", PermissionRefused, b"value"]
        assert restricted.command("EXISTS", "forbidden") == 0
        assert await client.call("CLIENT", "ID") == before


async def test_an_access_list_that_is_narrowed_and_widened_again_counts_at_once(restricted):
    url = f"redis://alice:s3cret-of-alice@127.0.0.1:{restricted.port}"
    async with Client(Settings(url=url)) as client:
        restricted.command("ACL", "SETUSER", "alice", "-set")
        with pytest.raises(PermissionRefused):
            await client.call("SET", "allowed:key", "value")
        restricted.command("ACL", "SETUSER", "alice", "+set")
        assert await client.call("SET", "allowed:key", "value") == b"OK"


async def test_a_user_that_is_removed_is_told_so_and_can_come_back(restricted):
    url = f"redis://alice:s3cret-of-alice@127.0.0.1:{restricted.port}"
    async with Client(Settings(url=url)) as client:
        restricted.command("ACL", "DELUSER", "alice")

        async def end_of(kind):
            try:
                return await client.call("PING") if kind is bytes else not await client.call("PING")
            except ServerError as error:
                return isinstance(error, kind)

        assert await eventually(lambda: end_of(AuthenticationFailed))
        restricted.command("ACL", "SETUSER", "alice", "on", ">s3cret-of-alice", "~*", "+@all")
        assert await eventually(lambda: end_of(bytes))


async def test_no_password_in_any_text(restricted, caplog):
    wrong = f"redis://alice:not-the-s3cret@127.0.0.1:{restricted.port}"
    settings = Settings(url=wrong)
    client = Client(settings)
    with pytest.raises(AuthenticationFailed) as raised:
        await client.open()
    texts = [str(raised.value), repr(raised.value), repr(client), repr(client.address)]
    texts += [repr(settings), caplog.text, repr(raised.value.__cause__)]
    assert not [text for text in texts if "s3cret" in text]
