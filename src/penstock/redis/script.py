"""A Lua script: read from the folder `lua/` of the package that owns it, called by digest.

A server that has forgotten one (restart, failover, SCRIPT FLUSH) says so before it does anything,
and gets the text with the call.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast

from penstock.errors import ScriptMissing
from penstock.redis.node import Role
from penstock.redis.wire import Argument, Command, Reply

if TYPE_CHECKING:
    from penstock.redis.client import Client

__all__ = ["COMMON_LUA", "LuaFolder", "Script", "ScriptCaller", "script_of"]

# From this version on a script may say in its first line how it wants to be run.
_FLAGS_SINCE = 7
_MOST_AT_ONCE = 500
_FLAGS = re.compile(r"^-- Flags: ([a-z,-]+)", re.MULTILINE)
_INCLUDE = re.compile(r"^-- Include: ([a-z_]+)$", re.MULTILINE)
_HEADER = re.compile(r"\A(?:--.*\n)+")
_KEY_TYPES = re.compile(r"^-- KEYS\[\d+\]  ?([A-Z]+) ", re.MULTILINE)
_UNCHECKED = re.compile(r"^-- Unchecked: \S", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its text and digest, as servers with and without script flags get it."""

    name: str
    text: str
    digest: str
    plain_text: str
    plain_digest: str

    def by_digest(
        self,
        server_version: tuple[int, ...],
        keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
    ) -> Command:
        digest = self.digest if server_version[0] >= _FLAGS_SINCE else self.plain_digest
        return ("EVALSHA", digest, len(keys), *keys, *arguments)

    def by_text(
        self,
        server_version: tuple[int, ...],
        keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
    ) -> Command:
        text = self.text if server_version[0] >= _FLAGS_SINCE else self.plain_text
        return ("EVAL", text, len(keys), *keys, *arguments)


class LuaFolder:
    """The scripts of one package, in its folder `lua/`, one file each, and their parts.

    For lines `-- Include: <part>` stand the files in `lua/parts` of this folder, of `others`, or of
    `penstock.redis`. Before its body every key is read as the type that the header gives it: a key
    of another type is answered as WRONGTYPE while nothing is written yet. A header that says
    `Unchecked:` and why not leaves that to the body.
    """

    def __init__(self, package: str, *others: LuaFolder) -> None:
        self.package = package
        self._others = others
        self._loaded: dict[str, Script] = {}

    @cached_property
    def files(self) -> dict[str, Traversable]:
        """Scripts by name."""
        return dict(_lua_files(files(self.package).joinpath("lua"), but="parts"))

    @cached_property
    def parts(self) -> dict[str, Traversable]:
        """Parts by name, those of other folders included."""
        parts = {} if self.package == _COMMON else dict(COMMON_LUA.parts)
        for other in self._others:
            parts |= other.parts
        own = files(self.package).joinpath("lua", "parts")
        return parts | dict(_lua_files(own)) if own.is_dir() else parts

    def load(self, name: str) -> Script:
        """Read a script with its parts, once."""
        script = self._loaded.get(name)
        if script is None:
            script = self._loaded[name] = self._read(name)
        return script

    def _read(self, name: str) -> Script:
        written = self.files[name].read_text(encoding="utf-8")
        plain = self._with_parts(written if _UNCHECKED.search(written) else _checked(written))
        flags = _FLAGS.search(plain)
        text = f"#!lua flags={flags[1]}\n{plain}" if flags else plain
        return script_of(name, text, plain)

    def _with_parts(self, text: str) -> str:
        return _INCLUDE.sub(
            lambda line: self._with_parts(self.parts[line[1]].read_text(encoding="utf-8")), text
        )


_COMMON: Final = "penstock.redis"
COMMON_LUA: Final = LuaFolder(_COMMON)


def script_of(name: str, text: str, plain_text: str) -> Script:
    """A script of these texts."""
    return Script(name, text, _digest(text), plain_text, _digest(plain_text))


def _lua_files(folder: Traversable, but: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.name.endswith(".lua"):
            yield entry.name.removesuffix(".lua"), entry
        elif entry.name != but and entry.is_dir():
            yield from _lua_files(entry)


def _checked(text: str) -> str:
    """The script with a check of the types of all its keys between header and body."""
    header = _HEADER.match(text)
    assert header is not None  # noqa: S101  a test of all scripts sees to it
    kinds = enumerate(_KEY_TYPES.findall(header[0]), start=1)
    looks = " or ".join(f"fault_in('{kind}', KEYS[{place}])" for place, kind in kinds)
    check = f"-- Include: types\ndo local fault = {looks} if fault then return fault end end\n"
    return header[0] + "\n" + check + text[header.end() :]


def _digest(text: str) -> str:
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


class ScriptCaller:
    """Base of the classes whose methods are scripts: calls those of its folder by name."""

    lua: ClassVar[LuaFolder]

    def __init__(self, client: Client) -> None:
        self._client = client

    @classmethod
    def of(cls, client: Client) -> Self:
        """The calls over `client`; made once for each client."""
        calls = client.script_calls.get(cls)
        if calls is None:
            calls = client.script_calls[cls] = cls(client)
        return cast("Self", calls)

    def script(self, name: str) -> Script:
        return self.lua.load(name)

    def run(
        self,
        name: str,
        keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
        role: Role = Role.DEFAULT,
    ) -> Coroutine[Any, Any, Reply]:
        return self._client.run_script(self.lua.load(name), keys, arguments, role)

    async def run_many(
        self,
        name: str,
        calls: Sequence[tuple[tuple[str, ...], tuple[Argument, ...]]],
        role: Role = Role.DEFAULT,
    ) -> list[Reply]:
        """Run it for each of the keys and arguments, 500 in one go; each has its own end."""
        client = self._client
        script, version = client.substituted(self.script(name)), client.server_version
        replies: list[Reply] = []
        for start in range(0, len(calls), _MOST_AT_ONCE):
            some = calls[start : start + _MOST_AT_ONCE]
            some_replies = await client.pipeline(
                [script.by_digest(version, *call) for call in some], role=role
            )
            missed = [
                at for at, reply in enumerate(some_replies) if isinstance(reply, ScriptMissing)
            ]
            if missed:
                again = [script.by_text(version, *some[at]) for at in missed]
                repeated = await client.pipeline(again, role=role)
                for at, reply in zip(missed, repeated, strict=True):
                    some_replies[at] = reply
            replies += some_replies
        return replies
