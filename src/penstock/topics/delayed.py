"""Delayed messages come into their stream when they are due."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from penstock.errors import NotOpen, ScriptMissing, ServerError, TopicError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.script import load_script
from penstock.redis.wire import Argument, Reply
from penstock.runtime.backoff import retry_delay_s
from penstock.runtime.service import Service
from penstock.topics.looking import text
from penstock.topics.partitioners import Partitioner
from penstock.topics.rehoming import (
    LOOK_AHEAD_MS,
    MOST_LOOKED_AT,
    Rehoming,
    TopicGeneration,
)

__all__ = ["Mover"]

MOST_AT_ONCE = 500
"""Messages that one call moves: a few milliseconds of the server's time."""
ASKED_TOGETHER = 32
"""Partitions whose messages are moved with one round trip: in between, messages are handled."""
LOOKED_AT_TOGETHER = 256
"""Partitions of which one round trip tells whether anything waits there."""
LONGEST_LOOK_S = 1.0
"""How often a partition is looked at even if nothing is due: the server's clock may jump."""
SHORTEST_LOOK_S = 0.08
"""How often a worker looks for messages of others: few enough partitions are never 100 ms late."""
LOOK_PER_PARTITION_S = 0.0025
"""With many partitions a worker looks less often, so that looking stays cheap."""

_WHILE_IT_GROWS_S = 0.05
_GROWN, _NONE_WAITS = -2, -1
"""The topic is not as it was known; no message waits in the partition."""
_NOTHING: Reply = (0, _NONE_WAITS)
"""As `move_due` replies where nothing was moved, and nothing waits."""

Place = tuple[str, int]
"""Topic and partition."""
_Call = tuple[str, tuple[str, ...], tuple[Argument, ...]]
"""Name of a script, its keys, its arguments."""

quiet = RateLimitedLog(logging.getLogger(__name__))


