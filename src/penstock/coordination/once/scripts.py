"""The scripts by which something happens once."""

from __future__ import annotations

from typing import Final

from penstock.redis.script import LuaFolder, ScriptCaller
from penstock.redis.wire import Argument

__all__ = ["REMEMBER_MS", "OnceScripts"]

REMEMBER_MS: Final = 30_000
"""How long the repeat of a call whose answer was lost is known; repeats end well before."""


_LUA = LuaFolder("penstock.coordination.once")


class OnceScripts(ScriptCaller):
    """Scripts of marks, as calls. A mark is held by a token until the work is done."""

    lua = _LUA

    async def reserve_once(
        self, *, mark: str, holder: str, token: str, value: Argument, hold_ms: int
    ) -> tuple[int, bytes]:
        """Reserve: 1, or 0 if it is done or reserved; what the mark says."""
        return tuple(await self.run("reserve_once", (mark, holder), (token, value, hold_ms)))

    async def renew_once(self, *, mark: str, holder: str, token: str, hold_ms: int) -> bool:
        """Hold a reservation for longer; False if it is not held any more."""
        return bool(await self.run("renew_once", (mark, holder), (token, hold_ms)))

    async def commit_once(
        self,
        *,
        mark: str,
        holder: str,
        token: str,
        value: Argument,
        ttl_ms: int,
        remember_ms: int,
        regardless: bool,
    ) -> bool:
        """Set the mark; False if the reservation has passed to another."""
        arguments = (token, value, ttl_ms, remember_ms, int(regardless))
        return bool(await self.run("commit_once", (mark, holder), arguments))

    async def release_once(self, *, mark: str, holder: str, token: str) -> bool:
        """Give a reservation back; False if it was not held any more."""
        return bool(await self.run("release_once", (mark, holder), (token,)))

    async def forget_once(self, *, mark: str, holder: str) -> bool:
        """Delete the mark; False if there was none."""
        return bool(await self.run("forget_once", (mark, holder), ()))
