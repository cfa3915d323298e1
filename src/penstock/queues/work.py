"""One job from its function to its end: done, again later, or to the dead letters."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, Protocol, cast

import msgspec

from penstock.delivery.depends import Resolver
from penstock.delivery.failure_log import Attempt, FailureLog
from penstock.delivery.failures import Failure
from penstock.delivery.outcomes import handler_error
from penstock.delivery.retries import DeathReason, GiveUp, RetryPolicy
from penstock.delivery.threads import HandlerThreads
from penstock.errors import DecodeError, EncodeError
from penstock.queues.attempts import after_failure, is_exact, limit_of
from penstock.queues.child_reports import ChildReports
from penstock.queues.context import OVER, IsolatedJob, JobContext, set_current
from penstock.queues.counts import Counts
from penstock.queues.hand import PASSED_OVER, Ended
from penstock.queues.isolation import ChildPool, Isolation
from penstock.queues.items import Item, Meta, write_item
from penstock.queues.letters import build_letter
from penstock.queues.performer import Call, Performer
from penstock.quiet import RateLimitedLog
from penstock.redis.codec import Codec, Unpacked
from penstock.redis.off_loop import LARGE, off_loop
from penstock.redis.wire import Argument

__all__ = ["Work"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

_PARK_FIRST_S, _PARK_LONGEST_S = 0.5, 30.0


class Places(Protocol):
    """Where jobs run, many at a time."""

    def alone(self, job: JobContext) -> AbstractAsyncContextManager[None]: ...
    def among_others(self, job: JobContext) -> AbstractAsyncContextManager[None]: ...


class Work:
    """What is done with a job that is not simply run: see `Slots` for the quick way."""

    def __init__(
        self,
        codec: Codec,
        counts: Counts,
        performer_of: Callable[[Item], Performer | None],
        default_policy: RetryPolicy,
        *,
        unknown_s: float,
        most_result: int,
        places: int,
        resolver: Resolver,
        failure_log: FailureLog,
    ) -> None:
        self.counts = counts
        self._failure_log = failure_log
        self.performer_of = performer_of
        self._codec, self._encode, self._policy = codec, codec.beginner(Any), default_policy
        self._most_result = most_result
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

    def policy_of(self, item: Item) -> RetryPolicy:
        performer = self.performer_of(item)
        return self._policy if performer is None else performer.policy

    # ---- from claim to function

    async def run(self, job: JobContext, performer: Performer | None, places: Places) -> None:
        """Run a job and see to its end."""
        item, meta = job.item, job.item.meta
        if meta.expires_ms and job.hand.now_ms >= meta.expires_ms:
            self._end(job, "expired")
            return
        if item.fault is not None:
            await self._give_up(job, GiveUp(DeathReason.UNDECODABLE), item.fault)
            return
        if performer is None:
            if await self._is_noted(job):
                what = f"task {job.task!r}" if job.task else "a handler of raw jobs"
                why = f"this worker has no {what}; its jobs wait for one that has"
                error = LookupError(f"no worker of queue {job.queue!r} has {what}")
                await self._park(job, why, GiveUp(DeathReason.UNKNOWN), error)
            return
        job.max_attempts = limit = limit_of(item, performer.policy)
        if job.attempt > limit:
            job.attempt = limit
            await self._give_up(job, GiveUp(DeathReason.EXHAUSTED), None)
            return
        if job.attempt < job.max_attempts or not job.item.meta.crashes:
            async with places.among_others(job):
                await self._begin_and_perform(job, performer)
        else:
            # Its last chance, and it was there when a worker died: nothing else may end this one.
            async with self._last_chance, places.alone(job):
                await self._begin_and_perform(job, performer)

    async def _begin_and_perform(self, job: JobContext, performer: Performer) -> None:
        if job.hand.draining:  # it had to wait for its place, and nothing is begun any more
            await job.hand.give_back([job])
            return
        may_run = True
        if is_exact(job.item.meta, job.max_attempts):
            may_run = (await job.hand.begin([job], exactly=True))[0] == 1
        if may_run:
            await job.hand.pulse.until_alive()  # else it may have passed to others
            await self._perform(job, performer)
        elif not job.hand.lost:
            self.passed_over(job)

    async def _perform(self, job: JobContext, performer: Performer) -> None:
        job.slot, job.began = asyncio.current_task(), time.monotonic()
        token = set_current(job)
        try:
            outcome = await self._call(job, performer)
        except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
            outcome = error
        finally:
            job.slot = None
            token.var.reset(token)
        await self.returned(job, performer, outcome)

    async def returned(self, job: JobContext, performer: Performer, outcome: Any) -> None:
        """See to what a function returned or raised, whichever way it was run."""
        if job.interrupted:
            await _forget_interruption()
        elif not job.hand.is_ending:
            await _forget_own_cancellation(job)
        if job.cut:
            if isinstance(outcome, BaseException):
                handler_error(outcome)  # raises what is not the job's own
            self._stopped(job)
            return
        if isinstance(outcome, BaseException):
            await self._failed(job, performer, handler_error(outcome))
        elif job.tracked or job.begun or job.item.meta.unique:
            self._end(job, "done", await self._result_of(job, outcome) if job.tracked else b"")
            if job.begun:
                # Before anything else begins here: what is noted as begun, and not as done, is
                # charged if the process ends.
                await job.hand.flush_ended()
        else:
            self.counts.done += 1
            job.hand.done.append(job.claim)

    async def _call(self, job: JobContext, performer: Performer) -> Any:
        args, kwargs = performer.decode(job.item)
        if performer.context_parameter:
            isolated = performer.isolation is not None
            kwargs[performer.context_parameter] = IsolatedJob.of(job) if isolated else job
        async with AsyncExitStack() as around:
            limit = asyncio.timeout(None if performer.isolation else performer.timeout_s)
            await around.enter_async_context(limit)
            if performer.injects:
                made = await around.enter_async_context(self._resolver.resolve(performer.function))
                kwargs = {**kwargs, **made}
                await job.hand.pulse.until_alive()  # that may have taken long
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

    async def _in_thread(self, job: JobContext, performer: Performer, call: Call) -> Any:
        def run() -> Any:
            try:
                return performer.function(*call[0], **call[1])
            except StopIteration as error:
                # No future can hold it: whoever waits for the thread would wait for ever.
                raise RuntimeError("the function raised StopIteration") from error
            except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
                # Where it is awaited it would be taken for the end of the worker.
                raise handler_error(error) from None

        def abandon(ended: asyncio.Future[Any]) -> None:
            job.thread = ended

        return await self.threads.call(
            performer.name, run, timeout_s=performer.timeout_s, when_abandoned=abandon
        )

    async def _in_child(self, job: JobContext, performer: Performer, call: Call) -> Any:
        isolation = performer.isolation or Isolation()
        if isolation not in self._children:
            self._children[isolation] = ChildPool(isolation, size=self._places)
            await self._children[isolation].open()
        async with ChildReports(job) as reports:
            return await self._children[isolation].call(
                performer.function,
                *call,
                timeout_s=performer.timeout_s,
                context=IsolatedJob.of(job),
                on_report=reports.put,
            )

    async def bury_broken(self, job: JobContext, error: Exception) -> None:
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

    def _end(self, job: JobContext, state: str, result: bytes = b"") -> None:
        self.counts.done += state == "done"
        took = f"{time.monotonic() - job.began:.3f}" if job.began else "0"
        job.hand.ended.append(Ended(job, state, took, result))

    async def _result_of(self, job: JobContext, outcome: Any) -> bytes:
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

    def _stopped(self, job: JobContext) -> None:
        """See to a job that was told to stop, and has."""
        if job.cut == "cancelled":
            self._end(job, "cancelled")
        elif job.cut == OVER:
            self.passed_over(job)

    def passed_over(self, job: JobContext) -> None:
        """Let go of a job that has ended already, cancelled perhaps."""
        self._end(job, PASSED_OVER)

    async def _failed(self, job: JobContext, performer: Performer, error: Exception) -> None:
        """Try again later, or give up."""
        if not await self._is_noted(job):
            return
        undecodable = isinstance(error, DecodeError) and not _fits(job.item, performer)
        if undecodable and (misfit := performer.misfit(job.item)):
            why = f"{job.task} of this worker: {misfit}; its jobs wait for one whose function fits"
            await self._park(job, why, GiveUp(DeathReason.UNDECODABLE), error)
            return
        self.counts.failed += 1
        now_ms = job.hand.now_ms
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
        failure = Failure.of(error, job.attempt, now_ms)
        self._failure_log.failed(_attempt_of(job, limit), failure, error, next_s=decision.seconds)
        fields = [*_error_fields(failure, error), "retry_count", job.attempt]
        item = await self._rewritten(job.item, after_failure(job, failure))
        error.__traceback__ = None  # told; kept, it would hold on to all the function's variables
        await job.hand.retry(job, item, decision.seconds, fields)

    async def _is_noted(self, job: JobContext) -> bool:
        """Make sure that the record says that the job runs, before it says how that ended."""
        if not job.tracked or job.noted or (await job.hand.begin([job]))[0] == 1:
            return True
        if not job.hand.lost:
            self.passed_over(job)
        return False

    async def _give_up(self, job: JobContext, verdict: GiveUp, error: Exception | None) -> None:
        now_ms = job.hand.now_ms
        failures = () if error is None else (Failure.of(error, job.attempt, now_ms),)
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
            suggestions=_suggestions(error),
        )
        fields = _error_fields(failure, error) if failure is not None else []
        if error is not None:
            error.__traceback__ = None
        self.counts.dead += 1
        await job.hand.bury(job, letter, [*fields, "reason", str(verdict.reason)])
        if not job.hand.lost:
            self._failure_log.buried(attempt, verdict.reason, failure, letter_id=job.id)

    async def _rewritten(self, item: Item, meta: Meta) -> bytes:
        if len(item.body) <= LARGE:
            return write_item(item, meta, self._codec)
        return await off_loop(write_item, item, meta, self._codec)

    async def _park(self, job: JobContext, why: str, verdict: GiveUp, error: Exception) -> None:
        """Let a job wait for a worker that knows what to do with it: one of another version."""
        meta, now_ms = job.item.meta, job.hand.now_ms
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
        await job.hand.retry(job, item, wait_s, fields, counted_as="parked")


async def _forget_interruption() -> None:
    """Let the slot go on as if it had not been cancelled for the sake of one job."""
    # A job that was interrupted in its last step has not noticed; what comes after it would.
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    task = asyncio.current_task()
    if task is not None and task.uncancel():
        raise asyncio.CancelledError  # the slot itself is to end as well


async def _forget_own_cancellation(job: JobContext) -> None:
    """Let the slot go on where a function has cancelled the task that runs it."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return
    with suppress(asyncio.CancelledError):  # it may have returned without noticing
        await asyncio.sleep(0)
    if job.hand.is_ending:
        raise asyncio.CancelledError
    while task.uncancel():
        pass


