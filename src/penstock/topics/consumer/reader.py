"""Reads new messages of many partitions with one blocking command."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress

from penstock.delivery.message_sizes import entries_bytes
from penstock.delivery.queries import is_wrong_type
from penstock.errors import (
    CommandRefused,
    OutcomeUnknown,
    PermissionRefused,
    PoolExhausted,
    ServerError,
)
from penstock.redis.client import Client
from penstock.redis.keys.hash_slot import key_slot
from penstock.redis.wire import Argument, Command, Reply, Wire
from penstock.runtime.progress import LoopProgress, LoopSilent, WatchedBlock
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog
from penstock.topics.consumer.fetch_budget import FetchBudget, FetchPacing, active_consumers
from penstock.topics.consumer.owned_partition import OwnedPartition
from penstock.topics.storage.scripts import CONSUMER

__all__ = ["Reader"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# Beyond the server's own limit for a blocking read, the reply may be this much on its way: more on
# a connection that turns out to be slow.
_LEAST_MARGIN_S, _MOST_MARGIN_S = 0.5, 5.0
_MARGIN_PER_DELAY = 2
# A read waits for this share of `worker.poll_s`: the rest is for noticing that no reply comes.
_BLOCK_SHARE = 0.6
# Of many subscriptions in a process each waits longer, so that waiting stays cheap; but not so long
# that a connection which fell silent goes unnoticed.
_BLOCK_EACH_S, _MOST_BLOCK_S = 0.02, 5.0
_UNBLOCK_AGAIN_S = 0.05
_LEAST_BLOCK_S = 0.05
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
# A reader that polls for want of a connection tries to get one every so often.
_CONNECT_AGAIN_S = 30.0
# Of partitions whose messages may be of any size, so many are read at once, and so many messages
# of each.
_UNSIZED_PARTITIONS, _UNSIZED_COUNT = 4, 2
# A read that ends before the watchdog calls its loop silent needs no excuse.
_UNEXCUSED_POLLS = 1.25


class Reader:
    """Fetches messages of some partitions of one group, as far as the budget allows.

    The next read is under way while what came before is handled. Each read names the fences of its
    partitions: if one has passed to another consumer, the server refuses the read as a whole.

    It waits on the server over a connection of its own, which it closes while it has no partition.
    A reader that gets none (`poll`, or no descriptor is left) asks every few milliseconds over the
    shared ones instead.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        pacing: FetchPacing,
        budget: FetchBudget,
        *,
        slot_key: str | None = None,
        poll: bool = False,
    ) -> None:
        self._client, self._group, self._pacing, self._budget = client, group, pacing, budget
        self._partitions: list[OwnedPartition] = []
        """Replaced, never changed: a read names one version of it."""
        self._slot = None if slot_key is None else key_slot(slot_key)
        self._polls_until = math.inf if poll else 0.0
        self._consumers = active_consumers(client)
        self._poll_s, self._timeouts = client.settings.worker.poll_s, client.settings.timeouts
        self._fetch = client.settings.topics.fetch
        self.begun = False
        """Whether messages are read as soon as they are stored, as far as the budget allows."""
        self.trouble: str | None = None
        self.limitation: str | None = None
        """Why it has to poll."""
        self._refusals = 0
        self._margin_s, self._unanswered = _LEAST_MARGIN_S, 0
        self._turn = 0
        self._asked: Sequence[OwnedPartition] = ()
        """Partitions that the read under way names."""
        self._answered = asyncio.Event()
        self._connection = 0

    def add(self, owned: OwnedPartition) -> None:
        """Read this partition as well, once it is readable."""
        self._partitions = [*self._partitions, owned]
        self._budget.notify()  # the connection may have been closed

    def remove(self, owned: OwnedPartition) -> None:
        self._partitions = [one for one in self._partitions if one is not owned]
        self._budget.notify()  # without partitions the connection is closed

    async def run(self, watched: Callable[[], WatchedBlock]) -> None:
        """Read until cancelled, again if the watchdog finds the loop silent."""
        while True:
            with suppress(LoopSilent):
                async with watched() as progress:
                    await self._read_for_ever(progress)

    async def _read_for_ever(self, progress: LoopProgress) -> None:
        """Read until cancelled; waits for a server that is away.

        A read that is cancelled may have delivered messages: its partitions are checked for strays.
        """
        while True:
            try:
                while not self._partitions:
                    self.trouble, self.begun = None, True
                    with progress.waiting("a partition", lambda: not self._partitions):
                        await self._budget.changed()
                if self._polls:
                    await self._poll_for_a_while(progress)
                else:
                    await self._read_on_own_connection(progress)
            except PoolExhausted as error:
                self._polls_until = time.monotonic() + _CONNECT_AGAIN_S
                self.limitation = f"subscriptions without a connection of their own poll: {error}"
                quiet.warning("poll", "%s", self.limitation)
            except ServerError as error:
                if not error.transient and not is_wrong_type(error):
                    raise
                self._refusals += 1
                self.trouble = f"cannot read: {error}"
                quiet.warning(f"{self._group} read", "group %s cannot read: %s", self._group, error)
                if self._refusals > 1:
                    with progress.waiting("the server"):
                        await asyncio.sleep(retry_delay_s(self._refusals - 1))

    @property
    def _polls(self) -> bool:
        return time.monotonic() < self._polls_until

    async def read_again(self) -> None:
        """A partition has become readable: do not wait for a read that does not name it."""
        self._budget.notify()
        await self._end_read(self._asked)

    async def exclude(self, owned: OwnedPartition) -> None:
        """Return when no read is under way that may still deliver messages of this partition.

        The partition is closed, or not readable. What came until then is queued. Later messages
        would be charged an attempt that is not made; before Redis 7.2 a blocked read even outlives
        its fence.
        """
        while owned in self._asked:
            await self._end_read(self._asked)

    async def _end_read(self, asked: Sequence[OwnedPartition]) -> None:
        """Let the server answer a read at once."""
        while asked and self._asked is asked:
            self._answered.clear()
            if not self._polls:
                wire = await self._client.wire(slot=self._slot)
                with suppress(CommandRefused, PermissionRefused):  # then it ends later
                    await wire.call("CLIENT", "UNBLOCK", self._connection)
            with suppress(TimeoutError):
                # It may have come before the read: so it is repeated.
                async with asyncio.timeout(_UNBLOCK_AGAIN_S):
                    await self._answered.wait()

    # ---- waiting on the server

    async def _read_on_own_connection(self, progress: LoopProgress) -> None:
        """Read until there is no partition left."""
        async with AsyncExitStack() as stack:
            with self._excused(progress, "a connection", self._timeouts.connect_s):
                dedicated = self._client.dedicated(slot=self._slot)
                wire = await stack.enter_async_context(dedicated)
                self.limitation = None
                self._connection = await wire.call("CLIENT", "ID")
            while self._partitions:
                partitions, count = self._plan()
                progress.beat()
                if partitions:
                    await self._read(wire, partitions, count, progress)
                    self._refusals, self.trouble = 0, None
                else:
                    await self._wait_for_budget(progress)

    def _excused(
        self, progress: LoopProgress, reason: str, limit_s: float
    ) -> AbstractContextManager[None]:
        """Let the watchdog wait for a call as long as the call's own time limit allows."""
        until = time.monotonic() + limit_s
        return progress.waiting(reason, lambda: time.monotonic() < until)

    async def _read(
        self, wire: Wire, partitions: Sequence[OwnedPartition], count: int, progress: LoopProgress
    ) -> None:
        streams = [owned.stream for owned in partitions]
        fences = [owned.fence for owned in partitions]
        block_s = self._block_s(partitions)
        command: tuple[Argument, ...] = (
            *("XREADGROUP", "GROUP", self._group, CONSUMER, "COUNT", count),
            *("BLOCK", max(1, round(block_s * 1000)), "STREAMS", *streams, *fences),
            *([">"] * (2 * len(partitions))),
        )
        self._asked, self.begun = partitions, True
        began, received, limit_s = time.monotonic(), wire.received, block_s + self._margin_s
        is_long = limit_s > _UNEXCUSED_POLLS * self._poll_s
        now = asyncio.get_running_loop().time

        def may_come() -> bool:
            """Whether the reply is not overdue: bytes that arrive extend the wire's time limit."""
            since = wire.quiet_since
            is_excused = is_long or wire.received > received
            return is_excused and since is not None and now() < since + limit_s

        try:
            with progress.waiting("messages", may_come):
                reply = await wire.call(*command, timeout_s=limit_s)
            took_s = time.monotonic() - began
            self._deliver(reply or (), partitions, wire.received - received)
            if reply:
                self._note_delay(min(took_s, self._margin_s / _MARGIN_PER_DELAY))
            else:
                self._note_delay(took_s - block_s)
        except CommandRefused as error:
            with self._excused(progress, "the leases", self._timeouts.command_s):
                await self._refused(error, partitions)
        except (OutcomeUnknown, asyncio.CancelledError) as error:
            if isinstance(error, OutcomeUnknown) and time.monotonic() - began >= limit_s:
                self._unanswered += 1
                if self._unanswered > 1:  # one is a connection that was lost, more are a slow one
                    self._margin_s = min(2 * self._margin_s, _MOST_MARGIN_S)
            for owned in partitions:
                owned.suspect_strays()
            raise
        finally:
            self._asked = ()
            self._answered.set()

    def _note_delay(self, delay_s: float) -> None:
        """Learn how long replies are on their way.

        That is what a read took beyond its own limit, and at most what one took that brought
        messages.
        """
        self._unanswered = 0
        margin_s = max(_LEAST_MARGIN_S, _MARGIN_PER_DELAY * delay_s)
        self._margin_s = min(margin_s, _MOST_MARGIN_S)

    def _block_s(self, partitions: Sequence[OwnedPartition]) -> float:
        """How long to wait for messages.

        No longer than the leases certainly last, nor than the partitions that are left out will be
        busy. After a failure it is a moment, to find out whether reading works again.
        """
        if self.trouble:
            return _LEAST_BLOCK_S
        sure_s = min(owned.deadline for owned in partitions) - time.monotonic()
        alone_s = _BLOCK_SHARE * self._poll_s
        many_s = self._consumers.interval_s(alone_s, _BLOCK_EACH_S)
        block_s = max(_LEAST_BLOCK_S, min(many_s, max(alone_s, _MOST_BLOCK_S), sure_s))
        busy = [owned.budget.buffered for owned in self._readable() if owned not in partitions]
        return min(block_s, min(busy) * self._pacing.each_s) if busy else block_s

    # ---- polling

    async def _poll_for_a_while(self, progress: LoopProgress) -> None:
        pause_s = _FIRST_PAUSE_S
        while self._polls and self._partitions:
            partitions, count = self._plan()
            progress.beat()
            if not partitions:
                await self._wait_for_budget(progress)
                continue
            self.begun = True
            with self._excused(progress, "the server", self._timeouts.command_s):
                has_messages = await self._poll(partitions, count)
            self._refusals, self.trouble = 0, None
            pause_s = _FIRST_PAUSE_S if has_messages else min(pause_s * 2, _LONGEST_PAUSE_S)
            await asyncio.sleep(0 if has_messages else pause_s)

    async def _poll(self, partitions: Sequence[OwnedPartition], count: int) -> bool:
        head = ("XREADGROUP", "GROUP", self._group, CONSUMER, "COUNT", count, "STREAMS")
        commands: list[Command] = [
            (*head, owned.stream, owned.fence, ">", ">") for owned in partitions
        ]
        self._asked = partitions
        try:
            replies = await self._client.pipeline(commands)
            for owned, reply in zip(partitions, replies, strict=True):
                if isinstance(reply, OutcomeUnknown):
                    owned.suspect_strays()
                elif not isinstance(reply, ServerError):
                    streams = reply or ()
                    size = sum(entries_bytes(entries) for _, entries in streams)
                    self._deliver(streams, [owned], size)
            for owned, reply in zip(partitions, replies, strict=True):
                if isinstance(reply, CommandRefused):
                    await self._refused(reply, [owned])
                elif isinstance(reply, ServerError):
                    raise reply
        except asyncio.CancelledError:
            for owned in partitions:
                owned.suspect_strays()
            raise
        finally:
            self._asked = ()
            self._answered.set()
        return any(replies)

    # ---- both

    async def _wait_for_budget(self, progress: LoopProgress) -> None:
        """Wait until the budget is open, or a partition may be read."""
        if not self._budget.is_open or self._has_buffered:
            self.begun = True
        with progress.waiting("handlers", self._has_to_wait):
            await self._budget.changed()

    def _has_to_wait(self) -> bool:
        return self._has_buffered or not self._readable() or not self._budget.is_open

    @property
    def _has_buffered(self) -> bool:
        return any(owned.budget.buffered for owned in self._partitions)

    def _plan(self) -> tuple[list[OwnedPartition], int]:
        """From which partitions to read, and how many messages from each."""
        readable = self._readable()
        if not self._budget.is_open:
            for owned in self._partitions:
                owned.budget.give_back()
        if not readable or not self._budget.is_open:
            return [], 0
        count = max(self._pacing.least, min(self._pacing.count, self._fetch // len(readable)))
        wanted = [owned for owned in readable if owned.budget.buffered <= count]
        unknown = [owned for owned in wanted if not owned.budget.sized]
        if unknown:
            wanted, count = unknown[:_UNSIZED_PARTITIONS], _UNSIZED_COUNT
        most = self._budget.fitting
        if len(wanted) > most:  # some of them now, the others next time
            self._turn += most
            first = self._turn % len(wanted)
            wanted = (wanted[first:] + wanted[:first])[:most]
        return wanted, min(count, most // len(wanted)) if wanted else 0

    def _readable(self) -> list[OwnedPartition]:
        return [owned for owned in self._partitions if owned.readable]

    def _deliver(self, reply: Reply, partitions: Sequence[OwnedPartition], size: int) -> None:
        """Queue what came, in a reply of `size` bytes."""
        for owned in partitions:
            if not owned.budget.sized:
                owned.budget.note_empty()  # unless messages follow
        if not reply:
            return
        by_stream = {owned.stream.encode(): owned for owned in partitions}
        total = sum(len(entries) for _, entries in reply)
        for stream, entries in reply:
            by_stream[stream].put(entries, size * len(entries) // total)

    async def _refused(self, error: CommandRefused, partitions: Sequence[OwnedPartition]) -> None:
        """A fence is gone, or the group itself. The renewal of the leases finds out whose fence.

        A server that has lost the latest fence, as after a failover, gets another.
        """
        if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
            raise error
        await asyncio.gather(*(owned.renew() for owned in partitions))
        for owned in partitions:
            if f"'{owned.stream}'" in str(error) and not owned.lost:
                owned.lose_group()
            elif f"'{owned.fence}'" in str(error) and not owned.lost:
                owned.suspect_strays()
        await asyncio.sleep(_FIRST_PAUSE_S)
