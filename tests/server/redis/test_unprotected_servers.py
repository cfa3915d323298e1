"""A server on a network that lets everybody in is not used, unless that is allowed by name."""

import pytest
from tests.kit.own_address import listening_on, network_address

from penstock import Penstock
from penstock.errors import AddressError, UnprotectedServer
from penstock.inspector.rights import acl_user
from penstock.redis.client import Client
from penstock.settings import Settings, TlsSettings
from penstock.testing.servers import free_port


@pytest.fixture(scope="module")
def address():
    return network_address()


async def ping(url, **settings):
    async with Client(Settings(url=url, **settings)) as client:
        return await client.call("PING")


async def test_it_is_refused_after_the_greeting_with_what_allows_it(start_server, address):
    server = start_server("valkey", *listening_on(address))
    server.command("CONFIG", "RESETSTAT")
    with pytest.raises(UnprotectedServer) as refused:
        await ping(f"redis://{address}:{server.port}")
    assert isinstance(refused.value, AddressError)
    for words in (f"{address}:{server.port}", "no password", "--insecure", "allow_unauthenticated"):
        assert words in str(refused.value)
    calls = set(server.info("commandstats")) - {"cmdstat_config|resetstat", "cmdstat_info"}
    assert calls == {"cmdstat_hello"}


async def test_it_is_used_if_that_is_allowed(start_server, address):
    server = start_server("valkey", *listening_on(address))
    url = f"redis://{address}:{server.port}"
    assert await ping(url, allow_unauthenticated=True) == b"PONG"


@pytest.mark.parametrize("binary", ["valkey", "redis7", "redis62"])
async def test_a_password_is_enough(start_server, address, binary):
    server = start_server(binary, *listening_on(address), password="s3cret")
    assert await ping(f"redis://:s3cret@{address}:{server.port}") == b"PONG"
    url = f"redis://{address}:{server.port}"
    assert await ping(url, password="s3cret") == b"PONG"


@pytest.mark.parametrize("binary", ["valkey", "redis7", "redis62"])
async def test_a_password_that_the_server_does_not_ask_for_is_not(start_server, address, binary):
    server = start_server(binary, *listening_on(address))
    with pytest.raises(UnprotectedServer):
        await ping(f"redis://:s3cret@{address}:{server.port}")
    url = f"redis://{address}:{server.port}"
    assert await ping(url, password="s3cret", allow_unauthenticated=True) == b"PONG"


async def test_a_user_with_a_password_is_enough_once_the_default_user_is_off_or_restricted(
    start_server, address
):
    server = start_server("valkey", *listening_on(address))
    user = acl_user("worker", password="s3cret")
    server.command(*user.command.split(" "))
    url = f"redis://{user.name}:s3cret@{address}:{server.port}"
    with pytest.raises(UnprotectedServer):
        await ping(url)
    server.command("ACL", "SETUSER", "default", "-@all", "+ping", "+acl")
    assert await ping(url) == b"PONG", "a user for probes alone"
    server.command("ACL", "SETUSER", "default", "off")
    assert await ping(url) == b"PONG"


async def test_a_user_without_a_password_is_not(start_server, address):
    server = start_server("valkey", *listening_on(address))
    server.command("ACL", "SETUSER", "ann", "on", "nopass", "~*", "+@all")
    with pytest.raises(UnprotectedServer):
        await ping(f"redis://ann:@{address}:{server.port}")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
async def test_loopback_needs_no_password(start_server, host):
    server = start_server("valkey", "--bind", "127.0.0.1", "127.0.0.2")
    assert await ping(f"redis://{host}:{server.port}") == b"PONG"
    assert await ping(server.unix_url) == b"PONG"