def _attempt_of(job: JobContext, limit: int) -> Attempt:
    return Attempt(job.id, job.attempt, limit, task=job.task)


def _fits(item: Item, performer: Performer) -> bool:
    """Whether the job itself can be read; else it was something that the function decoded."""
    try:
        performer.decode(item)
    except DecodeError:
        return False
    return True


def _error_fields(failure: Failure, error: Exception | None) -> list[Argument]:
    fields: list[Argument] = [
        *("error", _text(failure.message), "error_type", _text(failure.error_class)),
        *("traceback", _text(failure.stack)),
    ]
    # What the error of an earlier attempt left there would be taken for this one's.
    code, suggestions, may_be_left = _error_code(error), _suggestions(error), failure.attempt > 1
    if code or may_be_left:
        fields += ("error_code", _text(code))
    if suggestions or may_be_left:
        fields += ("suggestions", msgspec.json.encode(suggestions))
    return fields


def _error_code(error: Exception | None) -> str:
    code = _attribute(error, "error_code")
    return code[:100] if isinstance(code, str) else ""


def _suggestions(error: Exception | None) -> list[str]:
    told = _attribute(error, "suggestions")
    if not isinstance(told, (list, tuple)):
        return []
    try:
        return [_text(str(one)[:500]).decode() for one in cast("list[object]", told)[:20]]
    except Exception:  # noqa: BLE001  as below
        return []


def _attribute(error: Exception | None, name: str) -> object:
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001  a user's property may raise anything, and decides nothing here
        return None


def _text(value: str) -> bytes:
    """Encode text from a user's exception, which may hold half of a surrogate pair."""
    return value.encode(errors="backslashreplace")
