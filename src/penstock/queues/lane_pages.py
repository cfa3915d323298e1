"""Jobs that wait in a lane, looked at in pages."""

from __future__ import annotations

from typing import Final

from penstock.delivery.looking import ask, text
from penstock.queues.items import Item, read_item
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys import QueueKeyring

__all__ = ["LanePages"]

_FIRST: Final = 8
_MOST: Final = 200
_PAGE_BYTES: Final = 4 * 1024 * 1024
"""About as much is fetched at a time; what is taken out goes back to the server once more."""


class LanePages:
    """One lane, from the end where jobs are claimed."""

    def __init__(self, client: Client, codec: Codec, keys: QueueKeyring, lane: str) -> None:
        self.lane = lane
        self._client, self._codec, self._keys = client, codec, keys
        self._from_right = False
        self._count = _FIRST

    async def count(self) -> int:
        """How many jobs wait, and which end is which. One round trip; to be called first."""
        side, length = await ask(
            self._client,
            [("HGET", self._keys.state, "side"), ("LLEN", self._keys.list_of(self.lane))],
        )
        self._from_right = text(side or b"") == "left"
        return length

    async def page(self, start: int, most: int) -> list[Item]:
        """Jobs from a place on, as many as fit a page. One round trip, O(start)."""
        first, last = start, start + min(self._count, most) - 1
        if self._from_right:
            first, last = -last - 1, -first - 1
        found = await self._client.call("LRANGE", self._keys.list_of(self.lane), first, last)
        if found:
            each = 1 + sum(map(len, found)) // len(found)
            self._count = max(1, min(_MOST, _PAGE_BYTES // each))
        items = [read_item(data, self._codec) for data in found]
        return items[::-1] if self._from_right else items
