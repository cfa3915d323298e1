"""Asking the server many things at once, and reading what it says of streams."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.delivery.looking import as_dict, ask, is_wrong_type, now_ms, text
from penstock.redis.client import Client
from penstock.redis.wire import Command, Reply

__all__ = ["as_dict", "ask", "ask_typed", "id_numbers", "now_ms", "text"]


async def ask_typed(
    client: Client, commands: Sequence[Command], *, absent: bool = False
) -> list[Reply]:
    """Ask as `ask` does; None stands for the refusal to look at a key of another type."""
    replies = await ask(client, commands, absent=absent, typed=True)
    return [None if is_wrong_type(reply) else reply for reply in replies]


def id_numbers(id_: bytes | str) -> tuple[int, int]:
    """An entry id as it compares."""
    ms, _, sequence = (id_.decode() if isinstance(id_, bytes) else id_).partition("-")
    return int(ms), int(sequence or 0)
