"""One message from its handler to its outcome: acknowledged, retried, or a dead letter."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.failure_log import FailedAttempt, FailureLog
from penstock.delivery.failures import Failure
from penstock.delivery.outcomes import forget_cancellation, handler_error
from penstock.delivery.retries import DeathReason, GiveUp, RetryIn
from penstock.delivery.stored import whole_number
from penstock.delivery.threads import HandlerThreads
from penstock.errors import BadSignature, DecodeError, PenstockError
from penstock.redis.client import Client
from penstock.throttled_log import RateLimitedLog
from penstock.topics.consumer.growth_barrier import GrowthBarriers
from penstock.topics.consumer.handler import Handler, failures_in
from penstock.topics.consumer.owned_partition import (
    ConsumerCounts,
    Item,
    OwnedPartition,
    PendingMessage,
)
from penstock.topics.dead_letters.letter import bury, index_field
from penstock.topics.message import (
    PAYLOAD,
    TARGET_GROUP,
    Fields,
    Message,
    field_of,
    is_marker,
)
from penstock.topics.storage.keys import TopicKeys
from penstock.topics.storage.large_payloads import fetch_body
from penstock.topics.storage.message_id import place_id
from penstock.topics.storage.message_signatures import MessageSignatures
from penstock.topics.subscription import Subscription

__all__ = ["DEFAULT_CONCURRENCY", "PLAIN_FIELDS", "MessageProcessor"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

DEFAULT_CONCURRENCY = 32
PLAIN_FIELDS = 6
"""Most names and values of a plain entry: payload, key and headers."""
_LONGEST_TURN_S = 2.0
"""A handler that has run for this long is unlikely to be what ends processes: the next one may
begin beside it, so that slow handlers do not hold each other up for ever."""


class SuspectTurns:
    """Suspects begin one at a time: messages that a process had begun when it died.

    Perhaps one of them took it down, perhaps one that ran beside them did. If only one suspect runs
    at a time, the next crash is charged to no other.
    """

    def __init__(self, longest_s: float = _LONGEST_TURN_S) -> None:
        self._lock, self._longest_s = asyncio.Lock(), longest_s

    async def take(self) -> Callable[[], None]:
        """Wait for a turn; returns what ends it. It also ends when it has lasted too long."""
        await self._lock.acquire()
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                timer.cancel()
                self._lock.release()

        timer = asyncio.get_running_loop().call_later(self._longest_s, end)
        return end


# Shared by all consumers of a client: a crash takes them all down.
_turns: WeakKeyDictionary[Client, SuspectTurns] = WeakKeyDictionary()


def suspect_turns(client: Client) -> SuspectTurns:
    """The turns of the process that a client belongs to."""
    return _turns.setdefault(client, SuspectTurns())


class MessageProcessor:
    """Handles messages, in whatever order the runner chooses.

    `handle` and its kin return None when the message is done, else the seconds until its next
    attempt.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        handler: Handler,
        subscription: Subscription,
        counts: ConsumerCounts,
        barriers: GrowthBarriers,
    ) -> None:
        self.handler, self.subscription, self.counts = handler, subscription, counts
        self.policy = subscription.retry
        self._barriers = barriers
        self.threads: HandlerThreads | None = None
        """Where a plain function runs; the caller of `invoke` has one of its places."""
        if not handler.is_async:
            places = subscription.concurrency or DEFAULT_CONCURRENCY
            self.threads = HandlerThreads(places, f"penstock {handler.name}")
        self.invoke: Callable[[Any], Awaitable[Any]] = self._limited(self.threads)
        """Runs the handler on a message (a list of them for a batch)."""
        self.counts_starts = subscription.counts_starts
        self.signatures = MessageSignatures.required_of(client, topic)
        """What each message is verified by; None if messages need no signature."""
        is_special = self.counts_starts or self.signatures is not None
        self.plain_fields = 0 if is_special else PLAIN_FIELDS
        """Most names and values of an entry whose handler may be called directly."""
        self.turns = suspect_turns(client)
        """Turns of messages that may have ended a process."""
        self._in_threads: set[tuple[int, bytes]] = set()
        """Partition and id of messages whose handlers run in threads now."""
        self._outlived: dict[tuple[int, bytes], OwnedPartition] = {}
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

    async def special(self, owned: OwnedPartition, item: Item) -> float | None:
        """Handle what is not a plain first delivery."""
        if isinstance(item, Message):
            return await self._again(owned, item)
        id_, fields = item
        message = Message(owned.source, id_, fields)
        if self._passes_over(owned, fields):
            if not is_marker(fields) or await self._barriers.passed(
                owned, whole_number(fields[1]), id_
            ):
                owned.ack(id_)
            return None
        return await (self._begin if self.counts_starts else self.handle)(owned, message)

    async def handle(self, owned: OwnedPartition, message: Message) -> float | None:
        """Run the handler and record the outcome."""
        await self._complete(owned, message)
        if self.signatures is not None:
            refusal = self.signatures.refusal_of(message)
            if refusal is not None:
                await self.refuse(owned, message, refusal)
                return None
        if message.body is not None:
            await message.unpack_aside()
        try:
            if self.subscription.batch is None:
                outcome = await self.invoke(message)
            else:
                outcome = failures_in(await self.invoke([message]), [message]).get(message)
        except BaseException as error:  # noqa: BLE001  a failure becomes a recorded outcome
            return await self.failed(
                owned, message, self.error_of(owned, [message.entry_id], error)
            )
        if outcome is None:
            self.succeeded(owned, message)
            return None
        return await self.ended(owned, message, outcome)

    def error_of(
        self, owned: OwnedPartition, ids: Iterable[bytes], error: BaseException
    ) -> Exception:
        """The error of a handler. If it was cancelled instead, its attempts stay charged."""
        if isinstance(error, asyncio.CancelledError) and not self.is_ending():
            forget_cancellation()
        try:
            return handler_error(error)
        except BaseException:
            owned.attempts.cut_short(ids)
            raise

    def succeeded(self, owned: OwnedPartition, message: Message) -> None:
        id_ = message.entry_id
        if owned.attempts.forget_failures(id_):
            owned.ack_failed(id_)
        else:
            owned.ack(id_)

    async def ended(self, owned: OwnedPartition, message: Message, outcome: object) -> float | None:
        """Record what a handler returned."""
        if isinstance(outcome, Exception):
            return await self.failed(owned, message, outcome)
        self.succeeded(owned, message)
        return None

    async def failed(
        self, owned: OwnedPartition, message: Message, error: Exception
    ) -> float | None:
        """Try again later, or give up."""
        now_ms = SYSTEM_CLOCK.wall_ms()
        failure = Failure.of(error, message.attempt, now_ms, redacts=self._failure_log.redacts)
        failures = owned.attempts.failed(message.entry_id, failure)
        if isinstance(error, DecodeError) and _is_undecodable(message):
            decision = GiveUp(DeathReason.UNDECODABLE)
        else:
            decision = self.policy.decide(error, message.attempt, now_ms=now_ms)
        next_s = decision.seconds if isinstance(decision, RetryIn) else None
        self._failure_log.failed(self._attempt_of(message), failure, error, next_s=next_s)
        error.__traceback__ = None  # logged; kept, it would keep all the handler's variables alive
        if isinstance(decision, RetryIn):
            await owned.retry_later(message, decision.seconds, failures)
            return decision.seconds
        await self._give_up(owned, message, decision, failures)
        return None

    def refusal_in_batch(self, message: Message) -> BadSignature | None:
        """Why a plain first delivery may not be handled in a batch."""
        if self.signatures is None:
            return None
        if message.stored_payload != message.fields[1]:
            return BadSignature("altered", f"message {message.id!r} claims a retry by Java")
        return self.signatures.refusal_of(message)

    async def refuse(self, owned: OwnedPartition, message: Message, refusal: BadSignature) -> None:
        """Bury a message that has no valid signature, at its first attempt."""
        failure = Failure.of(refusal, message.attempt, SYSTEM_CLOCK.wall_ms())
        failures = owned.attempts.failed(message.entry_id, failure)
        self._failure_log.failed(self._attempt_of(message), failure, refusal, next_s=None)
        await self._give_up(owned, message, GiveUp(DeathReason.REFUSED), failures)

    # ---- what was delivered before

    def recovered(self, owned: OwnedPartition, pending: PendingMessage) -> Message | None:
        """Make a message of what an earlier owner left; None if it is gone from the stream."""
        if not pending.fields:
            if pending.attempts:  # else it was settled while its retry was noted
                self.counts.vanished += 1
                quiet.error(
                    f"{owned} vanished",
                    "%s: message %s was trimmed while pending",
                    owned,
                    place_id(owned.source.partition, pending.id),
                )
            owned.ack_failed(pending.id)
            return None
        owned.attempts.recovered(pending.id, pending.failures)
        return Message(owned.source, pending.id, pending.fields, pending.attempts + 1)

    async def _again(self, owned: OwnedPartition, message: Message) -> float | None:
        if self._passes_over(owned, message.fields):
            return await self.special(owned, [message.entry_id, message.fields])
        if owned.attempts.take_inherited(message.entry_id) and await self._is_buried(
            owned, message
        ):
            await self._give_up(owned, message, *self._crash_verdict(owned, message))
            return None
        if message.attempt > self.policy.max_attempts:
            await self._count_again(owned, message)
        if message.attempt > self.policy.max_attempts:
            await self._give_up(owned, message, *self._crash_verdict(owned, message))
            return None
        return None if owned.closing else await self._begin(owned, message)

    async def _count_again(self, owned: OwnedPartition, message: Message) -> None:
        """Ask how many attempts are counted by now: some may have been taken back meanwhile."""
        for pending in await owned.pending(message.entry_id.decode(), 1):
            if pending.id == message.entry_id:
                message.attempt = pending.attempts + 1

    async def in_turn(self, owned: OwnedPartition, message: Message) -> float | None:
        """Handle a suspect during its turn, which is over when the server knows how it ended.

        Otherwise the next one could take the process down, and this one would be charged for it.
        """
        wait_s = await self._again(owned, message)
        await owned.flush_acks()
        return wait_s

    async def _begin(self, owned: OwnedPartition, message: Message) -> float | None:
        """Count the attempt, then make it."""
        if await owned.begin([message]):
            return await self.handle(owned, message)
        if not owned.lost:
            self.succeeded(owned, message)  # trimmed, or acknowledged elsewhere
        return None

    async def _is_buried(self, owned: OwnedPartition, message: Message) -> bool:
        """Whether an earlier owner got as far as the dead letter, and crashed then."""
        index = TopicKeys.of(self._client.keys, message.topic).dlq_index
        place = index_field(message.group, message.partition, message.entry_id.decode())
        is_known = await owned.until_answered(
            "read dead letters", lambda: self._client.call("HEXISTS", index, place)
        )
        return bool(is_known)

    # ---- when the partition is lost, and the process lives

    async def lost(
        self, owned: OwnedPartition, fetched: Iterable[bytes], running: Iterable[bytes]
    ) -> None:
        """Take back the attempts at messages of a lost partition: this process lives.

        `fetched` are first deliveries that did not fail, `running` those whose handlers still run:
        their attempts are taken back when they end.
        """
        partition = owned.source.partition
        ids = owned.attempts.begun | owned.unacknowledged_ids()
        if not self.counts_starts:
            ids.update(fetched)
        threads = {id_ for index, id_ in self._in_threads.copy() if index == partition}
        late = ids.intersection(threads.union(running))
        self._outlived |= {(partition, id_): owned for id_ in late}
        for id_ in threads & late:
            if (partition, id_) not in self._in_threads:  # it has ended in this very moment
                del self._outlived[partition, id_]
                late.discard(id_)
        await owned.uncharge(sorted(ids - late))

    async def ended_late(self, owned: OwnedPartition, id_: bytes) -> None:
        """A handler has ended that was still running when its partition was lost."""
        place = (owned.source.partition, id_)
        if self._outlived.get(place) is owned:
            del self._outlived[place]
            if not owned.attempts.failures_of(id_):
                try:
                    await owned.uncharge([id_])
                except PenstockError as error:
                    logger.info("%s: message %s stays charged: %s", owned, id_.decode(), error)

    @staticmethod
    def _passes_over(owned: OwnedPartition, fields: Fields) -> bool:
        """Whether the entry never reaches a handler: a marker, or meant for another group."""
        if is_marker(fields):
            return True
        target = field_of(fields, TARGET_GROUP)
        return target is not None and target != owned.source.group.encode()

    def _crash_verdict(
        self, owned: OwnedPartition, message: Message
    ) -> tuple[GiveUp, tuple[Failure, ...]]:
        """Why no attempt is left: the last one failed, or its outcome is unknown."""
        failures = owned.attempts.failures_of(message.entry_id)
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
        self,
        owned: OwnedPartition,
        message: Message,
        verdict: GiveUp,
        failures: tuple[Failure, ...],
    ) -> None:
        """First the dead letter, then the acknowledgement: a crash between repeats the first.

        The dead letters are in another place than the partition, where no script can compare the
        epoch; so it is compared right before.
        """
        await owned.until_answered("renew", owned.renew)
        if owned.lost:
            return
        letter_id = await owned.until_answered(
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
        if not owned.lost:
            self.counts.dead += 1
            self._failure_log.buried(
                self._attempt_of(message),
                verdict.reason,
                failures[-1] if failures else None,
                letter_id=letter_id or "",
            )
            owned.attempts.buried(message.entry_id)
            owned.ack_failed(message.entry_id)

    def _attempt_of(self, message: Message) -> FailedAttempt:
        return FailedAttempt(
            message.id,
            message.attempt,
            self.policy.max_attempts,
            handler=self.handler.name,
            group=message.group,
        )

    async def _complete(self, owned: OwnedPartition, message: Message) -> None:
        """Fetch a payload that is stored beside the stream.

        The Java library may leave an empty text in its place.
        """
        if message.body is None and not field_of(message.fields, PAYLOAD):
            message.body = await owned.until_answered(
                "fetch", lambda: fetch_body(self._client, message)
            )

    def _call(self, message: Any) -> Any:
        """Runs in a thread."""
        try:
            return self.call_in_thread(message)
        except StopIteration as error:
            # No future can hold it: the waiting task would wait for ever.
            raise RuntimeError("the handler raised StopIteration") from error
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # Raised in the event loop it would end the worker.
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
            if (owned := self._outlived.get(place)) is not None:
                asyncio.run_coroutine_threadsafe(self.ended_late(owned, place[1]), self._loop)
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
