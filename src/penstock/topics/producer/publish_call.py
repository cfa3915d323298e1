"""Calls of the script `publish_message`: messages sent once per key, large, or for later."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from penstock.errors import TopicMissing
from penstock.redis.client import Client
from penstock.redis.prepared_call import ScriptCall
from penstock.redis.wire import Argument
from penstock.topics.storage.entries import claimed_fields, message_fields
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.message_id import MESSAGE_ID, delayed_id
from penstock.topics.storage.scripts import PublishedMessage, PublishKeys, TopicScripts

__all__ = ["PublishCalls", "publish_once"]

# Long enough for an operator to return to what was interrupted.
_REMEMBER_MS = 24 * 3600 * 1000


class PublishCalls:
    """Calls that store messages of one partition."""

    def __init__(self, client: Client, keys: PartitionKeys) -> None:
        self._keys, self._payload_key = PublishKeys.of(keys), keys.payload
        self._publish = TopicScripts.of(client).publish_message
        self._settings = client.settings.topics

    def make(
        self,
        data: bytes,
        key: bytes | None,
        headers: Mapping[str, str] | None,
        *,
        is_large: bool,
        more_fields: tuple[Argument, ...] = (),
        idempotency_key: str = "",
        remember_ms: int = 0,
        wait_ms: int | None = None,
    ) -> ScriptCall[PublishedMessage | None]:
        """Build a call. A large payload is stored outside the stream, at a key of its own.

        `wait_ms` is how long the message waits; if negative, the server's ms at which it is due.
        The reply may be a `PublishRefusal`.
        """
        keys, name, body, waiting_id = self._keys, "", b"", ""
        if is_large:
            name, body = uuid.uuid4().hex, data
            keys = keys._replace(payload=self._payload_key(name))
            fields = claimed_fields(keys.payload, len(data), key, headers)
        else:
            fields = message_fields(data, key, headers)
        if wait_ms is not None:
            waiting_id = delayed_id()
            more_fields = (MESSAGE_ID, waiting_id, *more_fields)
        return self._publish(
            keys=keys,
            idempotency_key=idempotency_key,
            remember_ms=remember_ms,
            fields=(*fields, *more_fields) if more_fields else fields,
            payload_name=name,
            body=body,
            waiting_id=waiting_id,
            wait_ms=wait_ms or 0,
            max_delayed=self._settings.max_delayed,
            max_remembered=self._settings.max_remembered,
        )


async def publish_once(
    client: Client,
    topic: str,
    partition: int,
    *,
    fields: Sequence[Argument],
    idempotency_key: str,
    payload_name: str = "",
    body: bytes = b"",
) -> bool:
    """Store a message; False if it was stored under this key within the last day. One round trip.

    `body` is stored outside the stream under its name, if there is one.
    """
    keys = PartitionKeys.of(client.keys, topic, partition)
    published = await TopicScripts.of(client).publish_message(
        keys=PublishKeys.of(keys, payload_name),
        idempotency_key=idempotency_key,
        remember_ms=_REMEMBER_MS,
        fields=fields,
        payload_name=payload_name,
        body=body,
    )
    if published is None:
        raise TopicMissing(topic)
    return published.is_new
