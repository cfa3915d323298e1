"""The registries, and what is wrong with entries that no program of ours has written.

An entry is at fault only if nothing can work with it: its name is impossible, its value cannot be
read, or the record that it stands for is missing or of another type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from penstock.coordination.limits.setting import LimitSetting
from penstock.coordination.runs.runs import GRACE_MS
from penstock.coordination.slots import read_limit
from penstock.coordination.windows.records import read_record
from penstock.delivery.looking import ask, now_ms, text
from penstock.errors import DecodeError, InvalidName
from penstock.redis.client import Client
from penstock.redis.keys import Keys
from penstock.redis.keys.family import RedisType
from penstock.redis.keys.names import check_name
from penstock.runtime.heartbeat import FORGET_AFTER_MS

__all__ = ["KINDS", "REGISTRIES", "Kind", "Registry", "faults_among"]

Kind: TypeAlias = Literal[
    "queues", "topics", "runs", "windows", "limits", "slots", "workers", "feeds", "once", "cache"
]
"""What entries and keys belong to."""
KINDS: Final[tuple[Kind, ...]] = (
    *("queues", "topics", "runs", "windows", "limits"),
    *("slots", "workers", "feeds", "once", "cache"),
)

_AHEAD_MS: Final = 60_000
"""A time of the server's that lies further ahead was written by another program."""


@dataclass(frozen=True, slots=True)
class Registry:
    """How entries of one kind are stored."""

    key: Callable[[Keys], str]
    redis_type: Literal[RedisType.SET, RedisType.ZSET, RedisType.HASH]
    check: Callable[[Keys, bytes, bytes], object]
    """Raises InvalidName, DecodeError or UnicodeDecodeError for an impossible name or value."""
    record: Callable[[Keys, str], str] | None = None
    """Key of the HASH that an entry stands for."""
    kept_ms: int = 0
    """For so long an entry may be without its record: it is about to be made, or has ended."""


def _check_window(keys: Keys, _: bytes, value: bytes) -> None:
    record = read_record(value)  # batches are closed by it, whatever the entry is called
    check_name("window", record.name)
    if record.kind == "queue":
        keys.queue(record.target)
    else:
        keys.topic(record.target)


def _check_limit(_: Keys, entry: bytes, value: bytes) -> None:
    check_name("limit", entry.decode())
    LimitSetting.read(value)


def _check_slots(keys: Keys, entry: bytes, value: bytes) -> None:
    keys.slot(entry.decode())
    read_limit(value)


REGISTRIES: Final[Mapping[Kind, Registry]] = {
    "queues": Registry(
        lambda keys: keys.queues().registry,
        RedisType.SET,
        lambda keys, entry, _: keys.queue(entry.decode()),
    ),
    "topics": Registry(
        lambda keys: keys.topics().registry,
        RedisType.SET,
        lambda keys, entry, _: keys.topic(entry.decode()),
    ),
    "runs": Registry(
        lambda keys: keys.runs().registry,
        RedisType.ZSET,
        lambda keys, entry, _: keys.run(entry.decode()),
        lambda keys, name: keys.run(name).pipeline,
        GRACE_MS,
    ),
    "windows": Registry(lambda keys: keys.windows().registry, RedisType.HASH, _check_window),
    "limits": Registry(lambda keys: keys.limits().registry, RedisType.HASH, _check_limit),
    "slots": Registry(lambda keys: keys.slots().registry, RedisType.HASH, _check_slots),
    "workers": Registry(
        lambda keys: keys.workers().heartbeats,
        RedisType.ZSET,
        lambda keys, entry, _: keys.workers().info(entry.decode()),
        lambda keys, name: keys.workers().info(name),
        FORGET_AFTER_MS,
    ),
}
"""By kind; feeds, marks and cached values have none."""


async def faults_among(
    client: Client, kind: Kind, entries: Mapping[bytes, bytes]
) -> dict[bytes, str]:
    """What is wrong with entries, by their names; a value is that of a hash, or a score.

    No round trip, or one for each thousand entries that stand for a record.
    """
    registry = REGISTRIES[kind]
    faults: dict[bytes, str] = {}
    for entry, value in entries.items():
        try:
            registry.check(client.keys, entry, value)
        except UnicodeDecodeError:
            faults[entry] = "its name is not UTF-8"
        except (InvalidName, DecodeError) as error:
            faults[entry] = str(error)
    sound = {entry: value for entry, value in entries.items() if entry not in faults}
    if kind == "windows":
        faults |= await _repeats(client, registry, sound)
    if registry.record is not None:
        places = {entry: registry.record(client.keys, entry.decode()) for entry in sound}
        faults |= await _without_record(client, registry, sound, places)
    return faults


async def _repeats(
    client: Client, registry: Registry, entries: Mapping[bytes, bytes]
) -> dict[bytes, str]:
    """Entries of windows that have another one under the right name."""
    fields = {entry: read_record(value).field for entry, value in entries.items()}
    others = {entry: field for entry, field in fields.items() if field.encode() != entry}
    key = registry.key(client.keys)
    known = await ask(client, [("HEXISTS", key, field) for field in others.values()])
    return {
        entry: f"it repeats the entry {field!r}"
        for (entry, field), there in zip(others.items(), known, strict=True)
        if there
    }


async def _without_record(
    client: Client,
    registry: Registry,
    entries: Mapping[bytes, bytes],
    places: Mapping[bytes, str],
) -> dict[bytes, str]:
    """Entries whose record is of another type, or missing for longer than it may be."""
    *types, now = await ask(client, [*(("TYPE", one) for one in places.values()), ("TIME",)])
    faults: dict[bytes, str] = {}
    for (entry, place), held in zip(places.items(), map(text, types), strict=True):
        age_ms = now_ms(now) - float(entries[entry])
        if held not in {"none", RedisType.HASH}:
            faults[entry] = f"its record {place} is a {held}, not a hash"
        elif held == "none" and not -_AHEAD_MS <= age_ms <= registry.kept_ms:
            faults[entry] = _missing(age_ms)
    return faults


def _missing(age_ms: float) -> str:
    return f"it has no record{', and its time is yet to come' if age_ms < 0 else ''}"
