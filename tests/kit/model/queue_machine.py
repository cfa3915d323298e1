"""What death and people do to a queue, beside its producers and workers."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from penstock.errors import JobMissing

from .queue_truth import FAIR, FINAL, Known
from .queue_work import ATTEMPTS, QueueWork, number


class QueueMachine(QueueWork):
    """Each rule does one thing to the server and the same to the model."""

    # ---- death

    @precondition(lambda self: self.truth.live)
    @rule(which=number, leaves=st.booleans())
    def end(self, which: int, leaves: bool) -> None:
        """Leave with jobs in hand, or fall silent."""
        worker = self._live(which)
        self.truth.live.discard(worker)
        self.truth.gone.add(worker)
        hand = self.hands[worker]
        if leaves:
            self.do(hand.membership.leave())
        else:
            self.do(self.app.redis.call("ZADD", self.keys.workers, 1, worker))
            self.do(self.scripts.find_dead(keys=self.keys, silence_ms=1_000_000))
            assert self.do(self.scripts.beat_queue(keys=self.keys, worker=worker)) == 0
        stale = self.do(
            self.scripts.claim_jobs(keys=self.keys, worker=worker, first=900, most=3, done=["1"])
        )
        assert stale is None
        self.truth.counts["stale"] += 1

    @precondition(lambda self: self.truth.gone)
    @rule()
    def reap(self) -> None:
        truth = self.truth
        order = [one.decode() for one in self._dead_workers()]
        returned = self.do(self.reaper.reap(1))
        held = {worker: truth.held_by(worker) for worker in order}
        assert returned == sum(map(len, held.values()))
        for jobs in held.values():
            back = list[Known]()
            for job in reversed(jobs):  # the last claimed first
                if not job.crashes:
                    job.attempts, job.crashes, job.is_new = job.attempts + 1, 1, False
                    if job.attempts >= ATTEMPTS:
                        self._dead(job)
                        continue
                back.insert(0, job)
                truth.counts["reaped"] += 1
            truth.to_front(back)
        truth.gone.clear()
        assert self._dead_workers() == []

    # ---- people

    @precondition(lambda self: self.truth.jobs)
    @rule(which=number)
    def cancel(self, which: int) -> None:
        truth = self.truth
        job = list(truth.jobs.values())[which % len(truth.jobs)]
        if not job.status:
            try:
                self.do(self.app.queues.cancel("mail", job.id))
            except JobMissing:
                return
            raise AssertionError("a job without a record was cancelled")
        self.do(self.app.queues.cancel("mail", job.id))
        if job.status in FINAL or job.status == "processing":
            return
        job.turn("cancelled")
        truth.free(job)
        truth.counts["cancelled"] += 1
        if job.place == "delayed":
            job.place = "gone"
            truth.due = [id_ for id_ in truth.due if id_ != job.id]

    @precondition(lambda self: self.truth.letters)
    @rule()
    def requeue(self) -> None:
        truth = self.truth
        self.do(self.letters.replay())
        truth.counts["requeued"] += len(truth.letters)
        for job in (truth.jobs[id_] for id_ in truth.letters):
            job.place, job.attempts, job.crashes, job.is_new = "waiting", 0, 0, False
            job.status = "queued" if job.status else ""
            truth.lists[job.lane].append(job.id)
            if job.unique:
                truth.uniques.setdefault(job.unique, job.id)
        truth.letters.clear()

    @rule(lane=st.sampled_from(("high", *FAIR)))
    def purge(self, lane: str) -> None:
        gone = [self.truth.jobs[id_] for id_ in self.truth.lists[lane]]
        assert self.do(self.app.queues.purge("mail", lane)) == len(gone)
        self.truth.lists[lane].clear()
        self.truth.counts["purged"] += len(gone)
        for job in gone:
            job.place = "gone"
            job.turn("cancelled")
            self.truth.free(job)

    @rule(lane=st.sampled_from((None, "high", *FAIR)), again=st.booleans())
    def pause_or_resume(self, lane: str | None, again: bool) -> None:
        was = lane in self.paused
        if again:
            assert self.do(self.app.queues.resume("mail", lane)) == was or lane in FAIR
            self.paused.discard(lane)
        else:
            assert self.do(self.app.queues.pause("mail", lane)) != was
            self.paused.add(lane)

    @rule(limit=st.sampled_from((0, 3, 5)))
    def set_limit(self, limit: int) -> None:
        self.do(self.app.queues.set_limits("mail", limit=limit))
        self.limit = limit

    def _dead_workers(self) -> list[bytes]:
        return self.do(self.app.redis.call("ZRANGE", self.keys.dead_workers, 0, -1))
