"""The scripts of feeds."""

from __future__ import annotations

from penstock.redis.script import LuaFolder, ScriptCaller
from penstock.redis.wire import Argument, Reply

__all__ = ["FeedScripts"]


_LUA = LuaFolder("penstock.coordination.feeds")


class FeedScripts(ScriptCaller):
    """Scripts of feeds, as calls."""

    lua = _LUA

    async def publish_event(
        self,
        *,
        events: str,
        state: str,
        kind: str,
        data: bytes,
        snapshot: bytes,
        final: bool,
        cap: int,
        keep_ms: int,
        event_id: str,
        channel: str,
        copy: bytes,
    ) -> int:
        """Add an event and wake readers: its number, -1 if the feed has had its final event."""
        arguments: tuple[Argument, ...] = (
            *(kind, data, snapshot, int(final), cap, keep_ms, event_id, channel, copy),
        )
        return await self.run("publish_event", (events, state), arguments)

    async def look_at_feed(self, *, events: str, state: str) -> list[Reply]:
        """Read a feed: latest, earliest, final, state, its number, latest event."""
        return await self.run("look_at_feed", (events, state), ())
