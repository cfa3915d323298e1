"""How a group becomes known to a topic and to every partition of it."""

from __future__ import annotations

import logging

import msgspec

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.stored import read_json
from penstock.delivery.times import EARLIEST, resolve_position
from penstock.errors import TopicMissing
from penstock.redis.client import Client
from penstock.topics.facts import Facts

__all__ = ["Registration", "read_registration", "register_group"]

logger = logging.getLogger(__name__)

_RECREATED, _NO_STREAM = 2, -1


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """When and where a group began, as stored with the topic."""

    start: str
    """Id after which it began; 0 for all there was, $ for what came later."""
    partitions: int
    """Partitions that there were; it reads later ones from their beginning."""
    at_ms: int = 0


def read_registration(stored: bytes, partitions: int) -> Registration:
    """What is stored of a group; if that cannot be read, it begins where nothing is left out."""
    known: Registration | None = read_json(stored, Registration)
    if known is not None:
        try:
            resolve_position(known.start)
        except ValueError:
            known = None
    return known or Registration(start=EARLIEST, partitions=partitions)


async def register_group(client: Client, facts: Facts, group: str, start: str) -> None:
    """Make a group known everywhere. May be repeated; a group that is known stays where it is.

    A group that the server has lost (a flush, a failover to an older copy) goes on where all was
    settled, never at the end of the stream.
    """
    groups = client.keys.topic(facts.name).groups
    stored = await client.call("HGET", groups, group)
    if stored is None:  # asked first: a full server refuses the write even where it changes nothing
        mine = Registration(start=start, partitions=facts.partitions, at_ms=SYSTEM_CLOCK.wall_ms())
        await client.call("HSETNX", groups, group, msgspec.json.encode(mine))
        stored = await client.call("HGET", groups, group)
    known = read_registration(stored, facts.partitions)
    for index in range(facts.partitions):
        keys = client.keys.partition(facts.name, index)
        outcome = await client.scripts.register_group(
            stream=keys.stream,
            epochs=keys.epochs,
            commit=keys.commit,
            group=group,
            start=resolve_position(known.start) if index < known.partitions else EARLIEST,
        )
        if outcome == _NO_STREAM:
            raise TopicMissing(facts.name)
        if outcome == _RECREATED:
            logger.error(
                "group %s of topic %s was lost in partition %d; it goes on where all was settled",
                group,
                facts.name,
                index,
            )
