"""A message: what a producer sends, what is stored, and what a handler gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.delivery.stored import whole_number
from penstock.errors import DecodeError, InvalidMessage
from penstock.redis.codec import Codec
from penstock.redis.codec.json_rules import repeats_a_member
from penstock.topics.java.payloads import unquoted
from penstock.topics.storage.message_id import MESSAGE_ID, identify

__all__ = [
    "Fields",
    "Message",
    "Outgoing",
    "Source",
    "check_headers",
    "encode_headers",
    "field_of",
    "is_marker",
    "without_retry_quotes",
]

Fields = list[bytes]
"""Names and values in turn, as the server returns an entry."""

PAYLOAD: Final = b"payload"
KEY: Final = b"key"
HEADERS: Final = b"headers"
TARGET_GROUP: Final = b"targetGroup"
"""Only this group handles the message; others pass over it. It stands first in its entry, so that a
plain entry is recognised by its first field."""
BARRIER: Final = b"barrier"
"""The topic grew here, to this generation: what follows waits for all that precedes."""
RETRY_COUNT: Final = b"retryCount"

STORAGE_TYPE: Final = "x-payload-storage-type"
PAYLOAD_REF: Final = "x-payload-hash-ref"
ORIGINAL_SIZE: Final = "x-payload-original-size"
STORED_BESIDE: Final = "hash"
SIGNATURE: Final = "x-penstock-signature"
_INTERNAL: Final = frozenset({STORAGE_TYPE, PAYLOAD_REF, ORIGINAL_SIZE, SIGNATURE})
FORCED_PARTITION: Final = "x-force-partition-id"
ORIGINAL_ID: Final = "x-original-message-id"
"""The header by which the Java library recognises a replayed message."""

_ONE_FIELD: Final = 2
_NOT_YET: Final = object()
_ODD = {b"", b'"'}
"""How payloads begin that are elsewhere, or that the Java library may have quoted."""
_MOST_HEADERS: Final = 100
_LONGEST_HEADER: Final = 8_192
_headers_decoder = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message of a batch, with its key and headers."""

    payload: Any
    key: str | None = None
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What all messages of one partition, read by one subscription, have in common."""

    topic: str
    partition: int
    group: str
    decode: Callable[[bytes], Any]
    codec: Codec | None = None
    """What unpacks large payloads in a thread."""
    type: Any = None
    """What they are decoded as."""


class Message:
    """One delivery of a message. Payload and headers are decoded on first access.

    `id` is unique in the topic and the same at every attempt, in every group, and when a dead
    letter is sent again: use it to recognise a repeat.
    """

    __slots__ = ("_decoded", "attempt", "body", "entry_id", "fields", "source")

    def __init__(self, source: Source, entry_id: bytes, fields: Fields, attempt: int = 1) -> None:
        self.source = source
        self.entry_id = entry_id
        """Where it stands in the stream of its partition."""
        self.fields = fields
        self.attempt = attempt
        """1 for the first; crashes count."""
        self._decoded: Any = _NOT_YET
        self.body: bytes | None = None
        """A payload that was stored beside the stream, once it has been fetched."""

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.source.topic}>"

    @property
    def id(self) -> str:
        """What `send` returned. See `penstock.topics.storage.message_id` for its form."""
        return identify(self.source.partition, self.entry_id, field_of(self.fields, MESSAGE_ID))

    @property
    def topic(self) -> str:
        return self.source.topic

    @property
    def partition(self) -> int:
        return self.source.partition

    @property
    def group(self) -> str:
        """The group that this delivery is for."""
        return self.source.group

    @property
    def sent_ms(self) -> int:
        """When the server stored it, in ms since 1970 (UTC)."""
        return int(self.entry_id.partition(b"-")[0])

    @property
    def key(self) -> str | None:
        raw = field_of(self.fields, KEY)
        return None if raw is None else raw.decode(errors="backslashreplace")

    @property
    def headers(self) -> dict[str, str]:
        """Headers as the producer gave them: without signature and reference to a payload."""
        return {name: value for name, value in self.all_headers.items() if name not in _INTERNAL}

    @property
    def all_headers(self) -> dict[str, str]:
        """Every header; text that is not a JSON object counts as none."""
        return decode_headers(field_of(self.fields, HEADERS))

    @property
    def stored_payload(self) -> bytes | None:
        """The payload as its producer stored it; None if the entry has none."""
        if self.body is not None:
            return self.body
        raw = self.fields[1] if self.fields[0] == PAYLOAD else field_of(self.fields, PAYLOAD)
        return raw and without_retry_quotes(raw, self.fields)

    @property
    def raw_payload(self) -> bytes:
        """The same; `DecodeError` if the entry has no payload."""
        raw = self.stored_payload
        if raw is None:
            raise DecodeError("the entry has no field 'payload'", msgspec.json.encode(self.shown()))
        if not raw and self.body is None and self.all_headers.get(STORAGE_TYPE) == STORED_BESIDE:
            raise DecodeError("the payload is not where the headers refer to", raw)
        return raw

    @property
    def payload(self) -> Any:
        """The payload as the handler's type; `DecodeError` if it is not that."""
        if self._decoded is _NOT_YET:
            fields = self.fields
            # As a rule it is there, and begins like no quoted or empty one.
            is_plain = self.body is None and fields[0] == PAYLOAD and fields[1][:1] not in _ODD
            self._decoded = self.source.decode(fields[1] if is_plain else self.raw_payload)
        return self._decoded

    async def unpack_aside(self) -> None:
        """Decode a payload that takes long to unpack; what is wrong with it shows in `payload`."""
        codec, raw = self.source.codec, self.body
        if codec is None or raw is None or self._decoded is not _NOT_YET or not codec.is_large(raw):
            return
        with suppress(DecodeError):
            self._decoded = await codec.decode_large(raw, self.source.type)

    def shown(self) -> dict[str, str]:
        """Every field as text, for people and dead letters."""
        texts = [part.decode(errors="backslashreplace") for part in self.fields]
        return dict(zip(texts[::2], texts[1::2], strict=False))


