"""Targets of a window's batches: a queue, or the partitions of a topic."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from penstock.coordination.stored_names import BATCH_ITEMS, BATCH_KEY
from penstock.coordination.windows.keys import BatchKeys, WindowIndexKeys, WindowKeys
from penstock.coordination.windows.options import OVERHEAD_BYTES, WindowOptions
from penstock.coordination.windows.records import WindowRecord
from penstock.coordination.windows.scripts import BatchArguments
from penstock.errors import PenstockError, QueueFull, SettingError, TopicMissing
from penstock.queues.options import WaitForRoom
from penstock.queues.queue import Queue
from penstock.redis.keys.hash_slot import key_slot
from penstock.redis.keys.space import KeySpace
from penstock.redis.wire import Argument
from penstock.topics.partitioners import check_partition
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.metadata import open_partitions, read_metadata
from penstock.topics.topic import Topic

__all__ = ["BatchStore", "QueueTarget", "TopicTarget", "WindowTarget", "target_of"]


class BatchStore:
    """All windows of one name that close into the same queue or partition."""

    def __init__(
        self,
        keys: KeySpace,
        beside: str,
        options: WindowOptions,
        target: tuple[str, ...],
        arguments: tuple[Argument, ...],
        events: int,
        keep_ms: int,
    ) -> None:
        self.beside, self.target = beside, target[0]
        self.slot = key_slot(self.target) if keys.cluster else None
        self.index = WindowIndexKeys.of(keys, beside, options.name)
        self.windows_prefix = WindowKeys.prefix(keys, beside)
        self._prefix = BatchKeys.prefix(keys, beside)
        self.script = BatchArguments(
            (self.index.due, self.index.events, self.index.state, *target),
            (
                *(self._prefix, *arguments),
                *map(msgspec.json.encode, (options.key_field, options.items_field)),
                *(options.max_age_ms, options.idle_ms, events, keep_ms, BATCH_KEY, BATCH_ITEMS),
            ),
        )

    def current(self, window: str) -> str:
        """Key of the id of a window's open batch; the window is encoded already."""
        return f"{self.windows_prefix}{window}:current"

    def seen(self, window: str) -> str:
        """Key of the ids of a window's items."""
        return f"{self.windows_prefix}{window}:seen"

    def batch(self, batch: str, field: str) -> str:
        """Key of one field of a batch."""
        return f"{self._prefix}{batch}:{field}"


class WindowTarget(ABC):
    """What gets the batches of a window."""

    kind: ClassVar[Literal["queue", "topic"]]
    takes_fast: ClassVar[bool] = False
    """Whether there is a high lane."""
    patience_s: float = 0.0
    """How long a caller waits for room."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    async def store_to_add(self, key: str) -> BatchStore:
        """Where the batches of one key are stored; creates the target if it is missing."""

    @abstractmethod
    async def store_of(self, key: str) -> BatchStore:
        """Where the batches of one key are stored. A deleted topic is not created again."""

    @abstractmethod
    async def stores(self) -> Sequence[BatchStore]:
        """Where batches may be stored: one, or one per partition. Raises `TopicMissing`."""

    async def got_some(self) -> None:  # noqa: B027  a topic that gets batches is there
        """Register the target: it has got batches."""

    async def mend(self, store: BatchStore) -> None:
        """Create a partition that is missing, or raise `TopicMissing`."""
        raise TopicMissing(store.beside)

    @abstractmethod
    def refusal(self, status: int, length: int) -> PenstockError:
        """The error for an `AddStatus` or `CloseStatus` that is a refusal."""

    async def note_losses(self, jobs: Sequence[bytes]) -> None:  # noqa: B027  most lose none
        """Record compressed jobs that were dropped for a batch."""

    def completed(self, record: WindowRecord) -> WindowRecord:
        """A window's record with the options of the target."""
        return record


