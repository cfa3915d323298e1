"""Payloads as those see them who look: unpacked and cut, or found where they are stored beside."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.delivery.payloads import SHOWN_BYTES, PayloadView, show_bytes
from penstock.errors import DecodeError
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.topics import PartitionKeys
from penstock.topics.looking import ask_typed
from penstock.topics.message import (
    ORIGINAL_SIZE,
    PAYLOAD_REF,
    STORAGE_TYPE,
    STORED_BESIDE,
    Message,
)

__all__ = [
    "SHOWN_BYTES",
    "body_key",
    "fetch_body",
    "payload_prefix",
    "show_payload",
    "without_reference",
]


def payload_prefix(keys: PartitionKeys) -> str:
    """What the keys of a partition's large payloads begin with; a name completes the key."""
    return keys.payload("_").removesuffix("_")


def body_key(keys: PartitionKeys, headers: Mapping[str, str]) -> str | None:
    """Key of the payload that these headers refer to; None if they refer to none of ours.

    Headers come from anybody: a reference to any other key is not followed.
    """
    if headers.get(STORAGE_TYPE) != STORED_BESIDE:
        return None
    key = headers.get(PAYLOAD_REF, "")
    return key if key.startswith(payload_prefix(keys)) else None


def without_reference(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers but those that say where the payload is."""
    about = {STORAGE_TYPE, PAYLOAD_REF, ORIGINAL_SIZE}
    return {name: value for name, value in headers.items() if name not in about}


async def fetch_body(client: Client, message: Message) -> bytes | None:
    """Payload that a message refers to; None if it refers to none, or if it is gone.

    One round trip, none if there is no reference.
    """
    key = body_key(client.keys.partition(message.topic, message.partition), message.all_headers)
    if key is None:
        return None
    (body,) = await ask_typed(client, [("GET", key)])
    return body


def show_payload(codec: Codec, raw: bytes | None, most_bytes: int = SHOWN_BYTES) -> PayloadView:
    """Payload as people read it. What cannot be unpacked is shown as it is stored."""
    if raw is None:
        return PayloadView(text="", size=0, is_missing=True)
    try:
        data = codec.decode(raw, bytes)
    except DecodeError:
        data = raw
    return show_bytes(data, most_bytes)
