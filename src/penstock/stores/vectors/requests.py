"""Requests and replies between the users of a vector daemon and the daemon.

Each message is a frame with a length of four bytes and a msgpack body. Replies carry the id of
their request and may come in another order.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from penstock.errors import StoreAway, StoreError, StoreFull, StoreMismatch
from penstock.processes.frames import FrameBuffer, FrameRefused
from penstock.stores.vectors.port import Point

__all__ = ["LARGEST_FRAME", "Alias", "Aliases", "Collections", "CountPoints", "Create"]
__all__ += ["DeleteBefore", "DeleteGeneration", "Describe", "Drop", "Ping", "Request", "Search"]
__all__ += ["Upsert", "VectorReply", "Vectors", "decode_request", "encode", "error_code"]
__all__ += ["error_of", "frame_buffer", "framed"]

LARGEST_FRAME = 256 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_ERRORS: dict[str, type[StoreError]] = {
    "away": StoreAway,
    "full": StoreFull,
    "mismatch": StoreMismatch,
    "error": StoreError,
}


class Request(msgspec.Struct, frozen=True, array_like=True):
    id: int


class Ping(Request, frozen=True, tag="ping"):
    """Answered at once, with the process id of the daemon."""


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


class CountPoints(Request, frozen=True, tag="counts"):
    collection: str
    documents: list[str]


class VectorReply(msgspec.Struct, frozen=True, array_like=True):
    id: int
    error: str
    """Empty on success, else a code of `error_of`; the value is its text then."""
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
    | CountPoints
)

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest)


def frame_buffer() -> FrameBuffer:
    """A buffer for the frames of one connection."""
    return FrameBuffer(LARGEST_FRAME, _LENGTH)


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def framed(value: Any) -> bytes:
    """A message as a frame."""
    body = _encoder.encode(value)
    return _LENGTH.pack(len(body)) + body


def decode_request(frame: bytes) -> AnyRequest:
    try:
        return _requests.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameRefused(str(error)) from None


def error_code(error: StoreError) -> str:
    return next((code for code, kind in _ERRORS.items() if isinstance(error, kind)), "error")


def error_of(code: str, text: str) -> StoreError:
    return _ERRORS.get(code, StoreError)(text)
