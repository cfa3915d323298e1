"""Real consumer processes around one topic, what befalls them, and the verdict in the end."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from penstock import Penstock
from penstock.errors import OutcomeUnknown, PenstockError
from penstock.settings import Settings, TimeoutSettings, TopicSettings, WorkerSettings
from penstock.testing.eventually import eventually
from penstock.testing.history import Recorder, Verdict, check, payload_hash, read_history
from penstock.topics.message import is_marker

WORKER = Path(__file__).parent / "worker.py"
FAULTS = Path(__file__).parents[1]
_SEARCHED = [path for path in [os.environ.get("PYTHONPATH")] if path]
TOPIC, GROUP = "orders", "billing"
LEASE_S = 1.0


class Launcher:
    """The process that forks workers: they start in milliseconds, with all imports done."""

    def __init__(self, worker: Path = WORKER) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(FAULTS), *_SEARCHED))},
        )
        self._started: list[int] = []
        self.codes: dict[int, int] = {}
        self._told = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            facts = json.loads(line)
            with self._told:
                if "started" in facts:
                    self._started.append(facts["started"])
                else:
                    self.codes[facts["ended"]] = facts["code"]
                self._told.notify_all()

    def start(self, told: dict) -> int:
        """Start a worker; its process id."""
        self._process.stdin.write(json.dumps(told).encode() + b"\n")
        self._process.stdin.flush()
        with self._told:
            assert self._told.wait_for(lambda: self._started, timeout=20)
            return self._started.pop()

    def close(self) -> None:
        self._process.stdin.close()  # its children die with it
        self._process.wait(10)
        self._reader.join(10)
        self._process.stdout.close()


class Hand:
    """One worker process."""

    def __init__(self, crew: Crew, actor: str, pid: int) -> None:
        self._crew, self.actor, self.pid = crew, actor, pid
        self._file = crew.folder / f"{actor}.counts"

    @property
    def code(self) -> int | None:
        """How it has ended: an exit code, or a signal's number below zero."""
        return self._crew.launcher.codes.get(self.pid)

    @property
    def log(self) -> str:
        return (self._crew.folder / f"{self.actor}.log").read_text()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def kill(self) -> None:
        self._crew.nemesis.write("lose", victim=self.actor)
        self.signal(signal.SIGKILL)
        await self.ended()

    def freeze(self) -> None:
        self._crew.nemesis.write("lose", victim=self.actor)
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    async def ended(self, within_s: float = 20.0) -> int:
        """Wait for its end; how it ended."""
        await eventually(lambda: self.code is not None, within_s, what=f"the end of {self.actor}")
        return self.code

    async def stop(self) -> dict:
        """Let it end in good order; what it has counted."""
        up = self._file.with_suffix(".up")
        await eventually(lambda: up.exists() or self.code is not None, 10, what=f"{self.actor}")
        self.signal(signal.SIGTERM)
        code = await self.ended()
        assert code == 0, f"{self.actor} ended with {code}:\n{self.log[-5000:]}"
        return json.loads(self._file.read_text())

    async def counts(self) -> dict:
        """What it has counted by now."""
        self._file.unlink(missing_ok=True)
        self.signal(signal.SIGUSR1)
        await eventually(self._file.exists, what=f"counts of {self.actor}")
        return json.loads(self._file.read_text())


