"""Signatures of messages: what of a message they cover, and where they are.

The signature is a header. It covers the namespace, the topic, the key, the payload as it is stored
(compressed, perhaps) and the other headers; not partition and id, which change when the topic grows
and when a message is delayed or replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.delivery.signing import Signer
from penstock.errors import BadSignature
from penstock.redis.client import Client
from penstock.topics.message import (
    KEY,
    ORIGINAL_ID,
    SIGNATURE,
    Message,
    encode_headers,
    field_of,
)
from penstock.topics.storage.large_payloads import without_reference

__all__ = ["MessageSignatures"]

_NOT_COVERED: Final = frozenset({SIGNATURE, ORIGINAL_ID})
_KEYLESS, _KEYED = b"-", b"+"


class MessageSignatures:
    """Signs the messages of one topic, and verifies them."""

    def __init__(self, client: Client, topic: str) -> None:
        self._signer = Signer(client, "topic", topic)

    @classmethod
    def of(cls, client: Client, topic: str) -> MessageSignatures | None:
        """Those of a topic; None if its messages are not signed."""
        return cls(client, topic) if client.settings.signing.signs(topic) else None

    @classmethod
    def required_of(cls, client: Client, topic: str) -> MessageSignatures | None:
        """Those that consumers of a topic demand; None if a message may be without."""
        return cls(client, topic) if client.settings.signing.requires(topic) else None

    def signed(
        self, payload: bytes, key: bytes | None, headers: Mapping[str, str] | None
    ) -> dict[str, str]:
        """Return the headers with the signature of the message."""
        others = dict(headers or {})
        return {**others, SIGNATURE: self._signer.sign(*_covered(payload, key, others))}

    def refusal(
        self, id_: str, payload: bytes, key: bytes | None, headers: Mapping[str, str]
    ) -> BadSignature | None:
        """Why a message may not be handled; None if it is signed as it is."""
        try:
            covered = _covered(payload, key, headers)
            self._signer.verify(id_, headers.get(SIGNATURE, ""), *covered)
        except BadSignature as error:
            return error
        return None

    def refusal_of(self, message: Message) -> BadSignature | None:
        """The same for a message whose payload is fetched. One without payload is not handled."""
        payload = message.stored_payload or b""
        key = field_of(message.fields, KEY)
        return self.refusal(message.id, payload, key, message.all_headers)


def _covered(
    payload: bytes, key: bytes | None, headers: Mapping[str, str]
) -> tuple[bytes, bytes, bytes]:
    others = without_reference(headers)
    if not _NOT_COVERED.isdisjoint(others):
        others = {name: value for name, value in others.items() if name not in _NOT_COVERED}
    stored_key = _KEYLESS if key is None else _KEYED + key
    return stored_key, payload, encode_headers(dict(sorted(others.items())))
