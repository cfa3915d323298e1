"""Asking the server many things at once, and reading what it says of streams."""

from __future__ import annotations

from penstock.delivery.looking import as_dict, ask, now_ms, text

__all__ = ["as_dict", "ask", "id_numbers", "now_ms", "text"]


def id_numbers(id_: bytes | str) -> tuple[int, int]:
    """An entry id as it compares."""
    ms, _, sequence = (id_.decode() if isinstance(id_, bytes) else id_).partition("-")
    return int(ms), int(sequence or 0)