class Crew:
    """Workers, a producer and a nemesis; all of them write down what they do."""

    def __init__(self, launcher: Launcher, url: str, namespace: str, folder: Path, **options):
        self.launcher, self.url, self.folder = launcher, url, folder
        self.namespace = namespace
        self.partitions = options.pop("partitions", 4)
        self.max_attempts = options.pop("max_attempts", 5)
        self.subscription = options.pop("subscription", {})
        self.group = options.pop("group", GROUP)
        self.topic_settings = {
            "lease_ttl_s": LEASE_S,
            "balance_s": 0.05,
            "janitor_s": 0.5,
            "refresh_s": 0.2,
            **options.pop("topics", {}),
        }
        self.consumer_url = options.pop("consumer_url", url)
        durability = options.pop("durability", "accepted")
        self.options = {
            "work_s": 0.0,
            "backoff_s": 0.05,
            "handler": "handle",
            "clock_s": 0.0,
            "crash": "",
            "worker": {"poll_s": 0.2, "grace_s": 10.0},
            "timeouts": {"connect_s": 2.0, "command_s": 2.0},
            **options,
        }
        self.nemesis = Recorder(folder, "nemesis")
        self.recorder = Recorder(folder, "producer")
        self.app = Penstock(
            settings=Settings(
                url=url,
                namespace=namespace,
                topics=TopicSettings(**self.topic_settings),
                worker=WorkerSettings(**self.options["worker"]),
                timeouts=TimeoutSettings(**self.options["timeouts"]),
            )
        )
        self.topic = self.app.topic(TOPIC, partitions=self.partitions, durability=durability)
        self.hands: list[Hand] = []
        self.confirmed: list[tuple[int, str]] = []
        self._names = itertools.count(1)
        self._numbers = itertools.count(1)

    async def __aenter__(self):
        await self.app.open()
        await self.topic.facts()
        return self

    async def __aexit__(self, *_: object) -> None:
        for hand in self.hands:
            if hand.code is None:
                hand.signal(signal.SIGKILL)
                hand.signal(signal.SIGCONT)
        for hand in self.hands:
            await hand.ended()
        await self.app.close()
        self.nemesis.close()
        self.recorder.close()

    # ---- the workers

    async def hire(self, count: int = 1, **overrides) -> list[Hand]:
        """Start workers."""
        hired = []
        for _ in range(count):
            actor = f"worker-{next(self._names)}"
            told = {
                "url": self.consumer_url,
                "namespace": self.namespace,
                "folder": str(self.folder),
                "actor": actor,
                "topic": TOPIC,
                "group": self.group,
                "max_attempts": self.max_attempts,
                "subscription": self.subscription,
                "topics": self.topic_settings,
                **self.options,
                **overrides,
            }
            pid = await asyncio.to_thread(self.launcher.start, told)
            hired.append(Hand(self, actor, pid))
        self.hands += hired
        return hired

    async def owners(self) -> dict[int, Hand | None]:
        """Who owns each partition, as the server has it."""
        by_pid = {hand.pid: hand for hand in self.hands}
        owners = {}
        for index in range(self.partitions):
            lease = self.app.redis.keys.partition(TOPIC, index).lease(self.group)
            owner = await self.app.redis.call("GET", lease)
            owners[index] = None if owner is None else by_pid.get(int(owner.split(b"-")[-2]))
        return owners

    async def at_work(self, *hands: Hand, within_s: float = 15.0) -> None:
        """Wait until every partition has an owner, and each of these workers owns some."""

        async def shared():
            owners = set((await self.owners()).values())
            return None not in owners and owners >= set(hands)

        await eventually(shared, within_s, what="the workers to share the partitions")

    async def owned_by(self, hands: set[Hand], within_s: float = 15.0) -> None:
        """Wait until these workers own every partition, and nobody else owns any."""

        async def taken():
            return set((await self.owners()).values()) <= hands

        await eventually(taken, within_s, what="these workers to own all partitions")

    def recorded(self, op: str, phase: str) -> int:
        """How many such events all actors have written by now."""
        return sum(event.op == op and event.phase == phase for event in read_history(self.folder))

    async def handled_some(self, count: int) -> None:
        """Wait until so many runs have ended well."""
        await eventually(
            lambda: self.recorded("finish", "ok") >= count, 20, what=f"{count} messages handled"
        )

    # ---- the producer

    async def send(self, key: str | None = None, *, at: str = "", **orders) -> str | None:
        """Send one message; its id, or None if nobody knows."""
        payload = {"n": next(self._numbers), **orders}
        told = {"key": key or "", "payload_hash": payload_hash(self.topic._sender.encode(payload))}
        if at:
            told["idem"] = at
        call = self.recorder.write("send", "invoke", **told)
        try:
            id_ = await self.topic.send(payload, key=key, idempotency_key=at or None)
        except PenstockError as error:
            phase = "unknown" if isinstance(error, OutcomeUnknown) else "fail"
            self.recorder.write("send", phase, call=call, detail=type(error).__name__)
            if phase == "fail":
                raise
            return None
        place = self.partition_of(key, at)
        self.recorder.write("send", "ok", call=call, partition=place, msg=id_.partition("-")[2])
        self.confirmed.append((place, id_))
        return id_

    async def make_topic_again(self) -> None:
        """Create the topic after it has gone: sending to it does not."""
        await self.app.topics.create(TOPIC, self.partitions)

    def partition_of(self, key: str | None, idem: str = "") -> int:
        if key is None:
            raise ValueError("the tests send with keys, so that the partition is known")
        return self.topic._sender.partitioner.partition(key, self.partitions)

    async def send_many(self, count: int, *, keys: int = 40, lanes: int = 8, seed: int = 0, **rest):
        """Send `count` messages under `keys` keys, each key in order; some fail at first.

        `rest` may give a `pace_s` between the messages of a lane.
        """
        pace_s = rest.pop("pace_s", 0.0)
        chance = random.Random(seed)  # noqa: S311  repeatable, not secret
        orders = [self._some_orders(chance, **rest) for _ in range(count)]

        async def lane(number: int) -> None:
            for place in range(number, count, lanes):
                await self.send(
                    f"key-{place % lanes}-{place // lanes % (keys // lanes)}", **orders[place]
                )
                if pace_s:
                    await asyncio.sleep(pace_s)

        await asyncio.gather(*(lane(number) for number in range(lanes)))

    @staticmethod
    def _some_orders(chance: random.Random, *, failing: float = 0.02, dying: float = 0.0) -> dict:
        drawn = chance.random()
        if drawn < failing:
            return {"fail": True, "attempts": 1}
        return {"dead": True} if drawn < failing + dying else {}

    def key_in(self, partition: int) -> str:
        """A key that lands in the partition."""
        names = (f"fixed-{number}" for number in itertools.count())
        return next(name for name in names if self.partition_of(name) == partition)

    # ---- the end

    async def left(self) -> int:
        """Messages that the group has not settled yet."""
        left = 0
        for index in range(self.partitions):
            stream = self.app.redis.keys.partition(TOPIC, index).stream
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

    async def drained(self, within_s: float = 30.0) -> None:
        """Wait until all that was sent is settled."""

        async def nothing_left():
            try:
                return await self.left() == 0
            except PenstockError:
                return False

        try:
            await eventually(nothing_left, within_s, what="all messages to be settled")
        except AssertionError:
            logs = "\n".join(
                f"--- {hand.actor} ({hand.code}):\n{hand.log[-1500:]}" for hand in self.hands[-4:]
            )
            raise AssertionError(
                f"{await self.left()} messages left after {within_s:g} s; "
                f"owners {await self.owners()}\n{logs}"
            ) from None

    async def dismiss(self) -> Counter:
        """Let all workers end in good order; the sum of what they have counted."""
        total: Counter = Counter()
        for hand in self.hands:
            if hand.code is None:
                counted = await hand.stop()
                total.update({k: v for k, v in counted.items() if type(v) is int})
        return total

    async def verdict(self, **rules) -> Verdict:
        """Read all that is stored, and check what was recorded."""
        call = self.app.redis.call
        with Recorder(self.folder, "reader") as reader:
            for index in range(self.partitions):
                await self._read_partition(reader, index)
            letters = await call("XRANGE", self.app.redis.keys.topic(TOPIC).dlq, "-", "+")
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
        self._nothing_is_both_handled_and_dead(history)
        rules = {
            "ordering": self.subscription.get("ordering", "partition"),
            "max_attempts": self.max_attempts,
            "groups": {self.group},
            "attempt_gaps": True,
            # The messages of a batch are handled by one call.
            "waive": {"I06"} if self.options["handler"] == "handle_batch" else (),
            **rules,
        }
        return check(history, **rules)

    async def _read_partition(self, reader: Recorder, index: int) -> None:
        stream = self.app.redis.keys.partition(TOPIC, index).stream
        facts = await self._group_facts(stream)
        delivered = _numbers(facts[b"last-delivered-id"])
        pending = set()
        if facts[b"pending"]:
            rows = await self.app.redis.call(
                "XPENDING", stream, self.group, "-", "+", facts[b"pending"]
            )
            pending = {row[0] for row in rows}
        for id_, fields in await self.app.redis.call("XRANGE", stream, "-", "+"):
            told = dict(zip(fields[::2], fields[1::2], strict=True))
            if is_marker(fields):
                continue
            about = {
                "partition": index,
                "msg": id_.decode(),
                "key": told.get(b"key", b"").decode(),
                "payload_hash": payload_hash(told[b"payload"]),
            }
            reader.write("final", place="log", **about)
            if _numbers(id_) > delivered:
                reader.write("final", place="stream", group=self.group, **about)
            elif id_ in pending:
                reader.write("final", place="pending", group=self.group, **about)

    @staticmethod
    def _nothing_is_both_handled_and_dead(history) -> None:
        """A dead letter and an accepted acknowledgement would be two fates of one message."""
        dead = {
            (event.partition, event.msg)
            for event in history
            if event.op == "final" and event.place == "dlq"
        }
        calls = {
            (event.pid, event.seq): event
            for event in history
            if event.op == "ack" and event.phase == "invoke"
        }
        for event in history:
            if event.op == "ack" and event.phase == "accepted":
                about = calls[event.pid, event.call]
                assert (about.partition, about.msg) not in dead, f"handled and dead: {about}"


def _numbers(id_: bytes) -> tuple[int, int]:
    milliseconds, _, number = id_.partition(b"-")
    return int(milliseconds), int(number)


def since(moment: float) -> float:
    return time.monotonic() - moment
