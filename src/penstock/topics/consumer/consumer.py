"""A consumer: one member of a group, its partitions and its handler."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from penstock.delivery.message_sizes import MessageSizes
from penstock.delivery.queries import is_wrong_type
from penstock.delivery.threads import HandlerThreads
from penstock.errors import OutOfMemory, PenstockError, ServerError, TopicError
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.runtime.heartbeat_thread import Beat, HeartbeatThread
from penstock.runtime.service import Service
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog
from penstock.topics.admin.retention import apply_retention
from penstock.topics.consumer.assignment import RENEWALS_PER_LEASE, Assignment
from penstock.topics.consumer.fetch_budget import (
    FetchBudget,
    FetchPacing,
    active_consumers,
    inflight_bytes,
)
from penstock.topics.consumer.growth_barrier import GrowthBarriers
from penstock.topics.consumer.handler import as_handler
from penstock.topics.consumer.keyed_runner import KeyedRunner
from penstock.topics.consumer.message_processor import MessageProcessor
from penstock.topics.consumer.owned_partition import (
    ConsumerCounts,
    OwnedPartition,
    PartitionState,
)
from penstock.topics.consumer.reader import Reader
from penstock.topics.consumer.recovery import Recovery, Runner, StrayAudit
from penstock.topics.consumer.serial_runner import SerialRunner
from penstock.topics.dead_letters.dead_letters import DeadLetters
from penstock.topics.java.payload_sweep import PayloadSweep
from penstock.topics.message import Message, Source
from penstock.topics.storage.foreign_keys import find_foreign
from penstock.topics.storage.metadata import TopicMetadata, read_metadata
from penstock.topics.subscription import Subscription

__all__ = ["Consumer"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# A consumer that is cut short has this long to acknowledge what it has done.
_LAST_CALLS_S = 2.0
ONE_READER, POLLING = -1, -2
# Partitions of one subscription that wait on a cluster at the same time, each with a connection.
_MOST_WAITING = 64
# Of many consumers in a process each balances, and tidies up, less often, so that many stay cheap.
_BALANCE_EACH_S, _TIDY_EACH_S = 0.01, 0.1


class Subscribable(Protocol):
    """What a consumer needs of a topic."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> Any: ...
    @property
    def client(self) -> Client: ...
    @property
    def codec(self) -> Codec: ...
    async def metadata(self) -> TopicMetadata: ...


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
        self.counts = ConsumerCounts()
        self.handler = as_handler(
            handler, batch=subscription.batch is not None, default_type=topic.type
        )
        self._decode = topic.codec.decoder(self.handler.payload_type)
        self._client = topic.client
        self.when_known: Callable[[str, int], object] | None = None
        """Called with the topic and its number of partitions when these are known, or change."""
        self.heartbeats: HeartbeatThread | None = None
        """Renews its leases; a consumer outside a worker starts one of its own."""
        self._trouble: str | None = "has not begun yet"
        self._foreign = ""
        """Keys of the topic that hold another type, while they are in the way."""
        self._max_inflight = subscription.max_inflight or topic.client.settings.topics.max_inflight
        self._budget = self._new_budget()
        self._places: dict[int, int] = {}
        self._readers: dict[int, Reader] = {}
        self._read_loops: list[asyncio.Task[None]] = []
        self._serving: dict[OwnedPartition, asyncio.Task[None]] = {}
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
        for owned in self._serving:
            if owned.trouble:
                return f"consumer {self.name}: {owned}: {owned.trouble}"
            if owned.state is PartitionState.CHECKING:
                return f"consumer {self.name}: {owned}: is looking for messages that did not arrive"
        trouble = self._trouble or (self._threads and self._threads.trouble())
        return trouble and f"consumer {self.name}: {trouble}"

    @property
    def partitions(self) -> list[int]:
        """Numbers of the partitions that it owns now."""
        return sorted(owned.source.partition for owned in self._serving if not owned.closing)

    async def run(self) -> None:
        topics = self._client.settings.topics
        self._budget = self._new_budget()
        for left_over in (self._places, self._readers, self._read_loops, self._serving):
            left_over.clear()
        barriers = GrowthBarriers(self._client)
        processor = MessageProcessor(
            self._client, self.topic.name, self.handler, self.subscription, self.counts, barriers
        )
        pacing = FetchPacing(topics.fetch, self.subscription.batch or 1)
        self._ending, self._task = False, asyncio.current_task()
        consumers = active_consumers(self._client)
        consumers.add(self)
        try:
            async with asyncio.TaskGroup() as group:
                self._group, self._pacing = group, pacing
                self._processor, self._threads = processor, processor.threads
                helpers = [group.create_task(self._tidy_for_ever(), name=f"{self.name} tidy")]
                if self.subscription.ordering == "partition":
                    self._runner: Runner = SerialRunner(processor, pacing)
                else:
                    keyed = self._runner = KeyedRunner(
                        processor, pacing, min(topics.fetch, self._max_inflight)
                    )
                    processor.is_ending = self._is_ending
                    helpers += [
                        group.create_task(keyed.slot(number)) for number in range(keyed.slots)
                    ]
                self._recovery = Recovery(self._client, processor, self._runner, barriers)
                audit = StrayAudit(self._client, self._serving, self._recovery)
                helpers.append(group.create_task(audit.run(), name=f"{self.name} audit"))
                self._assignment = Assignment(
                    self._client,
                    self.topic.name,
                    self.subscription,
                    self.counts,
                    self._budget,
                    self._source,
                    self._began,
                )
                heartbeats = self.heartbeats or HeartbeatThread(self._client)
                if self.heartbeats is None:
                    helpers.append(group.create_task(heartbeats.serve()))
                every_s = topics.lease_ttl_s / RENEWALS_PER_LEASE
                beat = Beat(f"consumer {self.name}", every_s, self._assignment.beat)
                heartbeats.add(beat)
                try:
                    await self._balance_until_stopped()
                    await self._drain()
                finally:
                    self._ending = True
                    heartbeats.remove(beat)
                for helper in (*helpers, *self._read_loops):
                    helper.cancel()
        finally:
            consumers.discard(self)
            processor.close()
            await self._leave_group()

    def _is_ending(self) -> bool:
        """Whether tasks of this consumer may be cancelled: it stops, or something in it failed."""
        return self._ending or self._task is None or self._task.cancelling() > 0

    # ---- partitions

    async def _balance_until_stopped(self) -> None:
        topics, consumers = self._client.settings.topics, active_consumers(self._client)
        most_s = topics.lease_ttl_s / RENEWALS_PER_LEASE
        failures, exists = 0, False
        share = random.random()  # noqa: S311  of the first interval: so that consumers take turns
        while not self.stopping:
            try:
                if not exists:
                    with suppress(OutOfMemory):  # a topic that is there is drained all the same
                        await self.topic.metadata()
                        exists = True
                metadata = await self._assignment.balance()
                if self.when_known is not None:
                    self.when_known(metadata.name, metadata.partitions)
                failures, self._trouble = 0, None
            except (ServerError, TopicError) as error:
                lasts = self.restartable and is_wrong_type(error)
                if isinstance(error, ServerError) and not (error.transient or lasts):
                    raise
                failures += 1
                self._note(error)
            await self._check_foreign_keys()
            rest_s = (
                retry_delay_s(failures)
                if failures
                else share * min(consumers.interval_s(topics.balance_s, _BALANCE_EACH_S), most_s)
            )
            share = 1.0
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self.stop_asked.wait()

    async def _check_foreign_keys(self) -> None:
        """While something fails, find out whether keys of another type are the reason.

        They are reported and left alone; consuming resumes once they are removed.
        """
        if not self._fault():
            return
        known = range(self._assignment.partition_count)
        try:
            foreign = await find_foreign(
                self._client, self.topic.name, known, [self.subscription.group]
            )
        except ServerError:
            return
        self._foreign = "; ".join(map(str, foreign))
        if foreign:
            quiet.error(f"{self.name} foreign", "consumer %s: %s", self.name, self._foreign)

    async def _tidy_for_ever(self) -> None:
        """Apply retention and free large payloads, in the partitions it owns.

        The owner of partition 0 trims the dead letters, and the Java library's lists.
        """
        janitor_s = self._client.settings.topics.janitor_s
        consumers = active_consumers(self._client)
        # Not all consumers of a process at the same time.
        share = 1 + random.random()  # noqa: S311
        await asyncio.sleep(share * consumers.interval_s(janitor_s, _TIDY_EACH_S))
        sweep = PayloadSweep(self._client, self.topic.name)
        while True:
            try:
                options = (await read_metadata(self._client, self.topic.name)).options
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
            await asyncio.sleep(consumers.interval_s(janitor_s, _TIDY_EACH_S))

    def _began(self, owned: OwnedPartition) -> None:
        """Serve a partition that was acquired."""
        logger.info("%s: taken", owned)
        place = self._place_of(owned.source.partition)
        reader = self._readers.get(place)
        if reader is None:
            reader = self._readers[place] = Reader(
                self._client,
                self.subscription.group,
                self._pacing,
                self._budget,
                slot_key=None if place in {ONE_READER, POLLING} else owned.stream,
                poll=place == POLLING,
            )
            name = f"{self.name} read" + ("" if place == ONE_READER else f" {place}")
            loop = reader.run(partial(self.watched, name))
            self._read_loops.append(self._group.create_task(loop, name=name))
        reader.add(owned)
        serving = self._serve(owned, reader)
        self._serving[owned] = self._group.create_task(serving, name=str(owned))

    async def _serve(self, owned: OwnedPartition, reader: Reader) -> None:
        """Handle a partition's messages until it is given up or lost."""
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(owned.ack_until_lost()),
                    group.create_task(self._recovery.feed(owned, reader)),
                ]
                if not self.subscription.keeps_retries_in_order:
                    helpers.append(group.create_task(self._recovery.retries(owned)))
                lost = group.create_task(owned.until_lost())
                running = group.create_task(self._runner.run(owned))
                await asyncio.wait([running, lost], return_when=asyncio.FIRST_COMPLETED)
                if owned.lost:
                    running.cancel()
                    await asyncio.wait([running])
                for helper in (*helpers, lost):
                    helper.cancel()
        finally:
            was_missing = owned.group_missing
            if was_missing:
                self._assignment.register_again()
            await self._give_up(owned, reader)
            if owned.group_missing and not was_missing:
                self._assignment.register_again()

    async def _give_up(self, owned: OwnedPartition, reader: Reader) -> None:
        """Acknowledge what is done, uncharge what was not begun, and release the partition."""
        owned.close()
        try:
            async with asyncio.timeout(_LAST_CALLS_S):
                if owned.lost:
                    await self._processor.lost(
                        owned, self._fetched(owned), self._runner.running(owned)
                    )
                else:
                    await reader.exclude(owned)
                    await owned.flush_acks()
                    done = owned.unacknowledged_ids()
                    await owned.release([id_ for id_ in self._unbegun(owned) if id_ not in done])
                    logger.info("%s: given up", owned)
        except (TimeoutError, PenstockError) as error:
            why = "attempts stay charged" if owned.lost else "its lease has to run out"
            logger.warning("%s: %s: %s", owned, why, error or "no answer")
        finally:
            self._runner.forget(owned)
            owned.give_up()
            del self._serving[owned]
            self._assignment.forget(owned)
            reader.remove(owned)

    def _unbegun(self, owned: OwnedPartition) -> list[bytes]:
        """Ids of messages that were fetched and not begun."""
        return [id_ for id_ in self._fetched(owned) if not owned.attempts.is_recorded(id_)]

    def _fetched(self, owned: OwnedPartition) -> list[bytes]:
        """Ids of first deliveries in memory that did not fail."""
        return [
            item[0]
            for items in (self._runner.left(owned), owned.queued())
            for item in items
            if not isinstance(item, Message) and not owned.attempts.failures_of(item[0])
        ]

    async def _drain(self) -> None:
        for owned in list(self._serving):
            owned.close()
        while self._serving:
            await asyncio.wait(self._serving.values())

    async def _leave_group(self) -> None:
        try:
            async with asyncio.timeout(_LAST_CALLS_S):
                await self._assignment.leave()
        except (TimeoutError, PenstockError) as error:
            logger.warning("consumer %s could not leave its group: %s", self.name, error)

    # ---- small parts

    def _new_budget(self) -> FetchBudget:
        sizes = MessageSizes(self._client.settings.topics.fetch_bytes)
        return FetchBudget(self._max_inflight, sizes, inflight_bytes(self._client))

    def _source(self, partition: int) -> Source:
        return Source(
            self.topic.name,
            partition,
            self.subscription.group,
            self._decode,
            self.topic.codec,
            self.handler.payload_type,
        )

    def _place_of(self, partition: int) -> int:
        """Which reader fetches the messages of a partition.

        On one server one command reads all partitions. On a cluster it takes one for each, and a
        connection; those beyond `_MOST_WAITING` are polled in turn.
        """
        if not self._client.keys.cluster:
            return ONE_READER
        if partition not in self._places:
            own = sum(place != POLLING for place in self._places.values())
            # With a small budget, one partition that waits for messages would keep it from those
            # that have some.
            scarce = self._max_inflight < self._client.settings.topics.fetch
            waits = own < _MOST_WAITING and not scarce
            self._places[partition] = partition if waits else POLLING
        return self._places[partition]

    def _note(self, error: PenstockError) -> None:
        self._trouble = str(error)
        quiet.warning(f"{self.name} {type(error).__name__}", "consumer %s: %s", self.name, error)
