"""How many jobs are claimed while tasks are at their limits, by clock and processor time."""

from types import SimpleNamespace

import pytest

from penstock.queues.worker import task_limits
from penstock.queues.worker.task_limits import TaskLimits

HEAVY = SimpleNamespace(name="heavy", concurrency=2)


class Clock:
    """Time, and what of it the event loop has used."""

    def __init__(self):
        self.now = self.used = 100.0

    def monotonic(self):
        return self.now

    def used_s(self):
        return self.used, 0.0

    def pass_by(self, seconds, busy):
        self.now += seconds
        self.used += seconds * busy


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(task_limits, "time", clock)
    monkeypatch.setattr(task_limits, "_used_s", clock.used_s)
    return clock


def job():
    return SimpleNamespace(item=SimpleNamespace(data=b"12345"))


def limits(*, only_task=False, keep=100):
    return TaskLimits(keep=keep, keep_bytes=10_000, most_aside=0, only_task=only_task)


def fill(some, count):
    return [some.enter(HEAVY, job()) for _ in range(count)]


def learn(some, each_s):
    some.enter(HEAVY, job())
    some.leave(HEAVY, each_s)


async def test_an_only_task_claims_what_it_can_run_and_keep(clock):
    some = limits(only_task=True)
    assert some.claimable(32, 0) == 32
    learn(some, 0.01)  # worth keeping: a quarter of a second, 25 for each place
    assert some.claimable(250, 0) == 52
    assert fill(some, 12) == [True, True, *[False] * 10]
    assert some.claimable(250, 0) == 40
    fill(some, 20)
    assert some.claimable(250, 0) == 0  # more than half are there
    assert not some.surplus


async def test_jobs_are_passed_in_search_of_others_while_the_loop_is_idle(clock):
    some = limits()
    learn(some, 5)  # none is kept
    fill(some, 900)
    assert some.claimable(250, 0) == 250
    some.surplus.clear()
    fill(some, 200)
    assert some.claimable(250, 0) == 250
    clock.pass_by(1, busy=0.3)
    assert some.claimable(250, 0) == 250
    assert some.next_look is None


async def test_few_of_a_quick_task_are_passed_while_the_process_is_busy(clock):
    some = limits(keep=0)
    learn(some, 0.001)
    fill(some, 1_200)
    some.surplus.clear()
    clock.pass_by(1, busy=0.9)
    assert some.claimable(250, 0) == 25
    fill(some, 25)
    assert some.claimable(250, 0) == 0
    assert some.next_look == pytest.approx(clock.now + 0.1)
    clock.pass_by(0.15, busy=0.1)
    assert some.claimable(250, 0) == 250
    assert some.next_look is None


async def test_any_number_of_a_slow_task_is_passed_while_the_process_is_busy(clock):
    some = limits()
    learn(some, 5)
    fill(some, 1_200)
    some.surplus.clear()
    clock.pass_by(1, busy=1)
    assert some.claimable(250, 0) == 250


async def test_jobs_of_other_tasks_let_as_many_be_passed_again(clock):
    some = limits(keep=0)
    learn(some, 0.001)
    fill(some, 1_200)
    some.surplus.clear()
    clock.pass_by(1, busy=1)
    assert some.claimable(250, 0) == 25
    some.in_a_row = 0
    fill(some, 5)
    assert some.claimable(250, 0) == 250


async def test_no_more_are_claimed_while_many_are_to_be_set_aside(clock):
    some = limits()
    learn(some, 5)
    fill(some, 2 + 1_000)
    assert some.claimable(250, 0) == 0