async def test_tls_alone_is_not_enough_and_a_certificate_of_ours_is(
    start_server, certificates, address
):
    port = free_port()
    server_side = certificates.server_arguments(port, demand_client_certificate=True)
    start_server("redis7", *listening_on(address), *server_side)
    anonymous_port = free_port()
    start_server("redis7", *listening_on(address), *certificates.server_arguments(anonymous_port))
    trusting = {"ca_file": str(certificates.ca_file), "check_hostname": False}
    with_own = TlsSettings(
        **trusting,
        cert_file=str(certificates.client_cert_file),
        key_file=str(certificates.client_key_file),
    )
    assert await ping(f"rediss://{address}:{port}", tls=with_own) == b"PONG"
    with pytest.raises(UnprotectedServer):
        await ping(f"rediss://{address}:{anonymous_port}", tls=TlsSettings(**trusting))


async def test_each_node_of_a_cluster_is_judged_by_its_own_address(start_cluster, address):
    announced = ("--cluster-announce-ip", address)
    cluster = start_cluster(3, 0, *listening_on(address), *announced)
    with pytest.raises(UnprotectedServer, match=address):
        await ping(cluster.url)  # of loopback addresses
    assert await ping(cluster.url, allow_unauthenticated=True) == b"PONG"


async def test_a_primary_that_sentinels_name_is_judged_by_its_own_address(start_sentinel, address):
    setup = start_sentinel(1, 1, *listening_on(address))
    [sentinel], primary = setup.sentinels, setup.primary
    sentinel.command("SENTINEL", "REMOVE", setup.service)
    sentinel.command("SENTINEL", "MONITOR", setup.service, address, primary.port, 1)
    with pytest.raises(UnprotectedServer, match=f"{address}:{primary.port}"):
        await ping(setup.url)
    assert await ping(setup.url, allow_unauthenticated=True) == b"PONG"


async def test_health_names_it_and_the_command_line_ends_as_for_a_wrong_address(
    start_server, address, open_shell
):
    server = start_server("valkey", *listening_on(address))
    url = f"redis://{address}:{server.port}"
    app = Penstock(settings=Settings(url=url))
    found = await app.health()
    await app.close()
    assert found.status == "unhealthy"
    assert "UnprotectedServer" in found.reasons[0]
    shell = open_shell()
    refused = shell("--url", url, "queue", "list")
    assert refused.returncode == 3
    assert "--insecure" in refused.stderr
    assert shell("--url", url, "--insecure", "queue", "list").returncode == 0
    assert (
        shell("--url", url, "queue", "list", PENSTOCK_ALLOW_UNAUTHENTICATED="true").returncode == 0
    )


async def test_the_doctor_warns_of_a_server_without_a_password_also_on_loopback(
    start_server, address
):
    server = start_server("valkey", *listening_on(address))
    for host, others in (("127.0.0.1", "every user"), (address, "everybody on the network")):
        found = await warnings_of(f"redis://{host}:{server.port}", allow_unauthenticated=True)
        assert others in found["access"]
        assert ("tls" in found) is (host == address)
    leftover = await warnings_of(f"redis://:s3cret@127.0.0.1:{server.port}")
    assert "asks for no password" in leftover["access"], "though we have one"
    found = await warnings_of(server.unix_url)
    assert f"TCP port {server.port} has no password" in found["access"]


async def test_the_doctor_warns_of_the_default_user_over_the_network(start_server, address):
    server = start_server("valkey", *listening_on(address), password="s3cret")
    found = await warnings_of(f"redis://:s3cret@{address}:{server.port}")
    assert "default user" in found["access"]
    assert "access" not in await warnings_of(server.url)
    user = acl_user("operator", password="other")
    server.command(*user.command.split(" "))
    found = await warnings_of(f"redis://{user.name}:other@{address}:{server.port}")
    assert set(found) == {"tls"}


async def test_the_doctor_warns_of_sentinels_without_a_password(start_sentinel):
    setup = start_sentinel(1, 0)
    found = await warnings_of(setup.url)
    assert "sentinel" in found["access"]


async def warnings_of(url, **settings):
    """Warnings of access and TLS, by the name of the check."""
    async with Penstock(settings=Settings(url=url, **settings)) as app:
        findings = (await app.doctor()).findings
    checks = {"access", "tls"}
    found = [one for one in findings if one.level != "ok" and one.check in checks]
    assert all(one.level == "warning" and one.fix for one in found)
    return {one.check: one.message for one in found}
