"""The scripts of named concurrency limits."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.coordination.slots.keys import SlotKeys
from penstock.redis.script import LuaFolder, ScriptCaller
from penstock.redis.wire import Reply

__all__ = ["SlotCaller", "SlotScripts"]

SlotCaller = tuple[str, int, str]
"""Token, ms of its lease, and when it came: in server ms, or negated how many ms ago."""


_LUA = LuaFolder("penstock.coordination.slots")


class SlotScripts(ScriptCaller):
    """Scripts of slots, as calls. A holder is `<fence>:<token>`."""

    lua = _LUA

    async def take_slot(
        self,
        *,
        keys: SlotKeys,
        ticket: str,
        limit: int,
        ticket_ms: int,
        again: bool,
        keep_ms: int,
        waiting: int,
        next_came: str,
        callers: Sequence[SlotCaller],
    ) -> list[int]:
        """Take slots, and stand in line: the server's ms, ms to wait, then each caller's fence."""
        return await self.run(
            "take_slot",
            (keys.holders, keys.waiting, keys.tickets, keys.state),
            (
                *(ticket, limit, ticket_ms, int(again), keep_ms, waiting, next_came),
                *(part for caller in callers for part in caller),
            ),
        )

    async def renew_slot(self, *, holders: str, holder: str, lease_ms: int) -> bool:
        """Hold a slot for longer; False if its lease has ended."""
        return bool(await self.run("renew_slot", (holders,), (holder, lease_ms)))

    async def release_slot(self, *, keys: SlotKeys, holder: str, token: str) -> bool:
        """Give back a slot ('' where it is unknown) or a place in line; False if none was held."""
        places = (keys.holders, keys.waiting, keys.tickets)
        return bool(await self.run("release_slot", places, (holder, token)))

    async def look_at_slots(self, *, holders: str, tickets: str) -> list[Reply]:
        """How many callers wait, then each holder and the end of its lease."""
        return await self.run("look_at_slots", (holders, tickets), ())

    async def note_slots(self, *, registry: str, name: str, declared: bytes) -> bytes:
        """The limit of a name: an operator's, else the declared one, which is recorded."""
        return await self.run("note_slots", (registry,), (name, declared))
