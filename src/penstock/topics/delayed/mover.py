"""Delayed messages come into their stream when they are due."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from penstock.delivery.queries import text
from penstock.errors import NotOpen, ServerError, TopicError
from penstock.redis.client import Client
from penstock.redis.prepared_call import ScriptCall, run_together
from penstock.redis.wire import Reply
from penstock.runtime.service import Service
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog
from penstock.topics.delayed.rehoming import (
    MOST_READ,
    READ_AHEAD_MS,
    Rehoming,
    TopicGeneration,
)
from penstock.topics.partitioners import Partitioner
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.scripts import (
    NONE_WAITS,
    TOPIC_GREW,
    DueMessages,
    MovedMessages,
    TopicScripts,
)

__all__ = ["Mover"]

MOST_AT_ONCE = 500
"""Messages that one call moves: a few milliseconds of the server's time."""
ASKED_TOGETHER = 32
"""Partitions whose messages are moved with one round trip: in between, messages are handled."""
CHECKED_TOGETHER = 256
"""Partitions that one round trip checks for waiting messages."""
LONGEST_CHECK_S = 1.0
"""How often a partition is checked even if nothing is due: the server's clock may jump."""
SHORTEST_CHECK_S = 0.08
"""How often a worker checks for messages of other senders: few partitions are never 100 ms late."""
CHECK_PER_PARTITION_S = 0.0025
"""With many partitions a worker checks less often, so that checking stays cheap."""

_WHILE_IT_GROWS_S = 0.05
_NOTHING = MovedMessages(0, NONE_WAITS)

Place = tuple[str, int]
"""Topic and partition."""
_Outcome = MovedMessages | ServerError | TopicError

quiet = RateLimitedLog(logging.getLogger(__name__))


