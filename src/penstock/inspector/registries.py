"""The registries, and validation of their entries.

An entry is at fault if it is unusable: its name is invalid, its value cannot be decoded, or its
record is missing or of the wrong type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from penstock.coordination.limits.keys import LimitsKeys
from penstock.coordination.limits.setting import LimitSetting
from penstock.coordination.runs.keys import RunKeys, RunsKeys
from penstock.coordination.runs.runs import GRACE_MS
from penstock.coordination.slots.keys import SlotKeys, SlotsKeys
from penstock.coordination.slots.slots import read_limit
from penstock.coordination.windows.keys import WindowsKeys
from penstock.coordination.windows.records import read_record
from penstock.delivery.queries import ask, now_ms, text
from penstock.errors import DecodeError, InvalidName
from penstock.queues.storage.keys import QueueKeys, QueuesKeys
from penstock.redis.client import Client
from penstock.redis.keys.family import RedisType
from penstock.redis.keys.names import check_name
from penstock.redis.keys.space import KeySpace
from penstock.runtime.heartbeat import FORGET_AFTER_MS
from penstock.runtime.keys import WorkersKeys
from penstock.topics.storage.keys import TopicKeys, TopicsKeys

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
"""A time further in the future was written by another program."""


@dataclass(frozen=True, slots=True)
class Registry:
    """How entries of one kind are stored."""

    key: Callable[[KeySpace], str]
    redis_type: Literal[RedisType.SET, RedisType.ZSET, RedisType.HASH]
    check: Callable[[KeySpace, bytes, bytes], object]
    """Raises InvalidName, DecodeError or UnicodeDecodeError for an invalid name or value."""
    record: Callable[[KeySpace, str], str] | None = None
    """Key of the HASH of an entry."""
    kept_ms: int = 0
    """How long an entry may have no record: it is about to be created, or has expired."""


def _check_window(keys: KeySpace, _: bytes, value: bytes) -> None:
    record = read_record(value)  # batches are closed by the record, not by the name of the entry
    check_name("window", record.name)
    if record.kind == "queue":
        QueueKeys.of(keys, record.target)
    else:
        TopicKeys.of(keys, record.target)


def _check_limit(_: KeySpace, entry: bytes, value: bytes) -> None:
    check_name("limit", entry.decode())
    LimitSetting.read(value)


def _check_slots(keys: KeySpace, entry: bytes, value: bytes) -> None:
    SlotKeys.of(keys, entry.decode())
    read_limit(value)


REGISTRIES: Final[Mapping[Kind, Registry]] = {
    "queues": Registry(
        lambda keys: QueuesKeys.of(keys).registry,
        RedisType.SET,
        lambda keys, entry, _: QueueKeys.of(keys, entry.decode()),
    ),
    "topics": Registry(
        lambda keys: TopicsKeys.of(keys).registry,
        RedisType.SET,
        lambda keys, entry, _: TopicKeys.of(keys, entry.decode()),
    ),
    "runs": Registry(
        lambda keys: RunsKeys.of(keys).registry,
        RedisType.ZSET,
        lambda keys, entry, _: RunKeys.of(keys, entry.decode()),
        lambda keys, name: RunKeys.of(keys, name).record,
        GRACE_MS,
    ),
    "windows": Registry(lambda keys: WindowsKeys.of(keys).registry, RedisType.HASH, _check_window),
    "limits": Registry(lambda keys: LimitsKeys.of(keys).registry, RedisType.HASH, _check_limit),
    "slots": Registry(lambda keys: SlotsKeys.of(keys).registry, RedisType.HASH, _check_slots),
    "workers": Registry(
        lambda keys: WorkersKeys.of(keys).heartbeats,
        RedisType.ZSET,
        lambda keys, entry, _: WorkersKeys.of(keys).info(entry.decode()),
        lambda keys, name: WorkersKeys.of(keys).info(name),
        FORGET_AFTER_MS,
    ),
}
"""By kind; feeds, marks and cached values have none."""


async def faults_among(
    client: Client, kind: Kind, entries: Mapping[bytes, bytes]
) -> dict[bytes, str]:
    """Problems of entries by their names; a value is that of a hash, or a score.

    No round trip, or one per thousand entries that have a record.
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
    """Entries of windows that also exist under the right name."""
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
    """Entries whose record has the wrong type, or is missing for too long."""
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