class Mover(Service):
    """Moves delayed messages into their streams: any number of processes may, each at any time.

    Every program that sends delayed messages runs one, so it needs no consumer; every worker runs
    one for the topics that it consumes, so it needs no producer either. What a program sends is
    moved by its own mover on time. With messages whose sender has gone a worker may be as late as
    the time between two looks: 0.08 s for up to 32 partitions, a second for 400 or more.

    If the topic has grown meanwhile, a message goes to the partition where its key belongs now. It
    does not pass the marker of a growth: nothing is moved while its topic grows.
    """

    restartable = True

    def __init__(self, client: Client) -> None:
        super().__init__("delayed messages")
        self.moved = 0
        self._client = client
        self._homes = Rehoming(client)
        self._look_s = LONGEST_LOOK_S
        self._watched: set[Place] = set()
        self._due: dict[Place, float] = {}
        self._waiting: set[Place] = set()
        """Where messages wait, as far as it is known. Of other partitions only that is asked."""
        self._wake = asyncio.Event()
        self._failures: dict[Place, int] = {}
        """How often in a row something has failed, where it has."""

    def watch(self, topic: str, partitions: int, partitioner: Partitioner | None = None) -> None:
        """Look after all partitions of a topic from now on. May come again with more of them."""
        self._homes.expect(topic, partitions, partitioner)
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

    def nudge(
        self, topic: str, partition: int, wait_ms: int, partitioner: Partitioner | None = None
    ) -> None:
        """Say that a message of this partition is due in `wait_ms`."""
        self._homes.expect(topic, partition + 1, partitioner)
        place, at = (topic, partition), time.monotonic() + wait_ms / 1000
        self._waiting.add(place)
        earliest = min(self._due.values(), default=at + 1)
        if at < self._due.get(place, at + 1):
            self._due[place] = at
        if at < earliest:
            self._wake.set()

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        self._wake.set()

    def trouble(self) -> str | None:
        lasts = any(failures > 2 for failures in self._failures.values())  # noqa: PLR2004
        return "delayed messages cannot be moved" if lasts else None

    async def run(self) -> None:
        while not self.stopping:
            self._wake.clear()
            now = time.monotonic()
            due = [place for place, at in self._due.items() if at <= now]
            if due:
                try:
                    await self._look(due)
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

    async def _look(self, due: list[Place]) -> None:
        """Move what is due; where nothing was waiting, see first whether something is by now."""
        unknown = [place for place in due if place not in self._waiting]
        if unknown:
            await self._look_for_any(unknown[:LOOKED_AT_TOGETHER])
        waiting = [place for place in due if place in self._waiting]
        if waiting:
            await self._move(waiting[:ASKED_TOGETHER])

    async def _look_for_any(self, places: list[Place]) -> None:
        """Note where messages wait, and when to look at the other partitions again."""
        asked_at = time.monotonic()
        for place in places:  # what is nudged from now on is looked at again
            self._due.pop(place, None)
        replies = dict(zip(places, await self._ask_for_any(places), strict=True))
        for place, found in replies.items():
            if found == 1:
                self._waiting.add(place)
                self._look_at(place, asked_at)
        self._note_all(
            {place: found or _NOTHING for place, found in replies.items() if found != 1}, asked_at
        )

    async def _move(self, places: list[Place]) -> None:
        """One call for each partition, all at once, and note when each is next."""
        asked_at = time.monotonic()
        for place in places:  # what is nudged from now on is looked at again
            self._due.pop(place, None)
        known = await self._know({topic for topic, _ in places})
        replies: dict[Place, Reply] = {place: known[place[0]] for place in places}
        asked = [place for place in places if isinstance(replies[place], TopicGeneration)]
        calls = [self._call(place, replies[place]) for place in asked]
        for place, call, reply in zip(asked, calls, await self._ask(calls), strict=True):
            is_look = call[0] == "look_at_due" and not isinstance(reply, ServerError)
            replies[place] = await self._see_to(place, reply) if is_look else reply
        for topic in {place[0] for place, reply in replies.items() if _has_grown(reply)}:
            try:
                await self._homes.look_again(topic)
            except (ServerError, TopicError) as error:
                quiet.warning(topic, "topic %s grows, and cannot be looked at: %s", topic, error)
        self._note_all(replies, asked_at)

    def _note_all(self, replies: dict[Place, Reply], asked_at: float) -> None:
        """Note for each partition when it is next."""
        for place, reply in replies.items():
            self._note(place, reply, asked_at)
        failed = [reply for reply in replies.values() if isinstance(reply, ServerError)]
        if failed:
            quiet.warning(
                type(failed[0]).__name__,
                "delayed messages of %d partitions were not moved, trying again: %s",
                len(failed),
                failed[0],
            )

    async def _know(
        self, topics: set[str]
    ) -> dict[str, TopicGeneration | ServerError | TopicError]:
        """What is known of topics, or why nothing is."""
        known: dict[str, TopicGeneration | ServerError | TopicError] = {}
        for topic in topics:
            try:
                known[topic] = await self._homes.know(topic)
            except (ServerError, TopicError) as error:
                known[topic] = error
        return known

    async def _see_to(self, place: Place, reply: Reply) -> Reply:
        """Move what is due in a topic that has grown: how much, and ms until the next."""
        next_ms, life, *rows = reply
        if not rows:
            return [0, next_ms]
        topic, index = place
        try:
            known = await self._homes.know(topic)
            if life and text(life) != known.facts.life:
                self._homes.forget(topic)
                return [0, _GROWN]
            sorted_out = await self._homes.move(known, index, rows)
            if sorted_out is None:
                return [0, _GROWN]
            due, elsewhere = sorted_out
            moved = 0
            if due:
                (reply,) = await self._ask([self._call(place, known, due)])
                if isinstance(reply, ServerError) or _has_grown(reply):
                    return reply
                moved = reply[0]
        except (ServerError, TopicError) as error:
            return error
        for home, wait_ms in elsewhere:
            self.nudge(topic, home, wait_ms)
        if moved < len(due) or (len(rows) == MOST_LOOKED_AT and (moved or elsewhere)):
            next_ms = 0
        return [moved, next_ms]

    def _note(self, place: Place, reply: Reply, asked_at: float) -> None:
        if isinstance(reply, ServerError):
            failures = self._failures[place] = self._failures.get(place, 0) + 1
            self._look_at(place, time.monotonic() + retry_delay_s(failures))
            return
        self._failures.pop(place, None)
        moved, next_ms = _NOTHING if isinstance(reply, TopicError) else reply
        self.moved += moved
        if next_ms == _NONE_WAITS and place not in self._due:  # nor was it nudged meanwhile
            self._waiting.discard(place)
        if next_ms == _GROWN:
            self._look_at(place, time.monotonic() + _WHILE_IT_GROWS_S)
        elif next_ms >= 0:
            self._look_at(place, asked_at + min(next_ms / 1000, self._look_s))
        elif place in self._watched:
            self._look_at(place, asked_at + self._look_s)

    def _look_at(self, place: Place, at: float) -> None:
        """Look at a partition then, or earlier if it was nudged meanwhile."""
        self._due[place] = min(at, self._due.get(place, at))

    # ---- asking the server

    async def _ask_for_any(self, places: list[Place]) -> list[Reply]:
        """1 for each partition where messages wait, else 0. As a rule one command for all."""
        keys = [self._client.keys.partition(*place).delayed for place in places]
        if not self._client.keys.cluster:
            (found,) = await self._client.pipeline([("EXISTS", *keys)])
            if not found or isinstance(found, ServerError):
                return [found] * len(places)
        return await self._client.pipeline([("EXISTS", key) for key in keys])

    def _call(self, place: Place, known: TopicGeneration, ids: Sequence[bytes] = ()) -> _Call:
        """What is asked of a partition: to move what is due; a look first if its topic grew."""
        keys = self._client.keys.partition(*place)
        waiting = (keys.stream, keys.delayed, keys.delayed_bodies)
        if known.facts.generation > 1 and not ids:
            return "look_at_due", (*waiting, keys.counters), (MOST_LOOKED_AT, LOOK_AHEAD_MS)
        told = (MOST_AT_ONCE, known.generation, *ids)
        return "move_due", (*waiting, keys.payloads, keys.counters), told

    async def _ask(self, calls: list[_Call]) -> list[Reply]:
        """Make calls of scripts, all at once."""
        version = self._client.server_version
        replies = await self._client.pipeline(
            [load_script(name).by_digest(version, keys, told) for name, keys, told in calls]
        )
        forgotten = [at for at, reply in enumerate(replies) if isinstance(reply, ScriptMissing)]
        if forgotten:
            texts = [
                load_script(name).by_text(version, keys, told)
                for name, keys, told in (calls[at] for at in forgotten)
            ]
            for at, reply in zip(forgotten, await self._client.pipeline(texts), strict=True):
                replies[at] = reply
        return replies


def _has_grown(reply: Reply) -> bool:
    """Whether a partition has the marker of a growth that was not known."""
    return isinstance(reply, list) and bool(reply[1] == _GROWN)  # pyright: ignore[reportUnknownArgumentType]