class QueueTarget(WindowTarget):
    """A queue: each batch becomes a raw job."""

    kind = "queue"
    takes_fast = True

    def __init__(self, queue: Queue, options: WindowOptions) -> None:
        super().__init__(queue.name)
        self.queue, self._options = queue, options
        self._plain_target = queue.plain_target
        self._store = self._make_store()

    def _make_store(self) -> BatchStore:
        queue, keys, plain = self.queue, self.queue.keyring, self._plain_target
        settings = queue.client.settings
        most = settings.queues.max_job_bytes
        if queue.options.max_bytes:
            most = min(most, queue.options.max_bytes)
        _check_fits(self._options, most)
        self.policy, self.patience_s = "block", 0.0
        if isinstance(plain.overflow, WaitForRoom):
            self.patience_s = plain.overflow.timeout_s
        elif plain.overflow != "reject":
            self.policy = plain.overflow
        return BatchStore(
            queue.client.keys,
            queue.name,
            self._options,
            (keys.waiting, keys.state, keys.counters, keys.overflow, keys.ring, keys.parked),
            (
                *("queue", queue.name, self.policy, plain.max_size, queue.options.max_bytes),
                *(settings.queues.max_overflow, keys.records, keys.indexes, keys.uniques),
            ),
            settings.windows.events,
            int(settings.queues.keep_s * 1000),
        )

    def _current(self) -> BatchStore:
        """The store, made again if the queue was configured meanwhile."""
        if self.queue.plain_target is not self._plain_target:
            self._plain_target = self.queue.plain_target
            self._store = self._make_store()
        return self._store

    async def store_to_add(self, key: str) -> BatchStore:  # noqa: ARG002  all keys share the queue
        await self.queue.declared()
        return self._current()

    async def store_of(self, key: str) -> BatchStore:  # noqa: ARG002  as above
        return self._current()

    async def stores(self) -> Sequence[BatchStore]:
        return (self._current(),)

    def refusal(self, status: int, length: int) -> PenstockError:  # noqa: ARG002  only one reason
        queue = self.queue
        return QueueFull(queue.name, length, queue.plain_target.max_size, queue.options.max_bytes)

    async def got_some(self) -> None:
        await self.queue.declared()

    async def note_losses(self, jobs: Sequence[bytes]) -> None:
        await self.queue.enqueuer.note_losses(jobs)

    def completed(self, record: WindowRecord) -> WindowRecord:
        self._current()
        queue = self.queue
        return msgspec.structs.replace(
            record,
            queue_size=queue.plain_target.max_size,
            queue_bytes=queue.options.max_bytes,
            overflow="reject" if self.policy == "block" else self.policy,
        )


class TopicTarget(WindowTarget):
    """A topic: each batch becomes a message under the window's key."""

    kind = "topic"

    def __init__(self, topic: Topic, options: WindowOptions) -> None:
        if topic.interop:
            raise SettingError("window.to", topic.name, "a topic without interop")
        super().__init__(topic.name)
        self.topic, self._options = topic, options
        self._stores: list[BatchStore] = []
        self._count, self._known_until = 0, 0.0

    async def store_to_add(self, key: str) -> BatchStore:
        return self._store_of(key, (await self.topic.metadata()).partitions)

    async def store_of(self, key: str) -> BatchStore:
        return self._store_of(key, await self._partitions())

    async def stores(self) -> Sequence[BatchStore]:
        return self._all(await self._partitions())

    async def mend(self, store: BatchStore) -> None:
        self._known_until = 0.0
        index = self._all(await self._partitions()).index(store)
        await open_partitions(self.topic.client, self.name, range(index, index + 1))

    async def _partitions(self) -> int:
        """How many there are; `Topic.metadata` would create them."""
        if time.monotonic() >= self._known_until:
            client = self.topic.client
            self._count = (await read_metadata(client, self.name)).partitions
            self._known_until = time.monotonic() + client.settings.topics.refresh_s
        return self._count

    def _store_of(self, key: str, count: int) -> BatchStore:
        partition = check_partition(self.topic.partitioner.partition(key, count), count)
        return self._all(count)[partition]

    def refusal(self, status: int, length: int) -> PenstockError:  # noqa: ARG002  only one reason
        return TopicMissing(self.name)

    def _all(self, count: int) -> list[BatchStore]:
        client, settings = self.topic.client, self.topic.client.settings
        for index in range(len(self._stores), count):
            stream = PartitionKeys.of(client.keys, self.name, index).stream
            store = BatchStore(
                client.keys,
                f"{self.name}:{index}",
                self._options,
                (stream,) * 6,
                ("topic", self.name, "block", 0, 0, 0, "", "", ""),
                settings.windows.events,
                0,
            )
            self._stores.append(store)
        return self._stores[:count]


def target_of(to: Queue | Topic, options: WindowOptions) -> WindowTarget:
    """The target for a queue or topic; SettingError for anything else."""
    if isinstance(to, Queue | Topic) and to.client.settings.signing.requires(to.name):  # pyright: ignore[reportUnnecessaryIsInstance]
        # The server puts batches together, and has no key.
        raise SettingError("window.to", to.name, "a queue or topic outside signing.require")
    if isinstance(to, Queue):
        return QueueTarget(to, options)
    if isinstance(to, Topic):  # pyright: ignore[reportUnnecessaryIsInstance]
        return TopicTarget(to, options)
    raise SettingError("window.to", to, "a queue or a topic")


def _check_fits(options: WindowOptions, most: int) -> None:
    if options.max_bytes + OVERHEAD_BYTES > most:
        raise SettingError(
            "window.max_bytes",
            options.max_bytes,
            f"at most {most - OVERHEAD_BYTES}, so that a batch fits into one job",
        )
