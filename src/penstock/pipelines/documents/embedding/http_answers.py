"""What an OpenAI-compatible API answers, and what its refusals mean for a document."""

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

__all__ = ["AWAY", "BUSY", "FORBIDDEN", "MISMATCH", "REFUSED", "read_answer", "refusal_of"]

BUSY: Final = "ERR_EMBEDDER_BUSY"
AWAY: Final = "ERR_EMBEDDER_AWAY"
FORBIDDEN: Final = "ERR_EMBEDDER_FORBIDDEN"
REFUSED: Final = "ERR_EMBEDDER_REFUSED"
MISMATCH: Final = "ERR_DIMENSION_MISMATCH"
_ANSWER: Final = "ERR_EMBEDDER_ANSWER"

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


def read_answer(body: bytes, texts: int) -> tuple[NDArray[np.float64], int | None]:
    """A row for each text in their order, and the number of tokens if it is told.

    EmbedderFailed for what is no answer to the question: it is not repaired by guessing.
    """
    import numpy as np  # noqa: PLC0415  an extra

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
    said = f"{place} answered HTTP {status}{words}"
    if status in _BUSY:
        return EmbedderFailed(said, BUSY, retry_after=asked_s)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING:
        return EmbedderFailed(said, AWAY, retry_after=asked_s)
    return DocumentRefused(said, REFUSED)


def _words_of(body: bytes, secret: str | None) -> str:
    try:
        told = _read_refusal(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    words = told.error.message if isinstance(told.error, _Words) else told.error
    words = words or told.message or told.detail or ""
    if secret:
        words = words.replace(secret, "…")
    words = " ".join(words.split())
    return f": {words[:_LONGEST_WORDS]}" if words else ""


def _senseless(why: str) -> EmbedderFailed:
    return EmbedderFailed(f"the embedder's answer makes no sense: {why}", _ANSWER)
