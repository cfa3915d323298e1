"""A run used in any order by workers that repeat themselves; checked after every step.

`Truth` knows what should be, from the documentation alone; it shares no code with the product.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.kit.scripts import scripts_of

from penstock.coordination.runs.runs import Runs
from penstock.errors import RunConflict
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings, Settings
from penstock.testing.virtual_time import VirtualTime

NOON_MS = 1_726_574_400_000
KEEP_MS = 25 * 3_600_000
OPEN, ENDS = ("created", "running", "paused"), ("completed", "failed", "cancelled")
STEPS = {("created", "running"), ("running", "paused"), ("paused", "running")} | {
    (one, other) for one in OPEN for other in ENDS
}
DOES = frozenset(
    {
        *("change_run", "mark_processed", "fail_item", "resolve_failure", "claim_failures"),
        *("note_start", "save_checkpoint"),
    }
)

NAMES = [f"docket:{number:02}" for number in range(12)]
items = st.sampled_from(NAMES)
# Some are never processed, or else there would soon be nothing left that may fail.
processable = st.sampled_from(NAMES[:8])
statuses = st.sampled_from((*OPEN, *ENDS))


@dataclass
class Failed:
    attempts: int
    due: float
    calls: int
    error: str
    first: float
    last: float


@dataclass
class Truth:
    """What should be."""

    now: float = NOON_MS
    status: str = "created"
    version: int = 1
    ends: float | None = None
    cursor: Any = None
    watermark: float | None = None
    facts: dict[str, str] = field(default_factory=dict)
    processed: set[str] = field(default_factory=set)
    failures: dict[str, Failed] = field(default_factory=dict)
    starts: dict[tuple[str, int], float] = field(default_factory=dict)
    events: list[str] = field(default_factory=lambda: ["started"])

    def settle(self) -> None:
        """Say when all of it goes, after something was done."""
        if self.status not in ENDS or self.failures:
            self.ends = None
        elif self.ends is None:
            self.ends = self.now + KEEP_MS


class RunMachine(RuleBasedStateMachine):
    """Each rule does one thing to the server and the same to the model."""

    url: ClassVar[str]

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        namespace = f"m{uuid.uuid4().hex[:8]}"
        self.client = Client(Settings(url=self.url, namespace=namespace))
        self.do(self.client.open())
        self.time = VirtualTime(self.client)
        self.do(self.time.set_ms(NOON_MS))
        self.truth, self.repeats, self.done = Truth(), 0, []
        self.run_script = scripts_of(self.client).run
        scripts_of(self.client).run = self._repeated
        self.run = self.do(Runs(self.client, Codec(CodecSettings())).start("a:b+c"))
        assert self.run.created

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.do(self.client.close())
            self.runner.close()

    def do(self, work: Any) -> Any:
        return self.runner.run(work)

    async def _repeated(self, name: str, keys: Any, arguments: Any, *more: Any) -> Any:
        """Call a script, and again as if its answers had been lost."""
        answer = await self.run_script(name, keys, arguments, *more)
        for _ in range(self.repeats):
            assert await self.run_script(name, keys, arguments, *more) == answer
        if name in DOES and _did(name, answer):
            self.done.append((name, keys, arguments, answer))
        return answer

    # ---- rules

    @rule(times=st.integers(0, 2))
    def lose_answers(self, times: int) -> None:
        self.repeats = times

    @rule(seconds=st.sampled_from([0.001, 1, 2, 30, 61]))
    def wait(self, seconds: float) -> None:
        self.do(self.time.advance(seconds))
        self.truth.now += seconds * 1000

    @precondition(lambda self: self.done)
    @rule(which=st.integers(0, 50))
    def repeat_late(self, which: int) -> None:
        """A repeat comes after others have done something; it is answered and does nothing."""
        if self.truth.now - NOON_MS > 100_000:
            return  # by then it is forgotten, as it may be
        name, keys, arguments, answer = self.done[which % len(self.done)]
        again = self.do(self.run_script(name, keys, arguments))
        if name in {"change_run", "save_checkpoint"}:
            assert again[:2] == answer[:2]
        elif name != "claim_failures":
            assert again == answer

    @rule(to=statuses, expect=st.none() | st.sets(statuses, min_size=1), behind=st.integers(-1, 2))
    def move(self, to: str, expect: set[str] | None, behind: int) -> None:
        truth = self.truth
        version = None if behind < 0 else truth.version - behind // 2
        legal = (truth.status, to) in STEPS
        fits = (expect is None or truth.status in expect) and version in {None, truth.version}
        moving = self.run.move(to, expect=expect, version=version, facts={"to": to})
        if not (legal and fits):
            self._conflicts(moving)
            return
        truth.version += 1
        assert self.do(moving) == truth.version
        truth.status, truth.facts["to"] = to, to
        truth.events.append("finished" if to in ENDS else "status")
        truth.settle()

    @rule()
    def reopen(self) -> None:
        if self.truth.status in OPEN:
            self._conflicts(self.run.reopen())
            return
        self.truth.version += 1
        assert self.do(self.run.reopen()) == self.truth.version
        self.truth.status = "running"
        self.truth.events.append("status")
        self.truth.settle()

    def _conflicts(self, work: Any) -> None:
        try:
            self.do(work)
        except RunConflict as conflict:
            found = (conflict.status, conflict.version)
        else:
            found = None
        assert found == (self.truth.status, self.truth.version)

    @rule(ids=st.lists(processable, min_size=1, max_size=3))
    def mark(self, ids: list[str]) -> None:
        truth = self.truth
        new = set(ids) - truth.processed
        assert self.do(self.run.mark_processed(*ids)) == len(new)
        for item in dict.fromkeys(ids):
            if truth.failures.pop(item, None):
                truth.events.append("resolved")
        truth.processed |= new
        truth.events += ["progress"] * bool(new)
        truth.settle()

    @rule(item=items, wait=st.sampled_from([0, 0, None, 1, 30, "never"]), calls=st.integers(0, 3))
    def fail(self, item: str, wait: Any, calls: int) -> None:
        truth = self.truth
        options = {"final": True} if wait == "never" else {"retry_in_s": wait}
        failing = self.run.fail(item, LookupError(str(calls)), api_calls=calls, **options)
        if item in truth.processed:
            assert self.do(failing) == 0
            return
        known = truth.failures.setdefault(item, Failed(0, 0, 0, "", truth.now, 0))
        known.attempts += 1
        assert self.do(failing) == known.attempts
        known.calls, known.error, known.last = known.calls + calls, str(calls), truth.now
        if wait is None:
            wait = min(2 ** (known.attempts - 1), 60)
        known.due = float("inf") if wait == "never" else truth.now + wait * 1000
        truth.events.append("failed")
        truth.settle()

    @rule(item=items)
    def resolve(self, item: str) -> None:
        # Not repeated where it finds nothing: that is asked anew each time.
        known = self.truth.failures.pop(item, None)
        assert self.do(self.run.resolve(item)) == bool(known)
        if known:
            self.truth.events.append("resolved")
            self.truth.settle()

    @rule(most=st.integers(1, 4), lease=st.sampled_from([1, 40]))
    def claim(self, most: int, lease: int) -> None:
        truth = self.truth
        due = sorted((one.due, item) for item, one in truth.failures.items())
        expected = [item for when, item in due if when <= truth.now][:most]
        claimed = self.do(self.run.claim_due(most, lease_s=lease))
        assert [one.item for one in claimed] == expected
        for item in expected:
            truth.failures[item].due = truth.now + lease * 1000

    @rule(page=st.integers(0, 9), mark=st.none() | st.integers(-3, 3), force=st.booleans())
    def checkpoint(self, page: int, mark: int | None, force: bool) -> None:
        truth = self.truth
        saving = self.run.checkpoint({"page": page}, watermark=mark, force=force)
        if truth.status in ENDS:
            self._conflicts(saving)
            return
        truth.version += 1
        assert self.do(saving) == truth.version
        truth.cursor = {"page": page}
        if mark is not None and (force or truth.watermark is None or mark > truth.watermark):
            truth.watermark = mark
        truth.events.append("checkpoint")

    @rule(task=st.sampled_from(["load", "sum"]), attempt=st.integers(1, 3))
    def start_task(self, task: str, attempt: int) -> None:
        starts = self.truth.starts
        is_first = all(name != task for name, _ in starts)
        assert self.do(self.run.note_task_start(task, attempt=attempt)) == is_first
        starts.setdefault((task, attempt), self.truth.now)
        self.truth.settle()

    # ---- what is there

    @invariant()
    def the_server_has_what_should_be(self) -> None:
        if not hasattr(self, "run"):
            return
        truth, record = self.truth, self.do(self.run.record())
        assert (record.status, record.version) == (truth.status, truth.version)
        assert (record.checkpoint, record.watermark) == (truth.cursor, truth.watermark)
        assert record.facts == truth.facts
        assert (record.processed, record.failures) == (len(truth.processed), len(truth.failures))
        assert record.ends_ms == truth.ends
        assert (record.ended_ms is not None) == (truth.status in ENDS)
        assert self.do(self._all_processed()) == truth.processed
        self._failures_are_right()
        starts = {
            (one.task, one.attempt): one.started_ms for one in self.do(self.run.task_starts())
        }
        assert starts == truth.starts

    async def _all_processed(self) -> set[str]:
        return {item async for item in self.run.iter_processed()}

    def _failures_are_right(self) -> None:
        found = self.do(self.run.failures()).failures
        due = sorted((one.due, item) for item, one in self.truth.failures.items())
        assert [one.item for one in found] == [item for _, item in due]
        for one in found:
            known = self.truth.failures[one.item]
            assert one.attempts == known.attempts
            assert one.due_ms == (None if known.due == float("inf") else known.due)
            assert (one.api_calls, one.error) == (known.calls, known.error)
            assert (one.first_ms, one.last_ms) == (known.first, known.last)
        stored = self.do(self.client.call("HKEYS", self.run.keys.failure_info))
        assert {item.decode() for item in stored} == set(self.truth.failures)

    @invariant()
    def the_feed_tells_it_all(self) -> None:
        if not hasattr(self, "run"):
            return
        truth = self.truth
        events = self.do(self.run.events(limit=10_000))
        assert [one.type for one in events] == truth.events
        assert [one.number for one in events] == list(range(1, len(truth.events) + 1))
        feed = self.do(
            self.client.call("HMGET", self.run.keys.feed, "seq", "state_seq", "final", "state")
        )
        last = str(len(events)).encode()
        assert feed[:2] == [last, last]
        assert feed[2] == (last if truth.status in ENDS else None)
        assert json.loads(feed[3]) == {
            "status": truth.status,
            "version": truth.version,
            "processed": len(truth.processed),
            "failures": len(truth.failures),
        }

    @invariant()
    def all_keys_end_together_or_none_does(self) -> None:
        if not hasattr(self, "run"):
            return
        keys = self.run.keys
        places = (
            *(keys.record, keys.events, keys.feed, keys.processed),
            *(keys.failures, keys.failure_info, keys.starts),
        )
        left = [self.do(self.client.call("PTTL", key)) for key in places]
        for one in left:
            if self.truth.ends is None:
                assert one in {-1, -2}
            elif one != -2:
                assert 0 < one <= KEEP_MS


def _did(name: str, answer: Any) -> bool:
    """Whether a call did something, and so is remembered."""
    if name in {"change_run", "save_checkpoint"}:
        return answer[0] == 1
    if name in {"fail_item", "resolve_failure", "claim_failures"}:
        return bool(answer)
    return True
