"""Groups of a topic: their progress, their members, and operations on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.delivery.audit import record_act
from penstock.delivery.queries import as_dict, ask, now_ms, text
from penstock.delivery.stored import read_json, whole_number
from penstock.delivery.times import resolve_position
from penstock.errors import GroupMissing, InvalidName, TopicError
from penstock.redis.client import Client
from penstock.redis.keys.names import check_name
from penstock.redis.wire import Command, Reply
from penstock.topics.admin.views import GroupView, MemberView, PartitionLag
from penstock.topics.storage.admin_scripts import ResetOutcome, TopicAdminScripts
from penstock.topics.storage.group_registration import GroupRegistration
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.message_id import id_numbers, place_id
from penstock.topics.storage.metadata import read_metadata

__all__ = [
    "COUNTED",
    "delete_group",
    "drop_group",
    "known_groups",
    "list_groups",
    "reset_group",
]

COUNTED = 10_000
"""Messages counted one by one where the server does not know a group's lag."""


@dataclass(frozen=True, slots=True)
class _Partition:
    """One partition as read in one round trip."""

    index: int
    length: int
    added: int | None
    groups: Mapping[str, Mapping[str, Reply]]
    epochs: Mapping[str, Reply]
    settled: Mapping[str, Reply] = field(default_factory=dict[str, Any])


# --- reading ----------------------------------------------------------------------------------


async def list_groups(client: Client, topic: str, only: str | None = None) -> list[GroupView]:
    """Every group of a topic, or one; `GroupMissing` if it is not there.

    Four round trips, O(partitions × groups); and a script for each partition whose lag the server
    does not know (Redis 6.2; a group that was set to an id), which counts up to 10,000 messages.
    """
    count = (await read_metadata(client, topic)).partitions
    keys = TopicKeys.of(client.keys, topic)
    partitions = await _look(client, topic, range(count))
    starts, clock = await ask(client, [("HGETALL", keys.groups), ("TIME",)])
    starts_of = {name: _start(stored) for name, stored in as_dict(starts).items()}
    names = sorted(_fit({*starts_of, *(name for part in partitions for name in part.groups)}))
    if only is not None:
        if only not in names:
            raise GroupMissing(topic, only)
        names = [only]
    return [
        await _group_view(client, topic, name, starts_of.get(name), partitions, now_ms(clock))
        for name in names
    ]


def _start(stored: bytes) -> str | None:
    registration: GroupRegistration | None = read_json(stored, GroupRegistration)
    return registration and registration.start


async def known_groups(client: Client, topic: str, partitions: int) -> list[str]:
    """Names of all groups, however they came. Two round trips, O(partitions × groups)."""
    streams = [PartitionKeys.of(client.keys, topic, index).stream for index in range(partitions)]
    registered = await client.call("HKEYS", TopicKeys.of(client.keys, topic).groups)
    replies = await ask(client, [("XINFO", "GROUPS", stream) for stream in streams], absent=True)
    names = {text(name) for name in registered}
    names |= {text(as_dict(group)["name"]) for groups in replies for group in groups or ()}
    return sorted(_fit(names))


def _fit(names: set[str]) -> list[str]:
    """Leave out groups whose names cannot stand in a key; they are not ours."""
    fit: list[str] = []
    for name in names:
        try:
            fit.append(check_name("group", name))
        except InvalidName:
            continue
    return fit


async def _look(client: Client, topic: str, indexes: range) -> list[_Partition]:
    commands: list[Command] = []
    for index in indexes:
        keys = PartitionKeys.of(client.keys, topic, index)
        commands += [
            ("XINFO", "GROUPS", keys.stream),
            ("XINFO", "STREAM", keys.stream),
            ("HGETALL", keys.epochs),
            ("HGETALL", keys.commit),
        ]
    replies = await ask(client, commands, absent=True)
    partitions: list[_Partition] = []
    for place, index in enumerate(indexes):
        groups, stream, epochs, settled = replies[place * 4 : place * 4 + 4]
        metadata = as_dict(stream) if stream is not None else {}
        by_name = {text(as_dict(group)["name"]): as_dict(group) for group in groups or ()}
        partitions.append(
            _Partition(
                index=index,
                length=metadata.get("length", 0),
                added=metadata.get("entries-added"),
                groups=by_name,
                epochs=as_dict(epochs),
                settled=as_dict(settled),
            )
        )
    return partitions


async def _group_view(
    client: Client,
    topic: str,
    group: str,
    start: str | None,
    partitions: Sequence[_Partition],
    clock_ms: int,
) -> GroupView:
    members = await _members(client, topic, group, clock_ms)
    commands: list[Command] = []
    for part in partitions:
        keys = PartitionKeys.of(client.keys, topic, part.index)
        lease = keys.lease(group)
        commands += [("GET", lease), ("PTTL", lease)]
        if group in part.groups:
            commands.append(("XPENDING", keys.stream, group))
    replies = iter(await ask(client, commands))
    lines: list[PartitionLag] = []
    for part in partitions:
        owner, lease_ms = next(replies), next(replies)
        metadata = part.groups.get(group)
        lowest = None if metadata is None else next(replies)[1]
        lag, approximate = await _lag(client, topic, part, metadata, start)
        settled = part.settled.get(group)
        lines.append(
            PartitionLag(
                partition=part.index,
                lag=lag,
                approximate=approximate,
                pending=0 if metadata is None else metadata["pending"],
                oldest_pending_ms=lowest and max(0, clock_ms - id_numbers(lowest)[0]),
                last_delivered_id=_id_in(
                    part, None if metadata is None else metadata["last-delivered-id"]
                ),
                settled_id=_id_in(part, settled),
                owner=owner and text(owner),
                lease_ms=None if owner is None else max(0, lease_ms),
                epoch=whole_number(part.epochs.get(group)),
                is_missing=metadata is None,
            )
        )
    ages = [line.oldest_pending_ms for line in lines if line.oldest_pending_ms is not None]
    return GroupView(
        name=group,
        start=start,
        partitions=lines,
        members=members,
        lag=sum(line.lag for line in lines),
        approximate=any(line.approximate for line in lines),
        pending=sum(line.pending for line in lines),
        oldest_pending_ms=max(ages, default=None),
    )


