"""The scripts of feeds."""

from __future__ import annotations

from collections.abc import Sequence

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
        may_make: bool,
    ) -> int:
        """Add an event and wake readers: its number, -1 after the final event, -2 for no feed."""
        arguments: tuple[Argument, ...] = (
            *(kind, data, snapshot, int(final), cap, keep_ms, event_id, channel, copy),
            int(may_make),
        )
        return await self.run("publish_event", (events, state), arguments)

    async def note_feed(self, *, registry: str, feed: str, max_feeds: int) -> int:
        """Note a feed before its first event; the number of feeds, 0 if it is one too many."""
        return await self.run("note_feed", (registry,), (feed, max_feeds))

    async def forget_feeds(self, *, registry: str, grace_ms: int, feeds: Sequence[bytes]) -> int:
        """Remove feeds from the registry, unless they were noted lately; how many."""
        return await self.run("forget_feeds", (registry,), (grace_ms, *feeds))

    async def look_at_feed(self, *, events: str, state: str) -> list[Reply]:
        """Read a feed: latest, earliest, final, state, its number, latest event."""
        return await self.run("look_at_feed", (events, state), ())
