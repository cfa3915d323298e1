"""A window in the hands of a program."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any, Final, Self, Unpack, cast

from penstock.coordination.feeds.feed import Feed
from penstock.coordination.feeds.hub import FeedHub
from penstock.coordination.repeating import until_known
from penstock.coordination.windows.adding import Adding
from penstock.coordination.windows.batches import Added, OpenBatch
from penstock.coordination.windows.items import Items
from penstock.coordination.windows.looking import batch_of, open_batches
from penstock.coordination.windows.options import WindowOptions, WindowWords
from penstock.coordination.windows.records import Registration, WindowRecord
from penstock.coordination.windows.targets import Place, target_of
from penstock.errors import NotOpen, SettingError
from penstock.queues.queue import Queue
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.names import check_name
from penstock.topics.topic import Topic

__all__ = ["Window"]

CLOSED_AT_ONCE: Final = 20
"""Batches that one script closes at most; others wait while it runs."""
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.005, 0.1
_REPEATED, _FAST = 2, 3

Words = tuple[str, bytes, bytes, bytes, bytes, bytes]
"""Window, key, item, its id, id of a new batch, id of a fast one: see `Adding.add`."""


class Window:
    """Gathers items by key; each batch becomes one job of a queue or one message of a topic.

        batches = app.window("batch", to=app.queue("analysis_queue"), max_age=90, idle=30)
        added = await batches.add("front_door", 17, id="detection-17")

    A batch is closed, by whichever process comes first,

    - `max_age` seconds after its first item, or `idle` seconds after its latest;
    - with its `max_items`-th item, or before the item that would take it above `max_bytes`;
    - by `close`.

    Closing takes the batch away and queues it in one step, so it is neither lost nor doubled, and
    an item is in exactly one batch. While a queue that rejects is full, batches stay open. Nothing
    expires: after an outage of any length they are closed as soon as a worker looks.

    `name` is the window's in the whole system. The one called "batch" has the keys and field names
    of the security pipeline; others call theirs `key` and `items`, or `key_field` and
    `items_field`.
    """

    def __init__(
        self,
        client: Client,
        codec: Codec,
        name: str,
        *,
        to: Queue | Topic,
        hub: FeedHub | None = None,
        **words: Unpack[WindowWords],
    ) -> None:
        self.client, self.codec = client, codec
        self.name, self.to, self._hub = name, to, hub
        self.options = WindowOptions.of(name, client.settings.windows, **words)
        self.target = target_of(to, self.options)
        self.items = Items(self.options, client.settings.codec)
        self._remember_ms = int(client.settings.windows.remember_s * 1000)
        self._adding: dict[Place, Adding] = {}
        self._registration = Registration(client, lambda: self.record)

    @classmethod
    def registered(cls, client: Client, codec: Codec, record: WindowRecord) -> Self:
        """Return a window that some process has used, as it is set there."""
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
    ) -> Added:
        """Add an item, which may be any JSON, to the open batch of `key`. One round trip.

        - `id`: an item of the same id and key is not added again within `windows.remember_s`, also
          if its batch was closed meanwhile: `batch_id` is empty then. With it, an add whose answer
          got lost is repeated by itself; without, `OutcomeUnknown` is raised.
        - `fast`: the item goes to the high lane of the queue at once, as a batch of its own; if
          that is full, into the open batch. See `falling_back`.

        QueueFull, and nothing is stored, if the batch is full and its queue is, too. InvalidItem
        before anything is sent.
        """
        window, stored_key = self.items.window(key)
        data, item_id = self.items.item(item), self.items.item_id(id)
        if fast and not self.target.takes_fast:
            raise SettingError("fast", fast, "a window that closes into a queue")
        if self._registration.is_due:
            await self._registration.renew()
        words = (
            *(window, stored_key, data, item_id, b"batch-%b" % token_hex(8).encode()),
            b"fast_path_%b" % (item_id or token_hex(8).encode()) if fast else b"",
        )
        answer = await self._send(key, words)
        if answer[0] == 0 and self.target.patience_s:
            answer = await self._insist(key, words)
        status, batch, size, closed, length, packed = answer
        if status <= 0:
            raise self.target.refusal(status, length)
        if packed:
            await self.target.note_losses(packed)
        return Added(
            batch.decode(errors="replace"),
            size,
            closed.decode(errors="replace") or None,
            is_new=status != _REPEATED,
            fast=status == _FAST,
        )

    async def _send(self, key: str, words: Words) -> list[Any]:
        """Run the script, again while it is not known how that ended if the item has an id."""
        place = await self.target.place_to_add(key)
        adding = self._adding.get(place)
        if adding is None:
            adding = Adding(self.client, place, self.options, self._remember_ms)
            self._adding[place] = adding
        if not words[3]:
            answer = await adding.add(*words)
        else:
            answer = await until_known(lambda: adding.add(*words))
        if answer[0] < 0:
            await self.target.mend(place)
            answer = await adding.add(*words)
        return answer

    async def _insist(self, key: str, words: Words) -> list[Any]:
        """Try until there is room or the queue's patience is over."""
        deadline, pause_s = time.monotonic() + self.target.patience_s, _FIRST_LOOK_S
        while True:
            await asyncio.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))
            pause_s = min(pause_s * 2, _LONGEST_LOOK_S)
            answer = await self._send(key, words)
            if answer[0] != 0 or time.monotonic() >= deadline:
                return answer

    @asynccontextmanager
    async def falling_back(self, job: Mapping[str, Any]) -> AsyncGenerator[None]:
        """Put what a fast job brought into the open batch if the block fails.

            @analysis.handler
            async def analyse(job: dict) -> None:
                async with batches.falling_back(job):
                    await ask_model(job["detection_ids"])

        The failure of a fast job ends there: its item comes again with its batch. That of any other
        job passes through.
        """
        try:
            yield
        except Exception:
            brought = self._brought_by(job)
            if brought is None:
                raise
            batch_id, key, items = brought
            for number, item in enumerate(items):
                await self.add(key, item, id=f"{batch_id}#{number}"[-256:])

    def _brought_by(self, job: Mapping[str, Any]) -> tuple[str, str, list[Any]] | None:
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

        `reason` is what the batch tells; a name. QueueFull if there is no room for it.
        """
        check_name("reason", reason)
        window, _ = self.items.window(key)
        return await self.close_named(await self.target.place_of(key), reason, window)

    async def close_named(self, place: Place, reason: str, window: str | bytes) -> str | None:
        """Close a batch by the name that its window has in keys; None if no batch is open."""
        status, _, length, closed, packed = await self.close_at(place, reason, window)
        if packed:
            await self.target.note_losses(packed)
        if status <= 0:
            raise self.target.refusal(status, length)
        return closed[0].decode(errors="replace") if closed else None

    async def close_at(self, place: Place, reason: str = "", *windows: str | bytes) -> list[Any]:
        """Run `close_windows` at one place: for what is due, if no windows are named."""
        return await self.client.scripts.close_windows(
            keys=place.script,
            pointers=place.pointers,
            prefix=self.items.prefix,
            most=CLOSED_AT_ONCE,
            reason=reason,
            windows=windows,
        )

    # ---- looking

    async def batch(self, key: str) -> OpenBatch | None:
        """The open batch of a key. Two round trips."""
        window, _ = self.items.window(key)
        return await batch_of(self.client, await self.target.place_of(key), window, key)

    async def open_batches(self, limit: int = 100) -> list[OpenBatch]:
        """Open batches, those that are due first in front. Three round trips."""
        return await open_batches(self.client, await self.target.places(), self.items.key, limit)

    async def feed(self, key: str | None = None) -> Feed:
        """Return what happens to batches, for any number of readers.

            async for event in (await batches.feed()).read(after=0):
                print(event.number, event.type, event.data["key"], event.data["count"])

        Types are `open`, `update` (once a second at most), `closed` and `fast`. A topic has a feed
        for each partition: `key` says whose.
        """
        if self._hub is None:
            raise NotOpen("a window has a feed if it comes from an application: `app.window(…)`")
        if key is None and len(await self.target.places()) > 1:
            raise SettingError("key", key, "a key, since each partition has its own feed")
        index = (await self.target.place_of(key or "")).index
        return Feed.at(
            self.client,
            self.codec,
            self._hub,
            name=self.name,
            events=index.events,
            state=index.state,
        )

    async def register(self) -> None:
        """Let every worker know of this window. `add` does so by itself."""
        if self._registration.is_due:
            await self._registration.renew()

    @property
    def record(self) -> WindowRecord:
        """How it is set, as it is stored."""
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
