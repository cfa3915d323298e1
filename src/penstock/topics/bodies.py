"""Payloads that are stored beside the stream, as those look who find a reference to one."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.redis.client import Client
from penstock.redis.keys.topics import PartitionKeys
from penstock.topics.message import PAYLOAD_REF, STORAGE_TYPE, STORED_BESIDE, Message

__all__ = ["body_key", "fetch_body", "payload_prefix"]


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


async def fetch_body(client: Client, message: Message) -> bytes | None:
    """Payload that a message refers to; None if it refers to none, or if it is gone.

    One round trip, none if there is no reference.
    """
    key = body_key(client.keys.partition(message.topic, message.partition), message.all_headers)
    return None if key is None else await client.call("GET", key)
