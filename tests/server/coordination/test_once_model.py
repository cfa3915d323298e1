"""Whatever is done to a mark, and in whatever order: one is first, and nobody undoes another."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.kit.model.playing import plant_mistake, run_for_long, run_quickly

from penstock import Penstock
from penstock.coordination.leases import Leases
from penstock.coordination.once.keys import DedupeKeys
from penstock.coordination.once.once import Mark, Once
from penstock.errors import ReservationLost
from penstock.settings import Settings
from penstock.testing.servers import ServerProcess

T = TypeVar("T")
KEYS = ("a",)  # what befalls one does not touch another: more of it befalls this one
keys = st.sampled_from(KEYS)
number = st.integers(0, 99)
seldom = st.integers(0, 9).map(lambda drawn: drawn == 9)
# Who finds nothing but marks learns little: often it is gone just before.
before = st.sampled_from(["nothing", "run_out", "forget", "end_of_mark", "deleted_by_others"])
HOLD_MS, TTL_MS = 60_000, 300_000


class Failed(Exception):
    pass


@dataclass(eq=False)
class Block:
    """One that is within `async with once.reserve(…)`."""

    key: str
    value: str
    within: AbstractAsyncContextManager[Mark]
    mark: Mark
    replay: bool


@dataclass
class Truth:
    """What is to be known of one key."""

    value: str | None = None
    """What the mark says."""
    at_work: Block | None = None
    """Whose reservation it is."""
    is_held: bool = False
    """Whether the mark is that of the reservation, and runs out with it."""
    jobs: int = 0


@dataclass
class World:
    keys: dict[str, Truth] = field(default_factory=lambda: {key: Truth() for key in KEYS})
    blocks: list[Block] = field(default_factory=list)


class OnceMachine(RuleBasedStateMachine):
    """Each rule does one thing to the server and the same to the model."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        namespace = f"model-{uuid.uuid4().hex[:8]}"
        self.app = Penstock(settings=Settings(url=self.url, namespace=namespace))
        self.leases = Leases(self.app.redis)
        self.once = Once(self.app.redis, self.app.codec, self.leases)
        self.world, self.values = World(), 0
        self.do(self.app.open())
        self.queues = {key: self.app.queue(f"queue-{key}") for key in KEYS}

    def teardown(self) -> None:
        while self.world.blocks:
            self.fail(0)
        self.do(self.leases.close())
        self.do(self.app.close())
        self.runner.close()

    def do(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self.runner.run(wait())

    def call(self, *command: Any) -> Any:
        return self.do(self.app.redis.call(*command))

    def places(self, key: str) -> tuple[str, str]:
        own = DedupeKeys.of(self.app.redis.keys, key)
        return own.mark, own.holder

    def new_value(self) -> str:
        self.values += 1
        return f"/{self.values}.jpg"

    # ---- those who want to do it

    @precondition(lambda self: len(self.world.blocks) < 5)
    @rule(key=keys, replay=seldom, before=before)
    def reserve(self, key: str, replay: bool, before: str) -> None:
        getattr(self, before)(key)
        truth, value = self.world.keys[key], self.new_value()
        within = self.once.reserve(key, value=value, replay=replay)
        mark = self.do(within.__aenter__())
        block = Block(key, value, within, mark, replay)
        self.world.blocks.append(block)
        if replay:
            assert (mark.first, mark.value) == (True, value)
        elif truth.value is not None or truth.at_work is not None:
            assert (mark.first, mark.value) == (False, truth.value or "")
        else:
            assert (mark.first, mark.value) == (True, value)
            truth.value, truth.at_work, truth.is_held = value, block, True

    @precondition(lambda self: self.world.blocks)
    @rule(which=number, before=before)
    def commit(self, which: int, before: str) -> None:
        block = self.world.blocks.pop(which % len(self.world.blocks))
        getattr(self, before)(block.key)
        truth = self.world.keys[block.key]
        free = truth.at_work is None and truth.value is None
        lost = False
        try:
            self.do(block.within.__aexit__(None, None, None))
        except ReservationLost:
            lost = True
        if not block.mark.first:
            assert not lost
            return
        ours = block.replay or truth.at_work is block or free
        assert lost is not ours
        if ours:
            truth.value, truth.at_work, truth.is_held = block.value, None, False

    @precondition(lambda self: self.world.blocks)
    @rule(which=number)
    def fail(self, which: int) -> None:
        block = self.world.blocks.pop(which % len(self.world.blocks))
        error = Failed()
        assert not self.do(block.within.__aexit__(Failed, error, None))
        truth = self.world.keys[block.key]
        if truth.at_work is block:
            truth.value, truth.at_work, truth.is_held = None, None, False

    @precondition(lambda self: any(block.mark.lease for block in self.world.blocks))
    @rule(which=number)
    def renew(self, which: int) -> None:
        held = [block for block in self.world.blocks if block.mark.lease]
        block = held[which % len(held)]
        assert block.mark.lease is not None
        renewed = self.do(block.mark.lease.renew())
        truth = self.world.keys[block.key]
        assert renewed is (truth.at_work is block)
        if renewed:
            truth.is_held = truth.value is not None

    @rule(
        key=keys,
        how=st.sampled_from(["see", "enqueue", "replay", "set_by_others"]),
        before=before,
    )
    def mark(self, key: str, how: str, before: str) -> None:
        getattr(self, before)(key)
        getattr(self, how)(key)

    def see(self, key: str) -> None:
        truth, value = self.world.keys[key], self.new_value()
        assert self.do(self.once.seen(key, value)) is (truth.value is not None)
        if truth.value is None:
            truth.value, truth.is_held = value, False

    def replay(self, key: str) -> None:
        self.enqueue(key, replay=True)

    def enqueue(self, key: str, *, replay: bool = False) -> None:
        truth, value = self.world.keys[key], self.new_value()
        queue = self.queues[key]
        added = self.do(self.once.enqueue(key, queue, 1, value=value, replay=replay))
        if replay or (truth.value is None and truth.at_work is None):
            assert (added.first, added.value) == (True, value)
            truth.value, truth.at_work, truth.is_held = value, None, False
            truth.jobs += 1
        else:
            assert (added.first, added.value, added.job_id) == (False, truth.value or "", "")

    def nothing(self, key: str) -> None:
        pass

    def forget(self, key: str) -> None:
        truth = self.world.keys[key]
        assert self.do(self.once.forget(key)) is (truth.value is not None)
        truth.value, truth.at_work, truth.is_held = None, None, False

    # ---- time

    def run_out(self, key: str) -> None:
        """A process falls silent: what it holds runs out, mark and token at once."""
        truth, (mark, holder) = self.world.keys[key], self.places(key)
        if truth.at_work is not None:
            self.call("DEL", holder)
            if truth.is_held:
                self.call("DEL", mark)
                truth.value = None
            truth.at_work, truth.is_held = None, False

    def end_of_mark(self, key: str) -> None:
        truth, (mark, _) = self.world.keys[key], self.places(key)
        if not truth.is_held:
            self.call("DEL", mark)
            truth.value = None

    @rule(key=keys)
    def end_of_memory(self, key: str) -> None:
        """Who has done it a moment ago is not known any more: that changes nothing."""
        if self.world.keys[key].at_work is None:
            self.call("DEL", self.places(key)[1])

    # ---- other programs

    def deleted_by_others(self, key: str) -> None:
        truth = self.world.keys[key]
        self.call("DEL", self.places(key)[0])
        truth.value, truth.is_held = None, False

    def set_by_others(self, key: str) -> None:
        truth, value = self.world.keys[key], self.new_value()
        self.call("SET", self.places(key)[0], value, "EX", 200)
        truth.value, truth.is_held = value, False

    # ---- what holds at all times

    @invariant()
    def the_server_agrees(self) -> None:
        for key, truth in self.world.keys.items():
            mark, holder = self.places(key)
            said, token = self.call("MGET", mark, holder)
            assert (None if said is None else said.decode()) == truth.value
            at_work = token is not None and not token.startswith(b"!")
            assert at_work is (truth.at_work is not None)
            if said is not None:
                left_ms = self.call("PTTL", mark)
                assert 0 < left_ms <= (HOLD_MS if truth.is_held else TTL_MS)
                assert truth.is_held or left_ms > HOLD_MS
            if token is not None:
                assert 0 < self.call("PTTL", holder) <= HOLD_MS
            assert self.call("LLEN", self.queues[key].keyring.waiting) == truth.jobs

    @invariant()
    def one_at_most_is_at_work(self) -> None:
        for key, truth in self.world.keys.items():
            held = [one for one in self.world.blocks if one.key == key and one is truth.at_work]
            assert len(held) == (truth.at_work is not None)


QUICK = {"max_examples": 60, "stateful_step_count": 40}


@pytest.fixture(scope="module")
def machine():
    with ServerProcess("valkey") as server:
        yield type("Machine", (OnceMachine,), {"url": server.url})


@pytest.mark.parametrize("binary", ["valkey", "redis62"])
def test_marks_are_as_the_model_says_whatever_is_done_to_them(binary):
    with ServerProcess(binary) as server:
        machine = type("Machine", (OnceMachine,), {"url": server.url})
        run_quickly(machine, **QUICK)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_marks_are_as_the_model_says_however_long_one_looks(machine):
    run_for_long(machine, max_examples=3_000, stateful_step_count=100)


OURS = "if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end"
AT_WORK = "if holder and string.sub(holder, 1, 1) ~= '!' then return"


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "text", "instead"),
    [
        ("reserve_once", "if value then return {0, value} end", ""),
        ("reserve_once", f"{AT_WORK} {{0, ''}} end", ""),
        ("reserve_once", f"{AT_WORK} {{0, ''}} end", "if holder then return {0, ''} end"),
        ("reserve_once", "redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[3])", ""),
        ("renew_once", OURS, ""),
        ("commit_once", "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end", ""),
        ("commit_once", f"{AT_WORK} 0 end", ""),
        ("commit_once", "if holder ~= ARGV[1] and ARGV[5] ~= '1' then", "if false then"),
        ("commit_once", "redis.call('DEL', KEYS[2])\n", "if true then return 1 end\n"),
        ("release_once", OURS, ""),
        ("release_once", "redis.call('DEL', KEYS[1], KEYS[2])", "redis.call('DEL', KEYS[2])"),
        ("forget_once", "redis.call('DEL', KEYS[2])", ""),
        ("submit_jobs", "if taken and string.sub", "if by and string.sub"),
        ("submit_jobs", "(by and string.sub(by, 1, 1) ~= '!')", "false"),
    ],
    ids=[
        "a mark does not keep others away",
        "a deleted mark lets a second one in",
        "what was done a moment ago keeps others away",
        "nobody knows who is at work",
        "who was overtaken renews",
        "who was overtaken marks over the other's mark",
        "who was overtaken marks while the other works",
        "whoever says so has done it",
        "what was done is not marked",
        "who was overtaken releases what the other holds",
        "a failure leaves the mark",
        "who was forgotten still holds it",
        "a job is added whatever the mark says",
        "a job is added while another works",
    ],
)
def test_a_script_that_breaks_a_promise_is_found(machine, monkeypatch, name, text, instead):
    plant_mistake(monkeypatch, name, text, instead)
    with pytest.raises(AssertionError):
        run_quickly(machine, max_examples=300, stateful_step_count=40, shrink=False)