class Mover(Service):
    """Moves delayed messages into their streams: any number of processes may, each at any time.

    Every program that sends delayed messages runs one, so it needs no consumer; every worker runs
    one for the topics that it consumes, so it needs no producer either. What a program sends is
    moved by its own mover on time. With messages whose sender has gone a worker may be as late as
    the time between two checks: 0.08 s for up to 32 partitions, a second for 400 or more.

    If the topic has grown meanwhile, a message goes to the partition where its key belongs now. It
    does not pass the marker of a growth: nothing is moved while its topic grows.
    """

    restartable = True

    def __init__(self, client: Client) -> None:
        super().__init__("delayed messages")
        self.moved = 0
        self._client = client
        self._homes = Rehoming(client)
        self._check_s = LONGEST_CHECK_S
        self._watched: set[Place] = set()
        self._due: dict[Place, float] = {}
        self._waiting: set[Place] = set()
        """Where messages wait, as far as it is known. Of other partitions only that is asked."""
        self._wake = asyncio.Event()
        self._failures: dict[Place, int] = {}
        """How often in a row something has failed, where it has."""

    def watch(self, topic: str, partitions: int, partitioner: Partitioner | None = None) -> None:
        """Move messages of all partitions of a topic from now on. Repeatable with more of them."""
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
        """A message of this partition is due in `wait_ms`."""
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
                    await self._check(due)
                except NotOpen:
                    return  # the client was closed: others will move what is left
                continue
            await self._rest(min(self._due.values(), default=now + self._check_s) - now)

    def _pace(self) -> None:
        paced = max(SHORTEST_CHECK_S, len(self._watched) * CHECK_PER_PARTITION_S)
        self._check_s = min(paced, LONGEST_CHECK_S) if self._watched else LONGEST_CHECK_S

    async def _rest(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(min(longest_s, self._check_s)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _check(self, due: list[Place]) -> None:
        """Move what is due; where nothing was waiting, see first whether something is by now."""
        unknown = [place for place in due if place not in self._waiting]
        if unknown:
            await self._check_for_any(unknown[:CHECKED_TOGETHER])
        waiting = [place for place in due if place in self._waiting]
        if waiting:
            await self._move(waiting[:ASKED_TOGETHER])

    async def _check_for_any(self, places: list[Place]) -> None:
        """Note where messages wait, and when to check the other partitions again."""
        asked_at = time.monotonic()
        for place in places:  # a nudge from now on brings it back
            self._due.pop(place, None)
        replies = dict(zip(places, await self._ask_for_any(places), strict=True))
        for place, exists in replies.items():
            if exists == 1:
                self._waiting.add(place)
                self._check_at(place, asked_at)
        self._note_all(
            {place: exists or _NOTHING for place, exists in replies.items() if exists != 1},
            asked_at,
        )

    async def _move(self, places: list[Place]) -> None:
        """One call for each partition, all at once, and note when each is next."""
        asked_at = time.monotonic()
        for place in places:  # a nudge from now on brings it back
            self._due.pop(place, None)
        outcomes: dict[Place, _Outcome] = {}
        calls: dict[Place, ScriptCall[MovedMessages] | ScriptCall[DueMessages]] = {}
        known = await self._know({topic for topic, _ in places})
        for place in places:
            generation = known[place[0]]
            if not isinstance(generation, TopicGeneration):
                outcomes[place] = generation
            elif generation.metadata.generation > 1:
                calls[place] = self._read_due(place)
            else:
                calls[place] = self._move_due(place, generation)
        replies = await run_together(self._client, list(calls.values()))
        for place, reply in zip(calls, replies, strict=True):
            is_read = isinstance(reply, DueMessages)
            outcomes[place] = await self._move_grown(place, reply) if is_read else reply
        for topic in {place[0] for place, outcome in outcomes.items() if _has_grown(outcome)}:
            try:
                await self._homes.refresh(topic)
            except (ServerError, TopicError) as error:
                quiet.warning(topic, "topic %s grows, and cannot be read: %s", topic, error)
        self._note_all(outcomes, asked_at)

    def _note_all(self, outcomes: dict[Place, _Outcome], asked_at: float) -> None:
        """Note for each partition when it is next."""
        for place, outcome in outcomes.items():
            self._note(place, outcome, asked_at)
        failed = [outcome for outcome in outcomes.values() if isinstance(outcome, ServerError)]
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

    async def _move_grown(self, place: Place, due: DueMessages) -> _Outcome:
        """Move messages that are due in a topic that has grown."""
        next_ms, life, rows = due
        if not rows:
            return MovedMessages(0, next_ms)
        topic, index = place
        try:
            known = await self._homes.know(topic)
            if life and text(life) != known.metadata.life:
                self._homes.forget(topic)
                return MovedMessages(0, TOPIC_GREW)
            sorted_out = await self._homes.move(known, index, rows)
            if sorted_out is None:
                return MovedMessages(0, TOPIC_GREW)
            ids, elsewhere = sorted_out
            count = 0
            if ids:
                moved = await self._move_due(place, known, ids)
                if _has_grown(moved):
                    return moved
                count = moved.moved
        except (ServerError, TopicError) as error:
            return error
        for home, wait_ms in elsewhere:
            self.nudge(topic, home, wait_ms)
        if count < len(ids) or (len(rows) == MOST_READ and (count or elsewhere)):
            next_ms = 0
        return MovedMessages(count, next_ms)

    def _note(self, place: Place, outcome: _Outcome, asked_at: float) -> None:
        if isinstance(outcome, ServerError):
            failures = self._failures[place] = self._failures.get(place, 0) + 1
            self._check_at(place, time.monotonic() + retry_delay_s(failures))
            return
        self._failures.pop(place, None)
        count, next_ms = _NOTHING if isinstance(outcome, TopicError) else outcome
        self.moved += count
        if next_ms == NONE_WAITS and place not in self._due:  # nor was it nudged meanwhile
            self._waiting.discard(place)
        if next_ms == TOPIC_GREW:
            self._check_at(place, time.monotonic() + _WHILE_IT_GROWS_S)
        elif next_ms >= 0:
            self._check_at(place, asked_at + min(next_ms / 1000, self._check_s))
        elif place in self._watched:
            self._check_at(place, asked_at + self._check_s)

    def _check_at(self, place: Place, at: float) -> None:
        """Check a partition then, or earlier if it was nudged meanwhile."""
        self._due[place] = min(at, self._due.get(place, at))

    # ---- asking the server

    async def _ask_for_any(self, places: list[Place]) -> list[Reply]:
        """1 for each partition where messages wait, else 0. As a rule one command for all."""
        keys = [PartitionKeys.of(self._client.keys, *place).delayed for place in places]
        if not self._client.keys.cluster:
            (exists,) = await self._client.pipeline([("EXISTS", *keys)])
            if not exists or isinstance(exists, ServerError):
                return [exists] * len(places)
        return await self._client.pipeline([("EXISTS", key) for key in keys])

    def _move_due(
        self, place: Place, known: TopicGeneration, ids: Sequence[bytes] = ()
    ) -> ScriptCall[MovedMessages]:
        keys = PartitionKeys.of(self._client.keys, *place)
        return TopicScripts.of(self._client).move_due(
            stream=keys.stream,
            delayed=keys.delayed,
            delayed_bodies=keys.delayed_bodies,
            payloads=keys.payloads,
            counters=keys.counters,
            count=MOST_AT_ONCE,
            generation=known.generation,
            ids=ids,
        )

    def _read_due(self, place: Place) -> ScriptCall[DueMessages]:
        keys = PartitionKeys.of(self._client.keys, *place)
        return TopicScripts.of(self._client).read_due(
            stream=keys.stream,
            delayed=keys.delayed,
            delayed_bodies=keys.delayed_bodies,
            counters=keys.counters,
            count=MOST_READ,
            ahead_ms=READ_AHEAD_MS,
        )


def _has_grown(outcome: _Outcome) -> bool:
    """Whether a partition has the marker of a growth that was not known."""
    return isinstance(outcome, MovedMessages) and outcome.next_ms == TOPIC_GREW
