"""Real worker processes around one queue, what befalls them, and the verdict in the end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
from tests.kit.crews.worker_crew import Launcher, RecordedCrew, WorkerProcess
from tests.kit.history import Event, Recorder, Verdict, check, payload_hash, read_history
from tests.kit.settings import settings_of

from penstock import Penstock
from penstock.delivery.retries import Fixed, RetryPolicy
from penstock.queues.admin.claimed_jobs import read_claims
from penstock.queues.dead_letters.letter import QueueLetter, read_letter
from penstock.queues.storage.keys import lane_name
from penstock.queues.storage.stored_job import read_item
from penstock.testing.eventually import eventually

QUEUE, TASK = "work", "fault.job"
SILENCE_S, BEAT_S = 0.5, 0.1
LANES = ({}, {"priority": "high"}, {"priority": "low"}, {"group": "ann"}, {"group": "bob"})


class QueueCrew(RecordedCrew):
    """Workers of one queue, a producer and a nemesis; all of them record what they do.

    `kind` is "plain", "status" (each job has a record) or "lanes" (priorities and fair groups).
    """

    def __init__(
        self, launcher: Launcher, url: str, namespace: str, folder: Path, kind="plain", **options
    ):
        worker_url = options.pop("worker_url", url)
        queues = {"silence_s": SILENCE_S, "beat_s": BEAT_S, "poll_s": 0.05}
        orders = {
            "url": url,
            "namespace": namespace,
            "max_attempts": 5,
            "queue": {"status": kind == "status", "max_size": 0, **options.pop("queue", {})},
            "queues": {**queues, **options.pop("queues", {})},
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
        app = Penstock(settings=settings_of(orders))
        super().__init__(launcher, folder, app, {**orders, "url": worker_url})
        self.kind, self.max_attempts = kind, orders["max_attempts"]
        self.queue = app.queue(QUEUE, **orders["queue"])
        self.keys = self.queue.keyring
        policy = RetryPolicy(max_attempts=self.max_attempts, backoff=Fixed(orders["backoff_s"]))
        self.task = app.task(queue=self.queue, name=TASK, retry=policy)(_not_here)
        self.confirmed: list[str] = []

    # ---- the workers

    async def names(self) -> list[str]:
        """The live members of the queue, as the server has them."""
        return [
            name.decode() for name in await self.app.redis.call("ZRANGE", self.keys.workers, 0, -1)
        ]

    async def members(self) -> list[WorkerProcess]:
        """The workers that are members of the queue, as the server has it."""
        by_pid = {worker.pid: worker for worker in self.workers}
        pids = [int(name.rpartition(".")[0].split("-")[-2]) for name in await self.names()]
        return [by_pid[pid] for pid in pids if pid in by_pid]

    async def at_work(self, *workers: WorkerProcess, within_s: float = 60.0) -> None:
        """Wait until these workers are members of the queue."""

        async def joined():
            return set(await self.members()) >= set(workers)

        await eventually(joined, within_s, what="the workers to join the queue")

    def starts_of(self, job_id: str) -> list[Event]:
        return [event for event in self.events("start") if event.msg == job_id]

    async def started(self, job_id: str, times: int = 1) -> Event:
        """Wait until a job was started so often; its last start."""

        def there():
            found = self.starts_of(job_id)
            return found[-1] if len(found) >= times else None

        return await eventually(there, what=f"start {times} of {job_id}")

    # ---- the producer

    async def send(self, *, where: dict | None = None, **orders) -> str | None:
        """Send one job; its id, or None if nobody knows."""
        number = next(self._numbers)
        orders = {"n": number, **orders}
        if where is None:
            where = LANES[number % len(LANES)] if self.kind == "lanes" else {}
        sender = self.task.with_options(**where) if where else self.task
        job = await self.record_send(
            lambda: sender.send(orders),
            lambda job: {"partition": 0, "msg": job.id},
            payload_hash=payload_hash(msgspec.json.encode(orders)),
        )
        if job is None:
            return None
        self.confirmed.append(job.id)
        return job.id

    async def send_one(self, sender: int) -> None:
        await self.send()

    async def send_many(self, count: int, **options) -> None:
        """Send `count` jobs: see `send_at_once`."""
        await self.send_at_once(count, lambda _, orders: self.send(**orders), **options)

    # ---- the end

    async def left(self) -> int:
        """Jobs that wait, are not yet due, or are in hand."""
        facts = await self.app.queues.facts(QUEUE)
        return facts.waiting + facts.delayed + facts.claimed

    async def state(self) -> str:
        return str(await self.app.queues.facts(QUEUE))

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
        self.nothing_is_both_handled_and_dead(history)
        rules = {
            "ordering": "none",
            "max_attempts": self.max_attempts,
            "groups": {QUEUE},
            # A job that a dead worker had claimed ahead is charged for it once.
            "attempt_gaps": True,
            **rules,
        }
        return check(history, **rules)

    async def hold(self, within_s: float = 60.0, **rules) -> Verdict:
        verdict = await super().hold(within_s, **rules)
        await self.nothing_is_held()
        if self.kind == "status":
            await self._records_are_final()
        return verdict

    async def deaths_noticed(self) -> None:
        """Wait until those that have died are noticed, also where they had nothing in hand."""

        async def known():
            living = set(self.living)
            given_up = await self.app.redis.call("ZCARD", self.keys.dead_workers)
            return set(await self.members()) <= living and (given_up == 0 or not living)

        await eventually(known, what="the dead to be noticed")

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
        for lane in ("", "high", "normal", "low", *(lane_name(one["group"]) for one in LANES[3:])):
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


async def claims_of(crew: QueueCrew, worker: str) -> list:
    return await read_claims(crew.app.redis, crew.app.codec, crew.keys, worker, 1_000)


def _hash_of(job: bytes) -> str:
    """What stands for the bytes of a job: its arguments, as they were given."""
    return payload_hash(msgspec.json.encode(msgspec.json.decode(job)["args"][0]))


async def _not_here(orders: dict) -> int:
    raise AssertionError("jobs run in the worker processes")
