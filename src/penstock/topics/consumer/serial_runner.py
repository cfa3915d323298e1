"""Handlers in the order of a partition: one after the other, in batches, or in a thread."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

from penstock.delivery.outcomes import handler_error
from penstock.errors import BadSignature, DecodeError
from penstock.topics.consumer.fetch_budget import FetchPacing
from penstock.topics.consumer.handler import failures_in
from penstock.topics.consumer.message_processor import PLAIN_FIELDS, MessageProcessor
from penstock.topics.consumer.owned_partition import Item, OwnedPartition
from penstock.topics.consumer.parking import ParkedIds
from penstock.topics.message import PAYLOAD, Message

__all__ = ["SerialRunner"]

_NOT_BEGUN = -1.0
"""In place of the seconds until the next attempt: the partition closed before this one began."""


class SerialRunner:
    """Handles the messages of each partition one after the other; partitions run side by side."""

    def __init__(self, processor: MessageProcessor, pacing: FetchPacing) -> None:
        self._processor, self._pacing = processor, pacing
        places = processor.subscription.concurrency
        self._places = asyncio.Semaphore(places) if places else None
        self._in_order = processor.subscription.keeps_retries_in_order
        self._chunks: dict[OwnedPartition, list[Item]] = {}
        self._run_chunk = self._choose()

    def _choose(self) -> Callable[[OwnedPartition, list[Item]], Any]:
        if self._processor.subscription.batch:
            return self._batches
        return self._one_by_one if self._processor.threads is None else self._in_a_thread

    async def run(self, owned: OwnedPartition) -> None:
        """Handle what is queued until the partition closes."""
        while (chunk := await owned.next_chunk()) is not None:
            self._chunks[owned] = chunk
            async with self._place():
                began = time.monotonic()
                handled = await self._run_chunk(owned, chunk)
                self._pacing.note(handled, time.monotonic() - began)
            owned.budget.drop(len(chunk))
            self._chunks[owned] = chunk[handled:]
            await asyncio.sleep(0)  # others get their turn, however quick the handler is

    def left(self, owned: OwnedPartition) -> list[Item]:
        """Messages that were taken from the queue and have not ended, as far as known here."""
        return self._chunks.get(owned, [])

    def parked(self, owned: OwnedPartition) -> list[ParkedIds]:  # noqa: ARG002  as the other runner
        """Nothing: what waits for a message of its partition is in memory, and little."""
        return []

    def running(self, owned: OwnedPartition) -> list[bytes]:  # noqa: ARG002  as the other runner
        """Ids whose handlers still run although the partition was lost: they are cancelled."""
        return []

    def forget(self, owned: OwnedPartition) -> None:
        self._chunks.pop(owned, None)

    def _place(self) -> AbstractAsyncContextManager[Any]:
        return self._places if self._places is not None else nullcontext()

    async def _one_by_one(self, owned: OwnedPartition, chunk: list[Item]) -> int:
        """How many of the chunk were begun; all of these have ended."""
        processor, source, now = self._processor, owned.source, time.monotonic
        invoke, direct, decode = processor.invoke, processor.direct, source.decode
        ack, deadline = owned.ack, owned.deadline
        plain_fields = processor.plain_fields
        for place, item in enumerate(chunk):
            if owned.closing or now() >= deadline:
                if not await owned.until_certain():
                    return place
                deadline = owned.deadline
            if type(item) is list:
                id_, fields = item
                if fields[0] == PAYLOAD and len(fields) <= plain_fields:
                    try:
                        if direct is not None:
                            outcome = await direct(decode(fields[1]))
                        else:
                            outcome = await invoke(Message(source, id_, fields))
                    except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
                        outcome = processor.error_of(owned, [id_], error)
                    if outcome is None:
                        ack(id_)
                    else:
                        await self._ended(owned, Message(source, id_, fields), outcome)
                    continue
            await self._special(owned, item)
        return len(chunk)

    async def _ended(self, owned: OwnedPartition, message: Message, outcome: object) -> None:
        if isinstance(outcome, Exception):
            wait_s = await self._processor.failed(owned, message, outcome)
            await self._again(owned, message, wait_s)
        else:
            owned.ack(message.entry_id)

    async def _special(self, owned: OwnedPartition, item: Item) -> bool:
        """Handle what is not a plain first delivery; False if the partition closed before that."""
        if isinstance(item, Message) and (waits_s := owned.attempts.take_wait(item.entry_id)):
            await self._again(owned, item, waits_s, first=True)
            return True
        wait_s = await self._in_turn(owned, item)
        if wait_s is not None and wait_s != _NOT_BEGUN:
            message = item if isinstance(item, Message) else Message(owned.source, *item)
            await self._again(owned, message, wait_s)
        return wait_s != _NOT_BEGUN

    async def _in_turn(self, owned: OwnedPartition, item: Item) -> float | None:
        """Handle what is not a plain first delivery; a suspect waits for its turn."""
        if not isinstance(item, Message) or item.entry_id not in owned.attempts.suspects:
            async with self._thread(owned) as is_free:
                return await self._processor.special(owned, item) if is_free else _NOT_BEGUN
        end_turn = await self._processor.turns.take()
        try:
            async with self._thread(owned) as is_free:
                return await self._processor.in_turn(owned, item) if is_free else _NOT_BEGUN
        finally:
            end_turn()

    def _thread(self, owned: OwnedPartition) -> AbstractAsyncContextManager[bool]:
        """A place for one call, taken before that is counted; False if the partition closes."""
        threads = self._processor.threads
        return nullcontext(True) if threads is None else threads.place(owned.closed)

    async def _again(
        self, owned: OwnedPartition, message: Message, wait_s: float | None, *, first: bool = False
    ) -> None:
        """Let a failed message come back: by the retry loop, or here, so that nothing overtakes."""
        while wait_s is not None and wait_s != _NOT_BEGUN:
            if not self._in_order and not first:
                owned.retries.add(message.entry_id, wait_s)
                return
            if not await owned.wait_open(wait_s):
                return
            if not first:
                message = Message(
                    owned.source, message.entry_id, message.fields, message.attempt + 1
                )
            first = False
            wait_s = await self._in_turn(owned, message)

    async def _in_a_thread(self, owned: OwnedPartition, chunk: list[Item]) -> int:
        """As `_one_by_one` for a handler that blocks: one hop for as many as the pacing allows."""
        place, threads = 0, self._processor.threads
        while place < len(chunk):
            if owned.closing or (
                time.monotonic() >= owned.deadline and not await owned.until_certain()
            ):
                return place
            run = [
                Message(owned.source, *item)
                for item in _plain_items(
                    chunk[place : place + self._pacing.hop], self._processor.plain_fields
                )
            ]
            if not run or threads is None or self._processor.subscription.timeout_s is not None:
                if not await self._special(owned, chunk[place]):
                    return place
                place += 1
                continue
            async with threads.place(owned.closed) as is_free:
                if not is_free:
                    return place
                began = time.monotonic()
                hop = partial(self._hop, owned, run)
                outcomes = await threads.call(self._processor.handler.name, hop)
                self._pacing.note_hop(len(outcomes), time.monotonic() - began)
            for message, outcome in zip(run, outcomes, strict=False):
                await self._ended(owned, message, await _awaited(outcome))
            place += len(outcomes)
        return place

    def _hop(self, owned: OwnedPartition, run: list[Message]) -> list[object]:
        """Runs in a thread: call the handler for each, until the partition closes or one fails.

        Those after it may have to wait for it.
        """
        outcomes: list[object] = []
        for message in run:
            if owned.closing:
                break
            try:
                outcome = self._processor.call_in_thread(message)
            except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
                outcome = handler_error(error)
            outcomes.append(outcome)
            if outcome is not None:
                break
        return outcomes

    async def _batches(self, owned: OwnedPartition, chunk: list[Item]) -> int:
        most = self._processor.subscription.batch or 1
        place = 0
        while place < len(chunk):
            if owned.closing or (
                time.monotonic() >= owned.deadline and not await owned.until_certain()
            ):
                return place
            run = _plain_items(chunk[place : place + most], PLAIN_FIELDS)
            if run:
                if not await self._one_batch(owned, run):
                    return place
                place += len(run)
            else:
                # What was delivered before comes alone: perhaps it is what crashed its batch.
                if not await self._special(owned, chunk[place]):
                    return place
                place += 1
        return place

    async def _counted(self, owned: OwnedPartition, run: list[Any]) -> list[Any]:
        """What of a batch may begin; where every start is counted, that is done here."""
        if not self._processor.counts_starts:
            return run
        messages = [Message(owned.source, *item) for item in run]
        may_begin = {message.entry_id for message in await owned.begin(messages)}
        for id_, _ in run:
            if id_ not in may_begin and not owned.lost:
                owned.ack(id_)  # trimmed, or acknowledged elsewhere
        return [item for item in run if item[0] in may_begin]

    def _verified(
        self, owned: OwnedPartition, run: list[Any]
    ) -> tuple[list[Any], list[tuple[Message, BadSignature]]]:
        """Split a batch into what may be handled and what is refused."""
        kept, refused = list[Any](), list[tuple[Message, BadSignature]]()
        for item in run:
            message = Message(owned.source, *item)
            if (refusal := self._processor.refusal_in_batch(message)) is None:
                kept.append(item)
            else:
                refused.append((message, refusal))
        return kept, refused

    async def _one_batch(self, owned: OwnedPartition, run: list[Any]) -> bool:
        """Handle a batch; False if the partition closed before it began."""
        unreadable: dict[Message, DecodeError] = {}
        refused: list[tuple[Message, BadSignature]] = []
        async with self._thread(owned) as is_free:
            if not is_free:
                return False
            run = await self._counted(owned, run)
            if self._processor.signatures is not None:
                run, refused = self._verified(owned, run)
            messages, outcome = await self._call_batch(owned, run)
            if isinstance(outcome, DecodeError):
                unreadable = {
                    one: error for one in messages if (error := _fault_in(one)) is not None
                }
            if unreadable:  # the handler never got to see the batch: the others are still to come
                run = [[one.entry_id, one.fields] for one in messages if one not in unreadable]
                messages, outcome = await self._call_batch(owned, run)
        for message, refusal in refused:
            await self._processor.refuse(owned, message, refusal)
        for message, error in unreadable.items():
            await self._ended(owned, message, error)
        if outcome is None:
            owned.ack_all(item[0] for item in run)
            return True
        failures = failures_in(outcome, messages)
        traces = {id(error): error.__traceback__ for error in failures.values()}
        for message in messages:
            error = failures.get(message)
            if error is not None:
                error.__traceback__ = traces[id(error)]  # the message before it took it off
            await self._ended(owned, message, error)
        return True

    async def _call_batch(
        self, owned: OwnedPartition, run: list[Any]
    ) -> tuple[list[Message], object]:
        """How the handler ended, and its messages if it did not simply succeed."""
        if not run:
            return [], None
        processor, decode = self._processor, owned.source.decode
        messages: list[Message] = []
        try:
            if processor.direct is not None:
                outcome = await processor.direct([decode(item[1][1]) for item in run])
            else:
                messages = [Message(owned.source, *item) for item in run]
                outcome = await processor.invoke(messages)
        except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
            outcome = processor.error_of(owned, [item[0] for item in run], error)
        if outcome is not None and not messages:
            messages = [Message(owned.source, *item) for item in run]
        return messages, outcome


def _plain_items(items: list[Item], most_fields: int) -> list[Any]:
    """The first deliveries at the head of `items`."""
    for place, item in enumerate(items):
        if type(item) is not list or item[1][0] != PAYLOAD or len(item[1]) > most_fields:
            return items[:place]
    return items


def _fault_in(message: Message) -> DecodeError | None:
    """Why the payload cannot be read."""
    try:
        _ = message.payload
    except DecodeError as error:
        return error
    return None


async def _awaited(outcome: object) -> object:
    """How the handler ended that a plain function has only called."""
    if not inspect.isawaitable(outcome):
        return outcome
    try:
        return await outcome
    except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
        return handler_error(error)
