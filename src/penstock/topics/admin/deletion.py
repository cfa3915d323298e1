"""How a topic is deleted so that nothing is left of it."""

from __future__ import annotations

from penstock.delivery.queries import as_dict, ask, ask_typed, text
from penstock.delivery.stored import whole_number
from penstock.errors import InvalidName, TopicError
from penstock.redis.client import Client
from penstock.redis.keys.names import check_name
from penstock.topics.admin.groups import drop_group
from penstock.topics.storage.admin_scripts import DropOutcome, TopicAdminScripts
from penstock.topics.storage.contract import read_topic_key
from penstock.topics.storage.foreign_keys import find_foreign
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys
from penstock.topics.storage.metadata import MOST_PARTITIONS

__all__ = ["delete_topic"]

_BODIES_AT_ONCE = 500
_KEYS_AT_ONCE = 500
# A consumer that has not noticed yet may register its group again, once.
_MOST_TRIES = 10


async def delete_topic(client: Client, topic: str) -> bool:
    """Remove a topic; False if there was none. May be repeated after a crash at any point.

    First its metadata go, so that producers and consumers notice, last its name in the registry.
    """
    keys = TopicKeys.of(client.keys, topic)
    registry = TopicsKeys.of(client.keys).registry
    meta, is_registered = await ask_typed(
        client, [("HMGET", keys.meta, "partitionCount", "growing"), ("SISMEMBER", registry, topic)]
    )
    count = min(max(map(whole_number, meta or (0,))), MOST_PARTITIONS)
    foreign = [one.key for one in await find_foreign(client, topic)]
    await _unlink(client, foreign)
    if count:
        # Written down before the metadata are gone: a repeat has to find every partition.
        streams = [PartitionKeys.of(client.keys, topic, index).stream for index in range(count)]
        await client.call("SADD", keys.partitions, *streams)
    was_there = await client.call("UNLINK", keys.meta) or bool(foreign)
    indexes = await _partitions(client, topic)
    if not (was_there or is_registered or indexes):
        return False
    registered = {text(name) for name in await client.call("HKEYS", keys.groups)}
    registered = set(filter(_is_name, registered))
    groups = set(registered)
    for index in indexes:
        groups |= await _drop_partition(client, topic, index, registered)
    await _drop_payloads(client, topic)
    await _drop_java_retries(client, topic)
    about_groups = [
        key for name in sorted(groups) for key in (keys.members(name), keys.member_info(name))
    ]
    await _unlink(client, about_groups)
    await _unlink(client, [keys.dlq, keys.dlq_index, keys.audit, keys.groups, keys.partitions])
    await client.call("SREM", registry, topic)
    if await client.call("EXISTS", keys.meta):
        await client.call("SADD", registry, topic)  # it was created again meanwhile
    return True


async def _partitions(client: Client, topic: str) -> list[int]:
    """Partitions of which something may be left."""
    namespace = client.keys.namespace
    indexes: list[int] = []
    for stream in await client.call("SMEMBERS", TopicKeys.of(client.keys, topic).partitions):
        read = read_topic_key(stream, namespace)
        if read and read.arguments.get("topic") == topic and "index" in read.arguments:
            indexes.append(int(read.arguments["index"][:9]))
    return sorted(indexes)


async def _drop_partition(client: Client, topic: str, index: int, registered: set[str]) -> set[str]:
    """Remove one partition; the groups that it knew."""
    keys = PartitionKeys.of(client.keys, topic, index)
    seen: set[str] = set()
    await _unlink(client, [one.key for one in await find_foreign(client, topic, (index,))])
    for _ in range(_MOST_TRIES):
        epochs, groups = await ask(
            client, [("HKEYS", keys.epochs), ("XINFO", "GROUPS", keys.stream)], absent=True
        )
        named = {text(name) for name in epochs} | registered
        named |= {text(as_dict(group)["name"]) for group in groups or ()}
        for group in filter(_is_name, named):
            seen.add(group)
            await drop_group(client, topic, group, range(index, index + 1))
        if odd := [name for name in epochs if not _is_name(text(name))]:
            await client.call("HDEL", keys.epochs, *odd)
        outcome = DropOutcome.UNFINISHED
        while outcome is DropOutcome.UNFINISHED:
            outcome = await TopicAdminScripts.of(client).drop_partition(
                stream=keys.stream,
                epochs=keys.epochs,
                commit=keys.commit,
                payloads=keys.payloads,
                delayed=keys.delayed,
                delayed_bodies=keys.delayed_bodies,
                dedup=keys.dedup,
                dedup_times=keys.dedup_times,
                counters=keys.counters,
                payload_prefix=keys.payload_prefix,
                count=_BODIES_AT_ONCE,
            )
        if outcome is DropOutcome.DROPPED:
            return seen
    raise TopicError(f"topic {topic!r}: consumers keep coming back; stop them and delete it again")


def _is_name(group: str) -> bool:
    """Whether we can have keys for it; a group of others may be called anything."""
    try:
        check_name("group", group)
    except InvalidName:
        return False
    return True


async def _drop_payloads(client: Client, topic: str) -> None:
    """Remove large payloads of messages and dead letters that the Java library has listed."""
    keys = TopicKeys.of(client.keys, topic)
    times = TopicsKeys.of(client.keys).payload_times
    for index, family in (
        (keys.payload_index, "partition.payload"),
        (keys.letter_payload_index, "topic.letter_payload"),
    ):
        listed = [text(key) for key in await client.call("SMEMBERS", index)]
        ours = [key for key in listed if _belongs(client, key, topic, family)]
        await _unlink(client, ours)
        for start in range(0, len(ours), _KEYS_AT_ONCE):
            await client.call("ZREM", times, *ours[start : start + _KEYS_AT_ONCE])
        await _unlink(client, [index])


async def _drop_java_retries(client: Client, topic: str) -> None:
    keys = TopicKeys.of(client.keys, topic)
    items = [text(key) for key in await client.call("ZRANGE", keys.java_retry, 0, -1)]
    await _unlink(
        client, [key for key in items if _belongs(client, key, topic, "topic.java_retry_item")]
    )
    await _unlink(client, [keys.java_retry, keys.java_retry_lock])


def _belongs(client: Client, key: str, topic: str, family: str) -> bool:
    """Whether a listed key is what it is listed as: other programs write lists, too."""
    read = read_topic_key(key, client.keys.namespace)
    return bool(read and read.family.name == family and read.arguments["topic"] == topic)


async def _unlink(client: Client, keys: list[str]) -> None:
    await ask(client, [("UNLINK", key) for key in keys])
