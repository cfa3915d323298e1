"""Messages that a plain XADD cannot store: once per key, large, or for later."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.redis.keys import PartitionKeys
from penstock.redis.script import load_script
from penstock.redis.wire import Argument, pack
from penstock.topics.entries import claimed_fields, message_fields
from penstock.topics.identity import MESSAGE_ID, delayed_id
from penstock.topics.lanes import Lane

__all__ = ["Publication", "publication"]


@dataclass(frozen=True, slots=True)
class Publication:
    """One call of the script `publish`."""

    keys: tuple[str, ...]
    arguments: tuple[Argument, ...]

    def by_digest(self, server_version: tuple[int, ...]) -> bytes:
        """The packed call."""
        return pack(load_script("publish").by_digest(server_version, self.keys, self.arguments))

    def by_text(self, server_version: tuple[int, ...]) -> bytes:
        """The packed call that no server can refuse for having forgotten the script."""
        return pack(load_script("publish").by_text(server_version, self.keys, self.arguments))


def publication(
    lane: Lane,
    data: bytes,
    key: bytes | None,
    headers: Mapping[str, str] | None,
    *,
    beside: bool,
    more_fields: tuple[Argument, ...] = (),
    idempotency_key: str = "",
    remember_ms: int = 0,
    wait_ms: int | None = None,
) -> Publication:
    """Build the call. `beside` keeps the payload out of the stream, at a key of its own.

    `wait_ms` is how long the message waits; if negative, the server's ms at which it is due.
    """
    name = uuid.uuid4().hex if beside else ""
    if beside:
        payload_key = lane.keys.payload(name)
        fields = claimed_fields(payload_key, len(data), key, headers)
        keys = _publish_keys(lane.keys, payload_key)
    else:
        fields = message_fields(data, key, headers)
        if not lane.publish_keys:
            lane.publish_keys = _publish_keys(lane.keys, lane.keys.payload("none"))
        keys = lane.publish_keys
    waiting: tuple[Argument, ...] = ("", 0)
    if wait_ms is not None:
        id_ = delayed_id()
        waiting, more_fields = (id_, wait_ms), (MESSAGE_ID, id_, *more_fields)
    return Publication(
        keys,
        (
            *(idempotency_key, remember_ms),
            *((name, data) if beside else ("", b"")),
            *waiting,
            *fields,
            *more_fields,
        ),
    )


def _publish_keys(keys: PartitionKeys, payload_key: str) -> tuple[str, ...]:
    return (
        *(keys.stream, keys.dedup, keys.dedup_times, payload_key, keys.payloads),
        *(keys.delayed, keys.delayed_bodies),
    )
