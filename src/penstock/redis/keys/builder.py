"""`Keys`: where every key is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.redis.keys.contract import AREA_WORDS, RESERVED
from penstock.redis.keys.coordination import (
    BatchKeys,
    CacheKeys,
    DedupeKeys,
    FeedKeys,
    HourlyLimitKeys,
    LimitKeys,
    LimitsKeys,
    RunKeys,
    RunsKeys,
    SlotKeys,
    SlotsKeys,
    WindowIndexKeys,
    WindowKeys,
    WindowsKeys,
)
from penstock.redis.keys.names import (
    QUEUE_WORD,
    check_name,
    check_number,
    check_queue,
    encode_id,
)
from penstock.redis.keys.queues import JobKeys, QueueKeys, QueuesKeys
from penstock.redis.keys.topics import PartitionKeys, TopicKeys, TopicsKeys
from penstock.redis.keys.uploads import UploadKeys
from penstock.redis.keys.workers import ProbeKeys, WorkersKeys

__all__ = ["Keys"]

_RESERVED_TOPICS = RESERVED["topic"]
_RESERVED_QUEUES = RESERVED["queue"]


@dataclass(frozen=True, slots=True)
class Keys:
    """Builds the keys of one system, for a single server or for a cluster.

        Keys().partition("orders", 3).stream                    stream:topic:orders:p:3
        Keys("hsi", cluster=True).partition("orders", 3).stream  hsi:stream:topic:{orders:3}

    Each method checks the names it is given (`InvalidName`) and returns an object whose properties
    are keys. On a cluster all keys of such an object are in one slot.
    """

    namespace: str = ""
    cluster: bool = False
    _root: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        root = ""
        if self.namespace != "":
            # A reserved word would make these keys look like those of a system without namespace.
            root = f"{check_name('namespace', self.namespace, _RESERVED_QUEUES)}:"
        object.__setattr__(self, "_root", root)

    def topics(self) -> TopicsKeys:
        """Keys of all topics together."""
        return TopicsKeys(self._root, self._tagged("topics"))

    def topic(self, topic: str) -> TopicKeys:
        """Keys of a topic that belong to no single partition."""
        return TopicKeys(self._root, self._tagged(check_name("topic", topic, _RESERVED_TOPICS)))

    def partition(self, topic: str, index: int) -> PartitionKeys:
        """Keys of one partition of a topic; partitions are spread over a cluster."""
        check_name("topic", topic, _RESERVED_TOPICS)
        check_number("partition", index)
        home = f"{{{topic}:{index}}}" if self.cluster else f"{topic}:p:{index}"
        return PartitionKeys(self._root, home)

    def queues(self) -> QueuesKeys:
        """Keys of all queues together."""
        return QueuesKeys(self._root, self._tagged("queues"))

    def queue(self, queue: str) -> QueueKeys:
        """Keys of a queue."""
        return QueueKeys(self._root, self._tagged(_checked_queue(queue)))

    def job(self, queue: str, job: str) -> JobKeys:
        """Keys of a job; those of a queue `<area>:queue` are at `<area>:job:<job>`."""
        _checked_queue(queue)
        job = encode_id("job", job)
        if ":" in queue and not self.cluster:
            return JobKeys(self._root, f"{queue.removesuffix(QUEUE_WORD)}job:{job}")
        return JobKeys(self._root, f"penstock:queue:{self._tagged(queue)}:job:{job}")

    def workers(self) -> WorkersKeys:
        """Keys of all workers together."""
        return WorkersKeys(self._root, self._tagged("workers"))

    def probe(self, tag: str = "server") -> ProbeKeys:
        """Key of a health probe; on a cluster choose a `tag` whose slot is the node's."""
        return ProbeKeys(self._root, self._tagged(encode_id("tag", tag)))

    def dedupe(self, key: str) -> DedupeKeys:
        """Mark of something that is to happen once: a SHA-256, or a scope and more."""
        return DedupeKeys(self._root, self._tagged(encode_id("key", key)))

    def limits(self) -> LimitsKeys:
        """Keys of all limits together."""
        return LimitsKeys(self._root, self._tagged("limits"))

    def limit(self, endpoint: str, client: str) -> LimitKeys:
        """Keys of the limit of one client (an IP address) at one endpoint."""
        home = f"{encode_id('endpoint', endpoint)}:{encode_id('client', client)}"
        return LimitKeys(self._root, self._tagged(home))

    def hourly_limit(self) -> HourlyLimitKeys:
        """Keys of the limit per clock hour of the harvest."""
        return HourlyLimitKeys(self._root, self._tagged("rate_limit"))

    def windows(self) -> WindowsKeys:
        """Keys of all aggregation windows together."""
        return WindowsKeys(self._root, self._tagged("windows"))

    def window(self, beside: str, window: str) -> WindowKeys:
        """Keys of an aggregation window (a camera).

        `beside` is what gets its batches: a queue's name, or a topic's and a partition's number.
        """
        window = encode_id("window", window)
        return WindowKeys(self._root, self._beside(beside, window))

    def batch(self, beside: str, batch: str) -> BatchKeys:
        """Keys of one batch of a window. On a single server its id alone names them."""
        return BatchKeys(self._root, self._beside(beside, encode_id("batch", batch)))

    def window_index(self, beside: str, name: str) -> WindowIndexKeys:
        """Keys of all windows of one name that close into the same queue or partition."""
        name = check_name("window", name)
        if self.cluster:
            return WindowIndexKeys(self._root, self._beside(beside, name))
        return WindowIndexKeys(self._root, f"{encode_id('target', beside)}:{name}")

    def runs(self) -> RunsKeys:
        """Keys of all runs together."""
        return RunsKeys(self._root, self._tagged("runs"))

    def run(self, run: str) -> RunKeys:
        """Keys of one run of the harvest, by its id."""
        return RunKeys(self._root, self._tagged(encode_id("run", run)))

    def slots(self) -> SlotsKeys:
        """Keys of all named concurrency limits together."""
        return SlotsKeys(self._root, self._tagged("slots"))

    def slot(self, slot: str) -> SlotKeys:
        """Keys of a named concurrency limit."""
        return SlotKeys(self._root, self._tagged(encode_id("slot", slot)))

    def feed(self, feed: str) -> FeedKeys:
        """Keys of a feed of events."""
        return FeedKeys(self._root, self._tagged(encode_id("feed", feed)))

    def cache(self, space: str, key: str) -> CacheKeys:
        """Keys of a cached value; `space` keeps the keys of different users apart."""
        home = f"{encode_id('cache space', space)}:{encode_id('cache key', key)}"
        return CacheKeys(self._root, self._tagged(home))

    def upload(self, upload: str) -> UploadKeys:
        """Keys of an upload."""
        return UploadKeys(self._root, self._tagged(encode_id("upload", upload)))

    def _beside(self, target: str, home: str) -> str:
        """Put keys into the slot of a queue or of a topic's partition, where there are slots."""
        return f"{{{target}}}:{home}" if self.cluster else home

    def _tagged(self, home: str) -> str:
        """Wrap what must stay together in braces, where they decide the slot."""
        return f"{{{home}}}" if self.cluster else home


def _checked_queue(queue: str) -> str:
    return check_queue(queue, _RESERVED_QUEUES, AREA_WORDS)
