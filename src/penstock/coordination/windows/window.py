"""Aggregation windows: items gathered by key into batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final, Self, Unpack, cast

from penstock.coordination.feeds.feed import Feed
from penstock.coordination.feeds.hub import FeedHub
from penstock.coordination.windows.batches import OpenBatch, batch_of, open_batches
from penstock.coordination.windows.options import ItemEncoder, WindowKwargs, WindowOptions
from penstock.coordination.windows.records import WindowRecord, WindowRegistration
from penstock.coordination.windows.scripts import (
    AddReply,
    AddStatus,
    CloseReply,
    CloseStatus,
    WindowScripts,
)
from penstock.coordination.windows.targets import BatchStore, target_of
from penstock.errors import NotOpen, SettingError, TooMany
from penstock.queues.queue import Queue
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.names import check_name
from penstock.redis.prepared_call import Prepared, SharedLink
from penstock.redis.retry import repeat_until_known
from penstock.topics.topic import Topic

__all__ = ["AddedItem", "Window"]

CLOSED_AT_ONCE: Final = 20
"""Batches that one script closes at most; other clients wait while it runs."""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.005, 0.1
_MOST_PREPARED: Final = 4_096
"""Keys whose call is kept ready."""


@dataclass(frozen=True, slots=True)
class AddedItem:
    """What became of an item."""

    batch_id: str
    """The batch that has it; empty for a repeat whose batch was closed meanwhile."""
    size: int
    """Items in that batch by then."""
    closed: str | None = None
    """A batch that this call closed: its own, if that was full, else the one before."""
    is_new: bool = True
    """False if an item with this id was stored before, be it by this call, repeated after its reply
    was lost."""
    fast: bool = False
    """Whether it went to the high lane at once, as a batch of its own."""


class _Adder:
    """Calls `add_to_window` for one store, prepared once for each key."""

    def __init__(
        self, client: Client, store: BatchStore, options: WindowOptions, remember_ms: int
    ) -> None:
        self._scripts, self._store = WindowScripts.of(client), store
        self._options, self._remember_ms = options, remember_ms
        self._link = SharedLink(client, slot=store.slot)
        self._calls: dict[str, Prepared] = {}

    def call(self, window: str, key: bytes) -> Prepared:
        """The call for one key."""
        call = self._calls.get(window)
        if call is not None:
            return call
        call = self._scripts.add_to_window(
            link=self._link,
            keys=self._store.script,
            current=self._store.current(window),
            seen=self._store.seen(window),
            max_items=self._options.max_items,
            max_bytes=self._options.max_bytes,
            remember_ms=self._remember_ms,
            window=window,
            key=key,
        )
        if len(self._calls) >= _MOST_PREPARED:
            self._calls.clear()
        self._calls[window] = call
        return call


class Window:
    """Gathers items by key; each batch becomes one job of a queue or one message of a topic.

        batches = app.window("orders", to=app.queue("billing"), max_age=90, idle=30)
        added = await batches.add("customer-5", {"order": 17}, id="order-17")

    A batch is closed, by whichever process comes first,

    - `max_age` seconds after its first item, or `idle` seconds after its latest;
    - with its `max_items`-th item, or before the item that would take it above `max_bytes`;
    - by `close`.

    Closing removes the batch and queues it in one step, so it is neither lost nor doubled, and an
    item is in exactly one batch. While a queue that rejects is full, batches stay open. Nothing
    expires: after an outage of any length, workers close what is due.

    All processes that use the same `name` share the window. Its jobs call their fields `key` and
    `items`, unless `key_field` and `items_field` name them; those of the window "batch" keep the
    names of existing deployments.
    """

    def __init__(
        self,
        client: Client,
        codec: Codec,
        name: str,
        *,
        to: Queue | Topic,
        hub: FeedHub | None = None,
        **options: Unpack[WindowKwargs],
    ) -> None:
        self.client, self.codec = client, codec
        self.name, self.to, self._hub = name, to, hub
        self.options = WindowOptions.of(name, client.settings.windows, **options)
        self.target = target_of(to, self.options)
        self.items = ItemEncoder(self.options, client.settings.codec)
        self._remember_ms = int(client.settings.windows.remember_s * 1000)
        self._adders: dict[BatchStore, _Adder] = {}
        self._registration = WindowRegistration(client, lambda: self.record)

    @classmethod
    def registered(cls, client: Client, codec: Codec, record: WindowRecord) -> Self:
        """Return a registered window with the options of its record."""
        return cls(
            client,
            codec,
            record.name,
            to=record.open_target(client, codec),
            max_age=record.max_age_ms / 1000,
            idle=record.idle_ms / 1000,
            max_items=record.max_items,
            max_bytes=record.max_bytes,
            key_field=record.key_field,
            items_field=record.items_field,
        )

    def __repr__(self) -> str:
        return f"Window({self.name!r}, to={self.to!r})"

    # ---- adding

    async def add(
        self,
        key: str,
        item: Any,
        *,
        id: str | None = None,  # noqa: A002  it is what the caller means
        fast: bool = False,
    ) -> AddedItem:
        """Add an item, which may be any JSON, to the open batch of `key`. One round trip.

        - `id`: an item with the same id and key is not added again within `windows.remember_s`,
          also if its batch was closed meanwhile: then `batch_id` is empty. With an id, an add whose
          reply was lost is repeated; without, `OutcomeUnknown` is raised.
        - `fast`: the item goes to the high lane of the queue at once, as a batch of its own; if
          that is full, into the open batch. See `falling_back`.

        Nothing is stored with QueueFull, if the batch is full and its queue is, too, and with
        TooMany, if a new batch is needed and `windows.max_open` are open. InvalidItem before
        anything is sent.
        """
        window = self.items.window(key)
        data, item_id = self.items.item(item), self.items.item_id(id)
        if fast and not self.target.takes_fast:
            raise SettingError("fast", fast, "a window that closes into a queue")
        if self._registration.is_due:
            await self._registration.renew()
        batch_id = b"batch-%b" % token_hex(8).encode()
        fast_id = b"fast_path_%b" % (item_id or token_hex(8).encode()) if fast else b""
        most_open = self.client.settings.windows.max_open
        arguments = (data, item_id, batch_id, fast_id, b"%d" % most_open)
        reply = await self._send(key, window, arguments, repeat=item_id != b"")
        if reply.status == AddStatus.FULL and self.target.patience_s:
            reply = await self._retry_while_full(key, window, arguments, repeat=item_id != b"")
        status, batch, size, closed, length, lost_jobs = reply
        if status == AddStatus.TOO_MANY:
            raise TooMany(f"open batches of window {self.name!r}", most_open, "windows.max_open")
        if status <= AddStatus.FULL:
            raise self.target.refusal(status, length)
        if lost_jobs:
            await self.target.note_losses(lost_jobs)
        return AddedItem(
            batch.decode(errors="replace"),
            size,
            closed.decode(errors="replace") or None,
            is_new=status != AddStatus.REPEATED,
            fast=status == AddStatus.FAST,
        )

    async def _send(
        self, key: str, window: tuple[str, bytes], item: tuple[bytes, ...], *, repeat: bool
    ) -> AddReply:
        """Call the script; with `repeat`, again while the outcome is unknown."""
        store = await self.target.store_to_add(key)
        adder = self._adders.get(store)
        if adder is None:
            adder = self._adders[store] = _Adder(
                self.client, store, self.options, self._remember_ms
            )
        call = adder.call(*window)
        if repeat:
            reply = await repeat_until_known(lambda: call.send(*item))
        else:
            reply = await call.send(*item)
        if reply[0] == AddStatus.MISSING:
            await self.target.mend(store)
            reply = await call.send(*item)
        return AddReply._make(reply)

    async def _retry_while_full(
        self, key: str, window: tuple[str, bytes], item: tuple[bytes, ...], *, repeat: bool
    ) -> AddReply:
        """Try until there is room, or for as long as the queue blocks."""
        deadline, pause_s = time.monotonic() + self.target.patience_s, _FIRST_RETRY_S
        while True:
            await asyncio.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))
            pause_s = min(pause_s * 2, _LONGEST_RETRY_S)
            reply = await self._send(key, window, item, repeat=repeat)
            if reply.status != AddStatus.FULL or time.monotonic() >= deadline:
                return reply

    @asynccontextmanager
    async def falling_back(self, job: Mapping[str, Any]) -> AsyncGenerator[None]:
        """Put the item of a fast job into the open batch if the block fails.

            @billing.handler
            async def bill(job: dict) -> None:
                async with batches.falling_back(job):
                    await send_invoice(job["items"])

        The failure of a fast job ends there: its item comes again with its batch. The failure of
        any other job is raised.
        """
        try:
            yield
        except Exception:
            fast = self._fast_job(job)
            if fast is None:
                raise
            batch_id, key, items = fast
            for number, item in enumerate(items):
                await self.add(key, item, id=f"{batch_id}#{number}"[-256:])

    def _fast_job(self, job: Mapping[str, Any]) -> tuple[str, str, list[Any]] | None:
        """Id, key and items of a fast job of this window; None for any other."""
        if not isinstance(job, Mapping) or job.get("fast_path") is not True:  # pyright: ignore[reportUnnecessaryIsInstance]
            return None
        fields = ("batch_id", self.options.key_field, self.options.items_field)
        batch_id, key, items = map(job.get, fields)
        if isinstance(batch_id, str) and isinstance(key, str) and isinstance(items, list):
            return batch_id, key, cast("list[Any]", items)
        return None

    # ---- closing

    async def close(self, key: str, reason: str = "asked") -> str | None:
        """Close the open batch of `key` now: its id, or None if there is none.

        `reason` is a name that the batch carries. QueueFull if there is no room for it.
        """
        check_name("reason", reason)
        window, _ = self.items.window(key)
        return await self.close_named(await self.target.store_of(key), reason, window)

    async def close_named(self, store: BatchStore, reason: str, window: str | bytes) -> str | None:
        """Close the batch of a window by its name in stored keys; None if no batch is open."""
        reply = await self.close_at(store, reason, window)
        if reply.lost_jobs:
            await self.target.note_losses(reply.lost_jobs)
        if reply.status <= CloseStatus.FULL:
            raise self.target.refusal(reply.status, reply.length)
        return reply.closed[0].decode(errors="replace") if reply.closed else None

    async def close_at(
        self, store: BatchStore, reason: str = "", *windows: str | bytes
    ) -> CloseReply:
        """Call `close_windows` for one store: for what is due, if no windows are named."""
        return await WindowScripts.of(self.client).close_windows(
            keys=store.script,
            windows_prefix=store.windows_prefix,
            name_prefix=self.items.prefix,
            limit=CLOSED_AT_ONCE,
            reason=reason,
            windows=windows,
        )

    # ---- reading

    async def batch(self, key: str) -> OpenBatch | None:
        """The open batch of a key. Two round trips."""
        window, _ = self.items.window(key)
        return await batch_of(self.client, await self.target.store_of(key), window, key)

    async def open_batches(self, limit: int = 100) -> list[OpenBatch]:
        """Open batches by the time they are due. Three round trips."""
        return await open_batches(self.client, await self.target.stores(), self.items.key, limit)

    async def feed(self, key: str | None = None) -> Feed:
        """Return the feed of what happens to batches, for any number of readers.

            async for event in (await batches.feed()).read(after=0):
                print(event.number, event.type, event.data["key"], event.data["count"])

        Types are `open`, `update` (once a second at most), `closed` and `fast`. A topic has a feed
        for each partition: that of `key`.
        """
        if self._hub is None:
            raise NotOpen("a window has a feed if it comes from an application: `app.window(…)`")
        if key is None and len(await self.target.stores()) > 1:
            raise SettingError("key", key, "a key, since each partition has its own feed")
        index = (await self.target.store_of(key or "")).index
        return Feed.at(
            self.client,
            self.codec,
            self._hub,
            name=self.name,
            events=index.events,
            state=index.state,
        )

    async def register(self) -> None:
        """Register this window, so that every worker closes its batches. `add` does so, too."""
        if self._registration.is_due:
            await self._registration.renew()

    @property
    def record(self) -> WindowRecord:
        """Its options as they are stored."""
        options, target = self.options, self.target
        record = WindowRecord(
            name=options.name,
            kind=target.kind,
            target=target.name,
            max_age_ms=options.max_age_ms,
            idle_ms=options.idle_ms,
            max_items=options.max_items,
            max_bytes=options.max_bytes,
            key_field=options.key_field,
            items_field=options.items_field,
        )
        return target.completed(record)
