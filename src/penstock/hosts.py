"""Hosts by name and address: which are this machine, and which a list allows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from penstock.errors import SettingError

__all__ = ["HostPatterns", "is_loopback", "is_sent_openly", "public_url"]

_NAME: Final = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_EXPECTED: Final = "names such as 'cache-1' or '*.example.com', addresses, networks as '10.0.0.0/8'"


def is_loopback(host: str) -> bool:
    """Whether what is sent to a host stays on this machine."""
    address = _address(host)
    return host.lower().rstrip(".") == "localhost" if address is None else address.is_loopback


def is_sent_openly(url: str) -> bool:
    """Whether what is sent to a URL leaves this machine without encryption."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and not is_loopback(parts.hostname or "")
    except ValueError:
        return False  # its caller refuses it


def public_url(url: str) -> str:
    """A URL without a name, a password, a query or a fragment."""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an address that cannot be read"
    return f"{parts.scheme or 'http'}://{parts.hostname or ''}{port}{parts.path.rstrip('/')}"


class HostPatterns:
    """Names, `*.` before the end of names, addresses and networks.

    A name stands for itself, whatever it resolves to; networks are those of hosts that are given
    as addresses. `setting` is named in the SettingError for anything else.
    """

    def __init__(self, patterns: Iterable[str], *, setting: str) -> None:
        given = [pattern.strip().lower().rstrip(".") for pattern in patterns]
        self._names = {pattern for pattern in given if _NAME.fullmatch(pattern)}
        try:
            self._networks = [
                ip_network(pattern.strip("[]"), strict=False)
                for pattern in given
                if pattern not in self._names or _address(pattern) is not None
            ]
        except ValueError:
            raise SettingError(setting, ", ".join(given), _EXPECTED) from None

    def allows(self, host: str) -> bool:
        address = _address(host)
        if address is not None:
            return any(address in network for network in self._networks)
        labels = host.lower().rstrip(".").split(".")
        ends = (".".join(labels[start:]) for start in range(1, len(labels)))
        return ".".join(labels) in self._names or any(f"*.{end}" in self._names for end in ends)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
