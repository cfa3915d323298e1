"""The limits that are known to the server, and how each is set."""

from __future__ import annotations

from dataclasses import replace

from penstock.coordination.limits.setting import LimitSetting
from penstock.errors import DecodeError
from penstock.redis.client import Client
from penstock.redis.keys.names import check_name
from penstock.redis.node import Role

__all__ = ["LimitBook"]


class LimitBook:
    """Reads and changes how limits are set; every process knows of a change within a second."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._registry = client.keys.limits().registry

    async def declare(self, name: str, setting: LimitSetting) -> LimitSetting:
        """Note a limit as code sets it; what holds, if somebody has edited it."""
        reply = await self._client.scripts.declare_limit(
            registry=self._registry, name=name, text=setting.stored()
        )
        return LimitSetting.read(reply)

    async def find(self, name: str) -> LimitSetting | None:
        """How a limit is set; None if it is not known."""
        stored = await self._client.call("HGET", self._registry, name, role=Role.RATELIMIT)
        return None if stored is None else LimitSetting.read(stored)

    async def all(self) -> dict[str, LimitSetting]:
        """Every limit that can be read, by its name: one call."""
        reply = await self._client.call("HGETALL", self._registry)
        found: dict[str, LimitSetting] = {}
        for name, stored in zip(reply[::2], reply[1::2], strict=True):
            try:
                found[name.decode()] = LimitSetting.read(stored)
            except (DecodeError, UnicodeDecodeError):
                continue  # of somebody else, or of a later version
        return dict(sorted(found.items()))

    async def edit(self, name: str, setting: LimitSetting) -> None:
        """Set a limit for every process, whatever their code says, until `release`."""
        edited = replace(setting, edited=True)
        await self._client.call("HSET", self._registry, check_name("limit", name), edited.stored())

    async def release(self, name: str) -> bool:
        """Let code set the limit again, with its next use; False if it is not known."""
        return bool(await self._client.call("HDEL", self._registry, name))
