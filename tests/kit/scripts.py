"""The Lua scripts of all engines, for tests that read, replace or count them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.coordination.cache.scripts import CacheScripts
from penstock.coordination.feeds.scripts import FeedScripts
from penstock.coordination.limits.scripts import LimitScripts
from penstock.coordination.once.scripts import OnceScripts
from penstock.coordination.runs.scripts import RunScripts
from penstock.coordination.slots.scripts import SlotScripts
from penstock.coordination.windows.scripts import WindowScripts
from penstock.inspector.repairs import RegistryScripts
from penstock.queues.schedules.scripts import ScheduleScripts
from penstock.queues.storage.admin_scripts import QueueAdminScripts
from penstock.queues.storage.scripts import QueueScripts
from penstock.redis.client import Client
from penstock.redis.health import ProbeScripts
from penstock.redis.script import LuaFolder, Script, ScriptCaller
from penstock.runtime.heartbeat import WorkerScripts
from penstock.topics.storage.admin_scripts import TopicAdminScripts
from penstock.topics.storage.scripts import TopicScripts

__all__ = ["CALLERS", "FOLDERS", "NAMES", "folder_of", "load_script", "scripts_of"]

CALLERS: tuple[type[ScriptCaller], ...] = (
    *(CacheScripts, FeedScripts, LimitScripts, OnceScripts, RunScripts),
    *(SlotScripts, WindowScripts, ScheduleScripts, QueueAdminScripts, QueueScripts),
    *(ProbeScripts, RegistryScripts, WorkerScripts, TopicAdminScripts, TopicScripts),
)
FOLDERS: tuple[LuaFolder, ...] = tuple(dict.fromkeys(caller.lua for caller in CALLERS))
NAMES = sorted(name for folder in FOLDERS for name in folder.files)


def folder_of(name: str) -> LuaFolder:
    return next(folder for folder in FOLDERS if name in folder.files)


def load_script(name: str) -> Script:
    return folder_of(name).load(name)


def scripts_of(client: Client) -> Any:
    """Every script of all engines as one object, whose methods a test may replace."""
    return _Scripts(client)


class _Scripts:
    """Reads and writes attributes of the caller that has them; `run` is the client's."""

    def __init__(self, client: Client) -> None:
        self.__dict__["_client"] = client

    def __dir__(self) -> Iterator[str]:
        return (name for caller in CALLERS for name in vars(caller))

    def __getattr__(self, name: str) -> Any:
        if name == "run":
            return self._run
        return getattr(self._owner(name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "run":
            self._client.run_script = lambda script, keys, arguments, *role: value(
                script.name, keys, arguments, *role
            )
        else:
            setattr(self._owner(name), name, value)

    def __delattr__(self, name: str) -> None:
        if name == "run":
            del self._client.run_script
        else:
            delattr(self._owner(name), name)

    def _owner(self, name: str) -> ScriptCaller:
        for caller in CALLERS:
            if name in vars(caller):
                return caller.of(self._client)
        raise AttributeError(name)

    async def _run(self, name: str, *call: Any, **more: Any) -> Any:
        return await Client.run_script(self._client, load_script(name), *call, **more)
