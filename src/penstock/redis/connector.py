"""Opens connections, with the secrets of the moment, to the kind of server that was meant."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.errors import (
    AddressError,
    AuthenticationFailed,
    EmbeddedError,
    PenstockError,
    ReadOnlyReplica,
    SettingError,
    TlsFailed,
    UnprotectedServer,
    Unreachable,
)
from penstock.redis.address import (
    Address,
    Credentials,
    Endpoint,
    Topology,
    parse_address,
    tls_context,
)
from penstock.redis.wire import Wire
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.redis.embedded.server import Embedded

__all__ = ["Connector", "parse_version"]


class Connector:
    """Knows how to connect to the servers of one address.

    Certificates and a password's file are read each time, so that rotated ones count without
    a restart. An embedded server that has gone is started again, unless it is only visited.
    """

    def __init__(
        self,
        address: Address,
        settings: Settings,
        embedded: Embedded | None,
        *,
        visits: bool = False,
    ) -> None:
        self._address = address
        self._settings = settings
        self._embedded = embedded
        self._visits = visits
        self.server_version: tuple[int, ...] = (0,)
        """Version of the server that was connected to last."""

    def check_files(self) -> None:
        """Raise `SettingError` if the certificates cannot be read."""
        if self._address.tls:
            tls_context(self._settings.tls)

    async def connect(self, endpoint: Endpoint) -> Wire:
        """Open a connection to a server that does the work."""
        try:
            wire = await self._open_present(endpoint)
        except Unreachable:
            if self._embedded is None or self._visits:
                raise
            try:
                await asyncio.to_thread(self._embedded.ensure_running)
            except EmbeddedError as error:
                raise Unreachable(str(error)) from error
            wire = await self._open_present(endpoint)
        if error := self._mismatch(wire):
            wire.abort("it is not the server that was meant")
            raise error
        self.server_version = parse_version(str(wire.hello.get("version", "0")))
        return wire

    async def connect_sentinel(self, endpoint: Endpoint) -> Wire:
        """Open a connection to a sentinel."""
        wire = await self._open(endpoint, self._address.sentinel_credentials, 0)
        if wire.hello.get("mode") != "sentinel":
            wire.abort("it is not the server that was meant")
            raise AddressError(f"{endpoint} is not a sentinel")
        return wire

    async def _open_present(self, endpoint: Endpoint) -> Wire:
        """Open a connection; the embedded server may have restarted at another socket."""
        if self._embedded is not None:
            endpoint = self._embedded.endpoint
        return await self._open(endpoint, self.credentials(), self._address.database)

    async def _open(self, endpoint: Endpoint, credentials: Credentials, database: int) -> Wire:
        timeouts = self._settings.timeouts
        try:
            tls = tls_context(self._settings.tls) if self._address.tls else None
        except SettingError as error:  # they could be read before: they are being replaced
            raise TlsFailed(f"{endpoint}: {error}") from None
        wire = await Wire.open(
            endpoint,
            connect_s=timeouts.connect_s,
            command_s=timeouts.command_s,
            credentials=credentials,
            database=database,
            tls=tls,
            asks_as_stranger=bool(credentials.password),
        )
        is_open = wire.serves_strangers or not credentials.password
        if is_open and self._must_ask_for_password and wire.is_remote:
            wire.abort("it lets everybody in")
            raise UnprotectedServer(
                f"{endpoint} is on a network and asks for no password: everybody there can read "
                "and change all that is stored. Give it one (penstock acl), or allow this by "
                "--insecure or allow_unauthenticated = true"
            )
        return wire

    @property
    def _must_ask_for_password(self) -> bool:
        """Whether a server on a network is refused unless it asks for a password."""
        # A server that has TLS demands a certificate unless it was configured not to.
        has_certificate = self._address.tls and self._settings.tls.cert_file is not None
        return not (self._settings.allow_unauthenticated or has_certificate)

    def credentials(self) -> Credentials:
        """Those of the moment; AuthenticationFailed if the password's file cannot be read."""
        if self._embedded is not None:
            try:
                return self._embedded.credentials()
            except EmbeddedError as error:
                raise AuthenticationFailed(str(error)) from None
        if self._settings.url is None or self._settings.password_file is None:
            return self._address.credentials
        try:
            return parse_address(self._settings.url, self._settings).credentials
        except SettingError as error:  # as with the certificates
            raise AuthenticationFailed(str(error)) from None

    def _mismatch(self, wire: Wire) -> PenstockError | None:
        place, mode, topology = wire.endpoint, wire.hello.get("mode"), self._address.topology
        if mode == "cluster" and topology is not Topology.CLUSTER:
            return AddressError(f"{place} is part of a cluster: write redis+cluster://{place}")
        if mode == "sentinel":
            return AddressError(f"{place} is a sentinel: write redis+sentinel://{place}/service")
        if mode != "cluster" and topology is Topology.CLUSTER:
            return AddressError(f"{place} is not part of a cluster: write redis://{place}")
        if topology is Topology.SENTINEL and wire.hello.get("role") != "master":
            return ReadOnlyReplica(f"{place}: named as primary, but it is a replica")
        return None


def parse_version(text: str) -> tuple[int, ...]:
    """Turn `7.0.15` into numbers; anything that is not one counts as 0."""
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split(".")[:3])
