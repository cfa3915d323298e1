"""TLS for tests: throw-away certificates, and a proxy that puts TLS before a plain server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.testing.proxy import FaultProxy
from penstock.testing.resp import Address

__all__ = ["Certificates", "TlsProxy"]


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of one authority, a server certificate (localhost) and a client certificate."""

    ca_file: Path
    cert_file: Path
    key_file: Path
    client_cert_file: Path
    client_key_file: Path

    @classmethod
    def create(cls, folder: Path, *, expired: bool = False) -> Certificates:
        """Write new ones into `folder`; needs the package `trustme`. `expired`: the server's."""
        import trustme  # noqa: PLC0415  only tests that want TLS need it

        authority = trustme.CA()
        not_after = datetime.now(UTC) - timedelta(days=1) if expired else None
        server = authority.issue_cert("localhost", "127.0.0.1", "::1", not_after=not_after)
        client = authority.issue_cert("client@penstock.test")
        files = cls(*(folder / f"{name}.pem" for name in _FILES))
        folder.mkdir(parents=True, exist_ok=True)
        authority.cert_pem.write_to_path(files.ca_file)
        server.cert_chain_pems[0].write_to_path(files.cert_file)
        server.private_key_pem.write_to_path(files.key_file)
        client.cert_chain_pems[0].write_to_path(files.client_cert_file)
        client.private_key_pem.write_to_path(files.client_key_file)
        return files

    def server_context(self, *, demand_client_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.ca_file)
        context.load_cert_chain(self.cert_file, self.key_file)
        context.verify_mode = ssl.CERT_REQUIRED if demand_client_certificate else ssl.CERT_NONE
        return context

    def client_context(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if with_certificate:
            context.load_cert_chain(self.client_cert_file, self.client_key_file)
        return context

    def server_arguments(
        self, port: int, *, demand_client_certificate: bool = False
    ) -> tuple[str, ...]:
        """Options that make a server built with TLS (`redis7`) listen on `port` with it."""
        return (
            *("--tls-port", str(port)),
            *("--tls-cert-file", str(self.cert_file)),
            *("--tls-key-file", str(self.key_file)),
            *("--tls-ca-cert-file", str(self.ca_file)),
            *("--tls-auth-clients", "yes" if demand_client_certificate else "no"),
        )


_FILES = ("ca", "server", "server-key", "client", "client-key")


class TlsProxy(FaultProxy):
    """Speaks TLS to clients and plain text to `upstream`, with all switches of a FaultProxy."""

    def __init__(
        self,
        upstream: Address,
        certificates: Certificates,
        *,
        demand_client_certificate: bool = False,
        port: int | None = None,
    ) -> None:
        tls = certificates.server_context(demand_client_certificate=demand_client_certificate)
        super().__init__(upstream, port=port, tls=tls)
