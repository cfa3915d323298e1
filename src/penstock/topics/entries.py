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
    "LONGEST_KEY",
    "add_head",
    "add_keyed",
    "add_plain",
    "check_key",
    "claimed_fields",
    "forced_partition",
    "java_fields",
    "message_fields",
]

LONGEST_KEY = 1024
"""Bytes of UTF-8."""
# What the Java library takes where an entry does not say.
_JAVA_MAX_RETRIES = b"3"


def check_key(key: object) -> bytes:
    """Return a message's key as it is stored, or raise `InvalidMessage`."""
    if not isinstance(key, str):
        raise InvalidMessage(f"key {key!r}: expected a text (a str) or None")
    try:
        data = key.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(f"key {key[:60]!r}: half of a surrogate pair is no text") from None
    if len(data) > LONGEST_KEY:
        raise InvalidMessage(
            f"key {key[:60]!r}…: has {len(data)} bytes, at most {LONGEST_KEY} are allowed"
        )
    return data


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


def add_head(stream: bytes, fields: int) -> bytes:
    """Begin of a packed `XADD stream NOMKSTREAM * payload …`, up to the payload's length.

    Packing word by word takes longer than all else that a short message needs.
    """
    words = (b"XADD", stream, b"NOMKSTREAM", b"*", PAYLOAD)
    packed = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    return b"*%d\r\n%b$" % (4 + 2 * fields, packed)


def add_plain(head: bytes, data: bytes) -> bytes:
    """Complete the `add_head` of one field."""
    return b"%b%d\r\n%b\r\n" % (head, len(data), data)


def add_keyed(head: bytes, data: bytes, key: bytes) -> bytes:
    """Complete the `add_head` of two fields, of which the second is the key."""
    return b"%b%d\r\n%b\r\n$3\r\nkey\r\n$%d\r\n%b\r\n" % (head, len(data), data, len(key), key)


def message_fields(
    data: bytes, key: bytes | None, headers: Mapping[str, str] | None
) -> tuple[Argument, ...]:
    """Names and values in turn. The payload comes first: readers look there first."""
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
    told = {
        **(headers or {}),
        STORAGE_TYPE: STORED_BESIDE,
        PAYLOAD_REF: payload_key,
        ORIGINAL_SIZE: str(size),
    }
    placed = () if key is None else (KEY, key)
    return (*placed, HEADERS, encode_headers(told))


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
