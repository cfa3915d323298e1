"""Registration of a group with a topic and each of its partitions."""

from __future__ import annotations

import logging

import msgspec

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.stored import read_json
from penstock.delivery.times import EARLIEST, resolve_position
from penstock.errors import TooMany, TopicMissing
from penstock.redis.client import Client
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.metadata import TopicMetadata
from penstock.topics.storage.scripts import GroupOutcome, TopicScripts

__all__ = ["GroupRegistration", "read_registration", "register_group"]

logger = logging.getLogger(__name__)


class GroupRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """When and where a group began, as stored with the topic."""

    start: str
    """Id after which it began; 0 for all there was, $ for what came later."""
    partitions: int
    """Partitions that there were; it reads later ones from their beginning."""
    at_ms: int = 0


def read_registration(stored: bytes, partitions: int) -> GroupRegistration:
    """What is stored of a group; if that cannot be read, it begins where nothing is left out."""
    known: GroupRegistration | None = read_json(stored, GroupRegistration)
    if known is not None:
        try:
            resolve_position(known.start)
        except ValueError:
            known = None
    return known or GroupRegistration(start=EARLIEST, partitions=partitions)


async def register_group(client: Client, metadata: TopicMetadata, group: str, start: str) -> None:
    """Make a group known everywhere. May be repeated; a group that is known stays where it is.

    TooMany if it is new and the topic has `topics.max_groups`.

    A group that the server has lost (a flush, a failover to an older copy) continues where all
    was acknowledged, never at the end of the stream.
    """
    groups = TopicKeys.of(client.keys, metadata.name).groups
    most = client.settings.topics.max_groups
    mine = GroupRegistration(
        start=start, partitions=metadata.partitions, at_ms=SYSTEM_CLOCK.wall_ms()
    )
    stored = await TopicScripts.of(client).note_group(
        groups=groups, group=group, registration=msgspec.json.encode(mine), most=most
    )
    if stored is None:
        raise TooMany(f"groups of topic {metadata.name}", most, "topics.max_groups")
    known = read_registration(stored, metadata.partitions)
    for index in range(metadata.partitions):
        keys = PartitionKeys.of(client.keys, metadata.name, index)
        outcome = await TopicScripts.of(client).register_group(
            stream=keys.stream,
            epochs=keys.epochs,
            commit=keys.commit,
            group=group,
            start=resolve_position(known.start) if index < known.partitions else EARLIEST,
        )
        if outcome is GroupOutcome.NO_STREAM:
            raise TopicMissing(metadata.name)
        if outcome is GroupOutcome.RECREATED:
            logger.error(
                "group %s of topic %s was lost in partition %d; it continues after its last ack",
                group,
                metadata.name,
                index,
            )
