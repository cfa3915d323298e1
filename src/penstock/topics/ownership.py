"""Which partitions a consumer owns: takes its fair share, gives up the surplus, renews the rest."""

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

from penstock.errors import ServerError, TopicMissing
from penstock.redis.client import Client
from penstock.redis.scripts import Scripts
from penstock.redis.wire import Command
from penstock.topics.claim import Claim
from penstock.topics.facts import Facts, facts_of, open_partitions, read_facts
from penstock.topics.growth import OverdueGrowth
from penstock.topics.held import Counts, Held
from penstock.topics.looking import text
from penstock.topics.message import Source
from penstock.topics.registration import register_group
from penstock.topics.room import Room
from penstock.topics.shares import Member, candidates, quota, read_member
from penstock.topics.subscription import Subscription

__all__ = ["RENEWALS_PER_LEASE", "Ownership"]

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 5
_NOT_REGISTERED = -1
_NO_TTL = -1


class _Lease(NamedTuple):
    """A lease as it was found."""

    owner: str | None
    ends_at: float
    """By our monotonic clock; infinite without TTL."""


class Ownership:
    """One consumer's place in its group. `balance` is called every now and then."""

    def __init__(
        self,
        client: Client,
        topic: str,
        subscription: Subscription,
        counts: Counts,
        room: Room,
        make_source: Callable[[int], Source],
        began: Callable[[Held], None],
    ) -> None:
        self.topic, self.name = (
            topic,
            f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        )
        self.partitions = 0
        """How many the topic has, as far as it is known."""
        self.helds: dict[int, Held] = {}
        """Every partition that is ours, also while it is being given up."""
        self._client, self._subscription = client, subscription
        self._counts, self._room = counts, room
        self._make_source, self._began = make_source, began
        self._about = Member(
            host=socket.gethostname(),
            pid=os.getpid(),
            cap=subscription.max_partitions or 0,
            pin=subscription.pin,
            versions=True,
        )
        self._ttl_s = client.settings.topics.lease_ttl_s
        self._endless_s = client.settings.topics.endless_lease_s
        self._facts: Facts | None = None
        self._strangers: dict[int, tuple[_Lease, float]] = {}
        """Leases of owners that are not members, by partition; since when they are unchanged."""
        self._overdue = OverdueGrowth(client)
        self._members: dict[str, Member] = {}
        self._version = b""
        """Of `_members`; empty if the whole list has to be asked for."""
        self._shared: tuple[object, int] | None = None
        """Members and number of partitions for which `_open` and `_share` were computed."""
        self._open: list[int] = []
        self._share = 0
        self._beaten_at = -math.inf
        """When the event loop last said that we live. While it does so often enough, the heartbeat
        thread need not."""

    @property
    def group(self) -> str:
        return self._subscription.group

    async def balance(self) -> Facts:
        """Say that we live, see who else does, and take or give up partitions."""
        if self._facts is None:  # no member before the group is known
            await self._register(await read_facts(self._client, self.topic))
        facts, members = await self._beat()
        # A topic of the Java library has no life yet.
        if not facts.life or await self._overdue.look(facts):
            facts = await read_facts(self._client, self.topic)
        await self._register(facts)
        open_, share = self._share_of(facts.partitions, members)
        kept = [held for held in self.helds.values() if not held.closing]
        for held in sorted(kept, key=lambda one: one.source.partition)[share:]:
            logger.info("%s: handing over, others have fewer", held)
            held.close()
        for held in kept:
            if held.source.partition not in open_:
                held.close()
        wanted = share - len(self.helds)
        if wanted > 0:
            await self._take(wanted, [index for index in open_ if index not in self.helds], members)
        return facts

    async def beat(self, scripts: Scripts) -> None:
        """Stay a member and hold every partition for longer. Runs in the heartbeat thread.

        What fails is tried again with the next beat.
        """
        signs = [held.keep(scripts) for held in list(self.helds.values())]
        if time.monotonic() - self._beaten_at >= self._ttl_s / RENEWALS_PER_LEASE:
            signs.append(self._stay(scripts))
        outcomes = await asyncio.gather(*signs, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _stay(self, scripts: Scripts) -> None:
        members = self._client.keys.topic(self.topic).members(self.group)
        await scripts.stay_member(members=members, member=self.name)

    async def leave(self) -> None:
        """Let the others know at once that we are gone."""
        keys = self._client.keys.topic(self.topic)
        await self._client.scripts.leave_group(
            members=keys.members(self.group),
            member_info=keys.member_info(self.group),
            member=self.name,
        )

    def register_again(self) -> None:
        """Somebody deleted the group, or the server lost it: make it known next time."""
        self._facts = None

    async def _register(self, facts: Facts) -> None:
        before, self.partitions = self._facts, facts.partitions
        if before is not None and before.life != facts.life:  # deleted and made again
            await open_partitions(self._client, self.topic, range(facts.partitions), facts.life)
        if before is None or (before.life, before.partitions) != (facts.life, facts.partitions):
            await register_group(self._client, facts, self.group, self._subscription.start_id)
            self._facts = facts

    def _share_of(self, partitions: int, members: dict[str, Member]) -> tuple[list[int], int]:
        """Which partitions may be ours, and how many of them; computed when something changed."""
        if self._shared is None or self._shared[0] is not members or self._shared[1] != partitions:
            self._open = candidates(partitions, members[self.name], members)
            self._share = quota(self.name, self._open, members)
            self._shared = (members, partitions)
        return self._open, self._share

    async def _beat(self) -> tuple[Facts, dict[str, Member]]:
        keys, sent_at = self._client.keys.topic(self.topic), time.monotonic()
        reply = await self._client.scripts.beat_member(
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
        version, told, *listed = reply
        if listed:
            self._members = {
                text(name): read_member(about)
                for name, about in zip(listed[::2], listed[1::2], strict=True)
            }
            # Those of earlier versions of Penstock are replaced by others without a sign.
            all_tell = all(member.versions for member in self._members.values())
            self._version = version if all_tell else b""
        return facts_of(self._client, self.topic, told), self._members

    async def _take(self, wanted: int, free: list[int], members: dict[str, Member]) -> None:
        # Everybody begins somewhere else, so that consumers who start together do not collide.
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
            key = self._client.keys.partition(self.topic, index).lease(self.group)
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

    def _is_dead(self, index: int, lease: _Lease, members: dict[str, Member]) -> bool:
        """Whether a lease cannot end by itself, and its owner has not touched it for too long.

        Any other lease of a stranger, such as a consumer of the Java library, holds until it ends.
        The script decides whether it is of that kind.
        """
        if lease.owner is None or lease.owner in members:
            self._strangers.pop(index, None)
            return False
        now = time.monotonic()
        seen, since = self._strangers.get(index, (None, now))
        if seen is None or not self._is_unchanged(seen, lease):
            self._strangers[index] = lease, now
            self._version = b""  # see the whole list before it is believed
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
        keys = self._client.keys.partition(self.topic, index)
        sent_at = time.monotonic()
        epoch = await self._client.scripts.acquire(
            lease=keys.lease(self.group),
            epochs=keys.epochs,
            group=self.group,
            owner=self.name,
            ttl_ms=round(self._ttl_s * 1000),
            fences=keys.fence(self.group, 0).removesuffix("0"),
            dead_owner=dead_owner or "",
        )
        if epoch == _NOT_REGISTERED:
            self.register_again()
            return False
        if not epoch:
            return False
        if dead_owner is not None:
            logger.warning(
                "partition %d of %s for %s: taken over from %s, whose lease does not end by itself",
                *(index, self.topic, self.group, dead_owner),
            )
        claim = Claim(
            self._client,
            self._make_source(index),
            owner=self.name,
            epoch=epoch,
            ttl_s=self._ttl_s,
            counts_starts=self._subscription.counts_starts,
        )
        held = Held(claim, self._counts, self._room)
        held.held_since(sent_at)
        self.helds[index] = held
        self._began(held)
        return True
