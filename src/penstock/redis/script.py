"""A Lua script: read from `lua/`, called by digest.

A server that has forgotten one (restart, failover, SCRIPT FLUSH) says so before it does anything,
and gets the text with the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING

from penstock.errors import ScriptMissing
from penstock.redis.node import Role
from penstock.redis.wire import Argument, Command, Reply

if TYPE_CHECKING:
    from penstock.redis.client import Client

__all__ = ["Script", "ScriptCaller", "load_script", "script_of"]

# From this version on a script may say in its first line how it wants to be run.
_FLAGS_SINCE = 7
_MOST_AT_ONCE = 500
_FLAGS = re.compile(r"^-- Flags: ([a-z,-]+)", re.MULTILINE)
_INCLUDE = re.compile(r"^-- Include: ([a-z]+)$", re.MULTILINE)
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


@cache
def load_script(name: str) -> Script:
    """Read `lua/<name>.lua`; for its lines `-- Include: <part>` stand the files in `lua/parts`.

    Before its body every key is read as the type that the header gives it: a key of another type is
    answered as WRONGTYPE while nothing is written yet. A header that says `Unchecked:` and why not
    leaves that to the body.
    """
    written = _read(name)
    plain = _with_parts(written if _UNCHECKED.search(written) else _checked(written))
    flags = _FLAGS.search(plain)
    text = f"#!lua flags={flags[1]}\n{plain}" if flags else plain
    return script_of(name, text, plain)


def script_of(name: str, text: str, plain_text: str) -> Script:
    """A script of these texts."""
    return Script(name, text, _digest(text), plain_text, _digest(plain_text))


def _checked(text: str) -> str:
    """The script with a check of the types of all its keys between header and body."""
    header = _HEADER.match(text)
    assert header is not None  # noqa: S101  a test of all scripts sees to it
    kinds = enumerate(_KEY_TYPES.findall(header[0]), start=1)
    looks = " or ".join(f"fault_in('{kind}', KEYS[{place}])" for place, kind in kinds)
    check = f"-- Include: types\ndo local fault = {looks} if fault then return fault end end\n"
    return header[0] + "\n" + check + text[header.end() :]


def _with_parts(text: str) -> str:
    return _INCLUDE.sub(lambda found: _with_parts(_read("parts", found[1])), text)


def _read(*path: str) -> str:
    folder, name = ("lua", *path[:-1]), path[-1]
    return files("penstock.redis").joinpath(*folder, f"{name}.lua").read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


class ScriptCaller:
    """Calls scripts by name on behalf of the classes whose methods are scripts."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.load: Callable[[str], Script] = load_script
        """Finds a script; a test may put others in their place."""

    async def run(
        self,
        name: str,
        keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
        role: Role = Role.DEFAULT,
    ) -> Reply:
        script, version = self.load(name), self._client.server_version
        try:
            return await self._client.call(*script.by_digest(version, keys, arguments), role=role)
        except ScriptMissing:
            return await self._client.call(*script.by_text(version, keys, arguments), role=role)

    async def run_many(
        self,
        name: str,
        calls: Sequence[tuple[tuple[str, ...], tuple[Argument, ...]]],
        role: Role = Role.DEFAULT,
    ) -> list[Reply]:
        """Run it for each of the keys and arguments, 500 in one go; each has its own end."""
        script, version = self.load(name), self._client.server_version
        replies: list[Reply] = []
        for start in range(0, len(calls), _MOST_AT_ONCE):
            some = calls[start : start + _MOST_AT_ONCE]
            said = await self._client.pipeline(
                [script.by_digest(version, *call) for call in some], role=role
            )
            missed = [at for at, reply in enumerate(said) if isinstance(reply, ScriptMissing)]
            if missed:
                again = [script.by_text(version, *some[at]) for at in missed]
                repeated = await self._client.pipeline(again, role=role)
                for at, reply in zip(missed, repeated, strict=True):
                    said[at] = reply
            replies += said
        return replies
