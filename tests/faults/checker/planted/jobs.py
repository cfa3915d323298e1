"""A queue in miniature, on plain Redis commands, that keeps its promises, and its planted bugs.

A job is a text on a list: its id, how often it was tried, and its payload. The planted bugs are
subclasses that do one thing in the wrong way, as people do. A crash is an exception at a failpoint.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.kit.history import Recorder, Verdict, check, payload_hash, read_history

from penstock.redis.client import Client

from .miniature import Crash, WorkFailed

QUEUE = "work"
MAX_ATTEMPTS = 3
ABOUT = {"group": QUEUE, "partition": 0}

CLAIM = """
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 then return -1 end
local job = redis.call('LPOP', KEYS[3])
if job then redis.call('HSET', KEYS[2], string.match(job, '^[^ ]+'), job) end
return job
"""
END = """
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 then return -1 end
redis.call('HDEL', KEYS[2], ARGV[2])
if ARGV[3] ~= '' then redis.call('RPUSH', KEYS[3], ARGV[3]) end
return 1
"""
REAP = """
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
  redis.call('LPUSH', KEYS[2], ARGV[2])
end
"""


class Job:
    """A job as a worker got it."""

    def __init__(self, stored: bytes, fence: int = 0):
        self.id, attempts, self.payload = stored.decode().split(" ", 2)
        self.attempts = int(attempts)
        self.fence = fence

    @property
    def attempt(self):
        return self.attempts + 1

    @property
    def told(self):
        return {**ABOUT, "msg": self.id, "payload_hash": payload_hash(self.payload.encode())}

    def tried(self, reason=""):
        """The job after one more attempt."""
        return f"{self.id} {self.attempt} {self.payload}{reason and ' ' + reason}"


class JobStage:
    """A server, the keys of the queue, and the history of those who act on it."""

    def __init__(self, client: Client, namespace: str, folder: Path) -> None:
        self.call, self.folder = client.call, folder
        for name in ("live", "list", "dlq"):
            setattr(self, name, f"{{{namespace}}}:{name}")
        self.recorders: dict[str, Recorder] = {}
        self.names = itertools.count(1)
        self.workers: list[JobWorker] = []

    def claims(self, worker):
        return f"{self.live}:{worker}"

    def recorder(self, actor):
        if actor not in self.recorders:
            self.recorders[actor] = Recorder(self.folder, actor)
        return self.recorders[actor]

    def close(self):
        for recorder in self.recorders.values():
            recorder.close()

    async def script(self, text, keys, *arguments):
        return await self.call("EVAL", text, len(keys), *keys, *arguments)

    async def push(self, *payloads):
        producer = self.recorder("producer")
        for payload in payloads:
            id_ = f"job-{payload}"
            call = producer.write("send", "invoke", payload_hash=payload_hash(payload.encode()))
            await self.call("RPUSH", self.list, f"{id_} 0 {payload}")
            producer.write("send", "ok", call=call, partition=0, msg=id_)

    async def hire(self, make, **options):
        worker = make(self, **options)
        self.workers.append(worker)
        await self.call("SADD", self.live, worker.name)
        return worker

    async def work(self, make, **options):
        """Let a worker do all there is; if it crashes, it is noticed and its jobs come back."""
        worker = await self.hire(make, **options)
        try:
            while await worker.run_one():
                pass
        except Crash:
            await self.bury_the_dead(worker)

    async def bury_the_dead(self, worker):
        """Give a worker up; what it had in hand comes back."""
        self.recorder("nemesis").write("lose", victim=worker.name)
        await self.call("SREM", self.live, worker.name)
        await worker.reap(worker.name)

    async def verdict(self) -> Verdict:
        reader = self.recorder("reader")
        for stored in await self.call("LRANGE", self.list, 0, -1):
            reader.write("final", place="stream", **Job(stored).told)
        for worker in self.workers:
            for stored in await self.call("HVALS", self.claims(worker.name)):
                reader.write("final", place="pending", **Job(stored).told)
        for stored in await self.call("LRANGE", self.dlq, 0, -1):
            job = Job(stored)
            job.payload, _, reason = job.payload.partition(" ")
            reader.write("final", place="dlq", attempt=job.attempts, detail=reason, **job.told)
        history = read_history(self.folder)
        return check(history, max_attempts=MAX_ATTEMPTS, ordering="none", groups={QUEUE})


class JobWorker:
    """Claims, works, ends; and does it right."""

    def __init__(self, stage: JobStage, *, crash_at=None, fails=()):
        self.stage, self.crash_at, self.fails = stage, crash_at, fails
        self.name = f"worker-{next(stage.names)}"
        self.recorder = stage.recorder(self.name)
        self._fences = itertools.count(1)

    def point(self, name):
        """Where a crash may be planted."""
        if name == self.crash_at:
            raise Crash(name)

    @property
    def keys(self):
        return self.stage.live, self.stage.claims(self.name)

    async def run_one(self):
        """Work on one job; false if there is none."""
        job = await self.claim()
        if job is None:
            return False
        await self.run(job)
        return True

    async def claim(self):
        call = self.recorder.write("claim", "invoke")
        stored = await self.stage.script(CLAIM, (*self.keys, self.stage.list), self.name)
        if stored in {None, -1}:
            return None
        job = Job(stored, next(self._fences))
        self.recorder.write("claim", "ok", call=call, fence=job.fence, **job.told)
        return job

    async def run(self, job):
        try:
            self.handle(job)
        except WorkFailed as error:
            await self.failed(job, str(error))
        else:
            self.point("before_ack")
            await self.end("ack", job)

    def handle(self, job):
        self.start(job)
        self.finish(job)

    def start(self, job):
        self.recorder.write("start", attempt=job.attempt, **job.told)
        self.point("in_handler")

    def finish(self, job):
        failed = job.payload in self.fails
        phase = "fail" if failed else "ok"
        self.recorder.write("finish", phase, attempt=job.attempt, **job.told)
        if failed:
            raise WorkFailed("it-never-works")

    async def failed(self, job, reason):
        if job.attempt >= MAX_ATTEMPTS:
            await self.end("dead", job, self.stage.dlq, job.tried(reason))
        else:
            await self.end("retry", job, self.stage.list, job.tried())

    async def end(self, op, job, place=None, stored=""):
        """End a claim, and put the job elsewhere in the same step."""
        told = {"fence": job.fence, "attempt": job.attempt, **job.told}
        call = self.recorder.write(op, "invoke", **told)
        answer = await self.end_claim(job, place or self.stage.list, stored)
        phase = "accepted" if answer == 1 else "refused"
        self.recorder.write(op, phase, call=call, fence=job.fence)

    async def end_claim(self, job, place, stored):
        return await self.stage.script(END, (*self.keys, place), self.name, job.id, stored)

    async def reap(self, dead):
        """Return what a dead worker had, charged; what has no attempt left is buried."""
        claims = self.stage.claims(dead)
        for stored in await self.stage.call("HVALS", claims):
            job = Job(stored)
            is_over = job.attempt >= MAX_ATTEMPTS
            place = self.stage.dlq if is_over else self.stage.list
            new = job.tried("crashed" if is_over else "")
            await self.stage.script(REAP, (claims, place), job.id, new)


# ---- the planted bugs


class PopsJobs(JobWorker):
    """`LPOP`, and the job is nowhere until it is done."""

    async def claim(self):
        call = self.recorder.write("claim", "invoke")
        stored = await self.stage.call("LPOP", self.stage.list)
        if stored is None:
            return None
        job = Job(stored, next(self._fences))
        self.recorder.write("claim", "ok", call=call, fence=job.fence, **job.told)
        return job


class AcksBeforeWork(JobWorker):
    async def run(self, job):
        await self.end("ack", job)
        self.handle(job)


class CountsExceptionsOnly(JobWorker):
    """A crash leaves the count as it was."""

    async def reap(self, dead):
        claims = self.stage.claims(dead)
        for stored in await self.stage.call("HVALS", claims):
            await self.stage.script(REAP, (claims, self.stage.list), Job(stored).id, stored)


class CompletesWithoutFence(JobWorker):
    """Whoever has done the work says so, and is believed."""

    async def end_claim(self, job, place, stored):
        await self.stage.call("HDEL", self.stage.claims(self.name), job.id)
        return 1


class HidesForAWhile(JobWorker):
    """A claim ends by itself after a time, as if whoever works for longer were dead."""

    async def time_passes(self):
        await self.reap(self.name)


class ReadsThenMoves(JobWorker):
    """Reads what the dead had, queues it, and deletes it: two who do so queue it twice."""

    async def reap(self, dead):
        claims = self.stage.claims(dead)
        seen = await self.stage.call("HVALS", claims)
        for _ in ("one reaper", "and another"):
            for stored in seen:
                await self.stage.call("LPUSH", self.stage.list, Job(stored).tried())
        await self.stage.call("DEL", claims)


class QueuesRetryThenAcks(JobWorker):
    async def failed(self, job, reason):
        await self.stage.call("RPUSH", self.stage.list, job.tried())
        self.point("between_retry_and_ack")
        await self.end("ack", job)


class AcksThenQueuesRetry(JobWorker):
    async def failed(self, job, reason):
        await self.end("ack", job)
        self.point("between_ack_and_retry")
        await self.stage.call("RPUSH", self.stage.list, job.tried())


class BuriesAfterAck(JobWorker):
    async def failed(self, job, reason):
        if job.attempt < MAX_ATTEMPTS:
            await super().failed(job, reason)
            return
        await self.end("ack", job)
        self.point("between_ack_and_bury")
        await self.stage.call("RPUSH", self.stage.dlq, job.tried(reason))
