"""`Repairs`: lists unusable registry entries and keys, and removes single ones."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Final, cast

import msgspec

from penstock.delivery.foreign_keys import ForeignKey, delete_key, rename_key
from penstock.delivery.queries import is_wrong_type, text
from penstock.errors import CommandRefused, CoordinationError, InvalidItem
from penstock.inspector.former_namespace import rename_former
from penstock.inspector.key_contract import read_key
from penstock.inspector.key_scan import is_guess, registered_queues, scan_keys
from penstock.inspector.registries import KINDS, REGISTRIES, Kind, Registry, faults_among
from penstock.redis.client import Client
from penstock.redis.codec.escaping import escaped, unescaped
from penstock.redis.keys.family import RedisType
from penstock.redis.script import LuaFolder, ScriptCaller

__all__ = ["OddEntry", "RegistryScripts", "Repairs"]

logger = logging.getLogger(__name__)

_PAGE: Final = 500
_OWNERS: Final = {"workers": "runtime"}
"""Owner of the key families of a kind, where the two differ."""
_SCANS: Final = {RedisType.SET: "SSCAN", RedisType.ZSET: "ZSCAN", RedisType.HASH: "HSCAN"}
_SHOWN_BYTES: Final = 200


class RegistryScripts(ScriptCaller):
    """Scripts of registries, as calls. Each removes an entry only as long as it is as it was."""

    lua = LuaFolder("penstock.inspector")

    async def remove_field(self, *, registry: str, entry: bytes, value: bytes) -> bool:
        """Take an entry out of a hash; False if it has another value or is gone."""
        return bool(await self.run("remove_field", (registry,), (entry, value)))

    async def remove_member(self, *, registry: str, entry: bytes, score: bytes) -> bool:
        """Take an entry out of a sorted set; False if it has another score or is gone."""
        return bool(await self.run("remove_member", (registry,), (entry, score)))


class OddEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An unusable entry of a registry."""

    kind: Kind
    entry: str
    r"""Its name; bytes that are not printable text are `\xHH`, a backslash is doubled."""
    problem: str
    value: str = ""
    """The beginning of its value, escaped in the same way, or its time in ms."""

    def __str__(self) -> str:
        return f"entry {self.entry} of {self.kind}: {self.problem}"


