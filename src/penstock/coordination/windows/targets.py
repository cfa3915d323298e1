"""What gets the batches of a window: a queue, or the partitions of a topic."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from penstock.coordination.windows.options import OVERHEAD_BYTES, WindowOptions
from penstock.coordination.windows.records import WindowRecord
from penstock.errors import PenstockError, QueueFull, SettingError, TopicMissing
from penstock.queues.options import Block
from penstock.queues.queue import Queue
from penstock.redis.keys import Keys, key_slot
from penstock.redis.window_scripts import WindowPlace
from penstock.redis.wire import Argument
from penstock.topics.facts import open_partitions, read_facts
from penstock.topics.partitioners import check_partition
from penstock.topics.topic import Topic

__all__ = ["Place", "QueueTarget", "Target", "TopicTarget", "target_of"]


class Place:
    """All windows of one name that close into the same queue or partition."""

    def __init__(
        self,
        keys: Keys,
        beside: str,
        options: WindowOptions,
        target: tuple[str, ...],
        told: tuple[Argument, ...],
        events: int,
        keep_ms: int,
    ) -> None:
        self.beside, self.target = beside, target[0]
        self.slot = key_slot(self.target) if keys.cluster else None
        self.index = keys.window_index(beside, options.name)
        self.pointers = keys.window(beside, "x").current.removesuffix("x:current")
        self._batches = keys.batch(beside, "x").camera_id.removesuffix("x:camera_id")
        self.script = WindowPlace(
            (self.index.due, self.index.events, self.index.state, *target),
            (
                *(self._batches, *told),
                *map(msgspec.json.encode, (options.key_field, options.items_field)),
                *(options.max_age_ms, options.idle_ms, events, keep_ms),
            ),
        )

    def current(self, window: str) -> str:
        """Key of the id of a window's open batch; the window is encoded already."""
        return f"{self.pointers}{window}:current"

    def seen(self, window: str) -> str:
        """Key of the ids of a window's items."""
        return f"{self.pointers}{window}:seen"

    def batch(self, batch: str, field: str) -> str:
        """Key of one fact about a batch."""
        return f"{self._batches}{batch}:{field}"


class Target(ABC):
    """What gets batches."""

    kind: ClassVar[Literal["queue", "topic"]]
    takes_fast: ClassVar[bool] = False
    """Whether there is a high lane."""
    patience_s: float = 0.0
    """How long a caller waits for room."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    async def place_to_add(self, key: str) -> Place:
        """Where the batches of one key are; makes sure that the target is there."""

    @abstractmethod
    async def place_of(self, key: str) -> Place:
        """Where the batches of one key are. A topic that is gone is not made again."""

    @abstractmethod
    async def places(self) -> Sequence[Place]:
        """Every place where there may be batches. `TopicMissing` if there cannot be any."""

    async def got_some(self) -> None:  # noqa: B027  a topic that gets batches is there
        """Make sure that people find the target, since it has got batches."""

    async def mend(self, place: Place) -> None:
        """Make again what is missing at one place, or tell that it is gone for good."""
        raise TopicMissing(place.beside)

    @abstractmethod
    def refusal(self, status: int, length: int) -> PenstockError:
        """The error for what a script has refused."""

    async def note_losses(self, jobs: Sequence[bytes]) -> None:  # noqa: B027  most lose none
        """See to jobs that had to go for a batch and that the script could not read."""

    def completed(self, record: WindowRecord) -> WindowRecord:
        """A window's record with what others have to know of the target."""
        return record


