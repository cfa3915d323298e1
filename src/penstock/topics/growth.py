"""How a topic gets more partitions while it is used, without breaking the order of its keys.

Producers are told, and hold still from a moment on that all of them know. Then each partition gets
a marker behind everything that was placed by the old number; groups do not go past the markers, nor
read the new partitions, until they have handled all that stands before them.
"""

from __future__ import annotations

import asyncio

from penstock.errors import InvalidMessage, TopicError, TopicMissing
from penstock.redis.client import Client
from penstock.topics.facts import MOST_PARTITIONS, open_partitions
from penstock.topics.groups import known_groups

__all__ = ["grow_topic"]

_REFRESHES = 3
"""Producers hear of a growth within one; the rest is for sends that are on their way."""
_UNDER_WAY, _NOT_MORE = 1, 0


async def grow_topic(client: Client, topic: str, partitions: int) -> None:
    """See `TopicAdmin.grow`."""
    if type(partitions) is not int or not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidMessage(
            f"topic {topic!r}: partitions = {partitions!r}: expected a whole number from 1 to "
            f"{MOST_PARTITIONS}"
        )
    announced = await _announce(client, topic, partitions)
    if announced is None:
        return
    before, generation = announced
    await _add_partitions(client, topic, before, partitions)
    markers = [await _mark(client, topic, index, generation + 1) for index in range(before)]
    # Once more: a group that came meanwhile has to read the new partitions from their beginning.
    await _register_groups(client, topic, before, partitions)
    done = await client.scripts.finish_growth(
        meta=client.keys.topic(topic).meta,
        partitions=partitions,
        generation=generation + 1,
        markers=markers,
    )
    if not done:
        raise TopicMissing(topic)


async def _announce(client: Client, topic: str, partitions: int) -> tuple[int, int] | None:
    """Tell producers and wait until they hold still; partitions and generation as they are.

    `None` if another who grows it alike has completed it in the meantime.
    """
    waited = False
    hold_ms = int(client.settings.topics.refresh_s * _REFRESHES * 1000)
    while True:
        told = await client.scripts.begin_growth(
            meta=client.keys.topic(topic).meta, partitions=partitions, hold_ms=hold_ms
        )
        if told is None:
            raise TopicMissing(topic)
        end, count, *more = told
        if end == _NOT_MORE and waited:
            return None
        if end == _NOT_MORE:
            raise TopicError(f"topic {topic!r} has {count} partitions; it grows to more, not less")
        if end != _UNDER_WAY:
            raise TopicError(
                f"topic {topic!r} is growing to {count} partitions already; complete that first, "
                "by growing it to that number"
            )
        generation, wait_ms = more
        if not wait_ms:
            return count, generation
        waited = True
        await asyncio.sleep(wait_ms / 1000)


async def _add_partitions(client: Client, topic: str, before: int, partitions: int) -> None:
    indexes = range(before, partitions)
    await open_partitions(client, topic, indexes)
    streams = [client.keys.partition(topic, index).stream for index in indexes]
    await client.call("SADD", client.keys.topic(topic).partitions, *streams)
    await _register_groups(client, topic, before, partitions)


async def _register_groups(client: Client, topic: str, before: int, partitions: int) -> None:
    """Let every group read the new partitions from their beginning: they are still empty."""
    for group in await known_groups(client, topic, before):
        for index in range(before, partitions):
            keys = client.keys.partition(topic, index)
            await client.scripts.register_group(
                stream=keys.stream, epochs=keys.epochs, commit=keys.commit, group=group, start="0"
            )


async def _mark(client: Client, topic: str, index: int, generation: int) -> bytes:
    keys = client.keys.partition(topic, index)
    marker = await client.scripts.mark_barrier(
        stream=keys.stream, counters=keys.counters, generation=generation
    )
    if marker is None:
        raise TopicMissing(topic)
    return marker
