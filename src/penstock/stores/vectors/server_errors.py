"""Our errors for those of a Qdrant server and its client library."""

from __future__ import annotations

import json
from contextlib import suppress
from http import HTTPStatus
from typing import Any, ClassVar, cast

from penstock.errors import PenstockError, StoreAway, StoreError, StoreFull, StoreMismatch

__all__ = ["NoCollection", "VectorsForbidden", "VectorsTooOld", "failure"]

_LONGEST_TEXT = 300
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
    """Our error for one of the client library, of the network, or a timeout."""
    if isinstance(error, PenstockError):
        return error
    # By their attributes, not by their types: the library need not be installed.
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return _refusal(status, error, where)
    if hasattr(error, "retry_after_s"):  # 429 with Retry-After
        return _away(f"{where} limits our requests: {error}", cast("Any", error).retry_after_s)
    if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
        # Refused by the library itself. (A reply that is not JSON is a proxy's.)
        text = str(error)[:_LONGEST_TEXT]
        kind = NoCollection if "not found" in text.lower() else StoreMismatch
        return kind(text)
    if isinstance(error, TimeoutError):
        return _away(f"{where} did not answer in time")
    source = getattr(error, "source", error)
    verb = "gave" if hasattr(source, "is_unread") else "does not answer:"
    return _away(f"{where} {verb} {str(source)[:_LONGEST_TEXT] or type(source).__name__}")


def _refusal(status: int, error: Exception, where: str) -> PenstockError:
    text = _text(getattr(error, "content", b""))
    message = f"{where} replied {status}: {text}"
    lower = text.lower()
    if status == HTTPStatus.INSUFFICIENT_STORAGE or any(sign in lower for sign in _FULL):
        return StoreFull(message)
    if status in _FORBIDDEN:
        return VectorsForbidden(message)
    if status in _AWAY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _away(message, getattr(error, "headers", {}).get("retry-after"))
    if status == HTTPStatus.NOT_FOUND and "collection" in lower:
        return NoCollection(message)
    if status in _WRONG:
        return StoreMismatch(message)
    return StoreError(message)


def _away(text: str, retry_after: object = None) -> StoreAway:
    error = StoreAway(text)
    with suppress(TypeError, ValueError):  # missing, or a date, which rate limiters do not send
        error.retry_after = min(max(0.0, float(cast("Any", retry_after))), _LONGEST_REST_S)
    return error


def _text(content: bytes) -> str:
    """The server's own text, without the JSON around it."""
    text = content.decode("utf-8", "replace")
    with suppress(ValueError, LookupError, TypeError):  # a proxy's reply
        text = str(json.loads(text)["status"]["error"])
    return text[:_LONGEST_TEXT]
