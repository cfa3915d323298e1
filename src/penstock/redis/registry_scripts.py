"""The scripts that remove single entries of registries."""

from __future__ import annotations

from penstock.redis.script import ScriptCaller

__all__ = ["RegistryScripts"]


class RegistryScripts(ScriptCaller):
    """Scripts of registries, as calls. Each removes an entry only as long as it is as it was."""

    async def remove_field(self, *, registry: str, entry: bytes, value: bytes) -> bool:
        """Take an entry out of a hash; False if it has another value or is gone."""
        return bool(await self.run("remove_field", (registry,), (entry, value)))

    async def remove_member(self, *, registry: str, entry: bytes, score: bytes) -> bool:
        """Take an entry out of a sorted set; False if it has another score or is gone."""
        return bool(await self.run("remove_member", (registry,), (entry, score)))