class QueueTarget(Target):
    """A queue: each batch becomes a raw job."""

    kind = "queue"
    takes_fast = True

    def __init__(self, queue: Queue, options: WindowOptions) -> None:
        super().__init__(queue.name)
        self.queue, self._options = queue, options
        self._told = queue.plain_target
        self._place = self._made()

    def _made(self) -> Place:
        queue, keys, told = self.queue, self.queue.keyring, self._told
        settings = queue.client.settings
        most = settings.queues.max_job_bytes
        if queue.options.max_bytes:
            most = min(most, queue.options.max_bytes)
        _check_fits(self._options, most)
        self.policy, self.patience_s = "block", 0.0
        if isinstance(told.overflow, Block):
            self.patience_s = told.overflow.timeout_s
        elif told.overflow != "reject":
            self.policy = told.overflow
        return Place(
            queue.client.keys,
            queue.name,
            self._options,
            (keys.waiting, keys.state, keys.counters, keys.overflow, keys.ring, keys.parked),
            (
                *("queue", queue.name, self.policy, told.max_size, queue.options.max_bytes),
                *(settings.queues.max_overflow, keys.records, keys.indexes, keys.uniques),
            ),
            settings.windows.events,
            int(settings.queues.keep_s * 1000),
        )

    def _now(self) -> Place:
        """The place, made anew if the queue was told more about itself meanwhile."""
        if self.queue.plain_target is not self._told:
            self._told = self.queue.plain_target
            self._place = self._made()
        return self._place

    async def place_to_add(self, key: str) -> Place:  # noqa: ARG002  all keys share the queue
        await self.queue.declared()
        return self._now()

    async def place_of(self, key: str) -> Place:  # noqa: ARG002  as above
        return self._now()

    async def places(self) -> Sequence[Place]:
        return (self._now(),)

    def refusal(self, status: int, length: int) -> PenstockError:  # noqa: ARG002  only one reason
        queue = self.queue
        return QueueFull(queue.name, length, queue.plain_target.max_size, queue.options.max_bytes)

    async def got_some(self) -> None:
        await self.queue.declared()

    async def note_losses(self, jobs: Sequence[bytes]) -> None:
        await self.queue.adder.note_losses(jobs)

    def completed(self, record: WindowRecord) -> WindowRecord:
        self._now()
        queue = self.queue
        return msgspec.structs.replace(
            record,
            queue_size=queue.plain_target.max_size,
            queue_bytes=queue.options.max_bytes,
            overflow="reject" if self.policy == "block" else self.policy,
        )


class TopicTarget(Target):
    """A topic: each batch becomes a message under the window's key."""

    kind = "topic"

    def __init__(self, topic: Topic, options: WindowOptions) -> None:
        if topic.interop:
            raise SettingError("window.to", topic.name, "a topic without interop")
        super().__init__(topic.name)
        self.topic, self._options = topic, options
        self._places: list[Place] = []
        self._count, self._known_until = 0, 0.0

    async def place_to_add(self, key: str) -> Place:
        return self._place_of(key, (await self.topic.facts()).partitions)

    async def place_of(self, key: str) -> Place:
        return self._place_of(key, await self._partitions())

    async def places(self) -> Sequence[Place]:
        return self._all(await self._partitions())

    async def mend(self, place: Place) -> None:
        self._known_until = 0.0
        index = self._all(await self._partitions()).index(place)
        await open_partitions(self.topic.client, self.name, range(index, index + 1))

    async def _partitions(self) -> int:
        """How many there are; the topic itself, asked first, would make them."""
        if time.monotonic() >= self._known_until:
            client = self.topic.client
            self._count = (await read_facts(client, self.name)).partitions
            self._known_until = time.monotonic() + client.settings.topics.refresh_s
        return self._count

    def _place_of(self, key: str, count: int) -> Place:
        partition = check_partition(self.topic.partitioner.partition(key, count), count)
        return self._all(count)[partition]

    def refusal(self, status: int, length: int) -> PenstockError:  # noqa: ARG002  only one reason
        return TopicMissing(self.name)

    def _all(self, count: int) -> list[Place]:
        client, settings = self.topic.client, self.topic.client.settings
        for index in range(len(self._places), count):
            stream = client.keys.partition(self.name, index).stream
            place = Place(
                client.keys,
                f"{self.name}:{index}",
                self._options,
                (stream,) * 6,
                ("topic", self.name, "block", 0, 0, 0, "", "", ""),
                settings.windows.events,
                0,
            )
            self._places.append(place)
        return self._places[:count]


def target_of(to: Queue | Topic, options: WindowOptions) -> Target:
    """What gets the batches; SettingError for what cannot."""
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
