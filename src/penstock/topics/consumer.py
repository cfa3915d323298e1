"""A consumer: one member of a group, with the partitions it owns and the handler it runs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from penstock.delivery.looking import is_wrong_type
from penstock.delivery.threads import HandlerThreads
from penstock.errors import OutOfMemory, PenstockError, ServerError, TopicError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.runtime.backoff import retry_delay_s
from penstock.runtime.heartbeat_thread import Beat, HeartbeatThread
from penstock.runtime.service import Service
from penstock.topics.barrier import Barriers
from penstock.topics.crowd import crowd_of
from penstock.topics.dead_letters import DeadLetters
from penstock.topics.facts import Facts, read_facts
from penstock.topics.foreign_keys import find_foreign
from penstock.topics.handlers import as_handler
from penstock.topics.held import Counts, Held, Item
from penstock.topics.java_sweep import PayloadSweep
from penstock.topics.keyed import KeyedRunner
from penstock.topics.message import Message, Source
from penstock.topics.ownership import RENEWALS_PER_LEASE, Ownership
from penstock.topics.pace import Pace
from penstock.topics.parked import Parked
from penstock.topics.reader import Reader
from penstock.topics.recovery import Recovery
from penstock.topics.retention import apply_retention
from penstock.topics.room import Room, fetched_bytes_of
from penstock.topics.runners import SerialRunner
from penstock.topics.sizes import Sizes
from penstock.topics.stray_audit import StrayAudit
from penstock.topics.subscription import Subscription
from penstock.topics.work import Work

__all__ = ["Consumer"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# A consumer that is cut short has this long to tell the server what it has done.
_LAST_WORDS_S = 2.0
ONE_READER, POLLING = -1, -2
# Partitions of one subscription that wait on a cluster at the same time, each with a connection.
_MOST_WAITING = 64
# Of many consumers in a process each looks at its group, and tidies up, less often, so that many
# stay cheap.
_BALANCE_EACH_S, _TIDY_EACH_S = 0.01, 0.1


class Runner(Protocol):
    """What runs handlers in one of the orders."""

    async def run(self, held: Held) -> None: ...
    def left(self, held: Held) -> list[Item]: ...
    def parked(self, held: Held) -> list[Parked]: ...
    def running(self, held: Held) -> list[bytes]: ...
    def forget(self, held: Held) -> None: ...


class Subscribable(Protocol):
    """What a consumer needs to know of a topic."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> Any: ...
    @property
    def client(self) -> Client: ...
    @property
    def codec(self) -> Codec: ...
    async def facts(self) -> Facts: ...


