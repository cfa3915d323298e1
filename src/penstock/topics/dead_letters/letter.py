"""A dead letter as it is stored, and how a message becomes one.

All fields are texts, the payload alone is kept byte by byte. The first nine are those of the Java
library, whose letters have no others:

    originalTopic payload timestamp failedAt retryCount partitionId headers originalMessageId
    maxRetries
    key group attempts reason
    messageId          the message's id, if that is not its place: partitionId-originalMessageId
    errorClass errorMessage stack fingerprint firstFailureMs lastFailureMs
    fields             every field of an entry that had no payload, as a JSON object
    rawFields          the same as a MessagePack array, if some are no texts or have equal names
    laterFields        fields of an entry with a payload that this version does not know, which a
                       later one may have written: a MessagePack array
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.failures import Failure
from penstock.delivery.stored import whole_number
from penstock.delivery.times import iso_time
from penstock.errors import TopicMissing
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.topics.admin.views import LetterView
from penstock.topics.java.payloads import is_java_payload, unquoted
from penstock.topics.message import (
    HEADERS,
    KEY,
    ORIGINAL_SIZE,
    PAYLOAD,
    PAYLOAD_REF,
    RETRY_COUNT,
    STORAGE_TYPE,
    STORED_BESIDE,
    TARGET_GROUP,
    Fields,
    Message,
    decode_headers,
    encode_headers,
    field_of,
)
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.large_payloads import (
    SHOWN_BYTES,
    ShownBody,
    body_key,
    fetch_body,
    show_body,
    without_reference,
)
from penstock.topics.storage.message_id import MESSAGE_ID, identify
from penstock.topics.storage.scripts import TopicScripts

__all__ = ["Letter", "bury", "index_field", "letter_fields"]

_MAX_RETRIES = b"maxRetries"
_TIMESTAMP = b"timestamp"
_RAW_FIELDS = b"rawFields"
_LATER_FIELDS = b"laterFields"
_ENTRY_FIELDS = frozenset(
    {
        *(PAYLOAD, KEY, HEADERS, TARGET_GROUP, MESSAGE_ID, RETRY_COUNT, _TIMESTAMP, _MAX_RETRIES),
        *(b"topic", b"partitionId"),
    }
)
"""Fields of an entry that Penstock or the Java library gives a meaning."""


class Letter:
    """A stored letter. Nothing in it is taken for granted: other programs write letters too."""

    __slots__ = ("id", "raw")

    def __init__(self, id_: bytes, fields: Fields) -> None:
        self.id = id_.decode()
        self.raw = dict(zip(fields[::2], fields[1::2], strict=False))
        """The fields as they are stored."""

    def text(self, name: str) -> str | None:
        value = self.raw.get(name.encode())
        return None if value is None else value.decode(errors="backslashreplace")

    def number(self, name: str) -> int | None:
        value = whole_number(self.raw.get(name.encode()), -1)
        return None if value < 0 else value

    @property
    def size(self) -> int:
        """Bytes of its fields, and of the payload that it refers to, as far as known."""
        beside = whole_number(self.headers.get(ORIGINAL_SIZE, "").encode())
        return sum(map(len, self.raw.values())) + beside

    @property
    def buried_ms(self) -> int:
        return int(self.id.partition("-")[0])

    @property
    def group(self) -> str | None:
        return self.text("group")

    @property
    def partition(self) -> int:
        return self.number("partitionId") or 0

    @property
    def entry_id(self) -> str:
        """Where the message stands in its partition; '' if the letter does not name it."""
        return self.text("originalMessageId") or ""

    @property
    def message_id(self) -> str | None:
        carried = self.raw.get(MESSAGE_ID)
        if not self.entry_id and carried is None:
            return None
        return identify(self.partition, self.entry_id, carried)

    @property
    def headers(self) -> dict[str, str]:
        return decode_headers(self.raw.get(HEADERS))

    @property
    def fields(self) -> dict[str, str] | None:
        """Every field of an entry that had no payload."""
        return decode_headers(self.raw[b"fields"]) if b"fields" in self.raw else None

    @property
    def raw_fields(self) -> Fields | None:
        """The same as it was stored, names and values in turn."""
        try:
            parts = msgspec.msgpack.decode(self.raw[_RAW_FIELDS], type=list[bytes])
        except (KeyError, ValueError, RecursionError):
            texts = (self.fields or {}).items()
            parts = [part.encode() for item in texts for part in item]
        return parts if parts and len(parts) % 2 == 0 else None

    @property
    def later_fields(self) -> Fields:
        """Fields of the entry that this version does not know, names and values in turn."""
        try:
            parts = msgspec.msgpack.decode(self.raw[_LATER_FIELDS], type=list[bytes])
        except (KeyError, ValueError, RecursionError):
            return []
        return parts if len(parts) % 2 == 0 else []

    @property
    def payload(self) -> bytes | None:
        """The payload; None if the message had none, or if it is only referred to."""
        if b"fields" in self.raw or self.headers.get(STORAGE_TYPE) == STORED_BESIDE:
            return None
        payload = self.raw.get(PAYLOAD)
        if payload is None or b"attempts" in self.raw:
            return payload
        return unquoted(payload, self.number("retryCount") or 0)  # written by the Java library

    @property
    def index_field(self) -> str:
        return index_field(self.group or "", self.text("partitionId") or "", self.entry_id)

    @property
    def stored_headers(self) -> dict[str, str]:
        """Headers of the message; where the letter keeps the whole entry, those in it."""
        if self.fields is None:
            return self.headers
        return decode_headers(self.fields.get("headers", "").encode())

    def body_key(self, client: Client, topic: str) -> str | None:
        """Key of a payload that is stored outside the letter; None if the letter has it itself."""
        key = body_key(PartitionKeys.of(client.keys, topic, self.partition), self.stored_headers)
        return key or self.java_body_key(client, topic)

    def java_body_key(self, client: Client, topic: str) -> str | None:
        """The same of a payload that the Java library stored for this letter alone."""
        if self.stored_headers.get(STORAGE_TYPE) != STORED_BESIDE:
            return None
        key = self.stored_headers.get(PAYLOAD_REF, "")
        prefix = TopicKeys.of(client.keys, topic).letter_payload_prefix
        return key if key.startswith(prefix) else None

    def unquoted(self, body: bytes, key: str) -> bytes:
        """A payload that is stored outside the letter, without what Java's retries added to it."""
        if not is_java_payload(key):
            return body
        # Once more than an inline one: what is stored outside is JSON.
        return unquoted(body, 1 + (self.number("retryCount") or 0))

    def view(
        self, codec: Codec, max_bytes: int = SHOWN_BYTES, body: ShownBody | None = None
    ) -> LetterView:
        if body is not None and body.size == len(body.data) and b"attempts" not in self.raw:
            data = unquoted(body.data, self.number("retryCount") or 0)
            body = ShownBody(data, len(data))
        return LetterView(
            id=self.id,
            buried_ms=self.buried_ms,
            topic=self.text("originalTopic") or "",
            partition=self.partition,
            message_id=self.message_id,
            payload=show_body(codec, self.payload, body, max_bytes),
            key=self.text("key"),
            headers=self.headers,
            attempts=self.number("attempts") or (self.number("retryCount") or 0) + 1,
            failed_at=self.text("failedAt"),
            group=self.group,
            reason=self.text("reason"),
            error_class=self.text("errorClass"),
            error_message=self.text("errorMessage"),
            stack=self.text("stack"),
            fingerprint=self.text("fingerprint"),
            first_failure_ms=self.number("firstFailureMs"),
            last_failure_ms=self.number("lastFailureMs"),
            fields=self.fields,
        )


