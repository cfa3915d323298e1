"""Stored entries of the stream, as producers write them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from penstock.errors import InvalidMessage
from penstock.redis.wire import Argument
from penstock.topics.message import (
    FORCED_PARTITION,
    HEADERS,
    KEY,
    ORIGINAL_SIZE,
    PAYLOAD,
    PAYLOAD_REF,
    RETRY_COUNT,
    STORAGE_TYPE,
    STORED_BESIDE,
    encode_headers,
)

__all__ = [
    "claimed_fields",
    "forced_partition",
    "java_fields",
    "message_fields",
]

# The Java library's default.
_JAVA_MAX_RETRIES = b"3"


def forced_partition(headers: Mapping[str, str] | None, partitions: int) -> int | None:
    """Return the partition that a header asks for, if one does."""
    if not headers or (wanted := headers.get(FORCED_PARTITION)) is None:
        return None
    try:
        return int(wanted) % partitions
    except (TypeError, ValueError):
        raise InvalidMessage(
            f"header {FORCED_PARTITION} = {wanted!r}: expected a whole number"
        ) from None


def message_fields(
    data: bytes, key: bytes | None, headers: Mapping[str, str] | None
) -> tuple[Argument, ...]:
    """Names and values in turn. The payload comes first: readers expect it there."""
    if headers:
        text = encode_headers(headers)
        if key is None:
            return (PAYLOAD, data, HEADERS, text)
        return (PAYLOAD, data, KEY, key, HEADERS, text)
    if key is None:
        return (PAYLOAD, data)
    return (PAYLOAD, data, KEY, key)


def claimed_fields(
    payload_key: str, size: int, key: bytes | None, headers: Mapping[str, str] | None
) -> tuple[Argument, ...]:
    """Fields of a message whose payload is stored beside the stream, at `payload_key`."""
    all_headers = {
        **(headers or {}),
        STORAGE_TYPE: STORED_BESIDE,
        PAYLOAD_REF: payload_key,
        ORIGINAL_SIZE: str(size),
    }
    placed = () if key is None else (KEY, key)
    return (*placed, HEADERS, encode_headers(all_headers))


def java_fields(topic: str, partition: int) -> tuple[Argument, ...]:
    """What the Java library's readers want besides."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return (
        *(b"timestamp", now),
        *(RETRY_COUNT, b"0"),
        *(b"maxRetries", _JAVA_MAX_RETRIES),
        *(b"topic", topic),
        *(b"partitionId", partition),
    )
