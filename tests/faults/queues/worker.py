"""The worker process of the fault tests of queues; see `topics/worker.py` for how it is started."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path

import msgspec
from topics.worker import MANY, plant_crash, serve, shift_clock

from penstock import Penstock, current_job
from penstock.delivery.retries import DeadLetter, Fixed, RetryPolicy
from penstock.errors import ServerError
from penstock.queues.context import JobContext
from penstock.queues.hand import Hand
from penstock.queues.isolation import Isolation
from penstock.queues.items import read_item
from penstock.settings import QueueSettings, Settings, TimeoutSettings, WorkerSettings
from penstock.testing.history import Recorder, payload_hash

QUEUE, TASK = "work", "fault.job"
LIFE = 1_000_000_000  # more claims than a member of a queue ever makes


def told_by(orders: dict) -> str:
    """What stands for the bytes of a job."""
    return payload_hash(msgspec.json.encode(orders))


class Diary:
    """Writes down what a worker does: its words to the server are recorded where they are said."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._hands: dict[str, Hand] = {}

    def about(self, job: JobContext, orders: dict) -> dict:
        return {
            "group": QUEUE,
            "partition": 0,
            "msg": job.id,
            "attempt": job.attempt,
            "payload_hash": told_by(orders),
        }

    def watch(self) -> None:
        """Stand before what the hand says, and beside what it learns."""
        begin, exchange, lose, write = Hand.__init__, Hand.exchange, Hand.lose, self._recorder.write

        def begin_(hand: Hand, *args, **options) -> None:
            begin(hand, *args, **options)
            self._hands[hand.worker] = hand

        async def exchange_(hand: Hand, most: int) -> list[JobContext]:
            call = write("claim", "invoke")
            jobs = await exchange(hand, most)
            for job in jobs:
                write("claim", "ok", call=call, **self._claimed(hand, job))
            return jobs

        def lose_(hand: Hand, refused: int) -> None:
            if not hand.lost:
                for job in hand.jobs.values():
                    told = self._claimed(hand, job)
                    write("lose", victim=self._recorder.actor, **told)
            lose(hand, refused)

        Hand.__init__, Hand.exchange, Hand.lose = begin_, exchange_, lose_

    def record(self, scripts) -> None:
        """Stand before the scripts that end jobs."""
        claim_jobs, finish_jobs = scripts.claim_jobs, scripts.finish_jobs
        retry_job, bury_job = scripts.retry_job, scripts.bury_job

        async def claim_jobs_(**options):
            calls = self._ends("ack", options["worker"], options["done"])
            return await self._outcome(calls, claim_jobs(**options))

        async def finish_jobs_(**options):
            calls = self._ends("ack", options["worker"], options["jobs"][::6])
            return await self._outcome(calls, finish_jobs(**options))

        async def retry_job_(**options):
            calls = self._ends("retry", options["worker"], [options["claim"]])
            return await self._outcome(calls, retry_job(**options))

        async def bury_job_(**options):
            calls = self._ends("dead", options["worker"], [options["claim"]])
            return await self._outcome(calls, bury_job(**options))

        scripts.claim_jobs, scripts.finish_jobs = claim_jobs_, finish_jobs_
        scripts.retry_job, scripts.bury_job = retry_job_, bury_job_

    def _claimed(self, hand: Hand, job: JobContext) -> dict:
        number = int(job.claim.partition(":")[0])
        life = int(hand.worker.rpartition(".")[2])
        return {
            "group": QUEUE,
            "partition": 0,
            "msg": job.id,
            "fence": life * LIFE + number,
        }

    def _ends(self, op, worker, claims):
        """Begin to record ends."""
        hand = self._hands[worker]
        calls = []
        for claim in claims:
            job = hand.jobs.get(claim)
            if job is not None:
                about = self._claimed(hand, job)
                call = self._recorder.write(op, "invoke", attempt=job.attempt, **about)
                calls.append((op, call, about["fence"]))
        return calls

    async def _outcome(self, calls, asked):
        phase = ""
        try:
            reply = await asked
            phase = "refused" if reply == -1 else "accepted"
            if reply == 0:  # not in hand any more: an earlier call did it whose answer was lost
                phase = "unknown"
        except ServerError:
            phase = "unknown"
            raise
        else:
            return reply
        finally:
            for op, call, fence in calls if phase else ():
                self._recorder.write(op, phase, call=call, fence=fence)