class Consumer(Service):
    """Handles a topic's messages for a group, beside any number of other consumers of it.

        async with Consumer(orders, bill, Subscription(group="billing")):
            ...

    Every message reaches the handler at least once; it is acknowledged when the handler has
    returned. See `Subscription` for the options.
    """

    restartable = True

    def __init__(
        self, topic: Subscribable, handler: Callable[..., Any], subscription: Subscription
    ) -> None:
        super().__init__(f"{topic.name}/{subscription.group}")
        self.topic, self.subscription = topic, subscription
        self.counts = Counts()
        self.handler = as_handler(
            handler, batch=subscription.batch is not None, default_type=topic.type
        )
        self._decode = topic.codec.decoder(self.handler.payload_type)
        self._client = topic.client
        self.when_known: Callable[[str, int], object] | None = None
        """Called with the topic and its number of partitions when these are known, or change."""
        self.heartbeats: HeartbeatThread | None = None
        """What gives its signs of life; a consumer that is run by itself starts one of its own."""
        self._trouble: str | None = "has not begun yet"
        self._foreign = ""
        """Which keys of the topic hold something of another type, while that is in the way."""
        self._room_for = subscription.max_inflight or topic.client.settings.topics.max_inflight
        self._room = self._new_room()
        self._places: dict[int, int] = {}
        self._readers: dict[int, Reader] = {}
        self._reading: list[asyncio.Task[None]] = []
        self._serving: dict[Held, asyncio.Task[None]] = {}
        self._task: asyncio.Task[Any] | None = None
        self._threads: HandlerThreads | None = None
        self._ending = False

    def trouble(self) -> str | None:
        if self.ended:
            return None
        if trouble := self._fault():
            return trouble
        if not all(reader.begun for reader in self._readers.values()):
            return f"consumer {self.name} has not begun to read"
        return None

    def limitation(self) -> str | None:
        return next(filter(None, (one.limitation for one in self._readers.values())), None)

    def _fault(self) -> str | None:
        if self._foreign:
            return f"consumer {self.name}: {self._foreign}"
        for reader in self._readers.values():
            if reader.trouble:
                return f"consumer {self.name} {reader.trouble}"
        for held in self._serving:
            if held.trouble:
                return f"consumer {self.name}: {held}: {held.trouble}"
            if held.strayed.is_set():
                return f"consumer {self.name}: {held}: looks for messages that did not arrive"
        trouble = self._trouble or (self._threads and self._threads.trouble())
        return trouble and f"consumer {self.name}: {trouble}"

    @property
    def partitions(self) -> list[int]:
        """Numbers of the partitions that it owns now."""
        return sorted(held.source.partition for held in self._serving if not held.closing)

    async def run(self) -> None:
        topics = self._client.settings.topics
        self._room = self._new_room()
        for left_over in (self._places, self._readers, self._reading, self._serving):
            left_over.clear()
        barriers = Barriers(self._client)
        work = Work(
            self._client, self.topic.name, self.handler, self.subscription, self.counts, barriers
        )
        pace = Pace(topics.fetch, self.subscription.batch or 1)
        self._ending, self._task = False, asyncio.current_task()
        crowd = crowd_of(self._client)
        crowd.add(self)
        try:
            async with asyncio.TaskGroup() as group:
                self._group, self._pace = group, pace
                self._work, self._threads = work, work.threads
                helpers = [group.create_task(self._tidy_for_ever(), name=f"{self.name} tidy")]
                if self.subscription.ordering == "partition":
                    self._runner: Runner = SerialRunner(work, pace)
                else:
                    keyed = self._runner = KeyedRunner(
                        work, pace, min(topics.fetch, self._room_for)
                    )
                    work.is_ending = self._is_ending
                    helpers += [
                        group.create_task(keyed.slot(number)) for number in range(keyed.slots)
                    ]
                self._recovery = Recovery(
                    *(work, self._runner, barriers, self._readable, self._reads_ended, crowd)
                )
                audit = StrayAudit(self._client, lambda: self._serving, self._recovery.in_hand)
                helpers.append(group.create_task(audit.run(), name=f"{self.name} audit"))
                self._ownership = Ownership(
                    self._client,
                    self.topic.name,
                    self.subscription,
                    self.counts,
                    self._room,
                    self._source,
                    self._began,
                )
                heartbeats = self.heartbeats or HeartbeatThread(self._client)
                if self.heartbeats is None:
                    helpers.append(group.create_task(heartbeats.serve()))
                every_s = topics.lease_ttl_s / RENEWALS_PER_LEASE
                beat = Beat(f"consumer {self.name}", every_s, self._ownership.beat)
                heartbeats.add(beat)
                try:
                    await self._balance_until_stopped()
                    await self._drain()
                finally:
                    self._ending = True
                    heartbeats.remove(beat)
                for helper in (*helpers, *self._reading):
                    helper.cancel()
        finally:
            crowd.discard(self)
            work.close()
            await self._say_goodbye()

    def _is_ending(self) -> bool:
        """Whether tasks of this consumer may be cancelled: it stops, or something in it failed."""
        return self._ending or self._task is None or self._task.cancelling() > 0

    # ---- the partitions we own

    async def _balance_until_stopped(self) -> None:
        topics, crowd = self._client.settings.topics, crowd_of(self._client)
        most_s = topics.lease_ttl_s / RENEWALS_PER_LEASE
        failures, exists = 0, False
        share = random.random()  # noqa: S311  of the first interval: so that consumers take turns
        while not self.stopping:
            try:
                if not exists:
                    with suppress(OutOfMemory):  # a topic that is there is drained all the same
                        await self.topic.facts()
                        exists = True
                facts = await self._ownership.balance()
                if self.when_known is not None:
                    self.when_known(facts.name, facts.partitions)
                failures, self._trouble = 0, None
            except (ServerError, TopicError) as error:
                lasts = self.restartable and is_wrong_type(error)
                if isinstance(error, ServerError) and not (error.transient or lasts):
                    raise
                failures += 1
                self._note(error)
            await self._look_for_foreign()
            rest_s = (
                retry_delay_s(failures)
                if failures
                else share * min(crowd.interval_s(topics.balance_s, _BALANCE_EACH_S), most_s)
            )
            share = 1.0
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self.stop_asked.wait()

    async def _look_for_foreign(self) -> None:
        """While something fails, find out whether keys of another type are the reason.

        They are not ours to remove; all goes on by itself once somebody has.
        """
        if not self._fault():
            return
        known = range(self._ownership.partitions)
        try:
            found = await find_foreign(
                self._client, self.topic.name, known, [self.subscription.group]
            )
        except ServerError:
            return
        self._foreign = "; ".join(map(str, found))
        if found:
            quiet.error(f"{self.name} foreign", "consumer %s: %s", self.name, self._foreign)

    async def _tidy_for_ever(self) -> None:
        """Apply retention and free large payloads, in the partitions we own.

        The owner of the first one sees to the dead letters, and to the Java library's lists.
        """
        janitor_s, crowd = self._client.settings.topics.janitor_s, crowd_of(self._client)
        # Not all consumers of a process at the same time.
        share = 1 + random.random()  # noqa: S311
        await asyncio.sleep(share * crowd.interval_s(janitor_s, _TIDY_EACH_S))
        sweep = PayloadSweep(self._client, self.topic.name)
        while True:
            try:
                options = (await read_facts(self._client, self.topic.name)).options
                for index in self.partitions:
                    lost = await apply_retention(
                        self._client, self.topic.name, index, options.retention
                    )
                    if lost:
                        quiet.error(
                            f"{self.name} lost",
                            "partition %d of %s: %d messages were dropped before every group had "
                            "read them, by a hard cap or by another program's MAXLEN",
                            *(index, self.topic.name, lost),
                        )
                if 0 in self.partitions and not self._client.keys.cluster:
                    await sweep.run()
                if 0 in self.partitions and options.dead_letters.is_set:
                    letters = DeadLetters(self._client, self.topic.codec, self.topic.name)
                    await letters.trim(
                        max_length=options.dead_letters.max_length or None,
                        max_age_s=options.dead_letters.max_age_s or None,
                    )
            except (ServerError, TopicError) as error:
                self._note(error)
            await asyncio.sleep(crowd.interval_s(janitor_s, _TIDY_EACH_S))

    def _began(self, held: Held) -> None:
        """Serve a partition that has become ours."""
        logger.info("%s: taken", held)
        held.when_group_gone = self._ownership.register_again
        task = self._group.create_task(self._serve(held), name=repr(held))
        self._serving[held] = task
        place = self._place_of(held)
        if place in self._readers:
            self._room.look_again()  # it may have closed its connection
        else:
            reader = self._readers[place] = Reader(
                self._client,
                self.subscription.group,
                lambda: [one for one in self._serving if self._place_of(one) == place],
                self._pace,
                room=self._room,
                slot_key=None if place in {ONE_READER, POLLING} else held.stream,
                poll=place == POLLING,
            )
            self._reading.append(self._group.create_task(reader.run(), name=f"{self.name} read"))

    async def _serve(self, held: Held) -> None:
        """Handle a partition's messages until it is given up or lost."""
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(held.settle_for_ever()),
                    group.create_task(self._recovery.feed(held)),
                ]
                if not self.subscription.keeps_retries_in_order:
                    helpers.append(group.create_task(self._recovery.retries(held)))
                running = group.create_task(self._runner.run(held))
                held.when_lost = running.cancel
                await asyncio.wait([running])
                for helper in helpers:
                    helper.cancel()
        finally:
            await self._give_up(held)

    async def _give_up(self, held: Held) -> None:
        """Tell the server what is done and what was not begun, then let go."""
        held.close()
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                if held.lost:
                    await self._work.lost(held, self._fetched(held), self._runner.running(held))
                else:
                    await self._reader_of(held).leave_out(held)
                    await held.settle()
                    done = held.unsettled_ids()
                    await held.release([id_ for id_ in self._unbegun(held) if id_ not in done])
                    logger.info("%s: given up", held)
        except (TimeoutError, PenstockError) as error:
            why = "attempts stay charged" if held.lost else "its lease has to run out"
            logger.warning("%s: %s: %s", held, why, error or "no answer")
        finally:
            self._runner.forget(held)
            held.drop(held.buffered)
            del self._serving[held]
            self._ownership.helds.pop(held.source.partition, None)
            self._room.look_again()  # a reader that has no partition left closes its connection

    def _unbegun(self, held: Held) -> list[bytes]:
        """Ids of what was fetched and never handed to the handler."""
        return [id_ for id_ in self._fetched(held) if id_ not in held.history]

    def _fetched(self, held: Held) -> list[bytes]:
        """Ids of first deliveries in hand that did not fail."""
        return [
            item[0]
            for chunk in (self._runner.left(held), *held.queue)
            for item in chunk
            if not isinstance(item, Message) and not held.history.get(item[0])
        ]

    async def _drain(self) -> None:
        for held in list(self._serving):
            held.close()
        while self._serving:
            await asyncio.wait(self._serving.values())

    async def _say_goodbye(self) -> None:
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._ownership.leave()
        except (TimeoutError, PenstockError) as error:
            logger.warning("consumer %s could not say goodbye: %s", self.name, error)

    # ---- small parts

    def _new_room(self) -> Room:
        sizes = Sizes(self._client.settings.topics.fetch_bytes)
        return Room(self._room_for, sizes, fetched_bytes_of(self._client))

    def _source(self, partition: int) -> Source:
        return Source(
            self.topic.name,
            partition,
            self.subscription.group,
            self._decode,
            self.topic.codec,
            self.handler.payload_type,
        )

    def _place_of(self, held: Held) -> int:
        """Which reader fetches its messages.

        On one server one command reads all partitions. On a cluster it takes one for each, and a
        connection; those beyond `_MOST_WAITING` are asked in turn.
        """
        if not self._client.keys.cluster:
            return ONE_READER
        partition = held.source.partition
        if partition not in self._places:
            own = sum(place != POLLING for place in self._places.values())
            # With little room, one partition that waits for messages would keep it from those that
            # have some.
            scarce = self._room_for < self._client.settings.topics.fetch
            waits = own < _MOST_WAITING and not scarce
            self._places[partition] = partition if waits else POLLING
        return self._places[partition]

    def _reader_of(self, held: Held) -> Reader:
        return self._readers[self._place_of(held)]

    async def _readable(self, held: Held) -> None:
        """Read new messages of a partition, now that all earlier ones are queued."""
        await self._reader_of(held).look_again()

    async def _reads_ended(self, held: Held) -> None:
        """Wait until no read is under way that names a partition which is not to be read now."""
        await self._reader_of(held).leave_out(held)

    def _note(self, error: PenstockError) -> None:
        self._trouble = str(error)
        quiet.warning(f"{self.name} {type(error).__name__}", "consumer %s: %s", self.name, error)
