"""What a Qdrant server's refusals, and its silence, mean to a caller."""

from __future__ import annotations

import json
from contextlib import suppress
from http import HTTPStatus
from typing import Any, ClassVar, cast

from penstock.errors import PenstockError, StoreAway, StoreError, StoreFull, StoreMismatch

__all__ = ["NoCollection", "VectorsForbidden", "VectorsTooOld", "failure"]

_MOST_WORDS = 300
_LONGEST_REST_S = 3_600.0
_AWAY = frozenset((HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS))
_FORBIDDEN = frozenset((HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN))
_WRONG = frozenset((HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY))
_FULL = ("no space left", "insufficient storage", "not enough disk", "disk quota", "os error 28")


class NoCollection(StoreMismatch):
    """There is no collection of this name."""


class VectorsForbidden(StoreError):
    """The server does not let us do this."""

    error_code: ClassVar[str] = "ERR_VECTORS_FORBIDDEN"
    suggestions = ("Set the key that the Qdrant server asks for: PENSTOCK_VECTORS_API_KEY",)


class VectorsTooOld(StoreError):
    """The server cannot keep an outdated worker from undoing newer work."""

    error_code: ClassVar[str] = "ERR_VECTORS_TOO_OLD"
    suggestions = ("Upgrade the Qdrant server, one minor version after the other",)


def failure(error: Exception, where: str) -> PenstockError:
    """Our error for one of the client library, of the network, or of the time that ran out."""
    if isinstance(error, PenstockError):
        return error
    # By what they carry, not by their types: those are in a library that need not be installed.
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return _refusal(status, error, where)
    if hasattr(error, "retry_after_s"):  # 429 with Retry-After
        return _away(f"{where} asks to be left alone: {error}", cast("Any", error).retry_after_s)
    if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
        # What the library refuses to send. (An answer that is not JSON is a proxy's.)
        words = str(error)[:_MOST_WORDS]
        kind = NoCollection if "not found" in words.lower() else StoreMismatch
        return kind(words)
    if isinstance(error, TimeoutError):
        return _away(f"{where} did not answer in time")
    source = getattr(error, "source", error)
    return _away(f"{where} does not answer: {str(source)[:_MOST_WORDS] or type(source).__name__}")


def _refusal(status: int, error: Exception, where: str) -> PenstockError:
    words = _words(getattr(error, "content", b""))
    said = f"{where} says {status}: {words}"
    lower = words.lower()
    if status == HTTPStatus.INSUFFICIENT_STORAGE or any(sign in lower for sign in _FULL):
        return StoreFull(said)
    if status in _FORBIDDEN:
        return VectorsForbidden(said)
    if status in _AWAY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _away(said, getattr(error, "headers", {}).get("retry-after"))
    if status == HTTPStatus.NOT_FOUND and "collection" in lower:
        return NoCollection(said)
    if status in _WRONG:
        return StoreMismatch(said)
    return StoreError(said)


def _away(words: str, retry_after: object = None) -> StoreAway:
    error = StoreAway(words)
    with suppress(TypeError, ValueError):  # none, or a date: nobody who limits requests sends one
        error.retry_after = min(max(0.0, float(cast("Any", retry_after))), _LONGEST_REST_S)
    return error


def _words(content: bytes) -> str:
    """What the server's answer says, without the JSON around it."""
    text = content.decode("utf-8", "replace")
    with suppress(ValueError, LookupError, TypeError):  # none if a proxy on the way answered
        text = str(json.loads(text)["status"]["error"])
    return text[:_MOST_WORDS]
