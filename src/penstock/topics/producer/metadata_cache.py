"""A topic's metadata as its producer knows it, and for how long it may be used."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from penstock.errors import PenstockError, TopicError
from penstock.redis.client import Client
from penstock.topics.admin.growth import OverdueGrowth
from penstock.topics.storage.metadata import Options, TopicMetadata, ensure_topic, read_metadata

__all__ = ["MetadataCache"]

_LOOK_AGAIN_S = 0.02
_LONGEST_HOLD_S = 30.0


@dataclass(frozen=True, slots=True)
class _Snapshot:
    metadata: TopicMetadata
    refresh_at: float
    """From then on a newer one is fetched while this one is used."""
    ends_at: float
    """From then on this one is not used any more."""


class MetadataCache:
    """The metadata of one topic, never older than `topics.refresh_s`.

    The first read creates the topic. Later ones do not: a deleted topic must not come back with the
    next message, so then `TopicMissing` is raised.

    While the topic grows, messages are placed by the old number for as long as every producer may
    still do so, and held from then on until the new number shows. If whatever began the growth is
    gone by then, it is completed here.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        partitions: int | None = None,
        options: Options | None = None,
    ) -> None:
        self._client, self._topic = client, topic
        self._partitions, self._options = partitions, options
        self._refresh_s = client.settings.topics.refresh_s
        self._snapshot: _Snapshot | None = None
        self._overdue = OverdueGrowth(client)
        self._made = False
        self._asking = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None

    def fresh(self) -> TopicMetadata | None:
        """Metadata that may be used right now, without waiting; None: use `get`."""
        snapshot = self._snapshot
        if snapshot is None:
            return None
        now = time.monotonic()
        if now >= snapshot.refresh_at:
            if now >= snapshot.ends_at:
                return None
            self._refresh_soon()
        return snapshot.metadata

    async def get(self) -> TopicMetadata:
        """Metadata that may be used now; waits while the number of partitions changes."""
        deadline = time.monotonic() + _LONGEST_HOLD_S
        while (metadata := self.fresh()) is None:
            await self._ask()
            if (metadata := self.fresh()) is not None:
                break
            if time.monotonic() > deadline:
                raise TopicError(
                    f"topic {self._topic!r} has been growing for more than {_LONGEST_HOLD_S:g} s, "
                    "so nothing can be sent to it; grow it once more to complete that"
                )
            await self._until_grown()
        return metadata

    async def again(self) -> TopicMetadata:
        """Read the server now; open streams that are missing. `TopicMissing` if it is gone."""
        async with self._asking:
            self._snapshot = None
            await read_metadata(self._client, self._topic)
            self._note(time.monotonic(), await ensure_topic(self._client, self._topic))
        return await self.get()

    async def close(self) -> None:
        """End background tasks. Repeatable."""
        refreshing, self._refreshing = self._refreshing, None
        if refreshing is not None:
            refreshing.cancel()
            await asyncio.wait([refreshing])

    async def _ask(self) -> None:
        wanted_at = time.monotonic()
        async with self._asking:
            snapshot = self._snapshot
            if snapshot is not None and snapshot.ends_at > max(wanted_at, time.monotonic()):
                return  # another one asked meanwhile
            asked_at = time.monotonic()
            if self._made:
                metadata = await self._read()
            else:
                metadata = await ensure_topic(
                    self._client, self._topic, self._partitions, self._options
                )
                self._made = True
            self._note(asked_at, metadata)

    async def _read(self) -> TopicMetadata:
        """Read the metadata; if the topic was deleted and created again, open its partitions."""
        metadata, before = await read_metadata(self._client, self._topic), self._snapshot
        if before is not None and before.metadata.life != metadata.life:
            return await ensure_topic(self._client, self._topic)
        return metadata

    async def _until_grown(self) -> None:
        """Wait a moment for the end of a growth, or bring it about."""
        async with self._asking:
            snapshot = self._snapshot
            if snapshot is not None and await self._overdue.complete(snapshot.metadata):
                return
        await asyncio.sleep(_LOOK_AGAIN_S)

    def _note(self, asked_at: float, metadata: TopicMetadata) -> None:
        ends_at = asked_at + self._refresh_s
        if metadata.growing_to:
            # What was placed by the old number needs time to arrive before the switch.
            ends_at = min(ends_at, asked_at + metadata.switch_ms / 1000 - self._refresh_s)
        refresh_at = asked_at + self._refresh_s / 2
        self._snapshot = _Snapshot(metadata, min(refresh_at, ends_at), ends_at)

    def _refresh_soon(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            # No group: `fresh` does not wait. `close` awaits it.
            self._refreshing = asyncio.create_task(self._refresh(), name=f"metadata {self._topic}")

    async def _refresh(self) -> None:
        """Read ahead of time. If that fails, the next `get` reads again and raises."""
        try:
            async with self._asking:
                asked_at = time.monotonic()
                self._note(asked_at, await self._read())
        except PenstockError:
            return
