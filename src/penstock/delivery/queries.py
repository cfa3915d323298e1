"""Pipelined queries; a refused query raises instead of looking like an empty reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import CommandRefused, ServerError
from penstock.redis.client import Client
from penstock.redis.wire import Command, Reply

__all__ = [
    "as_dict",
    "ask",
    "ask_typed",
    "exact",
    "is_wrong_type",
    "now_ms",
    "server_ms",
    "text",
]

_AT_ONCE = 1_000
_ABSENT = "no such key"
_OF_NOTHING: Final[dict[str, Reply]] = {
    **dict.fromkeys(("LLEN", "ZCARD", "SCARD", "HLEN", "HEXISTS", "SISMEMBER"), 0),
    **dict.fromkeys(("LRANGE", "ZRANGE", "HGETALL"), ()),
}
"""Replies about a missing key, where that is not None."""


async def ask(
    client: Client, commands: Sequence[Command], *, absent: bool = False, typed: bool = False
) -> list[Reply]:
    """Return every reply, or raise the first refusal. A round trip per 1,000 commands.

    With `absent`, the reply of XINFO or RENAMENX for a key that does not exist is None. With
    `typed`, a refusal because a key is of another type is a reply as well: see `is_wrong_type`.
    """
    replies: list[Reply] = []
    for start in range(0, len(commands), _AT_ONCE):
        for reply in await client.pipeline(commands[start : start + _AT_ONCE]):
            if isinstance(reply, CommandRefused) and absent and _ABSENT in str(reply):
                replies.append(None)
            elif typed and is_wrong_type(reply):
                replies.append(reply)
            elif isinstance(reply, ServerError):
                raise reply
            else:
                replies.append(reply)
    return replies


def is_wrong_type(reply: Reply) -> bool:
    """Whether a command was refused because a key holds something of another type."""
    return isinstance(reply, CommandRefused) and "WRONGTYPE" in str(reply)


def as_dict(reply: Reply) -> dict[str, Reply]:
    """Names and values in turn, as a dict."""
    return {text(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def exact(value: bytes) -> str:
    """Decode a part of a key so that it can be sent again, whatever its bytes; not for display."""
    return value.decode(errors="surrogateescape")


def now_ms(reply: Reply) -> int:
    """Read the reply to TIME."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


async def server_ms(client: Client) -> int:
    """The server's time, in epoch ms. One round trip."""
    return now_ms(await client.call("TIME"))


async def ask_typed(
    client: Client, commands: Sequence[Command], *, absent: bool = False
) -> list[Reply]:
    """As `ask`; a key of another type is answered as if it were missing."""
    replies = await ask(client, commands, absent=absent, typed=True)
    return [
        _OF_NOTHING.get(str(command[0])) if is_wrong_type(reply) else reply
        for command, reply in zip(commands, replies, strict=True)
    ]
