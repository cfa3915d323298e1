"""How a window is set, stored: so any worker may close batches of windows it has no code of."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Struct

from penstock.errors import DecodeError, OutOfMemory
from penstock.queues.options import QueueOptions
from penstock.queues.queue import Queue
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.topics.topic import Topic

__all__ = ["Registration", "WindowRecord", "read_record", "read_records"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_REGISTERED_FOR_S: Final = 60.0
"""After so long a window is registered anew: somebody may have removed it."""


_Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
"""A whole number that is one in Lua, too; options check the rest."""


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
    """What a full queue does; where callers wait, batches stay open."""

    @property
    def field(self) -> str:
        """Its name in the registry. A window that changes its target has two of them for a time."""
        return f"{self.name} {self.kind} {self.target}"

    def open_target(self, client: Client, codec: Codec) -> Queue | Topic:
        """What gets the batches, as whoever registered the window uses it."""
        if self.kind == "topic":
            return Topic(client, codec, self.target)
        overflow = "drop_oldest" if self.overflow == "drop_oldest" else "reject"
        options = QueueOptions(
            max_size=self.queue_size,
            max_bytes=self.queue_bytes,
            overflow="dlq" if self.overflow == "dlq" else overflow,
        )
        return Queue(client, codec, self.target, options)


class Registration:
    """Registers one window before its first batch, and every minute while it is used."""

    def __init__(self, client: Client, made: Callable[[], WindowRecord]) -> None:
        self._client, self._made = client, made
        self._until = 0.0
        self._asking = asyncio.Lock()

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._until

    async def renew(self) -> None:
        """Write the record. A full server that knows it already is no reason to stop."""
        async with self._asking:
            if not self.is_due:
                return
            record, key = self._made(), self._client.keys.windows().registry
            try:
                await self._client.call("HSET", key, record.field, msgspec.json.encode(record))
            except OutOfMemory:
                if not await self._client.call("HEXISTS", key, record.field):
                    raise
            self._until = time.monotonic() + _REGISTERED_FOR_S


async def read_records(client: Client) -> list[WindowRecord]:
    """All windows that were ever used and not removed. One round trip."""
    told = await client.call("HGETALL", client.keys.windows().registry)
    records: list[WindowRecord] = []
    for field, text in zip(told[::2], told[1::2], strict=True):
        try:
            records.append(read_record(text))
        except DecodeError as error:
            name = field.decode(errors="replace")
            quiet.warning(name, "window %s: its record cannot be read: %s", name, error)
    return records


def read_record(text: bytes) -> WindowRecord:
    """Read one record of the registry, or raise `DecodeError`."""
    try:
        return msgspec.json.decode(text, type=WindowRecord)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError(f"no record of a window: {error}", text) from None