def is_marker(fields: Fields) -> bool:
    """Whether the entry is no message, but the place where the topic grew."""
    return fields[0] == BARRIER and len(fields) == _ONE_FIELD and fields[1].isdigit()


def field_of(fields: Fields, name: bytes) -> bytes | None:
    """Value of a field, or None."""
    for place in range(0, len(fields) - 1, 2):
        if fields[place] == name:
            return fields[place + 1]
    return None


def without_retry_quotes(payload: bytes, fields: Fields) -> bytes:
    """A payload without the quotes that the Java library put around it with each retry."""
    if payload[:1] != b'"' or (retries := field_of(fields, RETRY_COUNT)) is None:
        return payload
    return unquoted(payload, whole_number(retries))


def decode_headers(text: bytes | None) -> dict[str, str]:
    """Read the headers field; what is not a JSON object, or names one twice, counts as none."""
    if not text or repeats_a_member(text):
        return {}
    try:
        return {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in _headers_decoder.decode(text).items()
        }
    except (ValueError, OverflowError, RecursionError):  # also: not UTF-8, or nested too deep
        return {}


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse more headers than a producer may give, by InvalidMessage."""
    if len(headers) > _MOST_HEADERS:
        raise InvalidMessage(f"{len(headers)} headers: at most {_MOST_HEADERS} are allowed")
    for name, value in headers.items():
        # Other types are refused where the headers are encoded.
        if len(str(name)) + len(str(value)) > _LONGEST_HEADER:
            raise InvalidMessage(
                f"header {str(name)[:60]!r}: longer than {_LONGEST_HEADER} characters"
            )


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Write the headers field, or raise `InvalidMessage`."""
    for name, value in headers.items():
        # Callers without a type checker pass whatever they have.
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidMessage(f"header {name!r} = {value!r}: names and values are texts")
    try:
        return msgspec.json.encode(dict(headers))
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"headers hold text that is not Unicode: {error}") from None
