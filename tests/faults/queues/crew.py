"""Real worker processes around one queue, what befalls them, and the verdict in the end."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections import Counter
from pathlib import Path

import msgspec

from penstock import Penstock
from penstock.delivery.retries import Fixed, RetryPolicy
from penstock.errors import OutcomeUnknown, PenstockError
from penstock.queues.in_hand import read_claims
from penstock.queues.items import read_item
from penstock.queues.letters import QueueLetter, read_letter
from penstock.settings import QueueSettings, Settings, TimeoutSettings, WorkerSettings
from penstock.testing.eventually import eventually
from penstock.testing.history import Event, Recorder, Verdict, check, payload_hash, read_history

from ..topics.crew import Hand, Launcher  # noqa: TID252  the tests are no installed package

WORKER = Path(__file__).parent / "worker.py"
QUEUE, TASK = "work", "fault.job"
SILENCE_S, BEAT_S = 0.5, 0.1
LANES = ({}, {"priority": "high"}, {"priority": "low"}, {"group": "ann"}, {"group": "bob"})


class Crew:
    """Workers, a producer and a nemesis; all of them write down what they do.

    `kind` is "plain", "status" (each job has a record) or "lanes" (priorities and fair groups).
    """

    def __init__(
        self, launcher: Launcher, url: str, namespace: str, folder: Path, kind="plain", **options
    ):
        self.launcher, self.url, self.folder = launcher, url, folder
        self.namespace, self.kind = namespace, kind
        self.max_attempts = options.pop("max_attempts", 5)
        self.queue_options = {"status": kind == "status", "max_size": 0, **options.pop("queue", {})}
        self.queue_settings = {
            "silence_s": SILENCE_S,
            "beat_s": BEAT_S,
            "poll_s": 0.05,
            **options.pop("queues", {}),
        }
        self.worker_url = options.pop("worker_url", url)
        self.options = {
            "work_s": 0.0,
            "backoff_s": 0.05,
            "handler": "handle",
            "isolate": None,
            "timeout_s": None,
            "clock_s": 0.0,
            "crash": "",
            "deadly": (),
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
                queues=QueueSettings(**self.queue_settings),
                worker=WorkerSettings(**self.options["worker"]),
                timeouts=TimeoutSettings(**self.options["timeouts"]),
            )
        )
        self.queue = self.app.queue(QUEUE, **self.queue_options)
        self.keys = self.queue.keyring
        policy = RetryPolicy(
            max_attempts=self.max_attempts, backoff=Fixed(self.options["backoff_s"])
        )
        self.task = self.app.task(queue=self.queue, name=TASK, retry=policy)(_not_here)
        self.hands: list[Hand] = []
        self.confirmed: list[str] = []
        self._names = itertools.count(1)
        self._numbers = itertools.count(1)

    async def __aenter__(self):
        await self.app.open()
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
                "url": self.worker_url,
                "namespace": self.namespace,
                "folder": str(self.folder),
                "actor": actor,
                "max_attempts": self.max_attempts,
                "queue": self.queue_options,
                "queues": self.queue_settings,
                **self.options,
                **overrides,
            }
            pid = await asyncio.to_thread(self.launcher.start, told)
            hired.append(Hand(self, actor, pid))
        self.hands += hired
        return hired

    async def names(self) -> list[str]:
        """The live members of the queue, as the server has them."""
        return [
            name.decode() for name in await self.app.redis.call("ZRANGE", self.keys.workers, 0, -1)
        ]

    async def members(self) -> list[Hand]:
        """The workers that are members of the queue, as the server has it."""
        by_pid = {hand.pid: hand for hand in self.hands}
        pids = [int(name.rpartition(".")[0].split("-")[-2]) for name in await self.names()]
        return [by_pid[pid] for pid in pids if pid in by_pid]

    async def at_work(self, *hands: Hand, within_s: float = 15.0) -> None:
        """Wait until these workers are members of the queue."""

        async def joined():
            return set(await self.members()) >= set(hands)

        await eventually(joined, within_s, what="the workers to join the queue")

    def events(self, op: str, phase: str = "", actor: str = "") -> list[Event]:
        """What all actors, or one, have written by now."""
        return [
            event
            for event in read_history(self.folder)
            if event.op == op
            and (not phase or event.phase == phase)
            and (not actor or event.actor == actor)
        ]

    def starts_of(self, job_id: str) -> list[Event]:
        return [event for event in self.events("start") if event.msg == job_id]

    async def started(self, job_id: str, times: int = 1) -> Event:
        """Wait until a job was started so often; its last start."""

        def there():
            found = self.starts_of(job_id)
            return found[-1] if len(found) >= times else None

        return await eventually(there, 15, what=f"start {times} of {job_id}")

    async def handled_some(self, count: int) -> None:
        """Wait until so many runs have ended well."""
        await eventually(
            lambda: len(self.events("finish", "ok")) >= count, 20, what=f"{count} jobs done"
        )

    # ---- the producer

    async def send(self, *, where: dict | None = None, **orders) -> str | None:
        """Send one job; its id, or None if nobody knows."""
        number = next(self._numbers)
        orders = {"n": number, **orders}
        if where is None:
            where = LANES[number % len(LANES)] if self.kind == "lanes" else {}
        call = self.recorder.write(
            "send", "invoke", payload_hash=payload_hash(msgspec.json.encode(orders))
        )
        try:
            sender = self.task.with_options(**where) if where else self.task
            job = await sender.send(orders)
        except PenstockError as error:
            phase = "unknown" if isinstance(error, OutcomeUnknown) else "fail"
            self.recorder.write("send", phase, call=call, detail=type(error).__name__)
            if phase == "fail":
                raise
            return None
        self.recorder.write("send", "ok", call=call, partition=0, msg=job.id)
        self.confirmed.append(job.id)
        return job.id

    async def send_many(self, count: int, *, seed: int = 0, pace_s: float = 0.0, **rest) -> None:
        """Send `count` jobs, eight at a time; some fail at first, some for good."""
        chance = random.Random(seed)  # noqa: S311  repeatable, not secret
        orders = [self._some_orders(chance, **rest) for _ in range(count)]

        async def lane(number: int) -> None:
            for place in range(number, count, 8):
                await self.send(**orders[place])
                if pace_s:
                    await asyncio.sleep(pace_s)

        await asyncio.gather(*(lane(number) for number in range(8)))

    @staticmethod
    def _some_orders(
        chance: random.Random, *, failing: float = 0.02, dying: float = 0.0, **orders
    ) -> dict:
        drawn = chance.random()
        if drawn < failing:
            return {"fail": True, "attempts": 1, **orders}
        return {"dead": True, **orders} if drawn < failing + dying else orders

    # ---- the end

    async def left(self) -> int:
        """Jobs that wait, are not yet due, or are in hand."""
        facts = await self.app.queues.facts(QUEUE)
        return facts.waiting + facts.delayed + facts.claimed

    async def drained(self, within_s: float = 30.0) -> None:
        """Wait until all that was sent has come to its end."""

        async def nothing_left():
            try:
                # Twice: a job may move to where was looked already.
                return await self.left() == 0 == await self.left()
            except PenstockError:
                return False

        try:
            await eventually(nothing_left, within_s, what="all jobs to end")
        except AssertionError:
            logs = "\n".join(
                f"--- {hand.actor} ({hand.code}):\n{hand.log[-1500:]}" for hand in self.hands[-4:]
            )
            facts = await self.app.queues.facts(QUEUE)
            raise AssertionError(f"jobs left after {within_s:g} s: {facts}\n{logs}") from None

    async def dismiss(self) -> Counter:
        """Let all workers end in good order; the sum of what they have counted."""
        total: Counter = Counter()
        for hand in self.hands:
            if hand.code is None:
                counted = await hand.stop()
                total.update({k: v for k, v in counted.items() if type(v) is int})
        return total

    async def letters(self) -> list[QueueLetter]:
        stored = await self.app.redis.call("LRANGE", self.keys.dead_letters, 0, -1)
        return [read_letter(data) for data in stored]

    async def counters(self) -> dict[str, int]:
        """What the queue itself has counted."""
        told = await self.app.redis.call("HGETALL", self.keys.counters)
        return {
            name.decode(): int(value) for name, value in zip(told[::2], told[1::2], strict=True)
        }

    async def verdict(self, **rules) -> Verdict:
        """Read all that is stored, and check what was recorded."""
        with Recorder(self.folder, "reader") as reader:
            await self._read_final(reader)
        history = read_history(self.folder)
        self._nothing_is_both_done_and_dead(history)
        rules = {
            "ordering": "none",
            "max_attempts": self.max_attempts,
            "groups": {QUEUE},
            # A job that a dead worker had claimed ahead is charged for it once.
            "attempt_gaps": True,
            **rules,
        }
        return check(history, **rules)

    async def hold(self, within_s: float = 30.0, **rules) -> Verdict:
        """Wait for the end, dismiss the workers, and check that every promise was kept."""
        await self.drained(within_s)
        await self.only_living_members()
        self.counted = await self.dismiss()
        verdict = await self.verdict(**rules)
        assert verdict.ok, str(verdict)
        assert verdict.counts.lost == 0
        await self.nothing_is_held()
        if self.kind == "status":
            await self._records_are_final()
        return verdict

    async def only_living_members(self) -> None:
        """Wait until those that have died are noticed, also where they had nothing in hand."""

        async def known():
            living = {hand for hand in self.hands if hand.code is None}
            given_up = await self.app.redis.call("ZCARD", self.keys.dead_workers)
            return set(await self.members()) <= living and (given_up == 0 or not living)

        await eventually(known, 10, what="the dead to be noticed")

    async def nothing_is_held(self) -> None:
        """After the last worker has left, nothing is in anybody's hands."""
        call, keys = self.app.redis.call, self.keys
        assert await call("ZRANGE", keys.dead_workers, 0, -1) == []
        if not self.app.redis.keys.cluster:
            for beginning in (keys.claims, keys.runnings):
                assert await call("KEYS", f"{beginning}*") == []

    async def _records_are_final(self) -> None:
        states = Counter()
        for state in ("submitted", "queued", "processing", "retrying", "done", "failed"):
            states[state] = await self.app.redis.call("ZCARD", self.keys.jobs(state))
        open_ones = {state: count for state, count in states.items() if count}
        assert set(open_ones) <= {"done", "failed"}, open_ones
        for job_id in self.confirmed:
            record = await self.app.queues.job(QUEUE, job_id)
            assert record.status in {"done", "failed"}, record

    async def _read_final(self, reader: Recorder) -> None:
        call, keys = self.app.redis.call, self.keys
        facts = await self.app.queues.facts(QUEUE)
        for lane in ("", "high", "normal", "low", *(keys.lane(one["group"]) for one in LANES[3:])):
            for data in await call("LRANGE", keys.list_of(lane), 0, -1):
                self._place(reader, "stream", data)
        for body in (await call("HGETALL", keys.delayed_bodies))[1::2]:
            self._place(reader, "retry", body.partition(b"\n")[2])
        dead = [name.decode() for name in await call("ZRANGE", keys.dead_workers, 0, -1)]
        for worker in (*await self.names(), *dead):
            for data in (await call("HGETALL", keys.claimed(worker)))[1::2]:
                self._place(reader, "pending", data)
        for letter in await self.letters():
            reader.write(
                "final",
                place="dlq",
                group=QUEUE,
                partition=0,
                msg=letter.job_id,
                payload_hash=_hash_of(letter.job),
                attempt=letter.attempts,
                detail=letter.reason,
            )
        assert facts.dead_letters == len(await self.letters())

    def _place(self, reader: Recorder, place: str, data: bytes) -> None:
        item = read_item(data, self.app.codec)
        about = {"group": QUEUE, "partition": 0, "msg": item.id}
        reader.write("final", place=place, payload_hash=_hash_of(item.body), **about)

    @staticmethod
    def _nothing_is_both_done_and_dead(history) -> None:
        """A dead letter and an accepted acknowledgement would be two fates of one job."""
        dead = {event.msg for event in history if event.op == "final" and event.place == "dlq"}
        calls = {
            (event.pid, event.seq): event
            for event in history
            if event.op == "ack" and event.phase == "invoke"
        }
        for event in history:
            if event.op == "ack" and event.phase == "accepted":
                about = calls[event.pid, event.call]
                assert about.msg not in dead, f"done and dead: {about}"


async def claims_of(crew: Crew, worker: str) -> list:
    return await read_claims(crew.app.redis, crew.app.codec, crew.keys, worker, 1_000)


def _hash_of(job: bytes) -> str:
    """What stands for the bytes of a job: its arguments, as they were given."""
    return payload_hash(msgspec.json.encode(msgspec.json.decode(job)["args"][0]))


async def _not_here(orders: dict) -> int:
    raise AssertionError("jobs run in the worker processes")
