"""Consumers of the Java library redis-streaming, as far as their leases show them."""

from __future__ import annotations

from penstock.delivery.queries import ask, text
from penstock.errors import TopicError
from penstock.redis.client import Client
from penstock.redis.wire import Command
from penstock.topics.admin.groups import known_groups
from penstock.topics.storage.keys import PartitionKeys, TopicKeys

__all__ = ["refuse_live_java_consumers"]


async def refuse_live_java_consumers(client: Client, topic: str, partitions: int) -> None:
    """Raise `TopicError` if consumers of other programs hold leases: they cannot read markers.

    Two round trips and one per 1,000 leases.
    """
    groups = await known_groups(client, topic, partitions)
    keys = TopicKeys.of(client.keys, topic)
    commands: list[Command] = [("ZRANGE", keys.members(group), 0, -1) for group in groups]
    members = dict(zip(groups, await ask(client, commands), strict=True))
    places = [(group, index) for group in groups for index in range(partitions)]
    commands = [
        ("GET", PartitionKeys.of(client.keys, topic, index).lease(group)) for group, index in places
    ]
    owners = await ask(client, commands)
    for (group, _), owner in zip(places, owners, strict=True):
        if owner is not None and owner not in members[group]:
            raise TopicError(
                f"topic {topic!r}: group {group!r} is read by {text(owner)!r}, which is not a "
                "consumer of Penstock: it would get a message without payload in each partition. "
                "Stop the group's Java consumers first, or force it"
            )
