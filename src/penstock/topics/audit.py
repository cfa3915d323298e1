"""Who did what to a topic: a capped stream per topic."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress
from functools import cache
from typing import Final

from penstock.redis.client import Client
from penstock.topics.message import field_of
from penstock.topics.views import Act

__all__ = ["AUDIT_LENGTH", "default_who", "read_acts", "record_act"]

AUDIT_LENGTH: Final = 10_000
"""Acts kept, a few more at times. Scripts that record an act have the same number."""


@cache
def default_who() -> str:
    """`user@host` of this process."""
    user = f"uid-{os.getuid()}"
    # In a container a user may have a number and no name.
    with suppress(KeyError, OSError):
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


async def record_act(
    client: Client, topic: str, *, who: str | None, what: str, count: int, detail: str = ""
) -> None:
    """Note an act. One round trip."""
    fields = ("who", who or default_who(), "what", what, "count", count, "detail", detail)
    key = client.keys.topic(topic).audit
    await client.call("XADD", key, "MAXLEN", "~", AUDIT_LENGTH, "*", *fields)


async def read_acts(client: Client, topic: str, count: int = 100) -> list[Act]:
    """Return the last acts, the newest first. One round trip, O(count)."""
    key = client.keys.topic(topic).audit
    entries = await client.call("XREVRANGE", key, "+", "-", "COUNT", count)
    return [
        Act(
            id=id_.decode(),
            at_ms=int(id_.partition(b"-")[0]),
            who=(field_of(fields, b"who") or b"").decode(errors="backslashreplace"),
            what=(field_of(fields, b"what") or b"").decode(errors="backslashreplace"),
            count=int(field_of(fields, b"count") or 0),
            detail=(field_of(fields, b"detail") or b"").decode(errors="backslashreplace"),
        )
        for id_, fields in entries
    ]
