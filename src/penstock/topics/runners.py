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
from penstock.errors import DecodeError
from penstock.topics.held import Held, Item
from penstock.topics.message import PAYLOAD, Message
from penstock.topics.outcomes import failures_in
from penstock.topics.pace import Pace
from penstock.topics.parked import Parked
from penstock.topics.work import PLAIN_FIELDS, Work

__all__ = ["SerialRunner"]

_NOT_BEGUN = -1.0
"""In place of the seconds until the next attempt: the partition closed before this one began."""


class SerialRunner:
    """Handles the messages of each partition one after the other; partitions run side by side."""

    def __init__(self, work: Work, pace: Pace) -> None:
        self._work, self._pace = work, pace
        places = work.subscription.concurrency
        self._places = asyncio.Semaphore(places) if places else None
        self._in_order = work.subscription.keeps_retries_in_order
        self._chunks: dict[Held, list[Item]] = {}
        self._run_chunk = self._choose()

    def _choose(self) -> Callable[[Held, list[Item]], Any]:
        if self._work.subscription.batch:
            return self._batches
        return self._one_by_one if self._work.threads is None else self._in_a_thread

    async def run(self, held: Held) -> None:
        """Handle what is queued until the partition closes."""
        while (chunk := await held.next_chunk()) is not None:
            self._chunks[held] = chunk
            async with self._place():
                began = time.monotonic()
                handled = await self._run_chunk(held, chunk)
                self._pace.note(handled, time.monotonic() - began)
            held.drop(len(chunk))
            self._chunks[held] = chunk[handled:]
            await asyncio.sleep(0)  # others get their turn, however quick the handler is

    def left(self, held: Held) -> list[Item]:
        """What was taken from the queue and has not ended, as far as can be told from here."""
        return self._chunks.get(held, [])

    def parked(self, held: Held) -> list[Parked]:  # noqa: ARG002  as the other runner
        """Nothing: what waits for a message of its partition is in memory, and little."""
        return []

    def running(self, held: Held) -> list[bytes]:  # noqa: ARG002  as the other runner
        """Ids whose handlers go on although the partition was lost: they were cut short."""
        return []

    def forget(self, held: Held) -> None:
        self._chunks.pop(held, None)

    def _place(self) -> AbstractAsyncContextManager[Any]:
        return self._places if self._places is not None else nullcontext()

    async def _one_by_one(self, held: Held, chunk: list[Item]) -> int:
        """How many of the chunk were begun; all of these have ended."""
        work, source, now = self._work, held.source, time.monotonic
        invoke, direct, decode = work.invoke, work.direct, source.decode
        finished, wake, deadline = held.finished.append, held.wake, held.deadline
        plain_fields = work.plain_fields
        for place, item in enumerate(chunk):
            if held.closing or now() >= deadline:
                if not await held.until_certain():
                    return place
                deadline = held.deadline
            if type(item) is list:
                id_, fields = item
                if fields[0] == PAYLOAD and len(fields) <= plain_fields:
                    try:
                        if direct is not None:
                            outcome = await direct(decode(fields[1]))
                        else:
                            outcome = await invoke(Message(source, id_, fields))
                    except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
                        outcome = work.error_of(held, [id_], error)
                    if outcome is None:
                        finished(id_)
                        wake()
                    else:
                        await self._ended(held, Message(source, id_, fields), outcome)
                    continue
            await self._special(held, item)
        return len(chunk)

    async def _ended(self, held: Held, message: Message, outcome: object) -> None:
        if isinstance(outcome, Exception):
            wait_s = await self._work.failed(held, message, outcome)
            await self._again(held, message, wait_s)
        else:
            held.done(message.entry_id)

    async def _special(self, held: Held, item: Item) -> bool:
        """Handle what is not a plain first delivery; False if the partition closed before that."""
        if isinstance(item, Message) and item.entry_id in held.waits:
            await self._again(held, item, held.waits.pop(item.entry_id), first=True)
            return True
        wait_s = await self._in_turn(held, item)
        if wait_s is not None and wait_s != _NOT_BEGUN:
            message = item if isinstance(item, Message) else Message(held.source, *item)
            await self._again(held, message, wait_s)
        return wait_s != _NOT_BEGUN

    async def _in_turn(self, held: Held, item: Item) -> float | None:
        """Handle what is not a plain first delivery; a suspect waits for its turn."""
        if not isinstance(item, Message) or item.entry_id not in held.suspects:
            async with self._thread(held) as is_free:
                return await self._work.special(held, item) if is_free else _NOT_BEGUN
        end_turn = await self._work.turns.take()
        try:
            async with self._thread(held) as is_free:
                return await self._work.in_turn(held, item) if is_free else _NOT_BEGUN
        finally:
            end_turn()

    def _thread(self, held: Held) -> AbstractAsyncContextManager[bool]:
        """A place for one call, taken before that is counted; False if the partition closes."""
        threads = self._work.threads
        return nullcontext(True) if threads is None else threads.place(held.closed)

    async def _again(
        self, held: Held, message: Message, wait_s: float | None, *, first: bool = False
    ) -> None:
        """Let a failed message come back: by the retry loop, or here, so that nothing overtakes."""
        while wait_s is not None and wait_s != _NOT_BEGUN:
            if not self._in_order and not first:
                held.retry_in(message.entry_id, wait_s)
                return
            if not await held.wait_open(wait_s):
                return
            if not first:
                message = Message(
                    held.source, message.entry_id, message.fields, message.attempt + 1
                )
            first = False
            wait_s = await self._in_turn(held, message)

    async def _in_a_thread(self, held: Held, chunk: list[Item]) -> int:
        """As `_one_by_one` for a handler that blocks: one hop for as many as the pace allows."""
        place, threads = 0, self._work.threads
        while place < len(chunk):
            if held.closing or (
                time.monotonic() >= held.deadline and not await held.until_certain()
            ):
                return place
            run = [
                Message(held.source, *item)
                for item in _plain_items(
                    chunk[place : place + self._pace.hop], self._work.plain_fields
                )
            ]
            if not run or threads is None or self._work.subscription.timeout_s is not None:
                if not await self._special(held, chunk[place]):
                    return place
                place += 1
                continue
            async with threads.place(held.closed) as is_free:
                if not is_free:
                    return place
                began = time.monotonic()
                hop = partial(self._hop, held, run)
                outcomes = await threads.call(self._work.handler.name, hop)
                self._pace.note_hop(len(outcomes), time.monotonic() - began)
            for message, outcome in zip(run, outcomes, strict=False):
                await self._ended(held, message, await _awaited(outcome))
            place += len(outcomes)
        return place

    def _hop(self, held: Held, run: list[Message]) -> list[object]:
        """Runs in a thread: call the handler for each, until the partition closes or one fails.

        Those after it may have to wait for it.
        """
        outcomes: list[object] = []
        for message in run:
            if held.closing:
                break
            try:
                outcome = self._work.call_in_thread(message)
            except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
                outcome = handler_error(error)
            outcomes.append(outcome)
            if outcome is not None:
                break
        return outcomes

    async def _batches(self, held: Held, chunk: list[Item]) -> int:
        most = self._work.subscription.batch or 1
        place = 0
        while place < len(chunk):
            if held.closing or (
                time.monotonic() >= held.deadline and not await held.until_certain()
            ):
                return place
            run = _plain_items(chunk[place : place + most], PLAIN_FIELDS)
            if run:
                if not await self._one_batch(held, run):
                    return place
                place += len(run)
            else:
                # What was delivered before comes alone: perhaps it is what crashed its batch.
                if not await self._special(held, chunk[place]):
                    return place
                place += 1
        return place

    async def _counted(self, held: Held, run: list[Any]) -> list[Any]:
        """What of a batch may begin; where every start is counted, that is done here."""
        if not self._work.counts_starts:
            return run
        messages = [Message(held.source, *item) for item in run]
        may_begin = {message.entry_id for message in await held.begin(messages)}
        for id_, _ in run:
            if id_ not in may_begin and not held.lost:
                held.done(id_)  # trimmed away, or settled by somebody else
        return [item for item in run if item[0] in may_begin]

    async def _one_batch(self, held: Held, run: list[Any]) -> bool:
        """Handle a batch; False if the partition closed before it began."""
        unreadable: dict[Message, DecodeError] = {}
        async with self._thread(held) as is_free:
            if not is_free:
                return False
            run = await self._counted(held, run)
            messages, outcome = await self._call_batch(held, run)
            if isinstance(outcome, DecodeError):
                unreadable = {
                    one: error for one in messages if (error := _fault_in(one)) is not None
                }
            if unreadable:  # the handler never got to see the batch: the others are still to come
                run = [[one.entry_id, one.fields] for one in messages if one not in unreadable]
                messages, outcome = await self._call_batch(held, run)
        for message, error in unreadable.items():
            await self._ended(held, message, error)
        if outcome is None:
            held.finished += [item[0] for item in run]
            held.wake()
            return True
        failures = failures_in(outcome, messages)
        traces = {id(error): error.__traceback__ for error in failures.values()}
        for message in messages:
            error = failures.get(message)
            if error is not None:
                error.__traceback__ = traces[id(error)]  # the message before it took it off
            await self._ended(held, message, error)
        return True

    async def _call_batch(self, held: Held, run: list[Any]) -> tuple[list[Message], object]:
        """How the handler ended, and its messages if it did not simply succeed."""
        if not run:
            return [], None
        work, decode = self._work, held.source.decode
        messages: list[Message] = []
        try:
            if work.direct is not None:
                outcome = await work.direct([decode(item[1][1]) for item in run])
            else:
                messages = [Message(held.source, *item) for item in run]
                outcome = await work.invoke(messages)
        except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
            outcome = work.error_of(held, [item[0] for item in run], error)
        if outcome is not None and not messages:
            messages = [Message(held.source, *item) for item in run]
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
