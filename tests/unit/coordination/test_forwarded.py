"""Callers are told apart by address, and nobody can pass for another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.interfaces.forwarded import Callers

PROXIES = ("10.0.0.0/8", "2001:db8:ffff::/48", "192.0.2.1")


def name(peer: str | None, *told: str, trusted: tuple[str, ...] = PROXIES, **options: int) -> str:
    headers = [(b"host", b"example"), *((b"X-Forwarded-For", one.encode()) for one in told)]
    return Callers(trusted, **options).name(peer, headers)


@pytest.mark.parametrize(
    ("peer", "told", "expected"),
    [
        ("203.0.113.7", (), "203.0.113.7"),
        ("203.0.113.7", ("198.51.100.1",), "203.0.113.7"),  # anybody can write that
        ("10.0.0.1", (), "10.0.0.1"),
        ("10.0.0.1", ("198.51.100.1",), "198.51.100.1"),
        ("10.0.0.1", ("1.1.1.1, 198.51.100.1",), "198.51.100.1"),  # the first was made up
        ("10.0.0.1", ("1.1.1.1", "198.51.100.1"), "198.51.100.1"),
        ("10.0.0.1", ("198.51.100.1, 10.2.3.4, 192.0.2.1",), "198.51.100.1"),
        ("10.0.0.1", ("10.9.9.9, 10.2.3.4",), "10.9.9.9"),  # everybody is one of us
        ("10.0.0.1", ("198.51.100.1:4711",), "198.51.100.1"),
        ("10.0.0.1", ("198.51.100.1, garbage, 10.2.3.4",), "10.2.3.4"),
        ("10.0.0.1", ("unknown",), "10.0.0.1"),
        ("10.0.0.1", ("",), "10.0.0.1"),
        ("10.0.0.1", (" , ",), "10.0.0.1"),
        ("::ffff:10.0.0.1", ("::ffff:198.51.100.1",), "198.51.100.1"),
        ("2001:db8:ffff::1", ("[2001:db8:1:2:3::4]:443",), "2001:db8:1:2::/64"),
        ("2001:db8:1:2:3::4", (), "2001:db8:1:2::/64"),
        ("fe80::1%eth0", (), "fe80::/64"),
        (None, ("198.51.100.1",), "unknown"),
        ("testclient", (), "unknown"),
    ],
)
def test_the_last_address_that_is_not_a_trusted_proxy_s_counts(peer, told, expected):
    assert name(peer, *told) == expected


def test_at_first_nobody_is_trusted():
    assert name("127.0.0.1", "198.51.100.1", trusted=()) == "127.0.0.1"


def test_a_proxy_on_a_unix_socket_may_be_trusted():
    assert name(None, "198.51.100.1", trusted=("unix",)) == "198.51.100.1"
    assert name(None, trusted=("unix",)) == "unknown"
    assert name("127.0.0.1", "198.51.100.1", trusted=("unix",)) == "127.0.0.1"


def test_one_text_is_one_proxy():
    headers = [(b"x-forwarded-for", b"198.51.100.1")]
    assert Callers("127.0.0.1").name("127.0.0.1", headers) == "198.51.100.1"


def test_ipv6_callers_may_be_told_apart_more_or_less_closely():
    assert name("2001:db8:1:2:3::4", ipv6_prefix=128) == "2001:db8:1:2:3::4"
    assert name("2001:db8:1:2:3::4", ipv6_prefix=48) == "2001:db8:1::/48"


@pytest.mark.parametrize("proxy", ["proxy.example", "", "10.0.0.0/99"])
def test_a_proxy_that_is_no_address_is_a_wrong_setting(proxy):
    with pytest.raises(SettingError, match="trusted_proxies"):
        Callers((proxy,))


@pytest.mark.parametrize("prefix", [0, 129, True, "64"])
def test_a_prefix_that_no_address_has_is_a_wrong_setting(prefix):
    with pytest.raises(SettingError, match="ipv6_prefix"):
        Callers(ipv6_prefix=prefix)


@given(st.binary(max_size=60), st.text(max_size=20) | st.none())
def test_whatever_is_in_the_header_it_names_somebody(told, peer):
    callers = Callers(("0.0.0.0/0", "::/0", "unix"))
    assert callers.name(peer, [(b"x-forwarded-for", told)])
