"""Reads stored bytes that any program may have written: None or a default if invalid."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

__all__ = ["read_json", "whole_number"]

T = TypeVar("T")

_MOST_DIGITS = 18
"""So that it fits into 64 bits, as the server's own numbers do."""


def whole_number(stored: bytes | str | int | None, default: int = 0) -> int:
    """Return a number from 0 on, written in up to 18 ASCII digits; else the default."""
    if isinstance(stored, int):
        return stored
    if not stored or len(stored) > _MOST_DIGITS or not stored.isascii() or not stored.isdigit():
        return default
    return int(stored)


def read_json(stored: bytes | str, type_: type[T] | Any) -> T | None:
    """Decode JSON as a type, or return None.

    Besides its own errors, msgspec raises those of Python for bytes that are not UTF-8, and for
    arrays within arrays beyond what the stack can hold.
    """
    try:
        return msgspec.json.decode(stored, type=type_)
    except (ValueError, OverflowError, RecursionError):
        return None
