"""Handlers side by side: each key in its own order, or no order at all."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from penstock.delivery.outcomes import forget_cancellation
from penstock.delivery.threads import HandlerThreads
from penstock.topics.consumer.fetch_budget import FetchPacing
from penstock.topics.consumer.message_processor import DEFAULT_CONCURRENCY, MessageProcessor
from penstock.topics.consumer.owned_partition import Item, OwnedPartition, entry_id
from penstock.topics.consumer.parking import KeyBacklog, ParkedIds, Parking
from penstock.topics.message import BARRIER, KEY, PAYLOAD, Fields, Message, field_of, is_marker

__all__ = ["KeyedRunner"]

_KEY_PLACE = 2
_CHECK_EVERY_S = 0.02
# A key that keeps the others from being read for this long has its messages parked.
_PATIENCE_S = 0.5
# Messages to be read at once while they are parked anyway, however long handlers take.
_WORTH_READING = 128


class KeyedRunner:
    """Slots take backlogs that are ready. One slot at a time has a backlog: its key keeps order.

    `ahead` is how many messages may be read ahead, over all partitions. Backlogs that wait for a
    retry take up to half of that, then they are parked.
    """

    def __init__(self, processor: MessageProcessor, pacing: FetchPacing, ahead: int) -> None:
        self._processor, self._pacing, self._ahead = processor, pacing, ahead
        self._by_key = processor.subscription.ordering == "key"
        self._in_order = processor.subscription.keeps_retries_in_order
        self._loop = asyncio.get_running_loop()
        self._ready: deque[KeyBacklog] = deque()
        self._retries: deque[KeyBacklog] = deque()
        """Backlogs that are ready as well, and begin with a message that has failed before."""
        self._is_turn_of_retries = False
        """Both take turns: retries that take all the time there is leave half of it to others."""
        self._idle: list[asyncio.Future[None]] = []
        self._backlogs: dict[OwnedPartition, dict[bytes, KeyBacklog]] = {}
        self._active: dict[OwnedPartition, int] = {}
        self._unbegun: dict[OwnedPartition, list[Item]] = {}
        self._behind_marker: dict[OwnedPartition, list[Item]] = {}
        self._waiting: dict[KeyBacklog, asyncio.TimerHandle] = {}
        self._parking: dict[OwnedPartition, Parking] = {}
        self._fed: dict[OwnedPartition, int] = {}
        self._relief: asyncio.TimerHandle | None = None
        """Checks whether one key keeps the others from being read."""
        self._next_suspect: KeyBacklog | None = None
        """The backlog whose slot waits for the turn of a suspect: one at a time, so that suspects
        leave the other slots to the other keys."""
        self._aside: deque[KeyBacklog] = deque()
        """Further backlogs that begin with a suspect."""
        self._emptied = asyncio.Event()
        self._handled, self._since = 0, time.monotonic()
        self.slots = processor.subscription.concurrency or DEFAULT_CONCURRENCY
        self._running: list[KeyBacklog | None] = [None] * self.slots
        if processor.threads is not None:
            processor.threads.when_changed = self._wake

    async def run(self, owned: OwnedPartition) -> None:
        """Feed the backlogs from a partition until it closes and what was begun has ended."""
        self._backlogs[owned], self._active[owned], self._unbegun[owned] = {}, 0, []
        self._parking[owned], self._fed[owned] = Parking(owned, self._processor), 0
        while (chunk := await owned.next_chunk()) is not None:
            await self._feed(owned, chunk)
            await asyncio.sleep(0)
        self._hurry(owned)
        await self._until(lambda: not self._active[owned])

    def left(self, owned: OwnedPartition) -> list[Item]:
        """Messages that were taken from the queue and have not ended, as far as known here."""
        if owned not in self._backlogs:
            return []
        backlogs = {
            *(*self._ready, *self._retries, *self._waiting, *self._aside, *self._running),
            *self._backlogs[owned].values(),
        }
        return [
            *self._unbegun[owned],
            *self._behind_marker.get(owned, ()),
            *self._parking[owned].delivered(),
            *(
                item
                for backlog in backlogs
                if backlog and backlog.owned is owned
                for item in backlog.items
            ),
        ]

    def parked(self, owned: OwnedPartition) -> list[ParkedIds]:
        """What waits on the server for the turn of its key."""
        return self._parking[owned].snapshot() if owned in self._parking else []

    def running(self, owned: OwnedPartition) -> list[bytes]:
        """Ids whose handlers still run although the partition was lost."""
        return [
            entry_id(backlog.first)
            for backlog in self._running
            if backlog and backlog.owned is owned and backlog.first is not None
        ]

    def forget(self, owned: OwnedPartition) -> None:
        for backlogs in (self._ready, self._retries, self._aside):
            kept = [backlog for backlog in backlogs if backlog.owned is not owned]
            backlogs.clear()
            backlogs.extend(kept)
        for backlog in [backlog for backlog in self._waiting if backlog.owned is owned]:
            self._waiting.pop(backlog).cancel()
        for known in (
            *(self._backlogs, self._active, self._unbegun, self._behind_marker),
            *(self._parking, self._fed),
        ):
            known.pop(owned, None)

    async def _feed(self, owned: OwnedPartition, chunk: list[Item]) -> None:
        """Put a chunk into backlogs; what follows a marker waits for all before it."""
        backlogs, by_key, ready = self._backlogs[owned], self._by_key, self._ready
        add, parked = self._parking[owned].add, 0
        for place, item in enumerate(chunk):
            fields: Fields = item[1] if type(item) is list else _fields_of(item)
            if fields[0] == BARRIER and is_marker(fields):
                await self._pass_marker(owned, chunk[place:])
                if owned.closing:
                    break
                continue
            self._active[owned] += 1
            if by_key:
                key = (
                    fields[_KEY_PLACE + 1]
                    if len(fields) > _KEY_PLACE and fields[_KEY_PLACE] == KEY
                    else field_of(fields, KEY)
                )
                if key is not None:
                    backlog = backlogs.get(key)
                    if backlog is None:
                        backlogs[key] = backlog = KeyBacklog(owned, key, item)
                        ready.append(backlog)
                    elif backlog.rest is not None and not backlog.is_held_up:
                        backlog.rest.append(item)
                    else:
                        parked += add(backlog, item)
                    continue
            ready.append(KeyBacklog(owned, None, item))
        self._wake()
        self._fed[owned] += 1
        self._park_crowds(owned)
        if parked:
            await self._have_parked(owned, len(chunk) - parked)

    async def _pass_marker(self, owned: OwnedPartition, chunk: list[Item]) -> None:
        """Return when all that was read before a marker has ended; it is first in the chunk."""
        self._wake()
        self._behind_marker[owned] = chunk
        # Not `_until`: a retry may be due in an hour, a stop is not to wait for it.
        while self._active[owned] and await owned.wait_open(_CHECK_EVERY_S):
            pass
        await self._processor.special(owned, chunk[0])
        owned.budget.drop(1)
        self._behind_marker.pop(owned, None)
        if owned.closing:
            self._unbegun[owned] += chunk

    async def _have_parked(self, owned: OwnedPartition, others: int) -> None:
        """Return when the server knows what was parked of a chunk, and there is room for more."""
        if not others:
            self._pacing.at_least(min(_WORTH_READING, self._ahead))
        parking = self._parking[owned]
        await parking.flush()
        while parking.is_full and await owned.wait_open(_PATIENCE_S):
            pass

    async def slot(self, number: int) -> None:
        """Run handlers until cancelled; a handler that cancels its own task does not count."""
        while True:
            try:
                await self._run_backlogs(number)
            except asyncio.CancelledError:
                if self._processor.is_ending():
                    raise
                forget_cancellation()
                self._put_back(number)

    def _put_back(self, number: int) -> None:
        """Let the backlog of an interrupted slot begin again, with one attempt more counted."""
        backlog, self._running[number] = self._running[number], None
        if backlog is None or backlog.owned not in self._backlogs:
            return
        if backlog is self._next_suspect:
            self._call_next_suspect()
        first = backlog.first
        if first is None:
            self._ready.append(backlog)
            self._wake()
            return
        message = first if isinstance(first, Message) else Message(backlog.owned.source, *first)
        backlog.first = Message(
            message.source, message.entry_id, message.fields, message.attempt + 1
        )
        self._ready.append(backlog)
        self._wake()

    async def _run_backlogs(self, number: int) -> None:
        ready, running, threads = self._ready, self._running, self._processor.threads
        while True:
            while not (ready or self._retries) or (
                threads is not None and not self._has_place(threads)
            ):
                await self._rest()
            backlog = self._take_retry() if self._retries else ready.popleft()
            first = backlog.first
            if first is None or backlog.is_held_up or backlog.owned.attempts.suspects:
                first = await self._prepare(number, backlog)
                if first is None:
                    continue
            running[number] = backlog
            if not self._handled:
                self._since = time.monotonic()
            wait_s = await self._first_of(backlog, first)
            running[number] = None
            if backlog is self._next_suspect:
                self._call_next_suspect()  # its partition closed before it had its turn
            if backlog.owned.lost:
                await self._processor.ended_late(backlog.owned, entry_id(first))
            if backlog.owned not in self._backlogs:
                continue  # the partition was lost, and this handler did not end with it
            if wait_s is None:
                self._advance(backlog)
            else:
                self._wait(backlog, wait_s)

    async def _prepare(self, number: int, backlog: KeyBacklog) -> Item | None:
        """The first message of a backlog, in memory; None if it is not its turn after all."""
        first, threads = backlog.first, self._processor.threads
        if first is None:
            self._running[number] = backlog
            first = await self._load(backlog)
            self._running[number] = None
            if first is None:
                return None
            if threads is not None and not self._has_place(threads):
                self._ready.appendleft(backlog)
                return None
        if backlog.owned.attempts.suspects and self._waits_for_turn(backlog):
            return None
        self._parking[backlog.owned].resume(backlog)
        return first

    def _take_retry(self) -> KeyBacklog:
        """Take a backlog that is ready, one whose retry is due and one of the others by turns."""
        self._is_turn_of_retries = not self._is_turn_of_retries or not self._ready
        return (self._retries if self._is_turn_of_retries else self._ready).popleft()

    def _wait(self, backlog: KeyBacklog, wait_s: float) -> None:
        """Let a backlog come again later."""
        self._waiting[backlog] = self._loop.call_later(wait_s, self._due, backlog)
        if backlog.owned.closing:
            self._due(backlog)
        else:
            self._parking[backlog.owned].stall(backlog)
            self._park_crowds(backlog.owned)

    async def _load(self, backlog: KeyBacklog) -> Item | None:
        """Fetch the next messages of a backlog that has none in memory; the first of them."""
        owned, gone = backlog.owned, 0
        if backlog.parked and not owned.closing:
            gone = await self._parking[owned].load(backlog, backlog.parked)
        if owned not in self._backlogs:
            return None  # the partition was lost
        if owned.closing:
            gone += self._parking[owned].abandon(backlog)
        self._ended(owned, gone)
        if backlog.first is None and backlog.parked:
            self._ready.append(backlog)
        elif backlog.first is None and backlog.key is not None:
            del self._backlogs[owned][backlog.key]
        return backlog.first

    def _has_place(self, threads: HandlerThreads) -> bool:
        """Whether the first backlog may begin: abandoned calls hold their places.

        Backlogs of a partition that closes need none, since nothing of them begins.
        """
        busy = sum(backlog is not None and backlog.first is not None for backlog in self._running)
        if busy + threads.lost < self.slots:
            return True
        for backlogs in (self._ready, self._retries):
            closing = next((backlog for backlog in backlogs if backlog.owned.closing), None)
            if closing is not None:
                backlogs.remove(closing)
                self._ready.appendleft(closing)
                self._is_turn_of_retries = True
                return True
        return False

    async def _rest(self) -> None:
        if len(self._idle) == self.slots - 1:
            self._handled = 0  # nothing to do: the time until there is does not count
        idle = self._loop.create_future()
        self._idle.append(idle)
        await idle

    async def _first_of(self, backlog: KeyBacklog, item: Item) -> float | None:
        """Handle the first message of a backlog; seconds if it is retried before the others."""
        owned, processor = backlog.owned, self._processor
        if owned.closing or (
            time.monotonic() >= owned.deadline and not await owned.until_certain()
        ):
            self._unbegun[owned].append(item)
            return None
        if type(item) is list:
            id_, fields = item
            if fields[0] == PAYLOAD and len(fields) <= processor.plain_fields:
                source = owned.source
                try:
                    if processor.direct is not None:
                        outcome = await processor.direct(source.decode(fields[1]))
                    else:
                        outcome = await processor.invoke(Message(source, id_, fields))
                except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
                    outcome = processor.error_of(owned, [id_], error)
                if not isinstance(outcome, Exception):
                    owned.ack(id_)
                    return None
                message = Message(source, id_, fields)
                return self._again(
                    backlog, message, await processor.failed(owned, message, outcome)
                )
        message = item if isinstance(item, Message) else Message(owned.source, *item)
        if (waits_s := owned.attempts.take_wait(message.entry_id)) is not None:
            return waits_s
        if backlog is not self._next_suspect:
            return self._again(backlog, message, await processor.special(owned, item))
        end_turn = await processor.turns.take()
        self._call_next_suspect()
        try:
            return self._again(backlog, message, await processor.in_turn(owned, message))
        finally:
            end_turn()

    def _waits_for_turn(self, backlog: KeyBacklog) -> bool:
        """Set a backlog aside that begins with a suspect while another waits for its turn."""
        first = backlog.first
        if not isinstance(first, Message) or first.entry_id not in backlog.owned.attempts.suspects:
            return False
        if backlog.owned.closing or backlog.owned.attempts.has_wait(first.entry_id):
            return False
        if self._next_suspect is None:
            self._next_suspect = backlog
            return False
        self._aside.append(backlog)
        return True

    def _call_next_suspect(self) -> None:
        self._next_suspect = None
        if self._aside:
            self._ready.append(self._aside.popleft())
            self._wake()

    def _again(self, backlog: KeyBacklog, message: Message, wait_s: float | None) -> float | None:
        if wait_s is None:
            return None
        if not self._in_order:
            backlog.owned.retries.add(message.entry_id, wait_s)
            return None
        backlog.first = Message(
            message.source, message.entry_id, message.fields, message.attempt + 1
        )
        return wait_s

    # ---- backlogs that keep others from being read

    def _enough(self) -> int:
        """Messages in memory for which a partition is not read any more."""
        return max(1, min(self._pacing.count, self._ahead // max(1, len(self._backlogs))))

    def _park_crowds(self, owned: OwnedPartition) -> None:
        parking, enough = self._parking[owned], self._enough()
        # Messages that are large are as much of a crowd as many.
        is_crowd = parking.stalled > enough // 2 or (
            parking.stalled and owned.budget.is_full(enough)
        )
        if is_crowd and not parking.is_full:
            parking.park_stalled()
        if self._relief is None and (parking.stalled or owned.budget.is_full(enough - 1)):
            self._check_later()

    def _check_later(self) -> None:
        self._relief = self._loop.call_later(_PATIENCE_S, self._relieve, self._fed.copy())

    def _relieve(self, fed: dict[OwnedPartition, int]) -> None:
        """Park what waits behind handlers that take long, if slots are free for other keys."""
        self._relief, enough = None, self._enough()
        has_slots = self._idle and not self._ready and not self._retries
        for owned, backlogs in self._backlogs.items():
            parking = self._parking[owned]
            if owned.closing or parking.is_full:
                continue
            if (
                has_slots
                and owned.budget.is_full(enough - 1)
                and fed.get(owned) == self._fed[owned]
            ):
                for backlog in backlogs.values():
                    if backlog.rest and not backlog.is_held_up:
                        parking.park(backlog, from_first=False)
            self._park_crowds(owned)

    def _due(self, backlog: KeyBacklog) -> None:
        self._waiting.pop(backlog).cancel()
        self._retries.append(backlog)
        self._wake()

    def _hurry(self, owned: OwnedPartition) -> None:
        """Let backlogs that wait for a retry end now, as their partition closes.

        What is parked stays where it is.
        """
        parking = self._parking[owned]
        for backlog in list(parking.backlogs):
            if backlog.first is not None or backlog not in self._running:
                self._ended(owned, parking.abandon(backlog))
        for backlog in [backlog for backlog in self._waiting if backlog.owned is owned]:
            self._due(backlog)
        aside = [backlog for backlog in self._aside if backlog.owned is owned]
        for backlog in aside:
            self._aside.remove(backlog)
        self._ready.extend(aside)
        self._wake()

    def _advance(self, backlog: KeyBacklog) -> None:
        owned = backlog.owned
        if backlog.parked is None:
            owned.budget.drop(1)
        active = self._active[owned] = self._active[owned] - 1
        if not active:
            self._emptied.set()
        if backlog.rest:
            backlog.first = backlog.rest.popleft()
            self._ready.append(backlog)
        elif backlog.parked:
            backlog.first = None
            self._ready.append(backlog)
        elif backlog.key is not None:
            del self._backlogs[owned][backlog.key]
        self._handled += 1
        if self._handled >= self._pacing.count:
            self._note_pacing()

    def _ended(self, owned: OwnedPartition, count: int) -> None:
        self._active[owned] -= count
        if not self._active[owned]:
            self._emptied.set()

    def _note_pacing(self) -> None:
        now = time.monotonic()
        self._pacing.note(max(1, self._handled // max(1, len(self._backlogs))), now - self._since)
        self._handled, self._since = 0, now
        for owned in self._backlogs:
            self._park_crowds(owned)

    def _wake(self) -> None:
        for _ in range(min(len(self._idle), len(self._ready) + len(self._retries))):
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._emptied.clear()
            await self._emptied.wait()


def _fields_of(item: Item) -> Fields:
    return item.fields if isinstance(item, Message) else item[1]
