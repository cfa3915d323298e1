"""Delayed messages come into their stream when they are due."""

from __future__ import annotations

import asyncio
import logging
import time

from penstock.errors import NotOpen, ScriptMissing, ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.script import load_script
from penstock.redis.wire import Command, Reply
from penstock.runtime.backoff import retry_delay_s
from penstock.runtime.service import Service

__all__ = ["Mover"]

MOST_AT_ONCE = 500
"""Messages that one call moves: a few milliseconds of the server's time."""
ASKED_TOGETHER = 32
"""Partitions that are looked at with one round trip: in between, messages are handled."""
LONGEST_LOOK_S = 1.0
"""How often a partition is looked at even if nothing is due: the server's clock may jump."""
SHORTEST_LOOK_S = 0.08
"""How often a worker looks for messages of others: few enough partitions are never 100 ms late."""
LOOK_PER_PARTITION_S = 0.0025
"""With many partitions a worker looks less often, so that looking stays cheap."""

Place = tuple[str, int]
"""Topic and partition."""

quiet = RateLimitedLog(logging.getLogger(__name__))


class Mover(Service):
    """Moves delayed messages into their streams: any number of processes may, each at any time.

    Every program that sends delayed messages runs one, so it needs no consumer; every worker runs
    one for the topics that it consumes, so it needs no producer either. What a program sends is
    moved by its own mover on time. With messages whose sender has gone a worker may be as late as
    the time between two looks: 0.08 s for up to 32 partitions, a second for 400 or more.
    """

    restartable = True

    def __init__(self, client: Client) -> None:
        super().__init__("delayed messages")
        self.moved = 0
        self._client = client
        self._look_s = LONGEST_LOOK_S
        self._watched: set[Place] = set()
        self._due: dict[Place, float] = {}
        self._wake = asyncio.Event()
        self._failures = 0

    def watch(self, topic: str, partitions: int) -> None:
        """Look after all partitions of a topic from now on. May come again with more of them."""
        more = {(topic, index) for index in range(partitions)} - self._watched
        if more:
            self._watched |= more
            self._due.update(dict.fromkeys(more, 0.0))
            self._pace()
            self._wake.set()

    def unwatch(self, topic: str) -> None:
        """Leave a topic to others."""
        self._watched = {place for place in self._watched if place[0] != topic}
        self._pace()

    def nudge(self, topic: str, partition: int, wait_ms: int) -> None:
        """Say that a message of this partition is due in `wait_ms`."""
        place, at = (topic, partition), time.monotonic() + wait_ms / 1000
        earliest = min(self._due.values(), default=at + 1)
        if at < self._due.get(place, at + 1):
            self._due[place] = at
        if at < earliest:
            self._wake.set()

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        self._wake.set()

    def trouble(self) -> str | None:
        return "delayed messages cannot be moved" if self._failures > 2 else None  # noqa: PLR2004

    async def run(self) -> None:
        while not self.stopping:
            self._wake.clear()
            now = time.monotonic()
            due = [place for place, at in self._due.items() if at <= now]
            if due:
                try:
                    await self._move(due[:ASKED_TOGETHER])
                except NotOpen:
                    return  # the client was closed: others will move what is left
                continue
            await self._rest(min(self._due.values(), default=now + self._look_s) - now)

    def _pace(self) -> None:
        paced = max(SHORTEST_LOOK_S, len(self._watched) * LOOK_PER_PARTITION_S)
        self._look_s = min(paced, LONGEST_LOOK_S) if self._watched else LONGEST_LOOK_S

    async def _rest(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(min(longest_s, self._look_s)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _move(self, places: list[Place]) -> None:
        """One call for each partition, all at once, and note when each is next."""
        asked_at = time.monotonic()
        replies = await self._client.pipeline([self._command(place) for place in places])
        forgotten = [
            place for place, reply in enumerate(replies) if isinstance(reply, ScriptMissing)
        ]
        if forgotten:
            texts = [self._command(places[at], text=True) for at in forgotten]
            for at, reply in zip(forgotten, await self._client.pipeline(texts), strict=True):
                replies[at] = reply
        errors = [reply for reply in replies if isinstance(reply, ServerError)]
        self._failures = self._failures + 1 if errors else 0
        for place, reply in zip(places, replies, strict=True):
            self._note(place, reply, asked_at)
        if errors:
            quiet.warning(
                type(errors[0]).__name__,
                "delayed messages of %d partitions were not moved, trying again: %s",
                len(errors),
                errors[0],
            )

    def _note(self, place: Place, reply: Reply, asked_at: float) -> None:
        if isinstance(reply, ServerError):
            self._due[place] = time.monotonic() + retry_delay_s(self._failures)
            return
        moved, next_ms = reply
        self.moved += moved
        if next_ms >= 0:
            self._due[place] = asked_at + min(next_ms / 1000, self._look_s)
        elif place in self._watched:
            self._due[place] = asked_at + self._look_s
        elif self._due.get(place, 0.0) <= asked_at:  # else somebody nudged meanwhile
            self._due.pop(place, None)

    def _command(self, place: Place, *, text: bool = False) -> Command:
        keys = self._client.keys.partition(*place)
        script, version = load_script("move_due"), self._client.server_version
        build = script.by_text if text else script.by_digest
        return build(
            version,
            (keys.stream, keys.delayed, keys.delayed_bodies, keys.payloads),
            (MOST_AT_ONCE,),
        )