async def bury(
    client: Client,
    message: Message,
    *,
    reason: str,
    attempts: int,
    failures: Sequence[Failure] = (),
    max_attempts: int | None = None,
) -> str:
    """Write a message into its topic's dead letters and return the letter's id.

    Repeating it is safe: one message of one group has one letter. The message stays pending; the
    caller settles it afterwards. A payload that was stored beside the stream goes into the letter,
    since it is freed there once every group is past its message. One round trip, two if such a
    payload was not fetched yet.
    """
    if message.body is None:
        message.body = await fetch_body(client, message)
    keys = TopicKeys.of(client.keys, message.topic)
    fields = letter_fields(
        message, reason=reason, attempts=attempts, failures=failures, max_attempts=max_attempts
    )
    id_ = await TopicScripts.of(client).bury_message(
        dlq=keys.dlq,
        dlq_index=keys.dlq_index,
        meta=keys.meta,
        letter=index_field(message.group, message.partition, message.entry_id.decode()),
        fields=fields,
    )
    if id_ is None:
        raise TopicMissing(message.topic)
    return id_.decode()


def index_field(group: str, partition: int | str, entry_id: str) -> str:
    """Under which a letter stands in the index, so that it is written once."""
    return f"{group}/{partition}/{entry_id}"


def letter_fields(
    message: Message,
    *,
    reason: str,
    attempts: int,
    failures: Sequence[Failure] = (),
    max_attempts: int | None = None,
) -> list[str | bytes]:
    """Return the fields of a message's dead letter, names and values in turn."""
    payload = message.stored_payload
    letter: dict[str, str | bytes] = {
        "originalTopic": message.topic,
        "payload": b"" if payload is None else payload,
        "timestamp": field_of(message.fields, _TIMESTAMP) or iso_time(message.sent_ms),
        "failedAt": iso_time(failures[-1].at_ms if failures else SYSTEM_CLOCK.wall_ms()),
        "retryCount": str(max(0, attempts - 1)),
        "partitionId": str(message.partition),
        "headers": _headers(message),
        "originalMessageId": message.entry_id,
        "maxRetries": _max_retries(message, attempts, max_attempts),
    }
    key = field_of(message.fields, KEY)
    if key is not None:
        letter["key"] = key
    letter |= {"group": message.group, "attempts": str(attempts), "reason": str(reason)}
    if MESSAGE_ID in message.fields[::2]:
        letter["messageId"] = message.id
    if failures:
        letter |= _failure_fields(failures)
    if payload is None:
        shown = message.shown()
        letter["fields"] = msgspec.json.encode(shown)
        if [part.encode() for item in shown.items() for part in item] != message.fields:
            letter["rawFields"] = msgspec.msgpack.encode(message.fields)
    elif later := _later_fields(message.fields):
        letter["laterFields"] = msgspec.msgpack.encode(later)
    return [part for item in letter.items() for part in item]


