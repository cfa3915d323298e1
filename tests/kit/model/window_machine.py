"""A window on a server whose clock is set by hand, beside a model that knows only the promises."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock import Penstock
from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.window import Window
from penstock.errors import QueueFull
from penstock.settings import QueueSettings, Settings, WindowSettings
from penstock.testing.virtual_time import VirtualTime

BEGIN_MS = 1_769_250_600_000
MAX_AGE_MS, IDLE_MS, REMEMBER_MS = 5_000, 3_000, 60_000
MAX_ITEMS, MAX_BYTES = 4, 60
QUEUE_SIZE = 2
KEYS = ("a", "c:ä")
FACTS = ("camera_id", "started_at", "last_activity", "bytes")

keys = st.sampled_from(KEYS)
lengths = st.sampled_from((0, 10, 30, 40))
waits = st.sampled_from(
    (1, 400, 1_000, 2_000, IDLE_MS - 1, IDLE_MS, IDLE_MS + 1, MAX_AGE_MS - 1, MAX_AGE_MS, 60_000)
)


@dataclass
class Open:
    """A batch that takes items."""

    key: str
    started_ms: int
    last_ms: int
    items: list = field(default_factory=list)
    size: int = 0

    @property
    def due_ms(self) -> int:
        return min(self.started_ms + MAX_AGE_MS, self.last_ms + IDLE_MS)


class Truth:
    """What there has to be."""

    def __init__(self, policy: str, overflow_size: int) -> None:
        self.policy, self.overflow_size = policy, overflow_size
        self.now_ms = BEGIN_MS
        self.open: dict[str, Open] = {}
        self.queue: list[dict] = []
        self.high: list[dict] = []
        self.aside: list[dict] = []
        self.seen: dict[tuple[str, str], int] = {}
        self.events: list[tuple[str, str, int]] = []
        self.gone: list = []
        """Items of batches that were taken, moved aside or dropped."""

    def knows(self, key: str, id_: str | None) -> bool:
        since = self.seen.get((key, id_)) if id_ else None
        return since is not None and self.now_ms - since < REMEMBER_MS

    def why_due(self, batch: Open) -> str | None:
        if self.now_ms - batch.started_ms >= MAX_AGE_MS:
            return "max_age"
        return "idle" if self.now_ms - batch.last_ms >= IDLE_MS else None

    def make_room(self) -> bool:
        if len(self.queue) < QUEUE_SIZE:
            return True
        if self.policy == "reject" or (
            self.policy == "dlq" and len(self.aside) >= self.overflow_size
        ):
            return False
        oldest = self.queue.pop(0)
        self.gone += oldest["items"]
        if self.policy == "dlq":
            self.aside.append(oldest)
        return True

    def close(self, key: str, reason: str) -> bool:
        batch = self.open[key]
        if not self.make_room():
            return False
        del self.open[key]
        self.queue.append(self._job(batch, reason))
        self.events.append(("closed", key, len(batch.items)))
        return True

    def add(self, key: str, item, size: int, id_: str | None, *, fast: bool) -> str:
        """How it has to end: "new", "again", "fast" or "full"."""
        if self.knows(key, id_):
            return "again"
        if fast and len(self.high) < QUEUE_SIZE:
            self._remember(key, id_)
            self.high.append(self._job(Open(key, self.now_ms, self.now_ms, [item]), "fast_path"))
            self.events.append(("fast", key, 1))
            return "fast"
        if not self._has_room(key, size):
            return "full"
        self._remember(key, id_)
        batch = self.open.get(key)
        what = ""
        if batch is None:
            batch, what = Open(key, self.now_ms, self.now_ms), "open"
            self.open[key] = batch
        elif batch.last_ms // 1000 != self.now_ms // 1000 and len(batch.items) + 1 < MAX_ITEMS:
            what = "update"
        batch.last_ms = self.now_ms
        batch.items.append(item)
        batch.size += size
        if what:
            self.events.append((what, key, len(batch.items)))
        if len(batch.items) >= MAX_ITEMS:
            self.close(key, "max_size")
        return "new"

    def _has_room(self, key: str, size: int) -> bool:
        """Close the open batch if it is due or cannot take the item; whether there is room then."""
        batch = self.open.get(key)
        if batch is None:
            return True
        over = None
        if len(batch.items) >= MAX_ITEMS:
            over = "max_size"
        elif batch.size + size > MAX_BYTES:
            over = "max_bytes"
        reason = self.why_due(batch) or over
        return reason is None or self.close(key, reason) or over is None

    def look(self, window_of) -> int:
        """Close what is due, the longest overdue first, until the queue is full."""
        closed = 0
        due = [one for one in self.open.values() if one.due_ms <= self.now_ms]
        for batch in sorted(due, key=lambda one: (one.due_ms, window_of(one.key))):
            if not self.close(batch.key, self.why_due(batch)):
                break
            closed += 1
        return closed

    def _remember(self, key: str, id_: str | None) -> None:
        if id_:
            self.seen[key, id_] = self.now_ms

    def _job(self, batch: Open, reason: str) -> dict:
        return {
            "key": batch.key,
            "items": list(batch.items),
            "reason": reason,
            "started_ms": batch.started_ms,
            "ended_ms": self.now_ms,
            "count": len(batch.items),
        }


class WindowMachine(RuleBasedStateMachine):
    """Each rule does one thing to the server and the same to the model."""

    url = ""

    @initialize(
        policy=st.sampled_from(("reject", "dlq", "drop_oldest")),
        overflow_size=st.sampled_from((0, 2)),
    )
    def begin(self, policy: str, overflow_size: int) -> None:
        self.runner = asyncio.Runner()
        settings = Settings(
            url=self.url,
            namespace=f"model-{secrets.token_hex(6)}",
            queues=QueueSettings(max_overflow=overflow_size),
            windows=WindowSettings(remember_s=REMEMBER_MS / 1000),
        )
        self.app = Penstock(settings=settings)
        self.do(self.app.open())
        self.do(self.app.redis.call("FLUSHALL"))
        self.queue = self.app.queue("batches", max_size=QUEUE_SIZE, overflow=policy)
        self.window = Window(
            self.app.redis,
            self.app.codec,
            "gather",
            to=self.queue,
            max_age=MAX_AGE_MS / 1000,
            idle=IDLE_MS / 1000,
            max_items=MAX_ITEMS,
            max_bytes=MAX_BYTES,
        )
        self.place = self.do(self.window.target.stores())[0]
        self.closer = WindowCloser(self.app.redis, self.app.codec, [self.window])
        self.time = VirtualTime(self.app.redis)
        self.truth = Truth(policy, overflow_size)
        self.added: list[str] = []
        self.told = 0
        self.do(self.time.set_ms(BEGIN_MS))

    def teardown(self) -> None:
        if hasattr(self, "app"):
            self.do(self.app.close())
            self.runner.close()

    def do(self, what):
        return self.runner.run(what)

    # ---- what may happen

    @rule(key=keys, length=lengths)
    def add(self, key: str, length: int) -> None:
        self._add(key, length, None, fast=False)

    @rule(key=keys, length=lengths, ms=waits)
    def advance_and_add(self, key: str, length: int, ms: int) -> None:
        self.advance(ms)
        self._add(key, length, None, fast=False)

    @rule(key=keys, id_=st.sampled_from(("x", "y")), fast=st.booleans())
    def add_under_an_id(self, key: str, id_: str, fast: bool) -> None:
        self._add(key, 5, id_, fast=fast)

    @rule(key=keys, ms=waits)
    def add_again_under_the_same_id(self, key: str, ms: int) -> None:
        self._add(key, 5, "z", fast=False)
        self.advance(ms)
        self._add(key, 5, "z", fast=False)

    def _add(self, key: str, length: int, id_: str | None, *, fast: bool) -> None:
        item = f"{len(self.added)}{'.' * length}"
        size = len(json.dumps(item)) + 1
        before = self.truth.open.get(key)
        expected = self.truth.add(key, item, size, id_, fast=fast)
        try:
            answer = self.do(self.window.add(key, item, id=id_, fast=fast))
        except QueueFull:
            assert expected == "full"
            return
        assert expected == ("again" if not answer.is_new else "fast" if answer.fast else "new")
        if expected != "again":
            self.added.append(item)
        if expected == "new":
            batch = self.truth.open.get(key)
            closed_before = before is not None and batch is not before
            assert (answer.closed is not None) == (closed_before or batch is None)
            if batch is not None:
                assert answer.size == len(batch.items)

    @rule(key=keys)
    def close(self, key: str) -> None:
        if key not in self.truth.open:
            assert self.do(self.window.close(key)) is None
        elif self.truth.close(key, "asked"):
            assert self.do(self.window.close(key))
        else:
            try:
                self.do(self.window.close(key))
            except QueueFull:
                return
            raise AssertionError("closed into a full queue")

    @rule(ms=waits)
    def advance(self, ms: int) -> None:
        self.truth.now_ms += ms
        self.do(self.time.set_ms(self.truth.now_ms))

    @rule()
    def look(self) -> None:
        expected = self.truth.look(lambda key: self.window.items.window(key)[0])
        assert self.do(self.closer.look()) == expected

    @rule(key=keys)
    def look_when_it_is_due(self, key: str) -> None:
        """At the very millisecond, and the one before."""
        if key in self.truth.open:
            wait_ms = self.truth.open[key].due_ms - self.truth.now_ms
            for ms in (wait_ms - 1, 1) if wait_ms > 1 else ():
                self.advance(ms)
                self.look()

    @rule(most=st.integers(1, 3))
    def take(self, most: int) -> None:
        for _ in range(most):
            if self.do(self.app.redis.call("LPOP", self.queue.keyring.waiting)) is not None:
                self.truth.gone += self.truth.queue.pop(0)["items"]

    @rule()
    def take_high(self) -> None:
        if self.do(self.app.redis.call("LPOP", self.queue.keyring.list_of("high"))) is not None:
            self.truth.gone += self.truth.high.pop(0)["items"]

    # ---- what has to hold

    @invariant()
    def all_is_where_it_has_to_be(self) -> None:
        if hasattr(self, "truth"):
            self.do(self._check())

    @invariant()
    def every_item_is_in_one_place(self) -> None:
        if not hasattr(self, "truth"):
            return
        truth = self.truth
        places = [*truth.gone]
        for job in (*truth.queue, *truth.high):
            places += job["items"]
        for batch in truth.open.values():
            places += batch.items
        assert sorted(places) == sorted(self.added)

    async def _check(self) -> None:
        truth, place, pipeline = self.truth, self.place, self.app.redis.pipeline
        windows = {self.window.items.window(key)[0]: key for key in KEYS}
        keyring = self.queue.keyring
        queue, high, aside, due, stored, entries, *ids = await pipeline(
            [
                ("LRANGE", keyring.waiting, 0, -1),
                ("LRANGE", keyring.list_of("high"), 0, -1),
                ("LLEN", keyring.overflow),
                ("ZRANGE", place.index.due, 0, -1, "WITHSCORES"),
                ("KEYS", f"{self.app.settings.namespace}::batch:*"),
                ("XRANGE", place.index.events, f"({self.told}-0", "+"),
                *(("GET", place.current(window)) for window in windows),
            ]
        )
        assert _jobs(queue) == truth.queue
        assert _jobs(high) == truth.high
        assert aside == len(truth.aside)
        at = {windows[due[n].decode()]: int(due[n + 1]) for n in range(0, len(due), 2)}
        assert at == {batch.key: batch.due_ms for batch in truth.open.values()}
        left = [key for key in stored if not key.endswith(b":seen")]
        assert len(left) == 6 * len(truth.open)
        found = dict(zip(windows.values(), ids, strict=True))
        assert {key for key, id_ in found.items() if id_} == truth.open.keys()
        self._check_events(entries)
        for key, batch in truth.open.items():
            name = found[key].decode()
            facts = [place.batch(name, fact) for fact in FACTS]
            told, items = await pipeline(
                [("MGET", *facts), ("LRANGE", place.batch(name, "detections"), 0, -1)]
            )
            assert [json.loads(item) for item in items] == batch.items
            times = [f"{ms // 1000}.{ms % 1000:03}000" for ms in (batch.started_ms, batch.last_ms)]
            assert [one.decode() for one in told] == [key, *times, str(batch.size)]

    def _check_events(self, entries: list) -> None:
        for id_, fields in entries:
            self.told += 1
            assert id_.decode() == f"{self.told}-0"
            data = json.loads(fields[3])
            told = (fields[1].decode(), data["key"], data["count"])
            assert told == self.truth.events[self.told - 1]
        assert self.told == len(self.truth.events)


def _jobs(stored: list[bytes]) -> list[dict]:
    names = ("key", "items", "reason", "started_ms", "ended_ms", "count")
    return [{name: job[name] for name in names} for job in map(json.loads, stored)]
