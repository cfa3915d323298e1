"""Payloads that are stored outside the stream, and payloads for display: decoded, truncated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.delivery.payloads import SHOWN_BYTES, PayloadView, show_bytes
from penstock.delivery.queries import ask_typed
from penstock.errors import DecodeError, ServerError
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.space import NAMESPACE_END
from penstock.redis.wire import Command
from penstock.topics.java.payloads import is_java_payload, unquoted
from penstock.topics.message import (
    ORIGINAL_SIZE,
    PAYLOAD_REF,
    STORAGE_TYPE,
    STORED_BESIDE,
    Message,
)
from penstock.topics.storage.keys import PartitionKeys

__all__ = [
    "SHOWN_BYTES",
    "ShownBody",
    "body_key",
    "fetch_body",
    "fetch_shown",
    "only_reference",
    "show_body",
    "show_payload",
    "without_reference",
]

_FETCHED = 8 * 1024 * 1024
"""For display, payloads of more bytes are fetched in part."""
_REFERENCE = frozenset({STORAGE_TYPE, PAYLOAD_REF, ORIGINAL_SIZE})


def body_key(keys: PartitionKeys, headers: Mapping[str, str]) -> str | None:
    """Key of the payload that these headers refer to; None if they refer to none of ours.

    Headers come from any producer: a reference to any other key is not followed.
    """
    if headers.get(STORAGE_TYPE) != STORED_BESIDE:
        return None
    key, prefix = headers.get(PAYLOAD_REF, ""), keys.payload_prefix
    former = prefix.replace(NAMESPACE_END, ":", 1)  # as messages of earlier versions refer to it
    if key.startswith(former):
        return prefix + key.removeprefix(former)
    return key if key.startswith(prefix) else None


def without_reference(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers without the reference to the payload."""
    return {name: value for name, value in headers.items() if name not in _REFERENCE}


def only_reference(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that refer to the payload."""
    return {name: value for name, value in headers.items() if name in _REFERENCE}


async def fetch_body(client: Client, message: Message) -> bytes | None:
    """Payload that a message refers to; None if it refers to none, or if it is gone.

    One that the Java library stored is listed among ours, so that it is freed when every group is
    past its message. One round trip, none if there is no reference.
    """
    keys = PartitionKeys.of(client.keys, message.topic, message.partition)
    key = body_key(keys, message.all_headers)
    if key is None:
        return None
    if not is_java_payload(key):
        (body,) = await ask_typed(client, [("GET", key)])
        return body
    name = key.removeprefix(keys.payload_prefix)
    member = f"{name} {message.entry_id.decode()}"
    command: Command = ("ZADD", keys.payloads, "NX", message.sent_ms, member)
    # A full server refuses to list it; then it is freed later, as an orphan.
    body, _ = await client.pipeline([("GET", key), command])
    if isinstance(body, ServerError):
        (body,) = await ask_typed(client, [("GET", key)])
    return body and unquoted(body, 1)


@dataclass(frozen=True, slots=True)
class ShownBody:
    """A payload that is stored outside the stream, or the beginning of it."""

    data: bytes
    size: int


async def fetch_shown(
    client: Client, keys: Sequence[str | None], max_bytes: int
) -> AsyncIterator[ShownBody | None]:
    """Payloads for display, in order; None where it is missing.

    Two round trips, or none; one more for each `topics.fetch_bytes` of them.
    """
    wanted = [key for key in keys if key is not None]
    lengths = await ask_typed(client, [("STRLEN", key) for key in wanted])
    sizes = {key: size or 0 for key, size in zip(wanted, lengths, strict=True)}
    most, some, together = client.settings.topics.fetch_bytes, list[str | None](), 0
    for key in keys:
        size = min(sizes.get(key or "", 0), _FETCHED)
        if some and together + size > most:
            for body in await _fetch_some(client, some, sizes, max_bytes):
                yield body
            some, together = [], 0
        some.append(key)
        together += size
    for body in await _fetch_some(client, some, sizes, max_bytes):
        yield body


async def _fetch_some(
    client: Client, keys: Sequence[str | None], sizes: Mapping[str, int], max_bytes: int
) -> list[ShownBody | None]:
    ends = {key: -1 if sizes[key] <= _FETCHED else max_bytes - 1 for key in keys if key is not None}
    parts = await ask_typed(client, [("GETRANGE", key, 0, end) for key, end in ends.items()])
    bodies: dict[str, ShownBody] = {}
    for key, part in zip(ends, parts, strict=True):
        if sizes[key]:
            whole = part and is_java_payload(key) and len(part) == sizes[key]
            data = unquoted(part, 1) if whole else part
            bodies[key] = ShownBody(data, len(data) if whole else sizes[key])
    return [None if key is None else bodies.get(key) for key in keys]


def show_body(
    codec: Codec, raw: bytes | None, body: ShownBody | None, max_bytes: int = SHOWN_BYTES
) -> PayloadView:
    """Payload for display: `body` if it is stored outside the stream, else `raw`."""
    view = show_payload(codec, raw if body is None else body.data, max_bytes)
    if body is not None and body.size > len(body.data):
        return msgspec.structs.replace(view, size=body.size, is_cut=True)
    return view


def show_payload(codec: Codec, raw: bytes | None, max_bytes: int = SHOWN_BYTES) -> PayloadView:
    """Payload as people read it. What cannot be unpacked is shown as it is stored."""
    if raw is None:
        return PayloadView(text="", size=0, is_missing=True)
    try:
        data = codec.decode(raw, bytes)
    except DecodeError:
        data = raw
    return show_bytes(data, max_bytes)
