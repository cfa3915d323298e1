"""Keys under a topic's names that hold something of another type: some other program wrote them.

No consumer can use such a key, and none removes it: it is reported with its name and type. Deleting
the topic deletes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.delivery.foreign_keys import ForeignKey, foreign_among
from penstock.delivery.queries import ask
from penstock.redis.client import Client
from penstock.redis.keys.family import RedisType
from penstock.topics.storage.keys import PartitionKeys, TopicKeys

__all__ = ["find_foreign"]

_HASH, _SET, _ZSET = RedisType.HASH, RedisType.SET, RedisType.ZSET
_STREAM, _STRING = RedisType.STREAM, RedisType.STRING


async def find_foreign(
    client: Client, topic: str, partitions: Iterable[int] = (), groups: Iterable[str] = ()
) -> list[ForeignKey]:
    """Find keys of another type among those of a topic. One round trip per 1,000 keys."""
    groups = list(groups)
    expected = _of_topic(client, topic, groups)
    for index in partitions:
        expected |= _of_partition(client, topic, index, groups)
    return foreign_among(expected, await ask(client, [("TYPE", key) for key in expected]))


def _of_topic(client: Client, topic: str, groups: list[str]) -> dict[str, str]:
    keys = TopicKeys.of(client.keys, topic)
    return {
        **dict.fromkeys((keys.meta, keys.groups, keys.dlq_index, keys.java_retry_lock), _HASH),
        **dict.fromkeys((keys.partitions, keys.payload_index, keys.letter_payload_index), _SET),
        **dict.fromkeys((keys.dlq, keys.audit), _STREAM),
        **dict.fromkeys((keys.java_retry, *map(keys.members, groups)), _ZSET),
        **dict.fromkeys(map(keys.member_info, groups), _HASH),
    }


def _of_partition(client: Client, topic: str, index: int, groups: list[str]) -> dict[str, str]:
    keys = PartitionKeys.of(client.keys, topic, index)
    hashes = (keys.epochs, keys.commit, keys.counters, keys.dedup, keys.delayed_bodies)
    sorted_sets = (keys.payloads, keys.delayed, keys.dedup_times)
    return {
        keys.stream: _STREAM,
        **dict.fromkeys((*hashes, *map(keys.failures, groups)), _HASH),
        **dict.fromkeys((*sorted_sets, *map(keys.retry, groups)), _ZSET),
        **dict.fromkeys(map(keys.lease, groups), _STRING),
    }
