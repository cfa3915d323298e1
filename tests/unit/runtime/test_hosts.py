"""Hosts: which are this machine, and which a list of patterns allows."""

import pytest

from penstock.errors import SettingError
from penstock.hosts import HostPatterns, is_loopback, is_sent_openly


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9")),
        *((host, True) for host in ("::1", "[::1]", "::ffff:127.0.0.1")),
        *((host, False) for host in ("", "10.0.0.1", "localhost.example.com")),
        *((host, False) for host in ("2130706433", "127.1", "::ffff:10.0.0.1", "fe80::1%lo")),
    ],
)
def test_what_is_this_machine(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://embedder:8000/v1", True),
        ("HTTP://10.0.0.1", True),
        ("http://user:password@127.0.0.1@evil.example/", True),
        ("https://embedder/v1", False),
        ("http://localhost:11434/v1", False),
        ("http://[::1]/v1", False),
        ("embedder:8000", False),
        ("http://[half", False),
    ],
)
def test_what_leaves_this_machine_unencrypted(url, expected):
    assert is_sent_openly(url) is expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("cache-1", "CACHE-1.", "a.example.com", "a.b.example.com")),
        *((host, True) for host in ("10.1.2.3", "::ffff:10.1.2.3", "192.168.7.7", "2001:db8::9")),
        *((host, False) for host in ("cache-2", "example.com", "badexample.com", "")),
        *((host, False) for host in ("example.com.evil", "11.1.2.3", "192.168.7.8", "10.1", "*")),
    ],
)
def test_a_list_allows_names_addresses_and_networks(host, expected):
    patterns = ["cache-1", " *.Example.com. ", "10.0.0.0/8", "192.168.7.7", "2001:db8::/32"]
    assert HostPatterns(patterns, setting="cluster.hosts").allows(host) is expected


@pytest.mark.parametrize(
    "pattern", ["", "*", "a*", "a.*.b", "10.0.0.0/33", "a b", "http://a", "a:1"]
)
def test_anything_else_is_no_pattern(pattern):
    with pytest.raises(SettingError, match=r"cluster\.hosts"):
        HostPatterns([pattern], setting="cluster.hosts")
