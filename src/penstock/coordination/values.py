"""Values as they are stored: lifetimes of keys, and plain texts."""

from __future__ import annotations

from datetime import timedelta

from penstock.delivery.times import wait_s
from penstock.errors import InvalidItem, SettingError
from penstock.errors.base import shown

__all__ = ["lasting_ms", "seconds_of", "to_bytes", "to_text"]


def lasting_ms(ttl: float | timedelta | None, default_s: float) -> int:
    """The lifetime of a key; SettingError below a millisecond or above ten years."""
    ttl_ms = round((default_s if ttl is None else seconds_of(ttl, "ttl")) * 1000)
    if ttl_ms < 1:
        raise SettingError("ttl", ttl, "at least a millisecond")
    return ttl_ms


def seconds_of(wait: float | timedelta, what: str) -> float:
    """Return a duration in seconds, at least 0; SettingError if it is not a finite duration."""
    try:
        return wait_s(wait, what)
    except (TypeError, ValueError):
        raise SettingError(what, wait, "seconds or a timedelta, ten years at most") from None


def to_bytes(text: str, what: str) -> bytes:
    """Encode a text. Paths may contain bytes that are not UTF-8: Python has surrogates for them."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidItem(f"{what} {shown(text, 60)}: expected text (a str)")
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise InvalidItem(f"{what} {text[:60]!a}: not Unicode text") from None


def to_text(stored: bytes) -> str:
    """Decode what `to_bytes` has encoded; never fails on bytes of other programs."""
    return stored.decode(errors="surrogateescape")
