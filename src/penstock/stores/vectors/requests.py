"""What a user and the house of the vectors say to each other over a unix socket.

Each message is its length in four bytes, most significant first, and then so many bytes of msgpack.
Answers carry the id of their request and may come in another order.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import StoreAway, StoreError, StoreFull, StoreMismatch
from penstock.stores.vectors.port import Point

__all__ = [
    "LARGEST_FRAME",
    "Alias",
    "Aliases",
    "Answer",
    "Collections",
    "Counts",
    "Create",
    "DeleteBefore",
    "DeleteGeneration",
    "Describe",
    "Drop",
    "FrameRefused",
    "Frames",
    "Ping",
    "Request",
    "Search",
    "Upsert",
    "Vectors",
    "decode_request",
    "encode",
    "error_of",
    "framed",
    "word_for",
]

LARGEST_FRAME = 256 * 1024 * 1024
_HEAD = 4
_ERRORS: dict[str, type[StoreError]] = {
    "away": StoreAway,
    "full": StoreFull,
    "mismatch": StoreMismatch,
    "error": StoreError,
}


class Request(msgspec.Struct, frozen=True, array_like=True):
    id: int


class Ping(Request, frozen=True, tag="ping"):
    """Answered beside all work, with the process id of the house."""


class Collections(Request, frozen=True, tag="collections"):
    pass


class Aliases(Request, frozen=True, tag="aliases"):
    pass


class Alias(Request, frozen=True, tag="alias"):
    name: str
    target: str


class Create(Request, frozen=True, tag="create"):
    collection: str
    dimension: int


class Drop(Request, frozen=True, tag="drop"):
    collection: str


class Describe(Request, frozen=True, tag="describe"):
    collection: str


class Upsert(Request, frozen=True, tag="upsert"):
    collection: str
    document: str
    generation: int
    points: list[Point]


class DeleteBefore(Request, frozen=True, tag="delete_before"):
    collection: str
    document: str
    generation: int


class DeleteGeneration(Request, frozen=True, tag="delete_generation"):
    collection: str
    document: str
    generation: int


class Vectors(Request, frozen=True, tag="vectors"):
    collection: str
    ids: list[str]


class Search(Request, frozen=True, tag="search"):
    collection: str
    vector: bytes
    limit: int
    documents: list[str]
    threshold: float | None


class Counts(Request, frozen=True, tag="counts"):
    collection: str
    documents: list[str]


class Answer(msgspec.Struct, frozen=True, array_like=True):
    id: int
    error: str
    """Empty if all went well, else one of the words of `error_of`; the value tells more then."""
    value: msgspec.Raw


AnyRequest = (
    Ping
    | Collections
    | Aliases
    | Alias
    | Create
    | Drop
    | Describe
    | Upsert
    | DeleteBefore
    | DeleteGeneration
    | Vectors
    | Search
    | Counts
)

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest)


class FrameRefused(Exception):
    """Somebody sent what is no message."""


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete with this; FrameRefused if one would be too large."""
        self._bytes += data
        found: list[bytes] = []
        start = 0
        while len(self._bytes) - start >= _HEAD:
            size = int.from_bytes(self._bytes[start : start + _HEAD])
            if size > LARGEST_FRAME:
                raise FrameRefused(f"a message of {size} bytes")
            end = start + _HEAD + size
            if len(self._bytes) < end:
                break
            found.append(bytes(memoryview(self._bytes)[start + _HEAD : end]))
            start = end
        if start:
            del self._bytes[:start]
        return found


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def framed(value: Any) -> bytes:
    """A message ready to be sent."""
    body = _encoder.encode(value)
    return len(body).to_bytes(_HEAD) + body


def decode_request(frame: bytes) -> AnyRequest:
    try:
        return _requests.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameRefused(str(error)) from None


def word_for(error: StoreError) -> str:
    return next((word for word, kind in _ERRORS.items() if isinstance(error, kind)), "error")


def error_of(word: str, text: str) -> StoreError:
    return _ERRORS.get(word, StoreError)(text)
