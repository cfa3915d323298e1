"""Client address of a request: the peer, or the address that a trusted proxy names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

from penstock.errors import SettingError

__all__ = ["UNKNOWN", "Callers"]

UNKNOWN: Final = "unknown"
"""Name of callers without an address, that is, over a unix socket."""
UNIX: Final = "unix"

_HEADER: Final = b"x-forwarded-for"
_IPV6_BITS: Final = 128


class Callers:
    """Identifies callers by their address.

    - `trusted_proxies`: addresses and networks whose `X-Forwarded-For` is used; "unix" for a
      proxy behind a unix socket. Any client can send that header, so none is trusted by default.
    - `ipv6_prefix`: bits of an IPv6 address that identify a caller. One who has a network has 2⁶⁴
      addresses, and would be as many callers.
    """

    def __init__(self, trusted_proxies: Iterable[str] = (), *, ipv6_prefix: int = 64) -> None:
        proxies = (trusted_proxies,) if isinstance(trusted_proxies, str) else tuple(trusted_proxies)
        if type(ipv6_prefix) is not int or not 1 <= ipv6_prefix <= _IPV6_BITS:
            raise SettingError("ipv6_prefix", ipv6_prefix, f"1 to {_IPV6_BITS}")
        self._ipv6_prefix = ipv6_prefix
        self._trusts_unix = UNIX in proxies
        self._trusted = [_network(proxy) for proxy in proxies if proxy != UNIX]

    def name(self, peer: str | None, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Return the caller's address (of IPv6, its network) as it stands in keys."""
        address = _address(peer or "")
        if self._trusts_unix if address is None else self._trusts(address):
            address = self._forwarded(address, headers)
        if address is None:
            return UNKNOWN
        if isinstance(address, IPv6Address) and self._ipv6_prefix < _IPV6_BITS:
            return str(IPv6Network((address, self._ipv6_prefix), strict=False))
        return str(address)

    def _forwarded(
        self,
        address: IPv4Address | IPv6Address | None,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> IPv4Address | IPv6Address | None:
        """The last address that was reported by a trusted proxy."""
        addresses = b",".join(value for name, value in headers if name.lower() == _HEADER)
        for entry in reversed(addresses.decode("latin-1").split(",") if addresses else ()):
            named = _address(entry)
            if named is None:
                break  # nonsense: who stands before it cannot be believed either
            address = named
            if not self._trusts(address):
                break
        return address

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._trusted)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        expected = "an address, a network such as '10.0.0.0/8', or 'unix'"
        raise SettingError("trusted_proxies", text, expected) from None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Read an address, with or without brackets, a port or a zone; None for anything else."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    # The same caller, whichever way the socket was opened.
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
