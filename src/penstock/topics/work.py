"""One message from its handler to its end: done, again later, or to the dead letters."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, cast

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.failure_log import Attempt, FailureLog
from penstock.delivery.failures import Failure
from penstock.delivery.outcomes import forget_cancellation, handler_error
from penstock.delivery.retries import DeathReason, GiveUp, RetryIn
from penstock.delivery.stored import whole_number
from penstock.delivery.threads import HandlerThreads
from penstock.errors import DecodeError, PenstockError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.topics.barrier import Barriers
from penstock.topics.bodies import fetch_body
from penstock.topics.claim import Left
from penstock.topics.handlers import Handler
from penstock.topics.held import Counts, Held, Item
from penstock.topics.identity import place_id
from penstock.topics.letters import bury, index_field
from penstock.topics.message import (
    PAYLOAD,
    TARGET_GROUP,
    Fields,
    Message,
    field_of,
    is_marker,
)
from penstock.topics.outcomes import failures_in
from penstock.topics.subscription import Subscription
from penstock.topics.turns import turns_of

__all__ = ["DEFAULT_CONCURRENCY", "PLAIN_FIELDS", "Work"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

DEFAULT_CONCURRENCY = 32
PLAIN_FIELDS = 6
"""Most names and values of an entry that needs no second look: payload, key and headers."""


class Work:
    """What is done with each message, whichever order they come in.

    `handle` and its kin return None when the message has come to an end, else the seconds until
    its next attempt.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        handler: Handler,
        subscription: Subscription,
        counts: Counts,
        barriers: Barriers,
    ) -> None:
        self.handler, self.subscription, self.counts = handler, subscription, counts
        self.policy = subscription.retry
        self._barriers = barriers
        self.threads: HandlerThreads | None = None
        """Where a plain function runs; who calls `invoke` has one of its places."""
        if not handler.is_async:
            places = subscription.concurrency or DEFAULT_CONCURRENCY
            self.threads = HandlerThreads(places, f"penstock {handler.name}")
        self.invoke: Callable[[Any], Awaitable[Any]] = self._limited(self.threads)
        """Runs the handler on a message (a list of them for a batch)."""
        self.counts_starts = subscription.counts_starts
        self.plain_fields = 0 if self.counts_starts else PLAIN_FIELDS
        """Most names and values of an entry whose handler may be called without further ado."""
        self.turns = turns_of(client)
        """Turns of messages that may have ended a process."""
        self._in_threads: set[tuple[int, bytes]] = set()
        """Partition and id of messages whose handlers run in threads now."""
        self._outlived: dict[tuple[int, bytes], Held] = {}
        """Handlers that still run although their partition was lost."""
        self._loop = asyncio.get_running_loop()
        quick = handler.is_async and subscription.timeout_s is None
        self.direct = handler.direct if quick else None
        """The handler itself, where payloads are all it takes and nothing has to be around it."""
        self.is_ending: Callable[[], bool] = lambda: True
        """Whether a cancellation may be ours. Otherwise a handler has cancelled its own task."""
        self._client = client
        self._failure_log = FailureLog("topic", topic, client.settings)

    def close(self) -> None:
        self._failure_log.flush()
        if self.threads is not None:
            self.threads.close()

    # ---- from delivery to handler

    async def special(self, held: Held, item: Item) -> float | None:
        """Handle what is not a plain first delivery."""
        if isinstance(item, Message):
            return await self._again(held, item)
        id_, fields = item
        message = Message(held.source, id_, fields)
        if self._passes_over(held, fields):
            if not is_marker(fields) or await self._barriers.passed(
                held, whole_number(fields[1]), id_
            ):
                held.done(id_)
            return None
        return await (self._begin if self.counts_starts else self.handle)(held, message)

    async def handle(self, held: Held, message: Message) -> float | None:
        """Run the handler and see to the outcome."""
        await self._complete(held, message)
        try:
            if self.subscription.batch is None:
                outcome = await self.invoke(message)
            else:
                outcome = failures_in(await self.invoke([message]), [message]).get(message)
        except BaseException as error:  # noqa: BLE001  a failure becomes a recorded outcome
            return await self.failed(held, message, self.error_of(held, [message.entry_id], error))
        if outcome is None:
            self.succeeded(held, message)
            return None
        return await self.ended(held, message, outcome)

    def error_of(self, held: Held, ids: Iterable[bytes], error: BaseException) -> Exception:
        """What a handler failed with. If it is cut short instead, its attempts stay charged."""
        if isinstance(error, asyncio.CancelledError) and not self.is_ending():
            forget_cancellation()
        try:
            return handler_error(error)
        except BaseException:
            for id_ in ids:
                held.history.setdefault(id_, ())
            raise

    def succeeded(self, held: Held, message: Message) -> None:
        held.done(
            message.entry_id, failed_before=held.history.pop(message.entry_id, None) is not None
        )

    async def ended(self, held: Held, message: Message, outcome: object) -> float | None:
        """See to what a handler returned."""
        if isinstance(outcome, Exception):
            return await self.failed(held, message, outcome)
        self.succeeded(held, message)
        return None

    async def failed(self, held: Held, message: Message, error: Exception) -> float | None:
        """Try again later, or give up."""
        now_ms = SYSTEM_CLOCK.wall_ms()
        failure = Failure.of(error, message.attempt, now_ms)
        failures = (*held.history.get(message.entry_id, ())[:1], failure)
        held.history[message.entry_id] = failures
        held.begun.discard(message.entry_id)
        if isinstance(error, DecodeError) and _is_undecodable(message):
            decision = GiveUp(DeathReason.UNDECODABLE)
        else:
            decision = self.policy.decide(error, message.attempt, now_ms=now_ms)
        next_s = decision.seconds if isinstance(decision, RetryIn) else None
        self._failure_log.failed(self._attempt_of(message), failure, error, next_s=next_s)
        error.__traceback__ = None  # told; kept, it would hold on to all the handler's variables
        if isinstance(decision, RetryIn):
            await held.retry_later(message, decision.seconds, failures)
            return decision.seconds
        await self._give_up(held, message, decision, failures)
        return None

    # ---- what was delivered before

    def recovered(self, held: Held, left: Left) -> Message | None:
        """Make a message of what an earlier owner left; None if it is gone from the stream."""
        if not left.fields:
            if left.attempts:  # else it was settled while its retry was noted
                self.counts.vanished += 1
                quiet.error(
                    f"{held} vanished",
                    "%s: message %s was trimmed while pending",
                    held,
                    place_id(held.source.partition, left.id),
                )
            held.done(left.id, failed_before=True)
            return None
        held.history[left.id] = left.failures
        return Message(held.source, left.id, left.fields, left.attempts + 1)

    async def _again(self, held: Held, message: Message) -> float | None:
        if self._passes_over(held, message.fields):
            return await self.special(held, [message.entry_id, message.fields])
        if message.entry_id in held.inherited and await self._is_buried(held, message):
            await self._give_up(held, message, *self._crash_verdict(held, message))
            return None
        if message.attempt > self.policy.max_attempts:
            await self._count_again(held, message)
        if message.attempt > self.policy.max_attempts:
            await self._give_up(held, message, *self._crash_verdict(held, message))
            return None
        return None if held.closing else await self._begin(held, message)

    async def _count_again(self, held: Held, message: Message) -> None:
        """Ask how many attempts are counted by now: some may have been taken back meanwhile."""
        for left in await held.pending(message.entry_id.decode(), 1):
            if left.id == message.entry_id:
                message.attempt = left.attempts + 1

    async def in_turn(self, held: Held, message: Message) -> float | None:
        """Handle a suspect during its turn, which is over when the server knows how it ended.

        Otherwise the next one could take the process down, and this one would be charged for it.
        """
        wait_s = await self._again(held, message)
        await held.settle()
        return wait_s

    async def _begin(self, held: Held, message: Message) -> float | None:
        """Count the attempt, then make it."""
        if await held.begin([message]):
            return await self.handle(held, message)
        if not held.lost:
            self.succeeded(held, message)  # trimmed away, or settled by somebody else
        return None

    async def _is_buried(self, held: Held, message: Message) -> bool:
        """Whether an earlier owner got as far as the dead letter, and crashed then."""
        held.inherited.discard(message.entry_id)
        index = self._client.keys.topic(message.topic).dlq_index
        place = index_field(message.group, message.partition, message.entry_id.decode())
        found = await held.surely("look", lambda: self._client.call("HEXISTS", index, place))
        return bool(found)

    # ---- when the partition is lost, and the process lives

    async def lost(self, held: Held, fetched: Iterable[bytes], running: Iterable[bytes]) -> None:
        """Take back the attempts at what a lost partition had in hand: nobody died.

        `fetched` are first deliveries that did not fail, `running` those whose handlers go on:
        their attempts are taken back when they end.
        """
        partition = held.source.partition
        ids = held.begun | held.unsettled_ids()
        if not self.counts_starts:
            ids.update(fetched)
        threads = {id_ for index, id_ in self._in_threads.copy() if index == partition}
        late = ids.intersection(threads.union(running))
        self._outlived |= {(partition, id_): held for id_ in late}
        for id_ in threads & late:
            if (partition, id_) not in self._in_threads:  # it has ended in this very moment
                del self._outlived[partition, id_]
                late.discard(id_)
        await held.uncharge(sorted(ids - late))

    async def ended_late(self, held: Held, id_: bytes) -> None:
        """A handler has ended that was still running when its partition was lost."""
        place = (held.source.partition, id_)
        if self._outlived.get(place) is held:
            del self._outlived[place]
            if not held.history.get(id_):
                try:
                    await held.uncharge([id_])
                except PenstockError as error:
                    logger.info("%s: message %s stays charged: %s", held, id_.decode(), error)

    @staticmethod
    def _passes_over(held: Held, fields: Fields) -> bool:
        """Whether the entry never reaches a handler: a marker, or meant for another group."""
        if is_marker(fields):
            return True
        target = field_of(fields, TARGET_GROUP)
        return target is not None and target != held.source.group.encode()

    def _crash_verdict(self, held: Held, message: Message) -> tuple[GiveUp, tuple[Failure, ...]]:
        """Why no attempt is left: the last one failed, or nobody saw how it ended."""
        failures = held.history.get(message.entry_id, ())
        made = message.attempt = message.attempt - 1
        if failures and failures[-1].attempt >= made:
            return GiveUp(DeathReason.EXHAUSTED), failures
        crash = Failure(
            error_class="",
            message=f"attempt {made} ended without an outcome: its process crashed, was killed or "
            "has been standing still",
            stack="",
            fingerprint=DeathReason.CRASHED,
            at_ms=SYSTEM_CLOCK.wall_ms(),
            attempt=made,
        )
        return GiveUp(DeathReason.CRASHED), (*failures[:1], crash)

    # ---- inside

    async def _give_up(
        self, held: Held, message: Message, verdict: GiveUp, failures: tuple[Failure, ...]
    ) -> None:
        """First the dead letter, then the acknowledgement: a crash between repeats the first.

        The dead letters are in another place than the partition, where no script can compare the
        epoch; so it is compared right before.
        """
        await held.surely("renew", held.renew)
        if held.lost:
            return
        letter_id = await held.surely(
            "bury",
            lambda: bury(
                self._client,
                message,
                reason=verdict.reason,
                attempts=message.attempt,
                failures=failures,
                max_attempts=self.policy.max_attempts,
            ),
        )
        if not held.lost:
            self.counts.dead += 1
            self._failure_log.buried(
                self._attempt_of(message),
                verdict.reason,
                failures[-1] if failures else None,
                letter_id=letter_id or "",
            )
            held.returning.discard(message.entry_id)
            held.history.pop(message.entry_id, None)
            held.done(message.entry_id, failed_before=True)

    def _attempt_of(self, message: Message) -> Attempt:
        return Attempt(
            message.id,
            message.attempt,
            self.policy.max_attempts,
            handler=self.handler.name,
            group=message.group,
        )

    async def _complete(self, held: Held, message: Message) -> None:
        """Fetch a payload that is stored beside the stream.

        The Java library may leave an empty text in its place.
        """
        if message.body is None and not field_of(message.fields, PAYLOAD):
            message.body = await held.surely("fetch", lambda: fetch_body(self._client, message))
            await message.unpack_aside()

    def _call(self, message: Any) -> Any:
        """Runs in a thread."""
        try:
            return self.call_in_thread(message)
        except StopIteration as error:
            # No future can hold it: whoever waits for the thread would wait for ever.
            raise RuntimeError("the handler raised StopIteration") from error
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # Where it is awaited it would be taken for the end of the worker.
            raise handler_error(error) from None

    def call_in_thread(self, message: Message | list[Message]) -> Any:
        """Call the handler, in a thread. It cannot be cut short when its partition is lost."""
        called = [message] if isinstance(message, Message) else message
        places = [(one.partition, one.entry_id) for one in called]
        self._in_threads.update(places)
        try:
            outcome = self.handler.invoke(message)
        finally:
            self._in_threads.difference_update(places)
        for place in places:
            if (held := self._outlived.get(place)) is not None:
                asyncio.run_coroutine_threadsafe(self.ended_late(held, place[1]), self._loop)
        return outcome

    def _limited(self, threads: HandlerThreads | None) -> Callable[[Any], Awaitable[Any]]:
        """How the handler is called, within its time if that is limited."""
        timeout_s, invoke = self.subscription.timeout_s, self.handler.invoke
        if threads is None and timeout_s is None:
            return invoke

        async def in_loop(message: Any) -> Any:
            async with asyncio.timeout(timeout_s):
                return await invoke(message)

        async def in_thread(message: Any) -> Any:
            call, name = partial(self._call, message), self.handler.name
            outcome = await cast("HandlerThreads", threads).call(name, call, timeout_s=timeout_s)
            if not inspect.isawaitable(outcome):
                return outcome
            async with asyncio.timeout(timeout_s):
                return await outcome

        return in_loop if threads is None else in_thread


def _is_undecodable(message: Message) -> bool:
    """Whether the payload itself is at fault, not something that the handler decoded."""
    try:
        _ = message.payload
    except DecodeError:
        return True
    return False
