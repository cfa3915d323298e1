"""Stored options of windows: any worker closes batches, also of windows it does not declare."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Struct

from penstock.coordination.windows.keys import WindowsKeys
from penstock.errors import DecodeError, OutOfMemory
from penstock.queues.options import QueueOptions
from penstock.queues.queue import Queue
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.throttled_log import RateLimitedLog
from penstock.topics.topic import Topic

__all__ = ["WindowRecord", "WindowRegistration", "read_record", "read_records"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_REGISTERED_FOR_S: Final = 60.0
"""After so long a window is registered again: its record may have been removed."""


_Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
"""An integer that Lua represents exactly; options validate the rest."""


class WindowRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One window as stored. A new field carries a default, so old records still decode."""

    name: str
    kind: Literal["queue", "topic"]
    target: str
    max_age_ms: _Whole
    idle_ms: _Whole
    max_items: _Whole
    max_bytes: _Whole
    key_field: str
    items_field: str
    queue_size: _Whole = 0
    """Most jobs in the queue; 0 for any number."""
    queue_bytes: _Whole = 0
    overflow: str = "reject"
    """Policy of a full queue; where callers wait, batches stay open."""

    @property
    def field(self) -> str:
        """Its field in the registry. A window that changes its target has two for a time."""
        return f"{self.name} {self.kind} {self.target}"

    def open_target(self, client: Client, codec: Codec) -> Queue | Topic:
        """The queue or topic that gets the batches, with the options of its record."""
        if self.kind == "topic":
            return Topic(client, codec, self.target)
        overflow = "drop_oldest" if self.overflow == "drop_oldest" else "reject"
        options = QueueOptions(
            max_size=self.queue_size,
            max_bytes=self.queue_bytes,
            overflow="dlq" if self.overflow == "dlq" else overflow,
        )
        return Queue(client, codec, self.target, options)


class WindowRegistration:
    """Registers one window before its first batch, and every minute while it is used."""

    def __init__(self, client: Client, make_record: Callable[[], WindowRecord]) -> None:
        self._client, self._make_record = client, make_record
        self._until = 0.0
        self._asking = asyncio.Lock()

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._until

    async def renew(self) -> None:
        """Write the record. A full server that has it already is no error."""
        async with self._asking:
            if not self.is_due:
                return
            record, key = self._make_record(), WindowsKeys.of(self._client.keys).registry
            try:
                await self._client.call("HSET", key, record.field, msgspec.json.encode(record))
            except OutOfMemory:
                if not await self._client.call("HEXISTS", key, record.field):
                    raise
            self._until = time.monotonic() + _REGISTERED_FOR_S


async def read_records(client: Client) -> list[WindowRecord]:
    """All registered windows. One round trip."""
    entries = await client.call("HGETALL", WindowsKeys.of(client.keys).registry)
    records: list[WindowRecord] = []
    for field, text in zip(entries[::2], entries[1::2], strict=True):
        try:
            records.append(read_record(text))
        except DecodeError as error:
            name = field.decode(errors="replace")
            quiet.warning(name, "window %s: cannot decode its record: %s", name, error)
    return records


def read_record(text: bytes) -> WindowRecord:
    """Read one record of the registry, or raise `DecodeError`."""
    try:
        return msgspec.json.decode(text, type=WindowRecord)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError(f"not the record of a window: {error}", text) from None
