"""Addresses: every scheme, credentials from three places, and refusals that leak nothing."""

import pytest

from penstock.errors import AddressError, SettingError
from penstock.hosts import is_loopback
from penstock.redis.address import Endpoint, Topology, parse_address
from penstock.settings import Settings


def parse(url, **settings):
    return parse_address(url, Settings(**settings))


@pytest.mark.parametrize(
    ("url", "topology", "endpoints", "tls"),
    [
        ("redis://host", Topology.SINGLE, [Endpoint("host", 6379)], False),
        ("redis://host:7000/3", Topology.SINGLE, [Endpoint("host", 7000)], False),
        ("rediss://host", Topology.SINGLE, [Endpoint("host", 6379)], True),
        ("redis://[::1]:7000", Topology.SINGLE, [Endpoint("::1", 7000)], False),
        ("unix:///run/valkey.sock", Topology.SINGLE, [Endpoint(path="/run/valkey.sock")], False),
        (
            "redis+sentinel://a,b:26380/main",
            Topology.SENTINEL,
            [Endpoint("a", 26379), Endpoint("b", 26380)],
            False,
        ),
        (
            "rediss+cluster://a:7000,b:7001",
            Topology.CLUSTER,
            [Endpoint("a", 7000), Endpoint("b", 7001)],
            True,
        ),
    ],
)
def test_every_scheme_is_understood(url, topology, endpoints, tls):
    address = parse(url)
    assert address.topology is topology
    assert list(address.endpoints) == endpoints
    assert address.tls is tls


def test_the_database_comes_from_the_path_or_the_query():
    assert parse("redis://h/5").database == 5
    assert parse("unix:///s?db=4").database == 4
    assert parse("redis+sentinel://h/main/2").database == 2
    assert parse("redis+sentinel://h/main/2").service == "main"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "no scheme"),
        ("localhost:6379", "is not one of"),
        ("http://localhost", "http://"),
        ("redis://", "host:port"),
        ("redis://:6379", "host:port"),
        ("redis://host:0", "port"),
        ("redis://host:70000", "port"),
        ("redis://host:port", "port"),
        ("redis://a,b", "several hosts"),
        ("redis://host/many", "database number"),
        ("redis://host/1/2", "database number"),
        ("redis://host/" + "1" * 5_000, "database number"),
        ("redis://host/٣", "database number"),
        ("redis://host?colour=red", "unknown option 'colour'"),
        ("redis://[::1", "server address"),
        ("unix://relative/path", "absolute path"),
        ("redis+sentinel://host", "names the service"),
        ("redis+cluster://host/3", "database 0 only"),
        ("redis://u:p#x@host", "%23"),
    ],
)
def test_a_bad_address_is_refused_in_one_line(url, words):
    with pytest.raises(AddressError) as refused:
        parse(url)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:SECRET",
        "redis://u:p?SECRET@host",
        "redis://u:1?SECRET@host",
        "redis://u:SECRET?p@host",
        "redis://u:p/SECRET@host",
        "redis://u:p#SECRET@host",
        "redis+sentinel://u:SECRET/p@host",
        "redis+sentinel://u:1/SECRET@host/main",
        "redis+cluster://u:SECRET,host",
        "unix://u:p?SECRET@/run/valkey.sock",
    ],
)
def test_a_bad_address_is_refused_without_any_part_of_its_password(url):
    with pytest.raises(AddressError) as refused:
        parse(url)
    assert "SECRET" not in str(refused.value)


def test_a_socket_may_have_any_name():
    assert parse("unix:///run/v@lkey.sock").endpoints == (Endpoint(path="/run/v@lkey.sock"),)


def test_user_and_password_in_the_url_may_hold_any_character():
    address = parse("redis://us%40er:p%40%3A%2F%23%25@host")
    assert address.credentials.username == "us@er"
    assert address.credentials.password == "p@:/#%"


def test_the_url_wins_over_the_settings():
    address = parse("redis://url-user:url-word@h", username="set-user", password="set-word")
    assert (address.credentials.username, address.credentials.password) == ("url-user", "url-word")
    address = parse("redis://h", username="set-user", password="set-word")
    assert (address.credentials.username, address.credentials.password) == ("set-user", "set-word")


def test_a_password_is_read_from_a_file_without_its_last_newline(tmp_path):
    path = tmp_path / "secret"
    path.write_text(" with spaces \n")
    assert parse("redis://h", password_file=str(path)).credentials.password == " with spaces "


@pytest.mark.parametrize("content", [None, ""])
def test_a_missing_or_empty_password_file_is_refused(tmp_path, content):
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingError, match="password_file"):
        parse("redis://h", password_file=str(path))


def test_a_password_and_a_password_file_together_are_refused():
    with pytest.raises(SettingError, match="no password set beside it"):
        parse("redis://h", password="a", password_file="b")


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:canary-4711@host/3",
        "rediss+cluster://user:canary-4711@a,b",
        "redis+sentinel://user:canary-4711@a/main",
        "unix://user:canary-4711@/run/valkey.sock",
    ],
)
def test_no_text_of_an_address_shows_the_password(url):
    address = parse(url)
    assert address.credentials.password == "canary-4711"
    assert "canary" not in f"{address} {address!r} {address.credentials!r}"
    assert parse(str(address)).endpoints == address.endpoints


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "localhost"]
)
def test_addresses_that_only_this_machine_reaches(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        *("10.0.0.1", "172.18.0.3", "192.168.1.9", "169.254.3.4", "203.0.113.7"),
        *("fe80::1%eth0", "fd00::2", "::", "::ffff:10.0.0.1", "localhost.example", "redis", ""),
    ],
)
def test_private_addresses_and_other_names_are_on_a_network(host):
    assert not is_loopback(host)
