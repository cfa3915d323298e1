"""The registry of limits: the setting of each, as declared by code or edited since."""

from __future__ import annotations

from dataclasses import replace

from penstock.coordination.limits.keys import LimitsKeys
from penstock.coordination.limits.scripts import LimitScripts
from penstock.coordination.limits.setting import LimitSetting
from penstock.errors import DecodeError
from penstock.redis.client import Client
from penstock.redis.keys.names import check_name
from penstock.redis.node import Role

__all__ = ["LimitRegistry"]


class LimitRegistry:
    """Reads and edits the settings of limits; every process follows within a second."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._registry = LimitsKeys.of(client.keys).registry

    async def declare(self, name: str, setting: LimitSetting) -> LimitSetting:
        """Register a limit as code declares it; returns the edited setting if there is one."""
        reply = await LimitScripts.of(self._client).declare_limit(
            registry=self._registry, name=name, text=setting.stored()
        )
        return LimitSetting.read(reply)

    async def find(self, name: str) -> LimitSetting | None:
        """The setting of a limit; None if it is not registered."""
        stored = await self._client.call("HGET", self._registry, name, role=Role.RATELIMIT)
        return None if stored is None else LimitSetting.read(stored)

    async def all(self) -> dict[str, LimitSetting]:
        """Every limit that can be decoded, by name. One round trip."""
        reply = await self._client.call("HGETALL", self._registry)
        settings: dict[str, LimitSetting] = {}
        for name, stored in zip(reply[::2], reply[1::2], strict=True):
            try:
                settings[name.decode()] = LimitSetting.read(stored)
            except (DecodeError, UnicodeDecodeError):
                continue  # of another program, or of a later version
        return dict(sorted(settings.items()))

    async def edit(self, name: str, setting: LimitSetting) -> None:
        """Set a limit for every process, whatever its code declares, until `release`."""
        edited = replace(setting, edited=True)
        await self._client.call("HSET", self._registry, check_name("limit", name), edited.stored())

    async def release(self, name: str) -> bool:
        """Let code declare the limit again, with its next use; False if it is not registered."""
        return bool(await self._client.call("HDEL", self._registry, name))
