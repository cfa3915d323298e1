"""Reads new messages of many partitions with one blocking command."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.delivery.looking import is_wrong_type
from penstock.errors import (
    CommandRefused,
    OutcomeUnknown,
    PermissionRefused,
    PoolExhausted,
    ServerError,
)
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys import key_slot
from penstock.redis.wire import Argument, Command, Reply, Wire
from penstock.runtime.backoff import retry_delay_s
from penstock.topics.claim import CONSUMER
from penstock.topics.crowd import crowd_of
from penstock.topics.held import Held
from penstock.topics.pace import Pace
from penstock.topics.room import Room
from penstock.topics.sizes import entries_bytes

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
# Partitions whose messages may be of any size are looked at first: so many at once, and so many
# messages of each.
_LOOKED_AT, _LOOK_COUNT = 4, 2


class Reader:
    """Fetches messages of some partitions of one group, as long as there is room for them.

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
        helds: Callable[[], Sequence[Held]],
        pace: Pace,
        *,
        room: Room,
        slot_key: str | None = None,
        poll: bool = False,
    ) -> None:
        self._client, self._group, self._helds, self._pace = client, group, helds, pace
        self._room = room
        self._slot = None if slot_key is None else key_slot(slot_key)
        self._polls_until = math.inf if poll else 0.0
        self._crowd = crowd_of(client)
        self._poll_s = client.settings.worker.poll_s
        self._fetch = client.settings.topics.fetch
        self.begun = False
        """Whether messages are read as soon as they are stored, as far as there is room."""
        self.trouble: str | None = None
        self.limitation: str | None = None
        """Why it has to poll."""
        self._refusals = 0
        self._margin_s, self._unanswered = _LEAST_MARGIN_S, 0
        self._turn = 0
        self._asked: Sequence[Held] = ()
        """Partitions that the read under way names."""
        self._answered = asyncio.Event()
        self._connection = 0

    async def run(self) -> None:
        """Read until cancelled; a server that is away is waited for."""
        while True:
            try:
                while not self._helds():
                    self.trouble, self.begun = None, True
                    await self._room.changed()
                if self._polls:
                    await self._poll_for_a_while()
                else:
                    async with self._client.dedicated(slot=self._slot) as wire:
                        self.limitation = None
                        self._connection = await wire.call("CLIENT", "ID")
                        await self._read_while_needed(wire)
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
                    await asyncio.sleep(retry_delay_s(self._refusals - 1))

    @property
    def _polls(self) -> bool:
        return time.monotonic() < self._polls_until

    async def look_again(self) -> None:
        """Partitions came, or there is room: do not wait for a read that does not know."""
        self._room.look_again()
        await self._end_read(self._asked)

    async def leave_out(self, held: Held) -> None:
        """Return when no read is under way that may still deliver messages of a closed partition.

        What came until then is queued. Else they would be charged an attempt that nobody makes;
        before Redis 7.2 a blocked read even outlives its fence.
        """
        while held in self._asked:
            await self._end_read(self._asked)

    async def _end_read(self, asked: Sequence[Held]) -> None:
        """Let the server answer a read at once."""
        while asked and self._asked is asked:
            self._answered.clear()
            if not self._polls:
                wire = await self._client.wire(slot=self._slot)
                with suppress(CommandRefused, PermissionRefused):  # then it ends by itself, later
                    await wire.call("CLIENT", "UNBLOCK", self._connection)
            with suppress(TimeoutError):
                # It may have come before the read: so it is repeated.
                async with asyncio.timeout(_UNBLOCK_AGAIN_S):
                    await self._answered.wait()

    # ---- waiting on the server

    async def _read_while_needed(self, wire: Wire) -> None:
        while self._helds():
            helds, count = self._plan()
            if helds:
                await self._read(wire, helds, count)
                self._refusals, self.trouble = 0, None
            else:
                await self._rest()

    async def _read(self, wire: Wire, helds: Sequence[Held], count: int) -> None:
        streams = [held.stream for held in helds]
        fences = [held.fence for held in helds]
        block_s = self._block_s(helds)
        command: tuple[Argument, ...] = (
            *("XREADGROUP", "GROUP", self._group, CONSUMER, "COUNT", count),
            *("BLOCK", max(1, round(block_s * 1000)), "STREAMS", *streams, *fences),
            *([">"] * (2 * len(helds))),
        )
        self._asked, self.begun = helds, True
        began, received = time.monotonic(), wire.received
        try:
            reply = await wire.call(*command, timeout_s=block_s + self._margin_s)
            took_s = time.monotonic() - began
            self._hand_out(reply or (), helds, wire.received - received)
            if reply:
                self._note_delay(min(took_s, self._margin_s / _MARGIN_PER_DELAY))
            else:
                self._note_delay(took_s - block_s)
        except CommandRefused as error:
            await self._refused(error, helds)
        except OutcomeUnknown:
            if time.monotonic() - began >= block_s + self._margin_s:
                self._unanswered += 1
                if self._unanswered > 1:  # one is a connection that was lost, more are a slow one
                    self._margin_s = min(2 * self._margin_s, _MOST_MARGIN_S)
            for held in helds:
                held.suspect_strays()
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

    def _block_s(self, helds: Sequence[Held]) -> float:
        """How long to wait for messages.

        No longer than the partitions are surely ours, nor than those that were left out, because
        they have enough to do, will be busy. After a failure it is a moment: then it is known
        whether reading works again.
        """
        if self.trouble:
            return _LEAST_BLOCK_S
        sure_s = min(held.deadline for held in helds) - time.monotonic()
        alone_s = _BLOCK_SHARE * self._poll_s
        crowd_s = self._crowd.interval_s(alone_s, _BLOCK_EACH_S)
        block_s = max(_LEAST_BLOCK_S, min(crowd_s, max(alone_s, _MOST_BLOCK_S), sure_s))
        busy = [held.buffered for held in self._readable() if held not in helds]
        return min(block_s, min(busy) * self._pace.each_s) if busy else block_s

    # ---- asking every now and then

    async def _poll_for_a_while(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while self._polls and self._helds():
            helds, count = self._plan()
            if not helds:
                await self._rest()
                continue
            self.begun = True
            found = await self._poll(helds, count)
            self._refusals, self.trouble = 0, None
            pause_s = _FIRST_PAUSE_S if found else min(pause_s * 2, _LONGEST_PAUSE_S)
            await asyncio.sleep(0 if found else pause_s)

    async def _poll(self, helds: Sequence[Held], count: int) -> bool:
        head = ("XREADGROUP", "GROUP", self._group, CONSUMER, "COUNT", count, "STREAMS")
        commands: list[Command] = [(*head, held.stream, held.fence, ">", ">") for held in helds]
        self._asked = helds
        try:
            replies = await self._client.pipeline(commands)
            for held, reply in zip(helds, replies, strict=True):
                if isinstance(reply, OutcomeUnknown):
                    held.suspect_strays()
                elif not isinstance(reply, ServerError):
                    found = reply or ()
                    size = sum(entries_bytes(entries) for _, entries in found)
                    self._hand_out(found, [held], size)
            for held, reply in zip(helds, replies, strict=True):
                if isinstance(reply, CommandRefused):
                    await self._refused(reply, [held])
                elif isinstance(reply, ServerError):
                    raise reply
        finally:
            self._asked = ()
            self._answered.set()
        return any(replies)

    # ---- both

    async def _rest(self) -> None:
        """Wait until there is room, or a partition may be read."""
        if not self._room.is_open or any(held.buffered for held in self._helds()):
            self.begun = True
        await self._room.changed()

    def _plan(self) -> tuple[list[Held], int]:
        """From which partitions to read, and how many messages from each."""
        readable = self._readable()
        if not self._room.is_open:
            for held in self._helds():
                held.give_back()
        if not readable or not self._room.is_open:
            return [], 0
        count = max(self._pace.least, min(self._pace.count, self._fetch // len(readable)))
        wanted = [held for held in readable if held.buffered <= count]
        unknown = [held for held in wanted if not held.sized]
        if unknown:
            wanted, count = unknown[:_LOOKED_AT], _LOOK_COUNT
        most = self._room.fitting
        if len(wanted) > most:  # some of them now, the others next time
            self._turn += most
            first = self._turn % len(wanted)
            wanted = (wanted[first:] + wanted[:first])[:most]
        return wanted, min(count, most // len(wanted)) if wanted else 0

    def _readable(self) -> list[Held]:
        return [held for held in self._helds() if held.readable and not held.closing]

    def _hand_out(self, reply: Reply, helds: Sequence[Held], size: int) -> None:
        """Queue what came, in a reply of `size` bytes."""
        for held in helds:
            held.sized = True  # a partition that brought nothing was empty
        if not reply:
            return
        by_stream = {held.stream.encode(): held for held in helds}
        total = sum(len(entries) for _, entries in reply)
        for stream, entries in reply:
            by_stream[stream].put(entries, size * len(entries) // total)

    async def _refused(self, error: CommandRefused, helds: Sequence[Held]) -> None:
        """A fence is gone, or the group itself. Whose fence, the renewal of the leases tells.

        A server that has forgotten the latest one, as after a failover, is given another.
        """
        if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
            raise error
        await asyncio.gather(*(held.renew() for held in helds))
        for held in helds:
            if f"'{held.stream}'" in str(error) and not held.lost:
                held.group_gone()
            elif f"'{held.fence}'" in str(error) and not held.lost:
                held.suspect_strays()
        await asyncio.sleep(_FIRST_PAUSE_S)