def _later_fields(fields: Fields) -> Fields:
    pairs = zip(fields[::2], fields[1::2], strict=False)
    return [part for name, value in pairs if name not in _ENTRY_FIELDS for part in (name, value)]


def _failure_fields(failures: Sequence[Failure]) -> dict[str, str | bytes]:
    last = failures[-1]
    return {
        "errorClass": _text(last.error_class),
        "errorMessage": _text(last.message),
        "stack": _text(last.stack),
        "fingerprint": _text(last.fingerprint),
        "firstFailureMs": str(failures[0].at_ms),
        "lastFailureMs": str(last.at_ms),
    }


def _text(value: str) -> bytes:
    """Encode text from a user's exception, which may hold half of a surrogate pair."""
    return value.encode(errors="backslashreplace")


def _headers(message: Message) -> bytes:
    headers = without_reference(message.all_headers)
    if not message.all_headers:  # none, or what cannot be read: kept as it is
        return field_of(message.fields, HEADERS) or b"{}"
    # Those about a large payload are left out only if the letter has the payload itself.
    return encode_headers(message.all_headers if _is_missing(message) else headers)


def _is_missing(message: Message) -> bool:
    headers = message.all_headers
    return message.body is None and len(without_reference(headers)) != len(headers)


def _max_retries(message: Message, attempts: int, max_attempts: int | None) -> str | bytes:
    if max_attempts is not None:
        return str(max_attempts - 1)
    return field_of(message.fields, _MAX_RETRIES) or str(max(0, attempts - 1))
