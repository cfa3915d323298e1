"""redis-py's client, for pub/sub and for what Penstock does not wrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import AuthenticationFailed
from penstock.redis.address import Address, Credentials, Endpoint
from penstock.settings import Settings

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.redis.embedded.server import Embedded

__all__ = ["redis_py_client"]


def redis_py_client(
    address: Address,
    endpoint: Endpoint,
    settings: Settings,
    credentials: Callable[[], Credentials],
    embedded: Embedded | None,
) -> Redis:
    """Build a client that, like ours, sends every command once.

    It asks for the `credentials` with each connection, so that a rotated password counts.
    """
    # redis-py would add half again to the time that importing penstock takes.
    from redis.asyncio import (  # noqa: PLC0415
        BlockingConnectionPool,
        Connection,
        Redis,
        SSLConnection,
        UnixDomainSocketConnection,
    )
    from redis.asyncio.retry import Retry  # noqa: PLC0415
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.credentials import CredentialProvider  # noqa: PLC0415
    from redis.exceptions import AuthenticationError  # noqa: PLC0415

    class Current(CredentialProvider):
        def get_credentials(self) -> tuple[str] | tuple[str, str]:
            try:
                now = credentials()
            except AuthenticationFailed as error:
                raise AuthenticationError(str(error)) from None
            return (now.username or "default", now.password or "")

        async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
            return self.get_credentials()

    now = address.credentials
    is_known = now.username or now.password is not None or embedded is not None
    options: dict[str, Any] = {
        "credential_provider": Current() if is_known else None,
        "db": address.database,
        "socket_connect_timeout": settings.timeouts.connect_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "max_connections": settings.pools.pubsub,
        "timeout": settings.pools.wait_s,
    }
    if embedded is not None:
        from penstock.redis.embedded.redis_py import EmbeddedConnection  # noqa: PLC0415

        options |= {"connection_class": EmbeddedConnection, "embedded": embedded}
    elif endpoint.path:
        options |= {"connection_class": UnixDomainSocketConnection, "path": endpoint.path}
    else:
        options |= {
            "connection_class": SSLConnection if address.tls else Connection,
            "host": endpoint.host,
            "port": endpoint.port,
        }
    if address.tls:
        options |= {
            "ssl_ca_certs": settings.tls.ca_file,
            "ssl_certfile": settings.tls.cert_file,
            "ssl_keyfile": settings.tls.key_file,
            "ssl_check_hostname": settings.tls.check_hostname,
        }
    return Redis.from_pool(
        BlockingConnectionPool(**options)
    )  # so that aclose() closes the pool too
