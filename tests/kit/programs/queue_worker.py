"""The worker process of the fault tests of queues; see `serving.py` for how it is started."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import time
from pathlib import Path

import msgspec
from tests.kit.history import Recorder, payload_hash
from tests.kit.programs.serving import MANY, compute, die, run_counted, serve, shift_clock
from tests.kit.programs.topic_worker import plant_crash
from tests.kit.scripts import scripts_of
from tests.kit.settings import settings_of

from penstock import Penstock, current_job
from penstock.delivery.retries import DeadLetter, Fixed, RetryPolicy
from penstock.errors import ServerError
from penstock.queues.isolation.pool import Isolation
from penstock.queues.storage.scripts import MoveReply
from penstock.queues.storage.stored_job import read_item
from penstock.queues.worker.claimed_jobs import ClaimedJob, ClaimedJobs
from penstock.queues.worker.job_context import JobContext

QUEUE, TASK = "work", "fault.job"
LIFE = 1_000_000_000  # more claims than a member of a queue ever makes


def told_by(orders: dict) -> str:
    """What stands for the bytes of a job."""
    return payload_hash(msgspec.json.encode(orders))


class Diary:
    """Writes down what a worker does: its words to the server are recorded where they are said."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._members: dict[str, ClaimedJobs] = {}
        self._granted: dict[int, ClaimedJob] = {}

    def about(self, job: JobContext, orders: dict) -> dict:
        return {
            "group": QUEUE,
            "partition": 0,
            "msg": job.id,
            "attempt": job.attempt,
            "payload_hash": told_by(orders),
        }

    def watch(self) -> None:
        """Stand before what a worker claims, and beside what it learns."""
        begin, claim = ClaimedJobs.__init__, ClaimedJobs.claim
        stop_all, write = ClaimedJobs._stop_all, self._recorder.write

        def begin_(claims: ClaimedJobs, *args, **options) -> None:
            begin(claims, *args, **options)
            self._members[claims.worker] = claims

        async def claim_(claims: ClaimedJobs, most: int) -> list[ClaimedJob]:
            call = write("claim", "invoke")
            jobs = await claim(claims, most)
            for job in jobs:
                about = self._claimed(claims, job)
                # A job whose acceptance was cut short by the watchdog is returned once more: the
                # same object. Two objects of one claim would be a fault.
                if self._granted.get(about["fence"]) is not job:
                    write("claim", "ok", call=call, **about)
                    self._granted[about["fence"]] = job
            return jobs

        def stop_all_(claims: ClaimedJobs) -> None:
            for job in claims.jobs.values():
                about = self._claimed(claims, job)
                write("lose", victim=self._recorder.actor, **about)
            stop_all(claims)

        ClaimedJobs.__init__, ClaimedJobs.claim = begin_, claim_
        ClaimedJobs._stop_all = stop_all_

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

    def _claimed(self, claims: ClaimedJobs, job: ClaimedJob) -> dict:
        number = int(job.claim.partition(":")[0])
        life = int(claims.worker.rpartition(".")[2])
        return {
            "group": QUEUE,
            "partition": 0,
            "msg": job.id,
            "fence": life * LIFE + number,
        }

    def _ends(self, op, worker, claims):
        """Begin to record ends."""
        claimed = self._members[worker]
        calls = []
        for claim in claims:
            job = claimed.jobs.get(claim)
            if job is not None:
                about = self._claimed(claimed, job)
                call = self._recorder.write(op, "invoke", attempt=job.attempt, **about)
                calls.append((op, call, about["fence"]))
        return calls

    async def _outcome(self, calls, asked):
        phase = ""
        try:
            reply = await asked
            phase = "refused" if reply in (None, MoveReply.GIVEN_UP) else "accepted"
            if (
                reply == MoveReply.NOT_CLAIMED
            ):  # not in hand any more: an earlier call did it whose answer was lost
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
        compute(meant.get("busy", 0.0))
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
        module = importlib.import_module(f"penstock.queues.{place}")
        name = "read_item" if hasattr(module, "read_item") else "read_claimed"
        setattr(module, name, read_and_die)


async def work(told: dict) -> int:
    with Recorder(Path(told["folder"]), told["actor"]) as recorder:
        app = Penstock(settings=settings_of(told))
        diary = Diary(recorder)
        diary.watch()
        diary.record(scripts_of(app.redis))
        plant_crash(scripts_of(app.redis), told["crash"])
        plant_poison(*told["deadly"])
        shift_clock(told["clock_s"])
        queue = app.queue(QUEUE, **told["queue"])
        tasks = Tasks(diary, recorder, told["work_s"])
        function = handle_apart if told["isolate"] else getattr(tasks, told["handler"])
        app.task(
            queue=queue,
            name=TASK,
            retry=RetryPolicy(max_attempts=told["max_attempts"], backoff=Fixed(told["backoff_s"])),
            timeout_s=told["timeout_s"],
            isolate=Isolation(**told["isolate"]) if told["isolate"] else False,
        )(function)
        queue.handler(getattr(tasks, told["handler"]))
        async with app:
            return await run_counted(
                app,
                told,
                lambda consumer: {"running": len(consumer.jobs), "trouble": consumer.trouble()},
            )


if __name__ == "__main__":
    serve(work)
