"""A dead letter as it is stored, and how a message becomes one.

All fields are texts, the payload alone is kept byte by byte. The first nine are those of the Java
library, whose letters have no others:

    originalTopic payload timestamp failedAt retryCount partitionId headers originalMessageId
    maxRetries
    key group attempts reason
    errorClass errorMessage stack fingerprint firstFailureMs lastFailureMs
    fields             every field of an entry that had no payload, as a JSON object
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from penstock.clock import SYSTEM_CLOCK
from penstock.redis.client import Client
from penstock.topics.bodies import fetch_body
from penstock.topics.message import (
    HEADERS,
    KEY,
    PAYLOAD,
    Message,
    encode_headers,
    field_of,
)
from penstock.topics.retries import Failure

__all__ = ["bury", "index_field", "iso_time", "letter_fields"]

_MAX_RETRIES = b"maxRetries"
_TIMESTAMP = b"timestamp"


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
    keys = client.keys.topic(message.topic)
    fields = letter_fields(
        message, reason=reason, attempts=attempts, failures=failures, max_attempts=max_attempts
    )
    id_ = await client.scripts.bury(
        dlq=keys.dlq,
        dlq_index=keys.dlq_index,
        letter=index_field(message.group, message.partition, message.id.decode()),
        fields=fields,
    )
    return id_.decode()


def index_field(group: str, partition: int | str, message_id: str) -> str:
    """Under which a letter stands in the index, so that it is written once."""
    return f"{group}/{partition}/{message_id}"


def letter_fields(
    message: Message,
    *,
    reason: str,
    attempts: int,
    failures: Sequence[Failure] = (),
    max_attempts: int | None = None,
) -> list[str | bytes]:
    """Return the fields of a message's dead letter, names and values in turn."""
    payload = message.body if message.body is not None else field_of(message.fields, PAYLOAD)
    letter: dict[str, str | bytes] = {
        "originalTopic": message.topic,
        "payload": b"" if payload is None else payload,
        "timestamp": field_of(message.fields, _TIMESTAMP) or iso_time(message.sent_ms),
        "failedAt": iso_time(failures[-1].at_ms if failures else SYSTEM_CLOCK.wall_ms()),
        "retryCount": str(max(0, attempts - 1)),
        "partitionId": str(message.partition),
        "headers": _headers(message),
        "originalMessageId": message.id,
        "maxRetries": _max_retries(message, attempts, max_attempts),
    }
    key = field_of(message.fields, KEY)
    if key is not None:
        letter["key"] = key
    letter |= {"group": message.group, "attempts": str(attempts), "reason": str(reason)}
    if failures:
        letter |= _failure_fields(failures)
    if payload is None:
        letter["fields"] = msgspec.json.encode(message.shown())
    return [part for item in letter.items() for part in item]


def iso_time(ms: int) -> str:
    """Spell epoch milliseconds as Java's `Instant` does: `2026-07-01T08:00:00.123Z`."""
    moment = datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
    headers = message.headers
    if not message.all_headers:  # none, or what cannot be read: kept as it is
        return field_of(message.fields, HEADERS) or b"{}"
    # Those about a large payload are left out only if the letter has the payload itself.
    return encode_headers(message.all_headers if _is_missing(message) else headers)


def _is_missing(message: Message) -> bool:
    return message.body is None and len(message.headers) != len(message.all_headers)


def _max_retries(message: Message, attempts: int, max_attempts: int | None) -> str | bytes:
    if max_attempts is not None:
        return str(max_attempts - 1)
    return field_of(message.fields, _MAX_RETRIES) or str(max(0, attempts - 1))
