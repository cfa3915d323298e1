"""How a topic gets more partitions while it is used, without breaking the order of its keys.

Producers learn of it, and stop sending at a moment that all of them know. Then each partition gets
a marker behind everything that was placed by the old number; groups do not go past the markers, nor
read the new partitions, until they have handled all that stands before them.

Every step may be repeated, and be taken by several at once. So if the process that began a growth
dies, any producer that waits for it, and any consumer of the topic, completes it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time

from penstock.errors import InvalidMessage, PenstockError, TopicError, TopicMissing
from penstock.redis.client import Client
from penstock.throttled_log import RateLimitedLog
from penstock.topics.admin.groups import known_groups
from penstock.topics.storage.admin_scripts import GrowthOutcome, TopicAdminScripts
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.metadata import MOST_PARTITIONS, TopicMetadata, open_partitions
from penstock.topics.storage.scripts import TopicScripts

__all__ = ["OverdueGrowth", "grow_topic"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_REFRESHES = 3
"""Producers hear of a growth within one; the rest is for sends that are on their way."""


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
    await _complete(client, topic, *announced, partitions)


class OverdueGrowth:
    """Completes a growth of one topic that was announced and not completed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._generation, self._overdue_at = 0, 0.0

    async def complete(self, metadata: TopicMetadata) -> bool:
        """Complete the growth if it is overdue; whether the metadata have changed by that.

        Not all processes that notice begin at the same moment: as a rule one of them does it.
        """
        if not metadata.growing_to or metadata.switch_ms:
            self._generation = 0
            return False
        refresh_s = self._client.settings.topics.refresh_s
        if self._generation != metadata.generation:
            self._generation = metadata.generation
            self._overdue_at = time.monotonic() + refresh_s * random.uniform(1, 2)  # noqa: S311
        if time.monotonic() < self._overdue_at:
            return False
        quiet.warning(
            metadata.name,
            "topic %s was to grow to %d partitions, and whatever began that has not completed it; "
            "it is completed now",
            metadata.name,
            metadata.growing_to,
        )
        self._overdue_at = time.monotonic() + refresh_s
        try:
            await _complete(
                self._client,
                metadata.name,
                metadata.partitions,
                metadata.generation,
                metadata.growing_to,
            )
        except PenstockError as error:
            quiet.warning(
                f"{metadata.name} fails",
                "the growth of topic %s cannot be completed: %s",
                metadata.name,
                error,
            )
            return False
        return True


async def _complete(
    client: Client, topic: str, before: int, generation: int, partitions: int
) -> None:
    """Take all steps that follow the moment from which on producers hold still."""
    await _add_partitions(client, topic, before, partitions)
    markers = [await _mark(client, topic, index, generation + 1) for index in range(before)]
    # Once more: a group that came meanwhile has to read the new partitions from their beginning.
    await _register_groups(client, topic, before, partitions)
    done = await TopicAdminScripts.of(client).finish_growth(
        meta=TopicKeys.of(client.keys, topic).meta,
        partitions=partitions,
        generation=generation + 1,
        markers=markers,
    )
    if not done:
        raise TopicMissing(topic)


async def _announce(client: Client, topic: str, partitions: int) -> tuple[int, int] | None:
    """Announce the growth and wait until producers have stopped; partitions and generation.

    `None` if another process has completed the same growth meanwhile.
    """
    waited = False
    hold_ms = int(client.settings.topics.refresh_s * _REFRESHES * 1000)
    while True:
        reply = await TopicAdminScripts.of(client).begin_growth(
            meta=TopicKeys.of(client.keys, topic).meta, partitions=partitions, hold_ms=hold_ms
        )
        if reply is None:
            raise TopicMissing(topic)
        outcome, count, generation, wait_ms = reply
        if outcome is GrowthOutcome.NOT_MORE and waited:
            return None
        if outcome is GrowthOutcome.NOT_MORE:
            raise TopicError(f"topic {topic!r} has {count} partitions; it grows to more, not less")
        if outcome is GrowthOutcome.OTHER_GROWTH:
            raise TopicError(
                f"topic {topic!r} is growing to {count} partitions already; complete that first, "
                "by growing it to that number"
            )
        if not wait_ms:
            return count, generation
        waited = True
        await asyncio.sleep(wait_ms / 1000)


async def _add_partitions(client: Client, topic: str, before: int, partitions: int) -> None:
    indexes = range(before, partitions)
    await open_partitions(client, topic, indexes)
    streams = [PartitionKeys.of(client.keys, topic, index).stream for index in indexes]
    await client.call("SADD", TopicKeys.of(client.keys, topic).partitions, *streams)
    await _register_groups(client, topic, before, partitions)


async def _register_groups(client: Client, topic: str, before: int, partitions: int) -> None:
    """Let every group read the new partitions from their beginning: they are still empty."""
    for group in await known_groups(client, topic, before):
        for index in range(before, partitions):
            keys = PartitionKeys.of(client.keys, topic, index)
            await TopicScripts.of(client).register_group(
                stream=keys.stream, epochs=keys.epochs, commit=keys.commit, group=group, start="0"
            )


async def _mark(client: Client, topic: str, index: int, generation: int) -> bytes:
    keys = PartitionKeys.of(client.keys, topic, index)
    marker = await TopicAdminScripts.of(client).mark_barrier(
        stream=keys.stream, counters=keys.counters, generation=generation
    )
    if marker is None:
        raise TopicMissing(topic)
    return marker
