"""Payloads as the Java library redis-streaming stores them."""

from __future__ import annotations

import re

import msgspec

__all__ = ["is_java_payload", "unquoted"]

_MOST_QUOTES = 100
_is_uuid = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def unquoted(payload: bytes, retries: int) -> bytes:
    """Undo what Java's retries do to a payload: each writes the text before as a JSON string."""
    for _ in range(min(retries, _MOST_QUOTES)):
        if payload[:1] != b'"':
            break
        try:
            payload = msgspec.json.decode(payload, type=str).encode()
        except ValueError:  # not JSON, or half of a surrogate pair
            break
    return payload


def is_java_payload(key: str) -> bool:
    """Whether a large payload was stored by Java: always as JSON, under a UUID with dashes."""
    return bool(_is_uuid(key.rpartition(":")[2]))
