"""What producers and workers do to a queue, step by step on a real server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable
from typing import Any, ClassVar, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.kit.scripts import scripts_of

from penstock import Penstock, QueueFull, RetryPolicy
from penstock.delivery.retries import DeathReason
from penstock.queues.dead_letters.letter import build_letter
from penstock.queues.storage.stored_job import write_item
from penstock.queues.worker.claimed_jobs import ClaimedJobs, WorkerCounts
from penstock.queues.worker.job_context import JobContext
from penstock.queues.worker.job_ends import PASSED_OVER, JobEnd, bury, flush_ended, retry
from penstock.queues.worker.membership import Membership
from penstock.queues.worker.reaper import Reaper
from penstock.settings import QueueSettings, Settings

from .queue_truth import FAIR, FINAL, Known, Truth, check, look

T = TypeVar("T")
number = st.integers(0, 99)
MOST, MOST_ASIDE, LANE_LIMIT, ATTEMPTS = 4, 2, 2, 3
FAR_S = 3_600


class QueueWork(RuleBasedStateMachine):
    """Each rule does one thing to the server and the same to the model."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        settings = Settings(
            url=self.url,
            namespace=f"model-{uuid.uuid4().hex[:8]}",
            queues=QueueSettings(max_overflow=MOST_ASIDE, silence_s=600),
        )
        self.app = Penstock(settings=settings)
        self.truth = Truth()
        self.made = self.dues = self.limit = 0
        self.paused: set[str | None] = set()
        self.hands: dict[str, ClaimedJobs] = {}

    def do(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self.runner.run(wait())

    @initialize(
        policy=st.sampled_from(("reject", "dlq", "drop_oldest")),
        side=st.sampled_from(("right", "left")),
        backlog=st.lists(
            st.tuples(
                st.booleans(), st.sampled_from(("", "u", "v")), st.sampled_from(("", "low", "a"))
            ),
            min_size=4,
            max_size=9,
        ),
    )
    def create(self, policy: Any, side: Any, backlog: list[tuple[bool, str, str]]) -> None:
        """Begin in the middle of work: jobs wait, and two workers have some in hand."""
        self.do(self.app.open())
        self.do(self.app.redis.call("FLUSHALL"))
        self.policy, self.side = policy, side
        self.queue = self.app.queue(
            "mail",
            push=side,
            max_size=MOST,
            max_bytes=1_000_000,
            overflow=policy,
            lane_limit=LANE_LIMIT,
        )
        self.plain = self.app.task(queue="mail", name="plain")(_nothing)
        self.tracked = self.app.task(queue="mail", name="tracked", status=True)(_nothing)
        self.keys, self.scripts = self.queue.keyring, scripts_of(self.app.redis)
        self.letters = self.app.queues.dead_letters("mail")
        self.reaper = Reaper(
            self.app.redis,
            self.queue.codec,
            self.keys,
            lambda _: RetryPolicy(max_attempts=ATTEMPTS),
            WorkerCounts(),
        )
        for tracked, unique, lane in backlog:
            self.send(tracked=tracked, unique=unique, lane=lane, later=False)
        for place in range(2):
            self.join()
            self.claim(which=place, most=2, acks=0)

    def teardown(self) -> None:
        self.do(self.app.close())
        self.runner.close()

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        if self.hands:
            seen = self.do(look(self.queue))
            if self.side == "left":
                seen.lists = {lane: ids[::-1] for lane, ids in seen.lists.items()}
            check(self.truth, seen)

    # ---- producers

    @rule(
        tracked=st.booleans(),
        unique=st.sampled_from(("", "", "u", "v")),
        lane=st.sampled_from(("", "", "high", "low", *FAIR)),
        later=st.integers(0, 3).map(lambda roll: roll == 0),
    )
    def send(self, tracked: bool, unique: str, lane: str, later: bool) -> None:
        self.made += 1
        truth, id_ = self.truth, f"j{self.made}"
        words: dict[str, Any] = {"job_id": id_}
        words |= {"group": lane} if lane in FAIR else {"priority": lane} if lane else {}
        words |= {"unique": unique} if unique else {}
        words |= {"delay": FAR_S} if later else {}
        sender = (self.tracked if tracked else self.plain).with_options(**words)
        holder = truth.uniques.get(unique) if unique else None
        place = truth.at("delayed") if later else truth.lists[lane]
        makes_room = not later and (
            self.policy == "drop_oldest"
            or (self.policy == "dlq" and len(truth.overflow) < MOST_ASIDE)
        )
        if holder is None and len(place) >= MOST and not makes_room:
            truth.counts["rejected"] += 1
            try:
                self.do(sender.send())
            except QueueFull:
                return
            raise AssertionError("a full queue took a job")
        job = self.do(sender.send())
        assert (job.created, job.id) == (holder is None, holder or id_)
        if holder is not None:
            return
        if not later and len(place) >= MOST:
            self._lose(truth.jobs[truth.lists[lane].pop(0)])
        status = ("submitted" if later else "queued") if tracked else ""
        known = truth.jobs[id_] = Known(id_, lane, status, unique)
        truth.counts["added"] += 1
        if unique:
            truth.uniques[unique] = id_
        if later:
            known.place = "delayed"
        else:
            truth.lists[lane].append(id_)

    def _lose(self, job: Known) -> None:
        if self.policy == "dlq":
            self.truth.overflow.append(job.id)
        job.place = "overflow" if self.policy == "dlq" else "gone"
        self.truth.counts["overflowed" if self.policy == "dlq" else "dropped"] += 1
        job.turn("failed")
        self.truth.free(job)

    @precondition(lambda self: self.truth.at("delayed"))
    @rule(which=number)
    def come_due(self, which: int) -> None:
        """Its time comes; the next claim of anybody moves it."""
        waits = [job for job in self.truth.at("delayed") if job.id not in self.truth.due]
        if waits:
            job = waits[which % len(waits)]
            self.dues += 1
            self.do(self.app.redis.call("ZADD", self.keys.delayed, self.dues, job.id))
            self.truth.due.append(job.id)

    # ---- workers

    @precondition(lambda self: len(self.truth.live) < 3)
    @rule()
    def join(self) -> None:
        worker = f"w{len(self.hands) + 1}"
        self.hands[worker] = self.do(self._joined(worker))
        self.truth.live.add(worker)

    async def _joined(self, worker: str) -> ClaimedJobs:
        claims = ClaimedJobs(
            Membership(self.app.redis, self.keys, worker), self.queue.codec, WorkerCounts()
        )
        await claims.membership.join()
        return claims

    @precondition(lambda self: self.truth.live)
    @rule(which=number, most=st.integers(0, 6), acks=st.integers(0, 3))
    def claim(self, which: int, most: int, acks: int) -> None:
        truth, worker = self.truth, self._live(which)
        claims = self.hands[worker]
        done = [job for job in truth.held_by(worker) if not job.status and not job.unique][:acks]
        claims.done += [job.claim for job in done]
        taken = self.do(claims.claim(most))
        for job in done:
            job.place = "gone"
        truth.counts["done"] += len(done)
        self._move_due()
        assert len(taken) == min(most, self._there())
        for context in taken:
            job = truth.jobs[truth.lists[context.lane].pop(0)]
            assert context.id == job.id
            job.place, job.worker, job.claim = "claimed", worker, context.claim
        assert claims.jobs.keys() == {job.claim for job in truth.held_by(worker)}

    def _there(self) -> int:
        """How many jobs there are to be had."""
        truth, there = self.truth, 0
        for lane, ids in truth.lists.items():
            free = LANE_LIMIT - truth.running_in(lane) if lane in FAIR else len(ids)
            there += max(0, min(free, len(ids))) if lane not in self.paused else 0
        if self.limit:
            there = min(there, self.limit - sum(len(truth.held_by(one)) for one in truth.live))
        return 0 if None in self.paused else max(0, there)

    def _move_due(self) -> None:
        truth, front = self.truth, list[Known]()
        for job in (truth.jobs[id_] for id_ in truth.due):
            job.place = "waiting"
            job.turn("queued")
            if job.in_front:
                front.append(job)
            else:
                truth.lists[job.lane].append(job.id)
        truth.to_front(front)
        truth.due.clear()

    @precondition(lambda self: self.truth.at("claimed"))
    @rule(which=number)
    def begin(self, which: int) -> None:
        if job := self._in_hand(which):
            self._begin(job)

    def _begin(self, job: Known) -> bool:
        """Note a job with a record as begun, as workers do; False if it may not run."""
        if not job.status:
            return True
        verdict = self.do(self._hand(job).begin([self._context(job)]))
        assert verdict == [2 if job.status == "cancelled" else 0 if job.status in FINAL else 1]
        job.turn("processing")
        return verdict == [1]

    @precondition(lambda self: self.truth.at("claimed"))
    @rule(which=number)
    def finish_quickly(self, which: int) -> None:
        """End a job whose record does not say yet that it runs."""
        job = self._in_hand(which)
        if not job or job.status not in {"queued", "cancelled"} or not job.is_new:
            return
        claims = self._hand(job)
        claims.ended.append(JobEnd(self._context(job), "done", "0.001", b"1"))
        self.do(flush_ended(claims))
        job.place = "gone"
        self.truth.counts[PASSED_OVER if job.status in FINAL else "done"] += 1
        job.turn("done")
        self.truth.free(job)

    @precondition(lambda self: self.truth.at("claimed"))
    @rule(which=number, state=st.sampled_from(("done", "done", "expired", "cancelled")))
    def finish(self, which: int, state: str) -> None:
        if not (job := self._in_hand(which)):
            return
        runs = self._begin(job)
        said = state if runs else PASSED_OVER
        claims = self._hand(job)
        claims.ended.append(JobEnd(self._context(job), said, "0.1", b"1"))
        self.do(flush_ended(claims))
        job.place = "gone"
        self.truth.counts[said] += 1
        if runs:
            job.turn(state)
            self.truth.free(job)

    @precondition(lambda self: self.truth.at("claimed"))
    @rule(which=number)
    def retry(self, which: int) -> None:
        job = self._in_hand(which)
        if not job or not self._begin(job):
            return
        context, job.attempts = self._context(job), job.attempts + 1
        meta = msgspec.structs.replace(context.item.meta, attempts=job.attempts)
        item = write_item(context.item, meta, self.queue.codec)
        self.do(retry(context, item, FAR_S, ("error", "no")))
        job.place, job.in_front, job.worker, job.claim = "delayed", True, "", ""
        job.is_new = False
        job.turn("retrying")
        self.truth.counts["retried"] += 1

    @precondition(lambda self: self.truth.at("claimed"))
    @rule(which=number)
    def bury(self, which: int) -> None:
        job = self._in_hand(which)
        if not job or not self._begin(job):
            return
        context = self._context(job)
        letter = build_letter(
            context.item,
            queue="mail",
            lane=job.lane,
            reason=DeathReason.FATAL,
            attempts=1,
            max_attempts=ATTEMPTS,
            failures=(),
            now_ms=1,
        )
        self.do(bury(context, letter, ("error", "no")))
        self._dead(job)

    def _dead(self, job: Known) -> None:
        job.place, job.worker, job.claim = "dead", "", ""
        job.turn("failed")
        self.truth.letters.append(job.id)
        self.truth.free(job)
        self.truth.counts["dead"] += 1

    @precondition(lambda self: self.truth.live)
    @rule(which=number, count=st.integers(1, 3), aside=st.booleans())
    def let_go(self, which: int, count: int, aside: bool) -> None:
        """Give jobs back; or, if they are over the limit of their task, set them aside."""
        worker = self._live(which)
        jobs = self.truth.held_by(worker)[-count:]
        if aside and jobs:
            self._set_aside(worker, jobs)
            return
        self.do(self.hands[worker].give_back([self._context(job) for job in jobs]))
        self.truth.to_front(jobs)

    def _set_aside(self, worker: str, jobs: list[Known]) -> None:
        """Those that were cancelled stay in hand."""
        reply = self.do(self.hands[worker].set_aside([self._context(job) for job in jobs], FAR_S))
        waits = [job for job in jobs if job.status not in FINAL]
        assert reply == (len(self.truth.live), [int(job in waits) for job in jobs])
        for job in waits:
            job.place, job.in_front, job.worker, job.claim = "delayed", True, "", ""
            job.turn("queued")
        self.truth.counts["set_aside"] += len(waits)

    # ---- inside

    def _live(self, which: int) -> str:
        return sorted(self.truth.live)[which % len(self.truth.live)]

    def _in_hand(self, which: int) -> Known | None:
        held = [job for worker in sorted(self.truth.live) for job in self.truth.held_by(worker)]
        return held[which % len(held)] if held else None

    def _hand(self, job: Known) -> ClaimedJobs:
        return self.hands[job.worker]

    def _context(self, job: Known) -> JobContext:
        """The job as a worker has it in hand."""
        context = self.hands[job.worker].jobs[job.claim]
        context.tracked = bool(job.status)
        return context


async def _nothing() -> None: ...
