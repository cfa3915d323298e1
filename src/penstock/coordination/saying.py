"""What callers say, in the form in which it is stored: how long a key lasts, and plain texts."""

from __future__ import annotations

from datetime import timedelta

from penstock.delivery.times import wait_s
from penstock.errors import InvalidItem, SettingError
from penstock.errors.base import shown

__all__ = ["lasting_ms", "seconds_of", "to_bytes", "to_text"]


def lasting_ms(ttl: float | timedelta | None, default_s: float) -> int:
    """How long a key lasts; SettingError for less than a millisecond, or more than ten years."""
    ttl_ms = round((default_s if ttl is None else seconds_of(ttl, "ttl")) * 1000)
    if ttl_ms < 1:
        raise SettingError("ttl", ttl, "at least a millisecond")
    return ttl_ms


def seconds_of(wait: float | timedelta, what: str) -> float:
    """Return how long to wait, at least 0; SettingError for what has no end or is no time."""
    try:
        return wait_s(wait, what)
    except (TypeError, ValueError):
        raise SettingError(what, wait, "seconds or a timedelta, ten years at most") from None


def to_bytes(text: str, what: str) -> bytes:
    """A text as stored. Paths may have bytes that are no text: Python spells them as surrogates."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidItem(f"{what} {shown(text, 60)}: expected text (a str)")
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise InvalidItem(f"{what} {text[:60]!a}: not Unicode text") from None


def to_text(stored: bytes) -> str:
    """Give back what `to_bytes` was given; other programs' bytes are read without an error."""
    return stored.decode(errors="surrogateescape")
