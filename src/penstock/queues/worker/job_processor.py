"""One job from its function to its end: done, again later, or to the dead letters."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from enum import Enum, auto
from typing import Any, cast

import msgspec

from penstock.delivery.depends import Resolver
from penstock.delivery.failure_log import FailedAttempt, FailureLog
from penstock.delivery.failures import Failure
from penstock.delivery.outcomes import handler_error
from penstock.delivery.retries import DeathReason, GiveUp, RetryPolicy
from penstock.delivery.threads import HandlerThreads
from penstock.errors import DecodeError, EncodeError
from penstock.queues.dead_letters.letter import build_letter
from penstock.queues.isolation.pool import ChildPool, ChildReports, Isolation
from penstock.queues.storage.job_signatures import JobSignatures
from penstock.queues.storage.scripts import BeginVerdict
from penstock.queues.storage.stored_job import Item, Meta, write_item
from penstock.queues.worker.attempts import after_failure, is_exact, limit_of
from penstock.queues.worker.claimed_jobs import ClaimedJob, StopReason, WorkerCounts
from penstock.queues.worker.job_context import IsolatedJob, set_current
from penstock.queues.worker.job_ends import PASSED_OVER, JobEnd, bury, flush_ended, retry
from penstock.queues.worker.membership import MemberState
from penstock.queues.worker.performer import Call, Performer
from penstock.redaction import redacted
from penstock.redis.codec import Codec, Unpacked
from penstock.redis.codec.off_loop import LARGE, off_loop
from penstock.redis.wire import Argument
from penstock.throttled_log import RateLimitedLog

__all__ = ["Admission", "JobProcessor"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

_PARK_FIRST_S, _PARK_LONGEST_S = 0.5, 30.0
_LONGEST_SUGGESTION = 500


class Admission(Enum):
    """How a job may run."""

    SHARED = auto()
    """Beside others."""
    ALONE = auto()
    """While nothing else does: its last chance, and it was there when a worker died."""
    ENDED = auto()
    """Not at all: it has come to its end."""


class JobProcessor:
    """Runs one job to its end: done, again later, or a dead letter.

    For most jobs `JobSlots` does so itself, on the spot. It calls in one direction only: to the
    server through the `ClaimedJobs` that the job belongs to.
    """

    def __init__(
        self,
        codec: Codec,
        counts: WorkerCounts,
        performers: Mapping[str, Performer],
        raw: Performer | None,
        default_policy: RetryPolicy,
        *,
        unknown_s: float,
        most_result: int,
        signatures: JobSignatures | None = None,
        places: int,
        resolver: Resolver,
        failure_log: FailureLog,
    ) -> None:
        self.counts = counts
        self._failure_log = failure_log
        self.performers, self.raw = performers, raw
        """By the names of their tasks, and for jobs of any other, if there is one."""
        self._codec, self._encode, self._policy = codec, codec.beginner(Any), default_policy
        self._most_result = most_result
        self.signatures = signatures
        """What each job is verified by; None if jobs need no signature."""
        self._unknown_s, self._places, self._resolver = unknown_s, places, resolver
        self.threads = HandlerThreads(places, "penstock job")
        self._children: dict[Isolation, ChildPool] = {}
        self._last_chance = asyncio.Lock()

    async def close(self) -> None:
        """Let go of threads and processes; a job that is run later gets others."""
        self._failure_log.flush()
        self.threads.close()
        while self._children:
            await self._children.popitem()[1].close()

    def performer_of(self, item: Item) -> Performer | None:
        return self.performers.get(item.task, self.raw)

    def policy_of(self, item: Item) -> RetryPolicy:
        performer = self.performer_of(item)
        return self._policy if performer is None else performer.policy

    # ---- from claim to function

    async def admit(self, job: ClaimedJob, performer: Performer | None) -> Admission:
        """See how a job may run; one that may not is brought to its end."""
        item, meta = job.item, job.item.meta
        refusal = None
        if self.signatures is not None and item.fault is None:
            refusal = self.signatures.refusal(item)
        if refusal is not None:
            self.counts.failed += 1
            await self._give_up(job, GiveUp(DeathReason.REFUSED), refusal)
        elif meta.expires_ms and job.claims.membership.now_ms >= meta.expires_ms:
            self._end(job, "expired")
        elif item.fault is not None:
            await self._give_up(job, GiveUp(DeathReason.UNDECODABLE), item.fault)
        elif performer is None:
            if await self._is_noted(job):
                what = f"task {job.task!r}" if job.task else "a handler of raw jobs"
                why = f"this worker has no {what}; its jobs wait for one that has"
                error = LookupError(f"no worker of queue {job.queue!r} has {what}")
                await self._park(job, why, GiveUp(DeathReason.UNKNOWN), error)
        else:
            job.max_attempts = limit = limit_of(item, performer.policy)
            if job.attempt <= limit:
                last_chance = job.attempt == limit and meta.crashes > 0
                return Admission.ALONE if last_chance else Admission.SHARED
            job.attempt = limit
            await self._give_up(job, GiveUp(DeathReason.EXHAUSTED), None)
        return Admission.ENDED

    async def run(self, job: ClaimedJob, performer: Performer) -> None:
        """Run a job that was admitted, and bring it to its end."""
        claims = job.claims
        if claims.membership.state in (MemberState.DRAINING, MemberState.CLOSING):
            # It had to wait for its turn.
            await claims.give_back([job])
            return
        may_run = True
        if is_exact(job.item.meta, job.max_attempts):
            may_run = await claims.begin([job], exactly=True) == [BeginVerdict.RUN]
        if may_run:
            await claims.membership.liveness.until_alive()  # else it may have passed to others
            await self._perform(job, performer)
        elif not claims.membership.lost:
            self.passed_over(job)

    async def _perform(self, job: ClaimedJob, performer: Performer) -> None:
        job.running_in, job.began = asyncio.current_task(), time.monotonic()
        token = set_current(job)
        try:
            outcome = await self._call(job, performer)
        except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
            outcome = error
        finally:
            job.running_in = None
            token.var.reset(token)
        await self.returned(job, performer, outcome)

    async def returned(self, job: ClaimedJob, performer: Performer, outcome: Any) -> None:
        """See to what a function returned or raised, whichever way it was run."""
        if job.interrupted:
            await _forget_interruption()
        elif not job.claims.is_ending:
            await _forget_own_cancellation(job)
        if job.stop_reason:
            if isinstance(outcome, BaseException):
                handler_error(outcome)  # raises what is not the job's own
            self._stopped(job)
            return
        if isinstance(outcome, BaseException):
            await self._failed(job, performer, handler_error(outcome))
        elif job.tracked or job.attempt_noted or job.item.meta.unique:
            self._end(job, "done", await self._result_of(job, outcome) if job.tracked else b"")
            if job.attempt_noted:
                # Before anything else begins here: what is noted as begun, and not as done, is
                # charged if the process ends.
                await flush_ended(job.claims)
        else:
            self.counts.done += 1
            job.claims.done.append(job.claim)

    async def _call(self, job: ClaimedJob, performer: Performer) -> Any:
        args, kwargs = performer.decode(job.item)
        if performer.context_parameter:
            isolated = performer.isolation is not None
            kwargs[performer.context_parameter] = IsolatedJob.of(job) if isolated else job.context
        async with AsyncExitStack() as around:
            limit = asyncio.timeout(None if performer.isolation else performer.timeout_s)
            await around.enter_async_context(limit)
            if performer.injects:
                made = await around.enter_async_context(self._resolver.resolve(performer.function))
                kwargs = {**kwargs, **made}
                await job.claims.membership.liveness.until_alive()  # that may have taken long
            if performer.isolation is not None:
                return await self._in_child(job, performer, (args, kwargs))
            if performer.is_async:
                return await performer.function(*args, **kwargs)
            limit.reschedule(
                None
            )  # a thread has a clock of its own, which starts with the function
            outcome = await self._in_thread(job, performer, (args, kwargs))
            if not inspect.isawaitable(outcome):
                return outcome
            if performer.timeout_s is not None:
                limit.reschedule(asyncio.get_running_loop().time() + performer.timeout_s)
            return await outcome

    async def _in_thread(self, job: ClaimedJob, performer: Performer, call: Call) -> Any:
        def run() -> Any:
            try:
                return performer.function(*call[0], **call[1])
            except StopIteration as error:
                # No future can hold it: the caller would wait for ever.
                raise RuntimeError("the function raised StopIteration") from error
            except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
                # Where it is awaited it would be taken for the end of the worker.
                raise handler_error(error) from None

        def abandon(ended: asyncio.Future[Any]) -> None:
            job.abandoned = ended

        return await self.threads.call(
            performer.name, run, timeout_s=performer.timeout_s, when_abandoned=abandon
        )

    async def _in_child(self, job: ClaimedJob, performer: Performer, call: Call) -> Any:
        isolation = performer.isolation or Isolation()
        if isolation not in self._children:
            self._children[isolation] = ChildPool(isolation, size=self._places)
            await self._children[isolation].open()
        async with ChildReports(job.context) as reports:
            return await self._children[isolation].call(
                performer.function,
                *call,
                timeout_s=performer.timeout_s,
                context=IsolatedJob.of(job),
                on_report=reports.put,
            )

    async def bury_broken(self, job: ClaimedJob, error: Exception) -> None:
        """Bury a job on which Penstock itself has failed, so that it stops no other job."""
        quiet.error(
            f"{job.queue} {type(error).__name__}",
            "queue %s: job %s could not be processed and goes to the dead letters",
            job.queue,
            job.id,
            exc_info=error,
        )
        job.max_attempts = job.max_attempts or job.attempt
        await self._give_up(job, GiveUp(DeathReason.FATAL), error)

    # ---- from function to end

    def _end(self, job: ClaimedJob, state: str, result: bytes = b"") -> None:
        self.counts.done += state == "done"
        took = f"{time.monotonic() - job.began:.3f}" if job.began else "0"
        job.claims.ended.append(JobEnd(job, state, took, result))

    async def _result_of(self, job: ClaimedJob, outcome: Any) -> bytes:
        """The result as it is stored, or `!` and why it is not.

        The work is done: to fail the job for that would do it again.
        """
        try:
            stored = self._encode(outcome)
            if isinstance(stored, Unpacked):
                stored = await self._codec.finish(stored)
            if len(stored) <= self._most_result:
                return stored
            allowed = f"queues.max_result_bytes allows {self._most_result}"
            why = f"the result takes {len(stored)} bytes, {allowed}"
        except EncodeError as error:
            why = f"the result: {error}"
        quiet.error(f"result {job.task}", "%s: not stored: %s", job.task, why)
        return b"!" + _text(f"not stored: {why}")

    def _stopped(self, job: ClaimedJob) -> None:
        """End a job that was to stop, and has."""
        if job.stop_reason is StopReason.CANCELLED:
            self._end(job, "cancelled")
        elif job.stop_reason is StopReason.ENDED:
            self.passed_over(job)

    def passed_over(self, job: ClaimedJob) -> None:
        """Let go of a job that has ended already, cancelled perhaps."""
        self._end(job, PASSED_OVER)

    async def _failed(self, job: ClaimedJob, performer: Performer, error: Exception) -> None:
        """Try again later, or give up."""
        if not await self._is_noted(job):
            return
        undecodable = isinstance(error, DecodeError) and not _fits(job.item, performer)
        if undecodable and (misfit := performer.misfit(job.item)):
            why = f"{job.task} of this worker: {misfit}; its jobs wait for one whose function fits"
            await self._park(job, why, GiveUp(DeathReason.UNDECODABLE), error)
            return
        self.counts.failed += 1
        now_ms = job.claims.membership.now_ms
        limit = job.max_attempts or limit_of(job.item, performer.policy)
        if undecodable:
            await self._give_up(job, GiveUp(DeathReason.UNDECODABLE), error)
            return
        policy = performer.policy
        if policy.max_attempts != limit:
            policy = replace(policy, max_attempts=limit)
        decision = policy.decide(error, job.attempt, now_ms=now_ms)
        if isinstance(decision, GiveUp):
            await self._give_up(job, decision, error)
            return
        failure = Failure.of(error, job.attempt, now_ms, redacts=self._failure_log.redacts)
        self._failure_log.failed(_attempt_of(job, limit), failure, error, next_s=decision.seconds)
        fields = [*self._error_fields(failure, error), "retry_count", job.attempt]
        item = await self._rewritten(job.item, after_failure(job.item.meta, job.id, failure))
        error.__traceback__ = None  # logged; it would keep all the function's variables
        await retry(job, item, decision.seconds, fields)

    async def _is_noted(self, job: ClaimedJob) -> bool:
        """Whether the record is marked as running, which comes before its end."""
        if not job.tracked or job.run_noted:
            return True
        if await job.claims.begin([job]) == [BeginVerdict.RUN]:
            return True
        if not job.claims.membership.lost:
            self.passed_over(job)
        return False

    async def _give_up(self, job: ClaimedJob, verdict: GiveUp, error: Exception | None) -> None:
        now_ms = job.claims.membership.now_ms
        failures: tuple[Failure, ...] = ()
        if error is not None:
            redacts = self._failure_log.redacts
            failures = (Failure.of(error, job.attempt, now_ms, redacts=redacts),)
        item = msgspec.structs.replace(job.item, id=job.id)
        limit = job.max_attempts or limit_of(item, self.policy_of(item))
        attempt, failure = _attempt_of(job, limit), failures[0] if failures else None
        if failure is not None:
            self._failure_log.failed(attempt, failure, error, next_s=None)
        letter = build_letter(
            item,
            queue=job.queue,
            lane=job.lane,
            reason=verdict.reason,
            attempts=job.attempt,
            max_attempts=limit,
            failures=failures,
            now_ms=now_ms,
            error_code=_error_code(error),
            suggestions=self._suggestions(error),
        )
        fields = self._error_fields(failure, error) if failure is not None else []
        if error is not None:
            error.__traceback__ = None
        self.counts.dead += 1
        await bury(job, letter, [*fields, "reason", str(verdict.reason)])
        if not job.claims.membership.lost:
            self._failure_log.buried(attempt, verdict.reason, failure, letter_id=job.id)

    async def _rewritten(self, item: Item, meta: Meta) -> bytes:
        if len(item.body) <= LARGE:
            return write_item(item, meta, self._codec)
        return await off_loop(write_item, item, meta, self._codec)

    async def _park(self, job: ClaimedJob, why: str, verdict: GiveUp, error: Exception) -> None:
        """Let a job wait for a worker that knows what to do with it: one of another version."""
        meta, now_ms = job.item.meta, job.claims.membership.now_ms
        waited_s = (now_ms - meta.parked_ms) / 1000 if meta.parked_ms else 0.0
        if waited_s >= self._unknown_s:
            job.attempt = meta.attempts
            await self._give_up(job, verdict, error)
            return
        quiet.warning(f"parked {job.queue} {job.task}", "queue %s: %s", job.queue, why)
        parked = msgspec.structs.replace(meta, id=job.id, parked_ms=meta.parked_ms or now_ms)
        # With old and new workers side by side the next to take it may be an old one again.
        wait_s = min(_PARK_LONGEST_S, max(_PARK_FIRST_S, waited_s / 4))
        item = await self._rewritten(job.item, parked)
        fields = ("error", _text(why), "error_type", type(error).__name__)
        await retry(job, item, wait_s, fields, counted_as="parked")

    def _error_fields(self, failure: Failure, error: Exception | None) -> list[Argument]:
        fields: list[Argument] = [
            *("error", _text(failure.message), "error_type", _text(failure.error_class)),
            *("traceback", _text(failure.stack)),
        ]
        # What the error of an earlier attempt left there would be taken for this one's.
        code, suggestions, may_be_left = (
            _error_code(error),
            self._suggestions(error),
            failure.attempt > 1,
        )
        if code or may_be_left:
            fields += ("error_code", _text(code))
        if suggestions or may_be_left:
            fields += ("suggestions", msgspec.json.encode(suggestions))
        return fields

    def _suggestions(self, error: Exception | None) -> list[str]:
        given = _attribute(error, "suggestions")
        if not isinstance(given, (list, tuple)):
            return []
        try:
            texts = [str(one)[:_LONGEST_SUGGESTION] for one in cast("list[object]", given)[:20]]
            texts = [redacted(text) for text in texts] if self._failure_log.redacts else texts
            return [_text(text).decode() for text in texts]
        except Exception:  # noqa: BLE001  as below
            return []


async def _forget_interruption() -> None:
    """Let the slot go on as if it had not been cancelled for the sake of one job."""
    # A job that was interrupted in its last step has not noticed; what comes after it would.
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    task = asyncio.current_task()
    if task is not None and task.uncancel():
        raise asyncio.CancelledError  # the slot itself is to end as well


async def _forget_own_cancellation(job: ClaimedJob) -> None:
    """Let the slot go on where a function has cancelled the task that runs it."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return
    with suppress(asyncio.CancelledError):  # it may have returned without noticing
        await asyncio.sleep(0)
    if job.claims.is_ending:
        raise asyncio.CancelledError
    while task.uncancel():
        pass


def _attempt_of(job: ClaimedJob, limit: int) -> FailedAttempt:
    return FailedAttempt(job.id, job.attempt, limit, task=job.task)


def _fits(item: Item, performer: Performer) -> bool:
    """Whether the job itself can be read; else it was something that the function decoded."""
    try:
        performer.decode(item)
    except DecodeError:
        return False
    return True


def _error_code(error: Exception | None) -> str:
    code = _attribute(error, "error_code")
    return code[:100] if isinstance(code, str) else ""


def _attribute(error: Exception | None, name: str) -> object:
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001  a user's property may raise anything, and decides nothing here
        return None


def _text(value: str) -> bytes:
    """Encode text from a user's exception, which may hold half of a surrogate pair."""
    return value.encode(errors="backslashreplace")
