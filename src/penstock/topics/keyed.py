"""Handlers side by side: each key in its own order, or no order at all."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from penstock.delivery.outcomes import forget_cancellation
from penstock.delivery.threads import HandlerThreads
from penstock.topics.held import Held, Item, entry_id
from penstock.topics.message import BARRIER, KEY, PAYLOAD, Fields, Message, field_of, is_marker
from penstock.topics.pace import Pace
from penstock.topics.parked import Parked
from penstock.topics.parking import Line, Parking
from penstock.topics.work import DEFAULT_CONCURRENCY, Work

__all__ = ["KeyedRunner"]

_KEY_PLACE = 2
_LOOK_EVERY_S = 0.02
# A key that keeps the others from being read for this long has its messages parked.
_PATIENCE_S = 0.5
# Messages to be read at once while they are parked anyway, however long handlers take.
_WORTH_READING = 128


class KeyedRunner:
    """Slots take lines that are ready. A line is in one slot at a time, so its key keeps order.

    `ahead` is how many messages may be read ahead, over all partitions. Lines that wait for a retry
    take up to half of that, then they are parked.
    """

    def __init__(self, work: Work, pace: Pace, ahead: int) -> None:
        self._work, self._pace, self._ahead = work, pace, ahead
        self._by_key = work.subscription.ordering == "key"
        self._in_order = work.subscription.keeps_retries_in_order
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Line] = deque()
        self._retries: deque[Line] = deque()
        """Lines that are ready as well, and begin with a message that has failed before."""
        self._is_turn_of_retries = False
        """Both take turns: retries that take all the time there is leave half of it to others."""
        self._idle: list[asyncio.Future[None]] = []
        self._lines: dict[Held, dict[bytes, Line]] = {}
        self._active: dict[Held, int] = {}
        self._unbegun: dict[Held, list[Item]] = {}
        self._behind_marker: dict[Held, list[Item]] = {}
        self._waiting: dict[Line, asyncio.TimerHandle] = {}
        self._parking: dict[Held, Parking] = {}
        self._fed: dict[Held, int] = {}
        self._relief: asyncio.TimerHandle | None = None
        """Looks whether one key keeps the others from being read."""
        self._next_suspect: Line | None = None
        """The line whose slot waits for the turn of a suspect: one at a time, so that suspects
        leave the other slots to the other keys."""
        self._aside: deque[Line] = deque()
        """Further lines that begin with a suspect."""
        self._emptied = asyncio.Event()
        self._handled, self._since = 0, time.monotonic()
        self.slots = work.subscription.concurrency or DEFAULT_CONCURRENCY
        self._running: list[Line | None] = [None] * self.slots
        if work.threads is not None:
            work.threads.when_changed = self._wake

    async def run(self, held: Held) -> None:
        """Feed the lines from a partition until it closes and what was begun has ended."""
        self._lines[held], self._active[held], self._unbegun[held] = {}, 0, []
        self._parking[held], self._fed[held] = Parking(held, self._work), 0
        while (chunk := await held.next_chunk()) is not None:
            await self._feed(held, chunk)
            await asyncio.sleep(0)
        self._hurry(held)
        await self._until(lambda: not self._active[held])

    def left(self, held: Held) -> list[Item]:
        """What was taken from the queue and has not ended, as far as can be told from here."""
        if held not in self._lines:
            return []
        lines = {
            *(*self._ready, *self._retries, *self._waiting, *self._aside, *self._running),
            *self._lines[held].values(),
        }
        return [
            *self._unbegun[held],
            *self._behind_marker.get(held, ()),
            *self._parking[held].delivered(),
            *(item for line in lines if line and line.held is held for item in line.items),
        ]

    def parked(self, held: Held) -> list[Parked]:
        """What waits on the server for the turn of its key."""
        return self._parking[held].snapshot() if held in self._parking else []

    def running(self, held: Held) -> list[bytes]:
        """Ids whose handlers go on although the partition was lost."""
        return [
            entry_id(line.first)
            for line in self._running
            if line and line.held is held and line.first is not None
        ]

    def forget(self, held: Held) -> None:
        for lines in (self._ready, self._retries, self._aside):
            kept = [line for line in lines if line.held is not held]
            lines.clear()
            lines.extend(kept)
        for line in [line for line in self._waiting if line.held is held]:
            self._waiting.pop(line).cancel()
        for known in (
            *(self._lines, self._active, self._unbegun, self._behind_marker),
            *(self._parking, self._fed),
        ):
            known.pop(held, None)

    async def _feed(self, held: Held, chunk: list[Item]) -> None:
        """Put a chunk into lines; what follows a marker waits for all before it."""
        lines, by_key, ready = self._lines[held], self._by_key, self._ready
        add, parked = self._parking[held].add, 0
        for place, item in enumerate(chunk):
            fields: Fields = item[1] if type(item) is list else _fields_of(item)
            if fields[0] == BARRIER and is_marker(fields):
                await self._pass_marker(held, chunk[place:])
                if held.closing:
                    break
                continue
            self._active[held] += 1
            if by_key:
                key = (
                    fields[_KEY_PLACE + 1]
                    if len(fields) > _KEY_PLACE and fields[_KEY_PLACE] == KEY
                    else field_of(fields, KEY)
                )
                if key is not None:
                    line = lines.get(key)
                    if line is None:
                        lines[key] = line = Line(held, key, item)
                        ready.append(line)
                    elif line.rest is not None and not line.is_held_up:
                        line.rest.append(item)
                    else:
                        parked += add(line, item)
                    continue
            ready.append(Line(held, None, item))
        self._wake()
        self._fed[held] += 1
        self._look_for_crowds(held)
        if parked:
            await self._have_parked(held, len(chunk) - parked)

    async def _pass_marker(self, held: Held, chunk: list[Item]) -> None:
        """Go on when all that was read before a marker has ended; it stands first in the chunk."""
        self._wake()
        self._behind_marker[held] = chunk
        # Not `_until`: a retry may be due in an hour, a stop is not to wait for it.
        while self._active[held] and await held.wait_open(_LOOK_EVERY_S):
            pass
        await self._work.special(held, chunk[0])
        held.drop(1)
        self._behind_marker.pop(held, None)
        if held.closing:
            self._unbegun[held] += chunk

    async def _have_parked(self, held: Held, others: int) -> None:
        """Go on when the server knows what was parked of a chunk, and there is room for more."""
        if not others:
            self._pace.count = max(self._pace.count, min(_WORTH_READING, self._ahead))
        parking = self._parking[held]
        await parking.tell()
        while parking.is_full and await held.wait_open(_PATIENCE_S):
            pass

    async def slot(self, number: int) -> None:
        """Run handlers until cancelled; a handler that cancels its own task does not count."""
        while True:
            try:
                await self._run_lines(number)
            except asyncio.CancelledError:
                if self._work.is_ending():
                    raise
                forget_cancellation()
                self._put_back(number)

    def _put_back(self, number: int) -> None:
        """Let the line of an interrupted slot begin again, with one attempt more counted."""
        line, self._running[number] = self._running[number], None
        if line is None or line.held not in self._lines:
            return
        if line is self._next_suspect:
            self._call_next_suspect()
        first = line.first
        if first is None:
            self._ready.append(line)
            self._wake()
            return
        message = first if isinstance(first, Message) else Message(line.held.source, *first)
        line.first = Message(message.source, message.entry_id, message.fields, message.attempt + 1)
        self._ready.append(line)
        self._wake()

    async def _run_lines(self, number: int) -> None:
        ready, running, threads = self._ready, self._running, self._work.threads
        while True:
            while not (ready or self._retries) or (
                threads is not None and not self._has_place(threads)
            ):
                await self._rest()
            line = self._take_retry() if self._retries else ready.popleft()
            first = line.first
            if first is None or line.is_held_up or line.held.suspects:
                first = await self._prepare(number, line)
                if first is None:
                    continue
            running[number] = line
            if not self._handled:
                self._since = time.monotonic()
            wait_s = await self._first_of(line, first)
            running[number] = None
            if line is self._next_suspect:
                self._call_next_suspect()  # its partition closed before it had its turn
            if line.held.lost:
                await self._work.ended_late(line.held, entry_id(first))
            if line.held not in self._lines:
                continue  # the partition was lost, and this handler did not end with it
            if wait_s is None:
                self._advance(line)
            else:
                self._wait(line, wait_s)

    async def _prepare(self, number: int, line: Line) -> Item | None:
        """The message that a line begins with, in memory; None if it is not its turn after all."""
        first, threads = line.first, self._work.threads
        if first is None:
            self._running[number] = line
            first = await self._load(line)
            self._running[number] = None
            if first is None:
                return None
            if threads is not None and not self._has_place(threads):
                self._ready.appendleft(line)
                return None
        if line.held.suspects and self._waits_for_turn(line):
            return None
        self._parking[line.held].go_on(line)
        return first

    def _take_retry(self) -> Line:
        """Take a line that is ready, one whose retry is due and one of the others by turns."""
        self._is_turn_of_retries = not self._is_turn_of_retries or not self._ready
        return (self._retries if self._is_turn_of_retries else self._ready).popleft()

    def _wait(self, line: Line, wait_s: float) -> None:
        """Let a line come again later."""
        self._waiting[line] = self._loop.call_later(wait_s, self._due, line)
        if line.held.closing:
            self._due(line)
        else:
            self._parking[line.held].stall(line)
            self._look_for_crowds(line.held)

    async def _load(self, line: Line) -> Item | None:
        """Fetch the next messages of a line that has none in memory; the first of them."""
        held, gone = line.held, 0
        if line.parked and not held.closing:
            gone = await self._parking[held].load(line, line.parked)
        if held not in self._lines:
            return None  # the partition was lost
        if held.closing:
            gone += self._parking[held].abandon(line)
        self._ended(held, gone)
        if line.first is None and line.parked:
            self._ready.append(line)
        elif line.first is None and line.key is not None:
            del self._lines[held][line.key]
        return line.first

    def _has_place(self, threads: HandlerThreads) -> bool:
        """Whether the first line may begin: abandoned calls hold their places.

        Lines of a partition that closes need none, since nothing of them begins: they come first.
        """
        busy = sum(line is not None and line.first is not None for line in self._running)
        if busy + threads.lost < self.slots:
            return True
        for lines in (self._ready, self._retries):
            closing = next((line for line in lines if line.held.closing), None)
            if closing is not None:
                lines.remove(closing)
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

    async def _first_of(self, line: Line, item: Item) -> float | None:
        """Handle the first message of a line; seconds if it is to come again before the others."""
        held, work = line.held, self._work
        if held.closing or (time.monotonic() >= held.deadline and not await held.until_certain()):
            self._unbegun[held].append(item)
            return None
        if type(item) is list:
            id_, fields = item
            if fields[0] == PAYLOAD and len(fields) <= work.plain_fields:
                source = held.source
                try:
                    if work.direct is not None:
                        outcome = await work.direct(source.decode(fields[1]))
                    else:
                        outcome = await work.invoke(Message(source, id_, fields))
                except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
                    outcome = work.error_of(held, [id_], error)
                if not isinstance(outcome, Exception):
                    held.finished.append(id_)
                    held.wake()
                    return None
                message = Message(source, id_, fields)
                return self._again(line, message, await work.failed(held, message, outcome))
        message = item if isinstance(item, Message) else Message(held.source, *item)
        if message.entry_id in held.waits:
            return held.waits.pop(message.entry_id)
        if line is not self._next_suspect:
            return self._again(line, message, await work.special(held, item))
        end_turn = await work.turns.take()
        self._call_next_suspect()
        try:
            return self._again(line, message, await work.in_turn(held, message))
        finally:
            end_turn()

    def _waits_for_turn(self, line: Line) -> bool:
        """Set a line aside that begins with a suspect while another waits for its turn."""
        first = line.first
        if not isinstance(first, Message) or first.entry_id not in line.held.suspects:
            return False
        if line.held.closing or first.entry_id in line.held.waits:
            return False
        if self._next_suspect is None:
            self._next_suspect = line
            return False
        self._aside.append(line)
        return True

    def _call_next_suspect(self) -> None:
        self._next_suspect = None
        if self._aside:
            self._ready.append(self._aside.popleft())
            self._wake()

    def _again(self, line: Line, message: Message, wait_s: float | None) -> float | None:
        if wait_s is None:
            return None
        if not self._in_order:
            line.held.retry_in(message.entry_id, wait_s)
            return None
        line.first = Message(message.source, message.entry_id, message.fields, message.attempt + 1)
        return wait_s

    # ---- lines that keep others from being read

    def _enough(self) -> int:
        """Messages in memory for which a partition is not read any more."""
        return max(1, min(self._pace.count, self._ahead // max(1, len(self._lines))))

    def _look_for_crowds(self, held: Held) -> None:
        parking, enough = self._parking[held], self._enough()
        # Messages that are large are as much of a crowd as many.
        is_crowd = parking.stalled > enough // 2 or (parking.stalled and held.is_full(enough))
        if is_crowd and not parking.is_full:
            parking.park_stalled()
        if self._relief is None and (parking.stalled or held.is_full(enough - 1)):
            self._look_later()

    def _look_later(self) -> None:
        self._relief = self._loop.call_later(_PATIENCE_S, self._relieve, self._fed.copy())

    def _relieve(self, fed: dict[Held, int]) -> None:
        """Park what waits behind handlers that take long, if slots are free for other keys."""
        self._relief, enough = None, self._enough()
        has_slots = self._idle and not self._ready and not self._retries
        for held, lines in self._lines.items():
            parking = self._parking[held]
            if held.closing or parking.is_full:
                continue
            if has_slots and held.is_full(enough - 1) and fed.get(held) == self._fed[held]:
                for line in lines.values():
                    if line.rest and not line.is_held_up:
                        parking.park(line, from_first=False)
            self._look_for_crowds(held)

    def _due(self, line: Line) -> None:
        self._waiting.pop(line).cancel()
        self._retries.append(line)
        self._wake()

    def _hurry(self, held: Held) -> None:
        """Let lines that wait for a retry end now, as their partition closes.

        What is parked stays where it is.
        """
        parking = self._parking[held]
        for line in list(parking.lines):
            if line.first is not None or line not in self._running:
                self._ended(held, parking.abandon(line))
        for line in [line for line in self._waiting if line.held is held]:
            self._due(line)
        aside = [line for line in self._aside if line.held is held]
        for line in aside:
            self._aside.remove(line)
        self._ready.extend(aside)
        self._wake()

    def _advance(self, line: Line) -> None:
        held = line.held
        if line.parked is None:
            held.drop(1)
        active = self._active[held] = self._active[held] - 1
        if not active:
            self._emptied.set()
        if line.rest:
            line.first = line.rest.popleft()
            self._ready.append(line)
        elif line.parked:
            line.first = None
            self._ready.append(line)
        elif line.key is not None:
            del self._lines[held][line.key]
        self._handled += 1
        if self._handled >= self._pace.count:
            self._note_pace()

    def _ended(self, held: Held, count: int) -> None:
        self._active[held] -= count
        if not self._active[held]:
            self._emptied.set()

    def _note_pace(self) -> None:
        now = time.monotonic()
        self._pace.note(max(1, self._handled // max(1, len(self._lines))), now - self._since)
        self._handled, self._since = 0, now
        for held in self._lines:
            self._look_for_crowds(held)

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
