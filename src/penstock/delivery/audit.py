"""Audit log of a topic or a queue: a capped stream of administrative acts."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress
from functools import cache
from typing import Final

import msgspec

from penstock.delivery.stored import whole_number
from penstock.redaction import redacted
from penstock.redis.client import Client

__all__ = ["AUDIT_LENGTH", "Act", "default_who", "read_act", "read_acts", "record_act"]

AUDIT_LENGTH: Final = 10_000
"""Acts kept, a few more at times. Scripts that record an act have the same number."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """An administrative act on dead letters, groups or jobs."""

    id: str
    at_ms: int
    who: str
    what: str
    count: int
    detail: str = ""


@cache
def default_who() -> str:
    """`user@host` of this process."""
    user = f"uid-{os.getuid()}"
    # In a container a user may have a number and no name.
    with suppress(KeyError, OSError):
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


async def record_act(
    client: Client, audit: str, *, who: str | None, what: str, count: int, detail: str = ""
) -> None:
    """Append an act to the stream `audit`. One round trip."""
    said = redacted(detail)
    fields = ("who", who or default_who(), "what", what, "count", count, "detail", said)
    await client.call("XADD", audit, "MAXLEN", "~", AUDIT_LENGTH, "*", *fields)


async def read_acts(client: Client, audit: str, count: int = 100) -> list[Act]:
    """Return the last acts of the stream `audit`, the newest first. One round trip, O(count)."""
    entries = await client.call("XREVRANGE", audit, "+", "-", "COUNT", count)
    return [
        read_act(id_, dict(zip(fields[::2], fields[1::2], strict=False))) for id_, fields in entries
    ]


def read_act(id_: bytes, fields: dict[bytes, bytes]) -> Act:
    """One act, whatever its fields hold."""

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="backslashreplace")

    return Act(
        id=id_.decode(),
        at_ms=int(id_.partition(b"-")[0]),
        who=text(b"who"),
        what=text(b"what"),
        count=whole_number(fields.get(b"count")),
        detail=text(b"detail"),
    )
