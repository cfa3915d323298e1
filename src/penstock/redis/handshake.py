"""HELLO, AUTH and SELECT on a new connection, and the errors of their failures."""

from __future__ import annotations

import os
import ssl
from typing import Any, cast

from penstock.errors import CommandRefused, OutcomeUnknown, ServerError, TlsFailed, Unreachable
from penstock.redis.address import Credentials, Endpoint

__all__ = ["handshake", "not_opened", "read_handshake"]


def handshake(credentials: Credentials, database: int) -> list[tuple[str | int, ...]]:
    """The commands that authenticate, name the connection and select the database."""
    hello: list[str | int] = ["HELLO", 2]
    if credentials.username or credentials.password is not None:
        hello += ["AUTH", credentials.username or "default", credentials.password or ""]
    commands: list[tuple[str | int, ...]] = [(*hello, "SETNAME", "penstock")]
    if database:
        commands.append(("SELECT", database))
    return commands


def read_handshake(endpoint: Endpoint, replies: list[Any]) -> dict[str, Any]:
    """The facts of the server from its HELLO or INFO reply; raises its refusal."""
    for reply in replies:
        if isinstance(reply, CommandRefused) and "unknown command" in str(reply):
            raise CommandRefused(f"{endpoint}: the server is older than Redis 6.2")
        if isinstance(reply, ServerError):
            raise reply
    if not isinstance(replies[0], list):
        raise Unreachable(f"{endpoint}: it does not greet as a Redis server does")
    fields = iter(cast("list[Any]", replies[0]))
    return {
        name.decode(): value.decode() if isinstance(value, bytes) else value
        for name, value in zip(fields, fields, strict=False)
    }


def not_opened(endpoint: Endpoint, error: Exception, *, connect_s: float, tls: bool) -> Unreachable:
    """Say why, knowing that nothing was asked yet."""
    if isinstance(error, ssl.SSLError):
        why = getattr(error, "verify_message", "") or error.reason or error
        return TlsFailed(f"{endpoint}: {why}")
    if isinstance(error, TimeoutError):
        hint = " (does it speak TLS?)" if tls else ""
        return Unreachable(f"{endpoint}: no answer within {connect_s:g} s{hint}")
    if isinstance(error, OutcomeUnknown):
        # A server that wants a certificate says so only after the TLS handshake; the alert is lost
        # if the reset overtakes it.
        hint = " (over TLS: does it demand a client certificate?)" if tls else ""
        return Unreachable(f"{error}{hint}")
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        # asyncio words it as "Connect call failed" and the address once more.
        return Unreachable(f"{endpoint}: {os.strerror(error.errno)}")
    return Unreachable(f"{endpoint}: {getattr(error, 'strerror', None) or error}")
