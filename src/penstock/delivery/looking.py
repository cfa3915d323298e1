"""Asking the server many things at once; not being able to look is an error, never "nothing"."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import CommandRefused, ServerError
from penstock.redis.client import Client
from penstock.redis.wire import Command, Reply

__all__ = ["as_dict", "ask", "exact", "is_wrong_type", "now_ms", "text"]

_AT_ONCE = 1_000
_ABSENT = "no such key"


async def ask(
    client: Client, commands: Sequence[Command], *, absent: bool = False, typed: bool = False
) -> list[Reply]:
    """Return every reply, or raise the first refusal. A round trip per 1,000 commands.

    With `absent`, None stands for what XINFO says of a key that is not there. With `typed`, a
    refusal because a key is of another type is a reply as well: see `is_wrong_type`.
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
    """Read a part of a key so that it can be sent again, whatever its bytes; not for people."""
    return value.decode(errors="surrogateescape")


def now_ms(reply: Reply) -> int:
    """Read the reply to TIME."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000
