"""Assignment of partitions: a consumer takes its fair share, gives up more, renews the rest."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from penstock.delivery.queries import text
from penstock.errors import ServerError, TopicMissing
from penstock.redis.client import Client
from penstock.redis.wire import Command
from penstock.topics.admin.growth import OverdueGrowth
from penstock.topics.consumer.fair_share import GroupMember, candidates, quota, read_member
from penstock.topics.consumer.fetch_budget import FetchBudget
from penstock.topics.consumer.owned_partition import ConsumerCounts, OwnedPartition
from penstock.topics.message import Source
from penstock.topics.storage.group_registration import register_group
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.metadata import (
    TopicMetadata,
    metadata_of,
    open_partitions,
    read_metadata,
)
from penstock.topics.storage.scripts import AcquireRefusal, TopicScripts
from penstock.topics.subscription import Subscription

__all__ = ["RENEWALS_PER_LEASE", "Assignment"]

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 5
_NO_TTL = -1


class _Lease(NamedTuple):
    """A lease as read from the server."""

    owner: str | None
    ends_at: float
    """By our monotonic clock; infinite without TTL."""


class Assignment:
    """One consumer as a member of its group. `balance` is called periodically."""

    def __init__(
        self,
        client: Client,
        topic: str,
        subscription: Subscription,
        counts: ConsumerCounts,
        budget: FetchBudget,
        make_source: Callable[[int], Source],
        began: Callable[[OwnedPartition], None],
    ) -> None:
        self.topic, self.name = (
            topic,
            f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        )
        self.partition_count = 0
        """How many partitions the topic has, as far as it is known."""
        self._owned: dict[int, OwnedPartition] = {}
        """Every partition that is ours, also while it is being given up."""
        self._client, self._subscription = client, subscription
        self._counts, self._budget = counts, budget
        self._make_source, self._began = make_source, began
        self._about = GroupMember(
            host=socket.gethostname(),
            pid=os.getpid(),
            cap=subscription.max_partitions or 0,
            pin=subscription.pin,
            versions=True,
        )
        self._ttl_s = client.settings.topics.lease_ttl_s
        self._endless_s = client.settings.topics.endless_lease_s
        self._metadata: TopicMetadata | None = None
        self._strangers: dict[int, tuple[_Lease, float]] = {}
        """Leases of owners that are not members, by partition; since when they are unchanged."""
        self._overdue = OverdueGrowth(client)
        self._members: dict[str, GroupMember] = {}
        self._version = b""
        """Of `_members`; empty if the whole list has to be asked for."""
        self._shared: tuple[object, int] | None = None
        """Members and number of partitions for which `_open` and `_share` were computed."""
        self._open: list[int] = []
        self._share = 0
        self._beaten_at = -math.inf
        """Last heartbeat of the event loop. While these are frequent enough, the heartbeat thread
        sends none."""

    @property
    def group(self) -> str:
        return self._subscription.group

    async def balance(self) -> TopicMetadata:
        """Send a heartbeat, read the live members, and take or give up partitions."""
        if self._metadata is None:  # no member before the group is known
            await self._register(await read_metadata(self._client, self.topic))
        metadata, members = await self._beat()
        # A topic of the Java library has no life yet.
        if not metadata.life or await self._overdue.complete(metadata):
            metadata = await read_metadata(self._client, self.topic)
        await self._register(metadata)
        open_, share = self._share_of(metadata.partitions, members)
        kept = [owned for owned in self._owned.values() if not owned.closing]
        for owned in sorted(kept, key=lambda one: one.source.partition)[share:]:
            logger.info("%s: given up, other members have fewer", owned)
            owned.close()
        for owned in kept:
            if owned.source.partition not in open_:
                owned.close()
        wanted = share - len(self._owned)
        if wanted > 0:
            free = [index for index in open_ if index not in self._owned]
            await self._take(wanted, free, members)
        return metadata

    async def beat(self, client: Client) -> None:
        """Stay a member and renew every partition. Runs in the heartbeat thread.

        What fails is repeated with the next beat.
        """
        beats = [owned.renew_from_thread(client) for owned in list(self._owned.values())]
        if time.monotonic() - self._beaten_at >= self._ttl_s / RENEWALS_PER_LEASE:
            beats.append(self._stay(client))
        outcomes = await asyncio.gather(*beats, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _stay(self, client: Client) -> None:
        members = TopicKeys.of(self._client.keys, self.topic).members(self.group)
        await TopicScripts.of(client).stay_member(members=members, member=self.name)

    async def leave(self) -> None:
        """Leave the group, so that the other members take over at once."""
        keys = TopicKeys.of(self._client.keys, self.topic)
        await TopicScripts.of(self._client).leave_group(
            members=keys.members(self.group),
            member_info=keys.member_info(self.group),
            member=self.name,
        )

    def register_again(self) -> None:
        """The group was deleted, or the server lost it: register it with the next balance."""
        self._metadata = None

    def forget(self, owned: OwnedPartition) -> None:
        """The partition has been given up, so that it may be acquired again."""
        self._owned.pop(owned.source.partition, None)

    async def _register(self, metadata: TopicMetadata) -> None:
        before, self.partition_count = self._metadata, metadata.partitions
        if before is not None and before.life != metadata.life:  # deleted and made again
            await open_partitions(
                self._client, self.topic, range(metadata.partitions), metadata.life
            )
        if before is None or (before.life, before.partitions) != (
            metadata.life,
            metadata.partitions,
        ):
            await register_group(self._client, metadata, self.group, self._subscription.start_id)
            self._metadata = metadata

    def _share_of(self, partitions: int, members: dict[str, GroupMember]) -> tuple[list[int], int]:
        """Which partitions may be ours, and how many of them; computed when something changed."""
        if self._shared is None or self._shared[0] is not members or self._shared[1] != partitions:
            self._open = candidates(partitions, members[self.name], members)
            self._share = quota(self.name, self._open, members)
            self._shared = (members, partitions)
        return self._open, self._share

    async def _beat(self) -> tuple[TopicMetadata, dict[str, GroupMember]]:
        keys, sent_at = TopicKeys.of(self._client.keys, self.topic), time.monotonic()
        reply = await TopicScripts.of(self._client).beat_member(
            members=keys.members(self.group),
            member_info=keys.member_info(self.group),
            meta=keys.meta,
            member=self.name,
            about=msgspec.json.encode(self._about),
            ttl_ms=round(self._ttl_s * 1000),
            version=self._version,
        )
        if reply is None:
            raise TopicMissing(self.topic)
        self._beaten_at = sent_at
        version, fields, *listed = reply
        if listed:
            self._members = {
                text(name): read_member(about)
                for name, about in zip(listed[::2], listed[1::2], strict=True)
            }
            # Members of earlier versions of Penstock do not change the version.
            all_versioned = all(member.versions for member in self._members.values())
            self._version = version if all_versioned else b""
        return metadata_of(self._client, self.topic, fields), self._members

    async def _take(self, wanted: int, free: list[int], members: dict[str, GroupMember]) -> None:
        # Each member begins at another partition, so that those that start together do not collide.
        first = sorted(members).index(self.name) * wanted
        turned = free[first % len(free) :] + free[: first % len(free)] if free else []
        for index, lease in await self._leases(turned):
            if wanted <= 0:
                return
            dead = lease.owner if self._is_dead(index, lease, members) else None
            if (lease.owner in {None, self.name} or dead) and await self._acquire(index, dead):
                wanted -= 1

    async def _leases(self, indexes: list[int]) -> list[tuple[int, _Lease]]:
        commands: list[Command] = []
        for index in indexes:
            key = PartitionKeys.of(self._client.keys, self.topic, index).lease(self.group)
            commands += [("GET", key), ("PTTL", key)]
        replies = await self._client.pipeline(commands)
        now = time.monotonic()
        leases: list[tuple[int, _Lease]] = []
        for index, owner, left_ms in zip(indexes, replies[::2], replies[1::2], strict=True):
            for reply in (owner, left_ms):
                if isinstance(reply, ServerError):
                    raise reply
            ends_at = math.inf if left_ms == _NO_TTL else now + left_ms / 1000
            leases.append((index, _Lease(None if owner is None else text(owner), ends_at)))
        return leases

    def _is_dead(self, index: int, lease: _Lease, members: dict[str, GroupMember]) -> bool:
        """Whether a lease does not expire, and its owner has not renewed it for too long.

        Any other lease of a stranger, such as a consumer of the Java library, holds until it ends.
        The script checks which kind it is.
        """
        if lease.owner is None or lease.owner in members:
            self._strangers.pop(index, None)
            return False
        now = time.monotonic()
        seen, since = self._strangers.get(index, (None, now))
        if seen is None or not self._is_unchanged(seen, lease):
            self._strangers[index] = lease, now
            self._version = b""  # read the whole list first
            return False
        longest_s = self._endless_s if math.isinf(lease.ends_at) else self._ttl_s
        return now - since > longest_s

    def _is_unchanged(self, seen: _Lease, lease: _Lease) -> bool:
        if seen.owner != lease.owner:
            return False
        if math.isinf(seen.ends_at) or math.isinf(lease.ends_at):
            return seen.ends_at == lease.ends_at
        # Half of what a renewal adds.
        return abs(seen.ends_at - lease.ends_at) < self._ttl_s / RENEWALS_PER_LEASE / 2

    async def _acquire(self, index: int, dead_owner: str | None) -> bool:
        keys = PartitionKeys.of(self._client.keys, self.topic, index)
        sent_at = time.monotonic()
        epoch = await TopicScripts.of(self._client).acquire_partition(
            lease=keys.lease(self.group),
            epochs=keys.epochs,
            group=self.group,
            owner=self.name,
            ttl_ms=round(self._ttl_s * 1000),
            fences=keys.fence_prefix(self.group),
            dead_owner=dead_owner or "",
        )
        if isinstance(epoch, AcquireRefusal):
            if epoch is AcquireRefusal.NOT_REGISTERED:
                self.register_again()
            return False
        if dead_owner is not None:
            logger.warning(
                "partition %d of %s for %s: taken over from %s, whose lease does not expire",
                *(index, self.topic, self.group, dead_owner),
            )
        owned = OwnedPartition(
            self._client,
            self._make_source(index),
            self._counts,
            self._budget,
            owner=self.name,
            epoch=epoch,
            acquired_at=sent_at,
            counts_starts=self._subscription.counts_starts,
        )
        self._owned[index] = owned
        self._began(owned)
        return True