class Repairs:
    r"""Finds unusable entries of registries and keys, and removes single ones.

        for odd in await app.repairs.entries("runs"):
            print(odd.entry, odd.problem)
        await app.repairs.remove_entry("runs", r"\xff\xfe")

    Only a named entry or key is removed, and only while it is at fault: a valid entry, or a key of
    the right type, is refused with `CoordinationError`, also if it became valid meanwhile.
    `kind` is queues, topics, runs, windows, limits, slots or workers; feeds, once and cache have
    keys but no registry.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def entries(self, kind: Kind, limit: int = 1_000) -> list[OddEntry]:
        """Entries at fault, `limit` of them at most. Two or three round trips per 500 entries."""
        found: dict[bytes, OddEntry] = {}
        if _checked(kind) not in REGISTRIES:
            return []
        async for page in self._pages(_registry_of(kind)):
            faults = await faults_among(self._client, kind, page)
            for entry, problem in faults.items():
                found[entry] = _odd(kind, entry, page[entry], problem)
            if len(found) >= limit:
                break
        return sorted(found.values(), key=lambda one: one.entry)[:limit]

    async def remove_entry(self, kind: Kind, entry: str | bytes) -> OddEntry:
        """Remove an entry at fault from its registry, and return it.

        A text is as in `OddEntry.entry`, bytes are the name itself. Four round trips.
        """
        registry = _registry_of(kind)
        name = entry if isinstance(entry, bytes) else _unescaped(entry)
        value = await self._value(registry, name)
        if value is None:
            raise CoordinationError(f"the registry of {kind} has no entry {escaped(name)}")
        faults = await faults_among(self._client, kind, {name: value})
        if name not in faults:
            raise CoordinationError(f"entry {escaped(name)} of {kind} is in order: it stays")
        if not await self._remove(registry, name, value):
            raise CoordinationError(f"entry {escaped(name)} of {kind} has changed: look again")
        removed = _odd(kind, name, value, faults[name])
        logger.warning("removed %s", removed)
        return removed

    async def keys(self, kind: Kind | None = None, limit: int = 1_000) -> list[ForeignKey]:
        """Keys of one kind, or of all, whose type is not that of their contract.

        It scans all keys of the server: O(keys), two round trips per 1,000 of them.
        """
        owner = None if kind is None else _OWNERS.get(_checked(kind), kind)
        queues = await registered_queues(self._client)
        found: dict[str, ForeignKey] = {}
        for node in await self._client.primaries():
            async for _, page in scan_keys(self._client, node):
                for one in page:
                    family = one.read.family
                    if owner in {None, family.owner} and not is_guess(one.read, queues):
                        held, key = text(one.kind), text(one.key)
                        if held not in {"none", family.redis_type}:
                            odd = ForeignKey(key=key, type=held, expected=family.redis_type)
                            found[key] = odd
                if len(found) >= limit:
                    break
        return sorted(found.values(), key=lambda one: one.key)[:limit]

    async def rename_key(self, key: str, to: str) -> None:
        """Give a key of another type a new name; CoordinationError if `to` exists.

        On a cluster the new name has to be in the same slot. Five round trips.
        """
        found = await self._foreign(key)
        await rename_key(self._client, found, to, CoordinationError)
        logger.warning("renamed to %s: %s", to, found)

    async def delete_key(self, key: str) -> None:
        """Delete a key of another type with all that it holds. Six round trips."""
        found = await self._foreign(key)
        await delete_key(self._client, found, CoordinationError)
        logger.warning("deleted: %s", found)

    async def rename_namespace(self) -> int:
        """Rename keys that earlier versions stored as `hsi:…` to `hsi::…`; how many there were.

        For a server on which every worker and producer of the earlier version has stopped:
        CoordinationError while one of its workers is alive, or if a new name is taken already. May
        be repeated. It scans all keys of the server.
        """
        renamed = await rename_former(self._client)
        logger.warning("renamed %d keys of an earlier version", renamed)
        return renamed

    # --- inside

    async def _pages(self, registry: Registry) -> AsyncIterator[dict[bytes, bytes]]:
        """Entries with their values or scores; empty if the registry has the wrong type."""
        cursor, key = b"0", registry.key(self._client.keys)
        while True:
            try:
                cursor, flat = await self._client.call(
                    _SCANS[registry.redis_type], key, cursor, "COUNT", _PAGE
                )
            except CommandRefused as error:
                if is_wrong_type(error):
                    return
                raise
            names = cast("list[bytes]", flat)
            if registry.redis_type is RedisType.SET:
                yield dict.fromkeys(names, b"")
            else:
                yield dict(zip(names[::2], names[1::2], strict=True))
            if cursor == b"0":
                return

    async def _value(self, registry: Registry, name: bytes) -> bytes | None:
        key = registry.key(self._client.keys)
        if registry.redis_type is RedisType.SET:
            return b"" if await self._client.call("SISMEMBER", key, name) else None
        command = "HGET" if registry.redis_type is RedisType.HASH else "ZSCORE"
        found = await self._client.call(command, key, name)
        return found if found is None or isinstance(found, bytes) else repr(found).encode()

    async def _remove(self, registry: Registry, name: bytes, value: bytes) -> bool:
        key, scripts = registry.key(self._client.keys), RegistryScripts.of(self._client)
        if registry.redis_type is RedisType.HASH:
            return await scripts.remove_field(registry=key, entry=name, value=value)
        if registry.redis_type is RedisType.ZSET:
            return await scripts.remove_member(registry=key, entry=name, score=value)
        # An invalid name stays invalid, so there is nothing to compare.
        return bool(await self._client.call("SREM", key, name))

    async def _foreign(self, key: str) -> ForeignKey:
        read = read_key(key, self._client.keys.namespace)
        if read is None or is_guess(read, await registered_queues(self._client)):
            raise CoordinationError(f"{key!r} is not named like a key of Penstock's")
        held, expected = text(await self._client.call("TYPE", key)), read.family.redis_type
        if held == "none":
            raise CoordinationError(f"there is no key {key!r}")
        if held == expected:
            raise CoordinationError(f"key {key!r} is in order, it holds a {held}: it stays")
        return ForeignKey(key=key, type=held, expected=expected)


def _checked(kind: Kind) -> Kind:
    if kind not in KINDS:
        raise InvalidItem(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
    return kind


def _registry_of(kind: Kind) -> Registry:
    registry = REGISTRIES.get(_checked(kind))
    if registry is None:
        raise InvalidItem(f"kind {kind!r}: expected one of {', '.join(REGISTRIES)}")
    return registry


def _unescaped(entry: str) -> bytes:
    try:
        return unescaped(entry)
    except ValueError as error:
        raise InvalidItem(f"entry {error}") from None


def _odd(kind: Kind, entry: bytes, value: bytes, problem: str) -> OddEntry:
    shown = escaped(value[:_SHOWN_BYTES])
    return OddEntry(kind=kind, entry=escaped(entry), problem=problem, value=shown)
