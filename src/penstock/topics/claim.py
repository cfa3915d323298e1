"""What the owner of a partition says to the server: every word carries its epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.delivery.failures import Failure
from penstock.delivery.retries import MOST_ATTEMPTS
from penstock.delivery.stored import read_json
from penstock.errors import LeaseLost
from penstock.redis.client import Client
from penstock.redis.keys import PartitionKeys
from penstock.redis.scripts import Scripts
from penstock.redis.wire import Argument, Reply
from penstock.topics.message import Fields, Message, Source

__all__ = ["CONSUMER", "Claim", "Left", "read_failures"]

CONSUMER = "penstock"
"""The name under which all messages are pending: the lease says whose they are, so no names of
dead consumers pile up in the group."""

_STALE = -1
_LAST_MS = 2**53


class Left(msgspec.Struct, frozen=True):
    """A pending message as an earlier owner left it."""

    id: bytes
    attempts: int
    wait_ms: int
    """Until its retry is due, 1 if it is; 0 if it did not fail."""
    failures: tuple[Failure, ...]
    fields: Fields
    """None, if it is not in the stream any more."""
    pending: bool = True
    """Whether it is pending; a message that was settled may still have a retry noted."""

    @property
    def is_suspect(self) -> bool:
        """Whether an attempt was begun, or may have been, and nobody saw how it ended."""
        return self.attempts > (self.failures[-1].attempt if self.failures else 0)


class Claim:
    """One ownership of one partition by one member of a group, under one epoch.

    Each call is one script that compares the epoch first. An owner whose epoch is over gets
    `LeaseLost`, and nothing is written. All of them may be repeated.
    """

    def __init__(
        self,
        client: Client,
        source: Source,
        *,
        owner: str,
        epoch: int,
        ttl_s: float,
        counts_starts: bool = False,
    ) -> None:
        self.source, self.owner, self.epoch, self.ttl_s = source, owner, epoch, ttl_s
        self.counts_starts = counts_starts
        """Whether every attempt is counted when it begins. Otherwise the first one is counted by
        the server, as it delivers the message."""
        self._not_attempts = 1 if counts_starts else 0
        self.keys: PartitionKeys = client.keys.partition(source.topic, source.partition)
        self._first_fence = self.fence = self.keys.fence(source.group, epoch)
        """The stream beside the partition's own that every read names."""
        self._fence_number = epoch
        self._scripts = client.scripts
        self._most_bytes = client.settings.topics.fetch_bytes
        self._lease = self.keys.lease(source.group)
        self._retry = self.keys.retry(source.group)
        self._failures = self.keys.failures(source.group)

    async def renew(self, scripts: Scripts | None = None) -> None:
        """Hold the partition for another `ttl_s`. The heartbeat thread has scripts of its own."""
        held = await (scripts or self._scripts).renew(
            lease=self._lease,
            epochs=self.keys.epochs,
            fence=self._first_fence,
            group=self.source.group,
            owner=self.owner,
            epoch=self.epoch,
            ttl_ms=round(self.ttl_s * 1000),
        )
        if not held:
            raise self._lost()

    async def refence(self) -> None:
        """Let no read that was sent until now deliver anything, on whichever connection it went.

        The server's side of a connection may live on without us: a read that waits there, or is
        still on its way, would take messages that nobody gets to see.
        """
        number = self._fence_number + 1
        held = await self._scripts.refence(
            lease=self._lease,
            epochs=self.keys.epochs,
            group=self.source.group,
            owner=self.owner,
            epoch=self.epoch,
            fences=self.keys.fence(self.source.group, 0).removesuffix("0"),
            number=number,
            ttl_ms=round(self.ttl_s * 1000),
        )
        if not held:
            raise self._lost()
        self._fence_number = number
        self.fence = self.keys.fence(self.source.group, number)

    async def release(self, unbegun: Sequence[bytes]) -> None:
        """Give the partition up. No attempt is charged for what was fetched but not begun."""
        await self._scripts.release(
            lease=self._lease,
            epochs=self.keys.epochs,
            fence=self._first_fence,
            stream=self.keys.stream,
            group=self.source.group,
            owner=self.owner,
            epoch=self.epoch,
            consumer=CONSUMER,
            unbegun=unbegun,
        )

    async def settle(self, failed: Sequence[bytes], fine: Sequence[bytes]) -> None:
        """Acknowledge messages; `failed` are those that had failed before."""
        self._check(
            await self._scripts.settle(
                epochs=self.keys.epochs,
                stream=self.keys.stream,
                commit=self.keys.commit,
                retry=self._retry,
                failures=self._failures,
                group=self.source.group,
                epoch=self.epoch,
                failed_before=len(failed),
                ids=[*failed, *fine],
            )
        )

    async def begin(self, messages: Sequence[Message]) -> list[int]:
        """Count attempts before they are made: their numbers, 0 for what is not pending any more.

        `message.attempt` is the number that is expected.
        """
        known: list[Argument] = []
        for message in messages:
            known += (message.entry_id, message.attempt - 1)
        return self._check(
            await self._scripts.begin(
                epochs=self.keys.epochs,
                stream=self.keys.stream,
                retry=self._retry,
                group=self.source.group,
                epoch=self.epoch,
                consumer=CONSUMER,
                not_attempts=self._not_attempts,
                known=known,
            )
        )

    async def uncharge(self, ids: Sequence[bytes]) -> None:
        """Take back one attempt of each: the partition was lost, but our process lives."""
        await self._scripts.uncharge(
            stream=self.keys.stream, group=self.source.group, consumer=CONSUMER, ids=ids
        )

    async def retry_later(
        self, message: Message, wait_s: float, failures: tuple[Failure, ...]
    ) -> None:
        """Let a failed message pend until its next attempt is due."""
        failed: list[Argument] = [
            message.entry_id,
            round(wait_s * 1000),
            msgspec.json.encode(failures),
        ]
        self._check(
            await self._scripts.retry_later(
                epochs=self.keys.epochs,
                retry=self._retry,
                failures=self._failures,
                group=self.source.group,
                epoch=self.epoch,
                failed=failed,
            )
        )

    async def park(self, ids: Sequence[bytes]) -> None:
        """Let messages that were fetched, and not begun, wait on the server, not charged."""
        self._check(
            await self._scripts.park(
                epochs=self.keys.epochs,
                stream=self.keys.stream,
                group=self.source.group,
                epoch=self.epoch,
                consumer=CONSUMER,
                ids=ids,
            )
        )

    async def unpark(self, ids: Sequence[bytes]) -> list[list[Any]]:
        """Fetch parked messages again: id and fields of each, but of those that were trimmed."""
        return self._check(
            await self._scripts.unpark(
                epochs=self.keys.epochs,
                stream=self.keys.stream,
                group=self.source.group,
                epoch=self.epoch,
                consumer=CONSUMER,
                ids=ids,
            )
        )

    async def pending(self, start: str, count: int) -> list[Left]:
        """One page of what is pending, in the order of ids; shorter where messages are large."""
        rows = self._check(
            await self._scripts.pending_page(
                epochs=self.keys.epochs,
                stream=self.keys.stream,
                retry=self._retry,
                failures=self._failures,
                group=self.source.group,
                epoch=self.epoch,
                start=start,
                count=count,
                most_bytes=self._most_bytes,
            )
        )
        return [self._left(row) for row in rows]

    async def due(self, count: int, ids: Sequence[bytes]) -> tuple[float | None, list[Left]]:
        """Failed messages whose time has come, and seconds until the next (None: none waits).

        0 seconds: more are due, and were left out because messages are large.

        `ids` are those that are due by our own clock, whatever the server's says.
        """
        wait_ms, *rows = self._check(
            await self._scripts.due_retries(
                epochs=self.keys.epochs,
                stream=self.keys.stream,
                retry=self._retry,
                failures=self._failures,
                group=self.source.group,
                epoch=self.epoch,
                count=count,
                ids=ids,
                most_bytes=self._most_bytes,
            )
        )
        return (None if wait_ms < 0 else wait_ms / 1000), [self._left(row) for row in rows]

    def _check(self, reply: Reply) -> Reply:
        if reply == _STALE:
            raise self._lost()
        return reply

    def _lost(self) -> LeaseLost:
        source = self.source
        return LeaseLost(source.topic, source.group, source.partition, self.epoch)

    def _left(self, row: Reply) -> Left:
        id_, deliveries, wait_ms, failures, fields = row
        attempts = max(0, deliveries - self._not_attempts)
        return Left(id_, attempts, wait_ms, read_failures(failures), fields, deliveries > 0)


def read_failures(stored: bytes) -> tuple[Failure, ...]:
    """How earlier attempts failed; what cannot be read says nothing."""
    failures: tuple[Failure, ...] | None = read_json(stored, tuple[Failure, ...])
    if failures and all(
        0 <= one.at_ms <= _LAST_MS and 0 <= one.attempt <= MOST_ATTEMPTS for one in failures
    ):
        return failures
    return ()