def _id_in(part: _Partition, entry_id: bytes | None) -> str | None:
    return None if entry_id is None else place_id(part.index, text(entry_id))


async def _lag(
    client: Client,
    topic: str,
    part: _Partition,
    metadata: Mapping[str, Reply] | None,
    start: str | None,
) -> tuple[int, bool]:
    """Messages not yet delivered, and whether that is only a bound."""
    if metadata is None:
        return (0 if start == "$" else part.length), True
    lag = metadata.get("lag")
    if lag is not None:
        # Deletions can make the server's number too large (redis#13957), but not the stream.
        return min(lag, part.length), False
    stream = PartitionKeys.of(client.keys, topic, part.index).stream
    counted = await TopicAdminScripts.of(client).count_after(
        stream=stream, id_=text(metadata["last-delivered-id"]), most=COUNTED
    )
    if counted < COUNTED:
        return counted, False
    read = metadata.get("entries-read")
    if part.added is not None and read is not None:
        return min(max(counted, part.added - read), part.length), True
    return counted, True


async def _members(client: Client, topic: str, group: str, clock_ms: int) -> list[MemberView]:
    keys = TopicKeys.of(client.keys, topic)
    beats, about = await ask(
        client,
        [
            ("ZRANGE", keys.members(group), 0, -1, "REV", "WITHSCORES"),
            ("HGETALL", keys.member_info(group)),
        ],
    )
    infos = as_dict(about)
    longest_ms = client.settings.topics.lease_ttl_s * 1000
    views: list[MemberView] = []
    for name, beat in zip(map(text, beats[::2]), beats[1::2], strict=True):
        silent_ms = max(0, clock_ms - whole_number(beat.partition(b".")[0]))
        views.append(
            MemberView(
                name=name,
                silent_ms=silent_ms,
                alive=silent_ms <= longest_ms,
                about=text(infos.get(name, b"")),
            )
        )
    return views


# --- changing -----------------------------------------------------------------------------------


async def reset_group(
    client: Client, topic: str, group: str, position: str | datetime, *, who: str | None = None
) -> None:
    """Let a group continue from another position, in all partitions; see `resolve_position`.

    What it has pending is dropped, its consumers lose their partitions at once: what they still
    finish is refused, and they begin again at the position. Repeat it if it fails half-way. Two
    round trips and one for each partition.
    """
    start = resolve_position(position)
    partitions = (await read_metadata(client, topic)).partitions
    outcomes = [
        await TopicAdminScripts.of(client).reset_group(
            **_keys(client, topic, index, group), position=start
        )
        for index in range(partitions)
    ]
    if ResetOutcome.RESET not in outcomes:
        raise GroupMissing(topic, group)
    await record_act(
        client,
        TopicKeys.of(client.keys, topic).audit,
        who=who,
        what="reset group",
        count=outcomes.count(ResetOutcome.RESET),
        detail=f"{group} {start}",
    )


async def delete_group(
    client: Client, topic: str, group: str, *, force: bool = False, who: str | None = None
) -> None:
    """Forget a group with all that it has pending; `TopicError` if consumers of it are alive.

    With `force` it goes all the same; a consumer that runs on loses its partitions. Repeat it if it
    fails half-way. Four round trips and one for each partition.
    """
    partitions = (await read_metadata(client, topic)).partitions
    clock = now_ms(await client.call("TIME"))
    alive = [member for member in await _members(client, topic, group, clock) if member.alive]
    if alive and not force:
        raise TopicError(
            f"group {group!r} of topic {topic!r} has {len(alive)} living consumers, such as "
            f"{alive[0].name!r}; stop them first, or force it"
        )
    known = await drop_group(client, topic, group, range(partitions))
    keys = TopicKeys.of(client.keys, topic)
    _, was_registered = await ask(
        client,
        [
            ("DEL", keys.members(group), keys.member_info(group)),
            ("HDEL", keys.groups, group),  # last, so that a repeat finds the group
        ],
    )
    if not known and not was_registered:
        raise GroupMissing(topic, group)
    await record_act(
        client,
        TopicKeys.of(client.keys, topic).audit,
        who=who,
        what="delete group",
        count=known,
        detail=group,
    )


async def drop_group(client: Client, topic: str, group: str, indexes: range) -> int:
    """Forget a group in some partitions; in how many it was known."""
    return sum(
        [
            await TopicAdminScripts.of(client).drop_group(**_keys(client, topic, index, group))
            for index in indexes
        ]
    )


def _keys(client: Client, topic: str, index: int, group: str) -> dict[str, str]:
    keys = PartitionKeys.of(client.keys, topic, index)
    return {
        "stream": keys.stream,
        "epochs": keys.epochs,
        "commit": keys.commit,
        "lease": keys.lease(group),
        "retry": keys.retry(group),
        "failures": keys.failures(group),
        "group": group,
        "fences": keys.fence_prefix(group),
    }
