"""What an OpenAI-compatible API answers: vectors, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.coordination.limits.headers import read_retry_after
from penstock.errors import DocumentError, DocumentRefused, EmbedderFailed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "AWAY",
    "BUSY",
    "FORBIDDEN",
    "MISMATCH",
    "REFUSED",
    "TOO_LONG",
    "longest_answer",
    "read_answer",
    "refusal_of",
    "too_long",
]

BUSY: Final = "ERR_EMBEDDER_BUSY"
AWAY: Final = "ERR_EMBEDDER_AWAY"
FORBIDDEN: Final = "ERR_EMBEDDER_FORBIDDEN"
REFUSED: Final = "ERR_EMBEDDER_REFUSED"
MISMATCH: Final = "ERR_DIMENSION_MISMATCH"
_ANSWER: Final = "ERR_EMBEDDER_ANSWER"
TOO_LONG: Final = "ERR_EMBEDDER_ANSWER_TOO_LONG"
_LONGEST_WORDS: Final = 200
_FORBIDDEN: Final = {
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.PAYMENT_REQUIRED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
}
_BUSY: Final = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}


# Client errors that are about the moment, not about the texts.
_PASSING: Final = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY}


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Usage(msgspec.Struct):
    total_tokens: int | None = None
    prompt_tokens: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Item]
    usage: _Usage | None = None


class _Words(msgspec.Struct):
    message: str | None = None


class _Refusal(msgspec.Struct):
    error: _Words | str | None = None
    message: str | None = None
    detail: str | None = None


_read_answer = msgspec.json.Decoder(_Answer).decode
_read_refusal = msgspec.json.Decoder(_Refusal).decode


_BYTES_PER_VALUE: Final = 32
_WIDEST: Final = 65_536
"""Dimension that is assumed until it is known."""
_SPARE_VALUES: Final = 32_768
"""Of an answer, for what is around the numbers, and for a few longer vectors."""
_FIELDS_PER_TEXT: Final = 16


def longest_answer(texts: int, dimension: int | None) -> int:
    """Maximum bytes of the answer to so many texts."""
    return _most_values(texts, dimension) * _BYTES_PER_VALUE


def _most_values(texts: int, dimension: int | None) -> int:
    return texts * ((dimension or _WIDEST) + _FIELDS_PER_TEXT) + _SPARE_VALUES


def read_answer(
    body: bytes, texts: int, dimension: int | None
) -> tuple[NDArray[np.float64], int | None]:
    """A row for each text in their order, and the number of tokens if the API reports it.

    EmbedderFailed for an answer that does not match the request.
    """
    import numpy as np  # noqa: PLC0415  an extra

    if body.count(b",") > _most_values(texts, dimension):
        # A number has two bytes at least as text, and some forty as an object.
        raise too_long(f"it has more values than {texts} vectors")
    try:
        answer = _read_answer(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _senseless(str(error)) from None
    if len(answer.data) != texts:
        raise _senseless(f"{len(answer.data)} vectors for {texts} texts")
    items = answer.data
    if any(item.index is not None for item in items):
        by_index = {item.index: item for item in items}
        if by_index.keys() != set(range(texts)):
            raise _senseless("its indexes are not those of the texts")
        items = [by_index[index] for index in range(texts)]
    if len({len(item.embedding) for item in items}) != 1 or not items[0].embedding:
        raise _senseless("vectors of different dimensions")
    rows = np.array([item.embedding for item in items], np.float64)
    if not np.isfinite(rows).all():
        raise _senseless("what is no number")
    usage = answer.usage
    tokens = None if usage is None else usage.total_tokens or usage.prompt_tokens
    return rows, tokens


def refusal_of(
    status: int, headers: Mapping[str, str], body: bytes, place: str, secret: str | None
) -> DocumentError:
    """What a status other than 200 means; its words never hold the `secret`."""
    asked_s = read_retry_after(headers)
    if status in _FORBIDDEN:
        return DocumentRefused(  # its words may repeat the key
            f"{place} refuses the key (HTTP {status})",
            FORBIDDEN,
            ("Check the environment variable that embeddings.api_key_env names",),
        )
    words = _words_of(body, secret)
    reason = f"{place} answered HTTP {status}{words}"
    if status in _BUSY:
        return EmbedderFailed(reason, BUSY, retry_after=asked_s)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING:
        return EmbedderFailed(reason, AWAY, retry_after=asked_s)
    return DocumentRefused(reason, REFUSED)


def _words_of(body: bytes, secret: str | None) -> str:
    try:
        refusal = _read_refusal(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    words = refusal.error.message if isinstance(refusal.error, _Words) else refusal.error
    words = words or refusal.message or refusal.detail or ""
    if secret:
        words = words.replace(secret, "…")
    words = " ".join(words.split())
    return f": {words[:_LONGEST_WORDS]}" if words else ""


def too_long(why: str) -> EmbedderFailed:
    return EmbedderFailed(
        f"the embedder's answer is not read: {why}",
        TOO_LONG,
        ("Compare embeddings.dimension with the model's, and see what answers at embeddings.url",),
    )


def _senseless(why: str) -> EmbedderFailed:
    return EmbedderFailed(f"the embedder's answer makes no sense: {why}", _ANSWER)
