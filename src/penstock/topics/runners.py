"""Handlers in the order of a partition: one after the other, in batches, or in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, cast

from penstock.errors import ConfigError, DecodeError
from penstock.topics.held import Held, Item
from penstock.topics.message import PAYLOAD, Message
from penstock.topics.pace import Pace
from penstock.topics.work import PLAIN_FIELDS, Work

__all__ = ["SerialRunner"]


class SerialRunner:
    """Handles the messages of each partition one after the other; partitions run side by side."""

    def __init__(self, work: Work, pace: Pace) -> None:
        self._work, self._pace = work, pace
        places = work.subscription.concurrency
        self._places = asyncio.Semaphore(places) if places else None
        self._in_order = work.subscription.keeps_retries_in_order
        self._loop = asyncio.get_running_loop()
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
                began = self._loop.time()
                handled = await self._run_chunk(held, chunk)
                self._pace.note(handled, self._loop.time() - began)
            held.drop(len(chunk))
            self._chunks[held] = chunk[handled:]
            await asyncio.sleep(0)  # others get their turn, however quick the handler is

    def left(self, held: Held) -> list[Item]:
        """What was taken from the queue and has not ended, as far as can be told from here."""
        return self._chunks.get(held, [])

    def forget(self, held: Held) -> None:
        self._chunks.pop(held, None)

    def _place(self) -> AbstractAsyncContextManager[Any]:
        return self._places if self._places is not None else nullcontext()

    async def _one_by_one(self, held: Held, chunk: list[Item]) -> int:
        """How many of the chunk were begun; all of these have ended."""
        work, source, now = self._work, held.source, self._loop.time
        invoke, done = work.invoke, held.done
        for place, item in enumerate(chunk):
            if held.closing or (now() >= held.deadline and not await held.until_certain()):
                return place
            if type(item) is list:
                id_, fields = item
                if fields[0] == PAYLOAD and len(fields) <= PLAIN_FIELDS:
                    message = Message(source, id_, fields)
                    try:
                        outcome = await invoke(message)
                    except Exception as error:  # noqa: BLE001  it becomes a recorded outcome
                        await self._again(held, message, await work.failed(held, message, error))
                        continue
                    if outcome is None:
                        done(id_)
                    else:
                        wait_s = await work.ended(held, message, outcome)
                        await self._again(held, message, wait_s)
                    continue
            await self._special(held, item)
        return len(chunk)

    async def _special(self, held: Held, item: Item) -> None:
        if isinstance(item, Message) and item.id in held.waits:
            await self._again(held, item, held.waits.pop(item.id), first=True)
            return
        wait_s = await self._work.special(held, item)
        if wait_s is not None:
            message = item if isinstance(item, Message) else Message(held.source, *item)
            await self._again(held, message, wait_s)

    async def _again(
        self, held: Held, message: Message, wait_s: float | None, *, first: bool = False
    ) -> None:
        """Let a failed message come back: by the retry loop, or here, so that nothing overtakes."""
        if wait_s is not None and not self._in_order:
            held.retry_in(wait_s)
            return
        while wait_s is not None:
            if not await held.wait_open(wait_s):
                return
            if not first:
                message = Message(held.source, message.id, message.fields, message.attempt + 1)
            first = False
            wait_s = await self._work.special(held, message)

    async def _in_a_thread(self, held: Held, chunk: list[Item]) -> int:
        """As `_one_by_one` for a handler that blocks: one hop for as many as the pace allows."""
        place = 0
        while place < len(chunk):
            if held.closing or (
                self._loop.time() >= held.deadline and not await held.until_certain()
            ):
                return place
            run = _plain_messages(held, chunk[place : place + self._pace.hop])
            if not run or self._work.subscription.timeout_s is not None:
                await self._special(held, chunk[place])
                place += 1
                continue
            began = self._loop.time()
            outcomes = await self._loop.run_in_executor(self._work.threads, self._hop, held, run)
            self._pace.note_hop(len(outcomes), self._loop.time() - began)
            for message, outcome in zip(run, outcomes, strict=False):
                if outcome is None:
                    held.done(message.id)
                elif isinstance(outcome, Exception):
                    await self._again(
                        held, message, await self._work.failed(held, message, outcome)
                    )
                else:
                    held.done(message.id)
            place += len(outcomes)
        return place

    def _hop(self, held: Held, run: list[Message]) -> list[object]:
        """Runs in a thread: call the handler for each, until one fails or the partition closes."""
        outcomes: list[object] = []
        for message in run:
            if held.closing:
                break
            try:
                outcomes.append(self._work.handler.invoke(message))
            except Exception as error:  # noqa: BLE001  it becomes a recorded outcome
                outcomes.append(error)
                break
        return outcomes

    async def _batches(self, held: Held, chunk: list[Item]) -> int:
        most = self._work.subscription.batch or 1
        place = 0
        while place < len(chunk):
            if held.closing or (
                self._loop.time() >= held.deadline and not await held.until_certain()
            ):
                return place
            run = _plain_messages(held, chunk[place : place + most])
            if run:
                await self._one_batch(held, run)
                place += len(run)
            else:
                # What was delivered before comes alone: perhaps it is what crashed its batch.
                await self._special(held, chunk[place])
                place += 1
        return place

    async def _one_batch(self, held: Held, messages: list[Message]) -> None:
        work = self._work
        readable = messages
        try:
            outcome = await work.invoke(messages)
        except DecodeError as error:
            readable = [message for message in messages if _is_readable(message)]
            if len(readable) == len(messages):
                await self._all_failed(held, messages, error)
                return
            for message in messages:
                if message not in readable:
                    await self._again(held, message, await work.failed(held, message, error))
            if readable:
                await self._one_batch(held, readable)
            return
        except Exception as error:  # noqa: BLE001  it becomes a recorded outcome
            await self._all_failed(held, messages, error)
            return
        failures = _failures_in(outcome)
        for message in messages:
            error = failures.get(message) if failures else None
            if error is None:
                held.done(message.id)
            else:
                await self._again(held, message, await work.failed(held, message, error))

    async def _all_failed(self, held: Held, messages: list[Message], error: Exception) -> None:
        for message in messages:
            await self._again(held, message, await self._work.failed(held, message, error))


def _plain_messages(held: Held, items: list[Item]) -> list[Message]:
    """The first deliveries at the head of `items`."""
    source = held.source
    messages: list[Message] = []
    for item in items:
        if type(item) is not list:
            break
        id_, fields = item
        if fields[0] != PAYLOAD or len(fields) > PLAIN_FIELDS:
            break
        messages.append(Message(source, id_, fields))
    return messages


def _is_readable(message: Message) -> bool:
    try:
        _ = message.payload
    except DecodeError:
        return False
    return True


def _failures_in(outcome: object) -> Mapping[Message, Exception]:
    if isinstance(outcome, Mapping):
        return cast("Mapping[Message, Exception]", outcome)
    if isinstance(outcome, Exception):
        raise ConfigError("a batch handler returns None or the messages that failed")
    return {}
