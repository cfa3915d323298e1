"""Trying again: the waits, what is tried again, and what must not be."""

import pytest

from penstock.errors import CommandRefused, OutcomeUnknown, StillLoading, Unreachable
from penstock.redis.retry import backoff_s, with_retry
from penstock.settings import RetrySettings


class Waits:
    """A clock that does not wait, and remembers how long it should have."""

    def __init__(self):
        self.slept = []

    def monotonic(self):
        return 0.0

    def wall_ms(self):
        return 0

    async def sleep(self, delay_s):
        self.slept.append(delay_s)


def failing(*errors, result="done"):
    left = list(errors)

    async def operation():
        if left:
            raise left.pop(0)
        return result

    return operation


@pytest.mark.parametrize(
    ("attempt", "low", "high"),
    [(1, 1, 1.25), (2, 2, 2.5), (3, 4, 5), (4, 8, 10), (5, 16, 20), (6, 30, 30), (10_000, 30, 30)],
)
def test_waits_double_with_jitter_inside_the_cap(attempt, low, high):
    waits = [backoff_s(attempt, base_s=1, max_s=30) for _ in range(500)]
    assert low <= min(waits)
    assert max(waits) <= high


def test_the_jitter_is_really_there():
    assert len({backoff_s(1, base_s=1, max_s=30) for _ in range(20)}) > 10


@pytest.mark.parametrize("attempt", [0, -5])
def test_an_attempt_below_one_counts_as_the_first(attempt):
    assert 1 <= backoff_s(attempt, base_s=1, max_s=30) <= 1.25


async def test_what_was_rejected_for_the_moment_is_tried_again():
    clock = Waits()
    operation = failing(Unreachable("down"), StillLoading("loading"))
    assert await with_retry(operation, "get", clock=clock) == "done"
    assert len(clock.slept) == 2
    assert clock.slept[0] < clock.slept[1]


async def test_after_the_last_try_the_error_comes_as_it_is_without_a_wait():
    clock = Waits()
    last = Unreachable("third")
    with pytest.raises(Unreachable) as raised:
        await with_retry(failing(Unreachable("1"), Unreachable("2"), last), "get", clock=clock)
    assert raised.value is last
    assert len(clock.slept) == 2


@pytest.mark.parametrize("max_retries", [1, 0, -1])
async def test_one_try_means_no_wait(max_retries):
    clock = Waits()
    with pytest.raises(Unreachable):
        await with_retry(failing(Unreachable("down")), "get", max_retries, clock=clock)
    assert clock.slept == []


async def test_what_will_not_get_better_is_not_tried_again():
    clock = Waits()
    with pytest.raises(CommandRefused):
        await with_retry(failing(CommandRefused("WRONGTYPE")), "get", clock=clock)
    assert clock.slept == []


async def test_an_unknown_outcome_is_repeated_only_if_that_does_no_harm():
    clock = Waits()
    with pytest.raises(OutcomeUnknown):
        await with_retry(failing(OutcomeUnknown("lost")), "push", clock=clock)
    assert clock.slept == []
    operation = failing(OutcomeUnknown("lost"))
    assert await with_retry(operation, "set", clock=clock, idempotent=True) == "done"


async def test_a_programming_error_passes_at_once():
    clock = Waits()
    with pytest.raises(ZeroDivisionError):
        await with_retry(failing(ZeroDivisionError()), "get", clock=clock)
    assert clock.slept == []


async def test_the_settings_decide_tries_and_waits():
    clock = Waits()
    settings = RetrySettings(tries=5, base_s=0.1, max_s=0.3)
    with pytest.raises(Unreachable):
        await with_retry(failing(*[Unreachable("down")] * 9), "get", settings=settings, clock=clock)
    assert len(clock.slept) == 4
    assert all(wait <= 0.3 for wait in clock.slept)