class Tasks:
    """Functions that do what the job asks for, and write down that they did."""

    def __init__(self, diary: Diary, recorder: Recorder, work_s: float) -> None:
        self._diary, self._write, self._work_s = diary, recorder.write, work_s

    async def handle(self, orders: dict) -> int:
        job = current_job()
        meant = self._begin(job, orders)
        try:
            if pause := meant.get("pause", self._work_s):
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            self._write("finish", "cancelled", **self._diary.about(job, orders))
            raise
        return self._end(job, orders, meant)

    def handle_in_thread(self, orders: dict) -> int:
        job = current_job()
        meant = self._begin(job, orders)
        if pause := meant.get("pause", self._work_s):
            deadline = time.monotonic() + pause
            while time.monotonic() < deadline:
                time.sleep(0.005)
                if job.cancelled and meant.get("obeys", True):
                    self._write("finish", "cancelled", **self._diary.about(job, orders))
                    job.raise_if_cancelled()
        return self._end(job, orders, meant)

    def _begin(self, job: JobContext, orders: dict) -> dict:
        self._write("start", **self._diary.about(job, orders))
        meant = orders if job.attempt <= orders.get("attempts", MANY) else {}
        die(meant)
        if meant.get("stop"):  # stands still in the middle of its work until it is continued
            os.kill(os.getpid(), signal.SIGSTOP)
        if busy := meant.get("busy"):  # computes, and lets nobody else run in its thread
            deadline = time.monotonic() + busy
            while time.monotonic() < deadline:
                pass
        if hold := meant.get("hold"):  # lets no other thread run either, as some C code does
            ctypes.PyDLL(None).usleep(int(hold * 1_000_000))
        return meant

    def _end(self, job: JobContext, orders: dict, meant: dict) -> int:
        if meant.get("fail"):
            self._write("finish", "fail", **self._diary.about(job, orders))
            raise RuntimeError("as ordered")
        if meant.get("dead"):
            self._write("finish", "fail", **self._diary.about(job, orders))
            raise DeadLetter("as ordered")
        self._write("finish", "ok", **self._diary.about(job, orders))
        return orders["n"]


def handle_apart(orders: dict) -> int:
    """Run in a child process, which has no diary."""
    with Path(orders["file"]).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    die(orders)
    if orders.get("memory"):
        return len(bytearray(orders["memory"]))
    time.sleep(orders.get("pause", 0))
    return orders["n"]


def plant_poison(text: str = "", *places: str) -> None:
    """Let the process end when it reads a job with this text, in one of these modules."""

    def read_and_die(data, codec):
        if text.encode() in data:
            os._exit(3)
        return read_item(data, codec)

    for place in places:
        importlib.import_module(f"penstock.queues.{place}").read_item = read_and_die


def die(meant: dict) -> None:
    if meant.get("exit"):
        os._exit(3)
    if meant.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if meant.get("segfault"):
        ctypes.string_at(0)


async def work(told: dict) -> int:
    settings = Settings(
        url=told["url"],
        namespace=told["namespace"],
        queues=QueueSettings(**told["queues"]),
        worker=WorkerSettings(**told["worker"]),
        timeouts=TimeoutSettings(**told["timeouts"]),
    )
    folder = Path(told["folder"])
    with Recorder(folder, told["actor"]) as recorder:
        app = Penstock(settings=settings)
        diary = Diary(recorder)
        diary.watch()
        diary.record(app.redis.scripts)
        plant_crash(app.redis.scripts, told["crash"])
        plant_poison(*told["deadly"])
        shift_clock(told["clock_s"])
        queue = app.queue(QUEUE, **told["queue"])
        tasks = Tasks(diary, recorder, told["work_s"])
        function = handle_apart if told["isolate"] else getattr(tasks, told["handler"])
        app.task(
            queue=queue,
            name=TASK,
            retry=RetryPolicy(max_attempts=told["max_attempts"], backoff=Fixed(told["backoff_s"])),
            timeout=told["timeout_s"],
            isolate=Isolation(**told["isolate"]) if told["isolate"] else False,
        )(function)
        queue.handler(getattr(tasks, told["handler"]))
        counts = keep_counts(folder / f"{told['actor']}.counts")
        async with app:
            worker = app.worker()
            counts.follow(worker._work)
            # After the first steps of the worker, which takes over the signals then.
            asyncio.get_running_loop().call_soon((folder / f"{told['actor']}.up").touch)
            try:
                return await worker.run(handle_signals=True)
            finally:
                counts.write()


class keep_counts:  # noqa: N801  reads as what it does
    """Leaves what the consumer has counted, and what troubles it, where the test can read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._consumers = []

    def follow(self, consumers) -> None:
        self._consumers = list(consumers)
        signal.signal(signal.SIGUSR1, lambda *_: self.write())

    def write(self) -> None:
        (consumer,) = self._consumers
        told = {
            **asdict(consumer.counts),
            "running": len(consumer.jobs),
            "trouble": consumer.trouble(),
            "cpu_s": time.process_time(),
        }
        scratch = self._path.with_suffix(".new")
        scratch.write_text(json.dumps(told))
        scratch.rename(self._path)


if __name__ == "__main__":
    serve(work)
