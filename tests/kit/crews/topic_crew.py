"""Real consumer processes around one topic, what befalls them, and the verdict in the end."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.kit.crews.worker_crew import Launcher, RecordedCrew, WorkerProcess
from tests.kit.history import Recorder, Verdict, check, payload_hash, read_history
from tests.kit.settings import settings_of

from penstock import Penstock
from penstock.testing.eventually import eventually
from penstock.topics.message import is_marker
from penstock.topics.storage.keys import PartitionKeys, TopicKeys

TOPIC, GROUP = "orders", "billing"
LEASE_S = 1.0


class TopicCrew(RecordedCrew):
    """Consumers of one topic, a producer and a nemesis; all of them record what they do."""

    def __init__(self, launcher: Launcher, url: str, namespace: str, folder: Path, **options):
        self.partitions = options.pop("partitions", 4)
        durability = options.pop("durability", "accepted")
        consumer_url = options.pop("consumer_url", url)
        topics = {"lease_ttl_s": LEASE_S, "balance_s": 0.05, "janitor_s": 0.5, "refresh_s": 0.2}
        orders = {
            "url": url,
            "namespace": namespace,
            "topic": TOPIC,
            "group": GROUP,
            "max_attempts": 5,
            "subscription": {},
            "topics": {**topics, **options.pop("topics", {})},
            "work_s": 0.0,
            "backoff_s": 0.05,
            "handler": "handle",
            "clock_s": 0.0,
            "crash": "",
            "worker": {"poll_s": 0.2, "grace_s": 10.0},
            "timeouts": {"connect_s": 2.0, "command_s": 2.0},
            **options,
        }
        app = Penstock(settings=settings_of(orders))
        super().__init__(launcher, folder, app, {**orders, "url": consumer_url})
        self.group, self.max_attempts = orders["group"], orders["max_attempts"]
        self.topic = self.app.topic(TOPIC, partitions=self.partitions, durability=durability)
        self.confirmed: list[tuple[int, str]] = []

    async def __aenter__(self):
        await super().__aenter__()
        await self.topic.metadata()
        return self

    # ---- the workers

    async def owners(self) -> dict[int, WorkerProcess | None]:
        """Who owns each partition, as the server has it."""
        by_pid = {worker.pid: worker for worker in self.workers}
        owners = {}
        for index in range(self.partitions):
            lease = PartitionKeys.of(self.app.redis.keys, TOPIC, index).lease(self.group)
            owner = await self.app.redis.call("GET", lease)
            owners[index] = None if owner is None else by_pid.get(int(owner.split(b"-")[-2]))
        return owners

    async def at_work(self, *workers: WorkerProcess, within_s: float = 60.0) -> None:
        """Wait until every partition has an owner, and each of these workers owns some."""

        async def shared():
            owners = set((await self.owners()).values())
            return None not in owners and owners >= set(workers)

        await eventually(shared, within_s, what="the workers to share the partitions")

    async def owned_by(self, workers: set[WorkerProcess], within_s: float = 60.0) -> None:
        """Wait until these workers own every partition, and nobody else owns any."""

        async def taken():
            return set((await self.owners()).values()) <= workers

        await eventually(taken, within_s, what="these workers to own all partitions")

    # ---- the producer

    async def send(self, key: str | None = None, *, at: str = "", **orders) -> str | None:
        """Send one message; its id, or None if nobody knows."""
        payload = {"n": next(self._numbers), **orders}
        about = {"key": key or "", "payload_hash": payload_hash(self.topic._sender.encode(payload))}
        if at:
            about["idem"] = at
        place = self.partition_of(key, at)
        id_ = await self.record_send(
            lambda: self.topic.send(payload, key=key, idempotency_key=at or None),
            lambda id_: {"partition": place, "msg": id_.partition("-")[2]},
            **about,
        )
        if id_ is not None:
            self.confirmed.append((place, id_))
        return id_

    async def make_topic_again(self) -> None:
        """Create the topic after it has gone: sending to it does not."""
        await self.app.topics.create(TOPIC, self.partitions)

    def partition_of(self, key: str | None, idem: str = "") -> int:
        if key is None:
            raise ValueError("the tests send with keys, so that the partition is known")
        return self.topic._sender.partitioner.partition(key, self.partitions)

    async def send_one(self, sender: int) -> None:
        await self.send(f"key-{sender}")

    async def send_many(self, count: int, *, keys: int = 40, **options) -> None:
        """Send `count` messages under `keys` keys, each key in order: see `send_at_once`."""

        async def send(place: int, orders: dict) -> None:
            await self.send(f"key-{place % 8}-{place // 8 % (keys // 8)}", **orders)

        await self.send_at_once(count, send, **options)

    def key_in(self, partition: int) -> str:
        """A key that lands in the partition."""
        names = (f"fixed-{number}" for number in itertools.count())
        return next(name for name in names if self.partition_of(name) == partition)

    # ---- the end

    async def left(self) -> int:
        """Messages that the group has not settled yet."""
        left = 0
        for index in range(self.partitions):
            stream = PartitionKeys.of(self.app.redis.keys, TOPIC, index).stream
            facts = await self._group_facts(stream)
            if facts is None:
                return -1
            after = b"(" + facts[b"last-delivered-id"]
            left += facts[b"pending"]
            left += len(await self.app.redis.call("XRANGE", stream, after, "+", "COUNT", 1))
        return left

    async def _group_facts(self, stream: str) -> dict | None:
        for group in await self.app.redis.call("XINFO", "GROUPS", stream):
            facts = dict(zip(group[::2], group[1::2], strict=True))
            if facts[b"name"].decode() == self.group:
                return facts
        return None

    async def state(self) -> str:
        return f"{await self.left()} messages, owners {await self.owners()}"

    async def verdict(self, **rules) -> Verdict:
        """Read all that is stored, and check what was recorded."""
        call = self.app.redis.call
        with Recorder(self.folder, "reader") as reader:
            for index in range(self.partitions):
                await self._read_partition(reader, index)
            letters = await call("XRANGE", TopicKeys.of(self.app.redis.keys, TOPIC).dlq, "-", "+")
            for _, fields in letters:
                letter = dict(zip(fields[::2], fields[1::2], strict=True))
                reader.write(
                    "final",
                    place="dlq",
                    group=letter[b"group"].decode(),
                    partition=int(letter[b"partitionId"]),
                    msg=letter[b"originalMessageId"].decode(),
                    key=letter.get(b"key", b"").decode(),
                    payload_hash=payload_hash(letter[b"payload"]),
                    attempt=int(letter[b"attempts"]),
                    detail=letter[b"reason"].decode(),
                )
        history = read_history(self.folder)
        self.nothing_is_both_handled_and_dead(history)
        rules = {
            "ordering": self.orders["subscription"].get("ordering", "partition"),
            "max_attempts": self.max_attempts,
            "groups": {self.group},
            "attempt_gaps": True,
            # The messages of a batch are handled by one call.
            "waive": {"I06"} if self.orders["handler"] == "handle_batch" else (),
            **rules,
        }
        return check(history, **rules)

    async def _read_partition(self, reader: Recorder, index: int) -> None:
        stream = PartitionKeys.of(self.app.redis.keys, TOPIC, index).stream
        facts = await self._group_facts(stream)
        delivered = _numbers(facts[b"last-delivered-id"])
        pending = set()
        if facts[b"pending"]:
            rows = await self.app.redis.call(
                "XPENDING", stream, self.group, "-", "+", facts[b"pending"]
            )
            pending = {row[0] for row in rows}
        for id_, fields in await self.app.redis.call("XRANGE", stream, "-", "+"):
            entry = dict(zip(fields[::2], fields[1::2], strict=True))
            if is_marker(fields):
                continue
            about = {
                "partition": index,
                "msg": id_.decode(),
                "key": entry.get(b"key", b"").decode(),
                "payload_hash": payload_hash(entry[b"payload"]),
            }
            reader.write("final", place="log", **about)
            if _numbers(id_) > delivered:
                reader.write("final", place="stream", group=self.group, **about)
            elif id_ in pending:
                reader.write("final", place="pending", group=self.group, **about)


def _numbers(id_: bytes) -> tuple[int, int]:
    milliseconds, _, number = id_.partition(b"-")
    return int(milliseconds), int(number)
