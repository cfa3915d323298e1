"""A queue as this process uses it: its keys, its options, its registration on the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.queries import text
from penstock.errors import OutOfMemory, QueueMismatch
from penstock.queues.options import (
    Overflow,
    QueueOptions,
    SendOptions,
    WaitForRoom,
    as_overflow,
    check_max_size,
)
from penstock.queues.producer.result_poller import Announcements, ResultPoller
from penstock.queues.storage.job_signatures import JobSignatures
from penstock.queues.storage.keys import QueueKeyring, lane_name
from penstock.queues.storage.registration import register_queue
from penstock.queues.storage.scripts import QueueScripts
from penstock.redis.client import Client
from penstock.redis.codec import Codec

__all__ = ["DeclaredQueue", "LaneTarget"]

_DECLARED_FOR_S: Final = 60.0
"""Registration is repeated after this time: the queue may have been deleted meanwhile."""
_UNDECLARED_FOR_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class LaneTarget:
    """The lane that jobs go to, and what happens if it is full."""

    lane: str
    overflow: Overflow
    max_size: int
    policy: str
    """What scripts do at the first attempt: "block" for `WaitForRoom`."""


class DeclaredQueue:
    """Keys, options and server-side registration of one queue.

    The base of `Queue`: what senders, handles and tasks need of it, without what they offer.
    """

    def __init__(
        self,
        client: Client,
        codec: Codec,
        name: str,
        options: QueueOptions | None = None,
        *,
        announcements: Callable[[], Announcements] | None = None,
    ) -> None:
        self.name = name
        self.client, self.codec = client, codec
        self.keyring = QueueKeyring.of(client.keys, name)
        self.options = options or QueueOptions()
        self.signatures = JobSignatures.of(client, name)
        """Of its jobs; None if they are not signed."""
        self.results = ResultPoller(client, self.keyring, announcements)
        self.plain_target = self._make_target("", None, None)
        """Where jobs without options go."""
        self.side = ""
        """Push side, "right" or "left"; valid before `declared_until` (`time.monotonic`)."""
        self.declared_until = 0.0
        self._limits_sent = False
        self._declaring = asyncio.Lock()
        self._clock_offset_ms: int | None = None

    async def declared(self) -> str:
        """Register the queue if needed, and return its push side: "right" or "left".

        QueueMismatch if `push` differs from it, TooMany if it is a new queue and there are
        `queues.max_queues`. Two round trips once a minute.
        """
        if time.monotonic() >= self.declared_until:
            async with self._declaring:
                if time.monotonic() >= self.declared_until:
                    await self._declare()
        return self.side

    async def _declare(self) -> None:
        try:
            side, for_s = await self._register(), _DECLARED_FOR_S
        except OutOfMemory:
            # A worker that starts on a full server has to drain it.
            side = await self.client.call("HGET", self.keyring.state, "side")
            for_s = _UNDECLARED_FOR_S
        wanted = self.options.push
        held = text(side) if side else wanted or "right"
        if wanted is not None and held != wanted:
            raise QueueMismatch(self.name, held, wanted)
        self.side = held
        self.declared_until = time.monotonic() + for_s
        self._clock_offset_ms = None  # either clock may have been set meanwhile

    async def _register(self) -> bytes:
        """Register the queue and its options; returns the push side on the server."""
        options, first = self.options, not self._limits_sent
        # Limits are sent once: they may be changed on the server later.
        # First, and alone: a queue that is one too many leaves nothing behind.
        await register_queue(self.client, self.name)
        side = await QueueScripts.of(self.client).declare_queue(
            keys=self.keyring,
            side=options.push or "",
            levels=options.levels_text if first else "",
            limit=_text(options.limit) if first else "",
            lane_limit=_text(options.lane_limit) if first else "",
        )
        self._limits_sent = True
        return side

    def configure(self, options: QueueOptions) -> None:
        """Replace the default options by those given after the queue was first named."""
        self.options = options
        self.declared_until, self._limits_sent = 0.0, False
        self.plain_target = self._make_target("", None, None)

    async def server_ms(self) -> int:
        """The server's time, estimated from this process's clock and one reading of both."""
        if self._clock_offset_ms is None:
            seconds, micros = await self.client.call("TIME")
            server_ms = int(seconds) * 1000 + int(micros) // 1000
            self._clock_offset_ms = server_ms - SYSTEM_CLOCK.wall_ms()
        return SYSTEM_CLOCK.wall_ms() + self._clock_offset_ms

    def target(
        self, options: SendOptions, max_size: int | None = None, overflow: Overflow | None = None
    ) -> LaneTarget:
        """Where a job with these options goes; `max_size`, `overflow` override the queue's."""
        lane = self.lane_of(options)
        if not lane and max_size is None and overflow is None:
            return self.plain_target
        return self._make_target(lane, max_size, overflow)

    def _make_target(
        self, lane: str, max_size: int | None, overflow: Overflow | None
    ) -> LaneTarget:
        settings = self.client.settings.queues
        check_max_size(max_size)
        limit = self.options.max_size if max_size is None else max_size
        if overflow is not None:
            as_overflow(overflow)
        overflow = overflow or self.options.overflow or settings.overflow_policy
        return LaneTarget(
            lane,
            overflow,
            settings.max_size if limit is None else limit,
            "block" if isinstance(overflow, WaitForRoom) else overflow,
        )

    def lane_of(self, options: SendOptions) -> str:
        """Name of the lane as spelled in keys; empty for the plain list."""
        if options.group is not None:
            return lane_name(options.group)
        return options.priority or ""

    def held_key(self, options: SendOptions) -> str:
        """Unique key that the job's end frees; empty if there is none."""
        if options.unique is None or options.unique_for is not None:
            return ""
        return self.keyring.unique(options.unique)


def _text(count: int | None) -> str:
    return "" if count is None else str(count)
