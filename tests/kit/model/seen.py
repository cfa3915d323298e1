"""What the server's keys say about a topic, read without Penstock's own readers."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from penstock.inspector.key_contract import classify
from penstock.redis.client import Client
from penstock.redis.keys.family import Ttl
from penstock.topics.storage.keys import PartitionKeys, TopicKeys

from .truth import Id, Place, numbers


@dataclass(slots=True)
class SeenShare:
    """One group in one partition, as stored."""

    position: Id
    pending: dict[Id, int]
    waiting: dict[Id, int]
    failed: set[Id]
    epoch: int
    owner: str | None
    settled_up_to: Id | None

    def places(self, id_: Id, stored: set[Id]) -> list[Place]:
        """Every place in which a message is."""
        found: list[Place] = []
        if id_ in stored and id_ > self.position:
            found.append(Place.UNREAD)
        if id_ in self.pending:
            found.append(Place.WAITING if id_ in self.waiting else Place.PENDING)
        return found


@dataclass(slots=True)
class SeenPartition:
    """One partition, as stored."""

    stored: dict[Id, list[str]]
    shares: dict[str, SeenShare]
    delayed: dict[str, int]
    delayed_bodies: dict[str, list[str]]
    remembered: dict[str, str]
    remembered_times: set[str]
    body_index: set[str]
    lost: int


@dataclass(slots=True)
class Seen:
    """The whole topic, as stored."""

    partitions: list[SeenPartition]
    letters: dict[str, str] = field(default_factory=dict)
    """From the letter's field in the index to its id."""
    letter_ids: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    misfits: list[str] = field(default_factory=list)
    """What is wrong with keys: unknown, of a wrong type, with or without a TTL."""


async def look(client: Client, topic: str, partitions: int) -> Seen:
    keys = TopicKeys.of(client.keys, topic)
    seen = Seen([await _partition(client, topic, index) for index in range(partitions)])
    index, letters = await client.pipeline(
        [("HGETALL", keys.dlq_index), ("XRANGE", keys.dlq, "-", "+")]
    )
    seen.letters = _pairs(index)
    seen.letter_ids = {id_.decode() for id_, _ in letters}
    await _look_at_keys(client, seen)
    return seen


async def _partition(client: Client, topic: str, index: int) -> SeenPartition:
    keys = PartitionKeys.of(client.keys, topic, index)
    (
        entries,
        groups,
        epochs,
        commit,
        delayed,
        bodies,
        dedup,
        times,
        payloads,
        lost,
    ) = await client.pipeline(
        [
            ("XRANGE", keys.stream, "-", "+"),
            ("XINFO", "GROUPS", keys.stream),
            ("HGETALL", keys.epochs),
            ("HGETALL", keys.commit),
            ("ZRANGE", keys.delayed, 0, -1, "WITHSCORES"),
            ("HGETALL", keys.delayed_bodies),
            ("HGETALL", keys.dedup),
            ("ZRANGE", keys.dedup_times, 0, -1),
            ("ZRANGE", keys.payloads, 0, -1),
            ("HGET", keys.counters, "lost"),
        ]
    )
    positions = {
        facts["name"]: numbers(facts["last-delivered-id"])
        for facts in (_pairs(group) for group in groups)
    }
    assert set(positions) == set(_pairs(epochs)), "groups of the stream and of the epochs differ"
    return SeenPartition(
        stored={numbers(id_): _texts(fields) for id_, fields in entries},
        shares={
            group: await _share(client, keys, group, position, _pairs(epochs), _pairs(commit))
            for group, position in positions.items()
        },
        delayed={name: int(float(score)) for name, score in _pairs(delayed).items()},
        delayed_bodies={
            name.decode(): _texts(msgspec.msgpack.decode(body, type=list[str]))
            for name, body in zip(bodies[::2], bodies[1::2], strict=True)
        },
        remembered=_pairs(dedup),
        remembered_times=set(_texts(times)),
        body_index=set(_texts(payloads)),
        lost=int(lost or 0),
    )


async def _share(
    client: Client,
    keys: PartitionKeys,
    group: str,
    position: Id,
    epochs: dict[str, str],
    commits: dict[str, str],
) -> SeenShare:
    pending, retry, failures, owner = await client.pipeline(
        [
            ("XPENDING", keys.stream, group, "-", "+", 1000),
            ("ZRANGE", keys.retry(group), 0, -1, "WITHSCORES"),
            ("HKEYS", keys.failures(group)),
            ("GET", keys.lease(group)),
        ]
    )
    assert all(consumer == b"penstock" for _, consumer, _, _ in pending)
    assert all(one[0] != other[0] for one, other in pairwise(pending))
    return SeenShare(
        position=position,
        pending={numbers(id_): count for id_, _, _, count in pending},
        waiting={numbers(id_): int(float(due)) for id_, due in _pairs(retry).items()},
        failed={numbers(id_) for id_ in failures},
        epoch=int(epochs[group]),
        owner=owner and owner.decode(),
        settled_up_to=numbers(commits[group]) if group in commits else None,
    )


async def _look_at_keys(client: Client, seen: Seen) -> None:
    found = await client.call("KEYS", "*")
    asked = [command for key in found for command in (("TYPE", key), ("PTTL", key))]
    answers = await client.pipeline(asked)
    for key, type_, ttl_ms in zip(found, answers[::2], answers[1::2], strict=True):
        name = key.decode()
        seen.keys.add(name)
        family = classify(name, client.settings.namespace)
        if family is None:
            seen.misfits.append(f"{name}: of no family")
        elif ttl_ms == -2:  # it has just expired
            continue
        elif type_.decode() != family.redis_type:
            seen.misfits.append(f"{name}: a {type_.decode()}, not a {family.redis_type}")
        elif (family.ttl is Ttl.NEVER and ttl_ms != -1) or (
            family.ttl is Ttl.ALWAYS and ttl_ms == -1
        ):
            seen.misfits.append(f"{name}: TTL {ttl_ms} ms, expected {family.ttl}")


def _texts(parts: list[bytes | str]) -> list[str]:
    return [part if isinstance(part, str) else part.decode() for part in parts]


def _pairs(flat: list[bytes]) -> dict[str, str]:
    texts = [part.decode() if isinstance(part, bytes) else str(part) for part in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))
