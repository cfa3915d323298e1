"""The shortest way for items to the server that holds their batch."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from penstock.coordination.windows.options import WindowOptions
from penstock.coordination.windows.targets import Place
from penstock.errors import (
    ClusterDown,
    ReadOnlyReplica,
    Redirected,
    ScriptMissing,
    ServerError,
    Unreachable,
)
from penstock.redis.client import Client
from penstock.redis.script import Script
from penstock.redis.wire import Argument, Wire, pack

__all__ = ["Adding"]

_NAME: Final = "add_to_window"
# Nothing was stored, and the long way finds out where to go instead.
_NOTHING_DONE: Final = (ScriptMissing, Redirected, Unreachable, ReadOnlyReplica, ClusterDown)
_MOST_KNOWN: Final = 4_096
"""Keys whose part of the command is kept ready."""


class Adding:
    """Runs `add_to_window` at one place, over the connection that all callers share.

    Most of the command is the same for each item of a key: packing it anew would take longer than
    all else that an add needs.
    """

    def __init__(
        self, client: Client, place: Place, options: WindowOptions, remember_ms: int
    ) -> None:
        self._client, self._place = client, place
        self._limits = (options.max_items, options.max_bytes, remember_ms)
        self._wire: Wire | None = None
        self._heads: dict[str, bytes] = {}
        self._packed_for: tuple[Script, tuple[int, ...]] | None = None

    async def add(
        self, window: str, key: bytes, item: bytes, item_id: bytes, batch_id: bytes, fast_id: bytes
    ) -> list[Any]:
        """Add an item: what the script says."""
        wire = self._wire
        if wire is not None and wire.alive and not wire.behind:
            tail = b"$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
                *(len(item), item, len(item_id), item_id),
                *(len(batch_id), batch_id, len(fast_id), fast_id),
            )
            reply: Any = (await wire.send_packed((self._head(window, key) + tail,)))[0]
            if not isinstance(reply, ServerError):
                return reply
            if not isinstance(reply, _NOTHING_DONE):
                raise reply
            self._wire = None
        max_items, max_bytes, remember_ms = self._limits
        answer = await self._client.scripts.add_to_window(
            keys=self._place.script,
            current=self._place.current(window),
            seen=self._place.seen(window),
            max_items=max_items,
            max_bytes=max_bytes,
            remember_ms=remember_ms,
            window=window,
            key=key,
            item=item,
            item_id=item_id,
            batch_id=batch_id,
            fast_id=fast_id,
        )
        if self._wire is None or not self._wire.alive:
            with suppress(ServerError):  # the item is stored, which is what the caller asks
                self._wire = await self._client.wire(slot=self._place.slot)
        return answer

    def _head(self, window: str, key: bytes) -> bytes:
        """The packed command up to the item."""
        version = self._client.server_version
        said = (self._client.scripts.load(_NAME), version)
        if self._packed_for != said:
            self._packed_for = said
            self._heads.clear()
        head = self._heads.get(window)
        if head is None:
            place = self._place
            nothing: tuple[Argument, ...] = (b"", b"", b"", b"")
            command = said[0].by_digest(
                version,
                (*place.script.keys, place.current(window), place.seen(window)),
                (*place.script.arguments, *self._limits, window, key, *nothing),
            )
            head = pack(command)[: -len(b"$0\r\n\r\n") * len(nothing)]
            if len(self._heads) >= _MOST_KNOWN:
                self._heads.clear()
            self._heads[window] = head
        return head
