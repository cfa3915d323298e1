"""What becomes of a failed message, how long it waits, and what is remembered of the failure."""

import asyncio
import math
import pickle
import urllib.error
from datetime import UTC, datetime, timedelta
from email.message import Message as Headers
from email.utils import format_datetime

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.failures import Failure
from penstock.delivery.retries import (
    DeadLetter,
    DeathReason,
    Exponential,
    Fixed,
    GiveUp,
    Retry,
    RetryIn,
    RetryPolicy,
)
from penstock.errors import SettingError

NOW_MS = 1_782_892_800_000
NOW = datetime(2026, 7, 1, 8, 0, tzinfo=UTC)
FIXED = RetryPolicy(max_attempts=3, backoff=Fixed(10))


class Asking(Exception):
    """An error that says when to come back."""

    def __init__(self, retry_after):
        super().__init__("come back later")
        self.retry_after = retry_after


class Shy(Exception):
    """An error that tells nothing without a fight."""

    def __str__(self):
        raise RuntimeError("no")

    @property
    def retry_after(self):
        raise RuntimeError("no")

    @property
    def response(self):
        raise RuntimeError("no")


def http_error(headers):
    request = httpx.Request("GET", "http://example.com")
    response = httpx.Response(429, headers=headers, request=request)
    return httpx.HTTPStatusError("too many", request=request, response=response)


def raised(error, *, cause=None):
    try:
        raise error from cause  # noqa: TRY301
    except Exception as caught:  # noqa: BLE001
        return caught


# --- how long ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "low", "high"),
    [(1, 1, 1.25), (2, 2, 2.5), (5, 16, 20), (6, 32, 40), (7, 60, 60), (10_000, 60, 60)],
)
def test_waits_double_with_jitter_inside_the_cap(attempt, low, high):
    waits = [Exponential().wait_s(attempt) for _ in range(300)]
    assert low <= min(waits)
    assert max(waits) <= high


def test_full_jitter_spreads_over_the_whole_wait_also_at_the_cap():
    waits = [Exponential(1, 60, jitter="full").wait_s(50) for _ in range(1000)]
    assert 0 <= min(waits) < 5
    assert 55 < max(waits) <= 60


def test_without_jitter_every_wait_is_exact():
    assert [Exponential(0.5, 3, jitter=0).wait_s(n) for n in range(1, 6)] == [0.5, 1, 2, 3, 3]


@given(
    base=st.floats(0, 1e6),
    more=st.floats(0, 1e6),
    jitter=st.floats(0, 1) | st.just("full"),
    attempt=st.integers(-5, 10**9),
)
def test_no_wait_is_negative_or_beyond_the_cap(base, more, jitter, attempt):
    assert 0 <= Exponential(base, base + more, jitter).wait_s(attempt) <= base + more


@pytest.mark.parametrize(("attempt", "wait"), [(0, 5), (1, 5), (2, 10), (3, 30), (4, 30), (99, 30)])
def test_the_last_wait_of_a_table_repeats(attempt, wait):
    assert RetryPolicy(max_attempts=100, backoff=(5, 10, 30)).backoff_s(attempt) == wait


# --- again or not --------------------------------------------------------------------------------


def test_a_failed_message_is_tried_again_until_its_attempts_are_used_up():
    decisions = [FIXED.decide(ValueError("bad"), attempt) for attempt in (1, 2, 3, 4)]
    exhausted = GiveUp(DeathReason.EXHAUSTED)
    assert decisions == [RetryIn(10), RetryIn(10), exhausted, exhausted]


def test_the_default_is_five_attempts_from_one_second_up_to_a_minute():
    policy = RetryPolicy()
    waits = [policy.decide(ValueError(), attempt) for attempt in range(1, 5)]
    for attempt, wait in enumerate(waits):
        assert 2**attempt <= wait.seconds <= 2**attempt * 1.25
    assert policy.decide(ValueError(), 5) == GiveUp(DeathReason.EXHAUSTED)


@pytest.mark.parametrize(
    ("error", "decision"),
    [
        (ConnectionError(), RetryIn(10)),
        (ConnectionResetError(), RetryIn(10)),
        (BrokenPipeError(), GiveUp(DeathReason.FATAL)),
        (ValueError(), GiveUp(DeathReason.FATAL)),
    ],
)
def test_only_named_errors_are_tried_again_and_giving_up_wins(error, decision):
    policy = RetryPolicy(
        backoff=Fixed(10), retry_on=(ConnectionError,), give_up_on=(BrokenPipeError,)
    )
    assert policy.decide(error, 1) == decision


def test_a_hopeless_error_is_fatal_on_the_last_attempt_too():
    policy = RetryPolicy(give_up_on=(ValueError,))
    assert policy.decide(ValueError(), 5) == GiveUp(DeathReason.FATAL)


def test_a_handler_may_choose_the_wait():
    assert FIXED.decide(Retry(after=0.5), 1) == RetryIn(0.5)
    assert FIXED.decide(Retry(after=timedelta(hours=2)), 2) == RetryIn(7200)
    assert FIXED.decide(Retry(after=-1), 1) == RetryIn(0)
    assert FIXED.decide(Retry(), 1) == RetryIn(10)


def test_a_handler_that_asks_for_more_gets_no_more_attempts_than_others():
    assert FIXED.decide(Retry(after=0), 3) == GiveUp(DeathReason.EXHAUSTED)


def test_a_wish_to_retry_needs_no_place_in_the_policy():
    policy = RetryPolicy(backoff=Fixed(1), retry_on=(), give_up_on=(Exception,))
    assert policy.decide(Retry(), 1) == RetryIn(1)


def test_a_handler_may_give_up_at_once_with_its_own_word_for_why():
    assert FIXED.decide(DeadLetter("no such customer"), 1) == GiveUp(
        DeathReason.REQUESTED, "no such customer"
    )


async def test_what_a_task_group_raises_is_judged_by_the_errors_in_it():
    async def fail(error):
        raise error

    async def outcome(policy, *errors):
        try:
            async with asyncio.TaskGroup() as group:
                for error in errors:
                    group.create_task(fail(error))
        except ExceptionGroup as failed:
            return policy.decide(failed, 1, now_ms=NOW_MS)

    policy = RetryPolicy(backoff=Fixed(10), retry_on=(OSError,), give_up_on=(BrokenPipeError,))
    assert await outcome(policy, OSError(), TimeoutError()) == RetryIn(10)
    assert await outcome(policy, OSError(), Retry(after=30)) == RetryIn(30)
    assert await outcome(FIXED, OSError(), Asking(90)) == RetryIn(90)
    assert await outcome(policy, OSError(), ValueError()) == GiveUp(DeathReason.FATAL)
    assert await outcome(policy, OSError(), BrokenPipeError()) == GiveUp(DeathReason.FATAL)
    requested = GiveUp(DeathReason.REQUESTED, "why")
    assert await outcome(policy, BrokenPipeError(), DeadLetter("why")) == requested


def test_a_group_can_be_named_itself():
    group = ExceptionGroup("several", [ValueError()])
    assert RetryPolicy(give_up_on=(ExceptionGroup,)).decide(group, 1) == GiveUp(DeathReason.FATAL)
    policy = RetryPolicy(backoff=Fixed(1), retry_on=(ExceptionGroup,))
    assert policy.decide(group, 1) == RetryIn(1)


def test_the_reasons_are_words_that_tell_them_apart():
    words = {"exhausted", "fatal", "requested", "crashed", "unknown", "undecodable", "refused"}
    assert set(DeathReason) == words


# --- Retry-After ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        (90, 90),
        (90.5, 90.5),
        ("90", 90),
        (" 90.5 ", 90.5),
        (timedelta(minutes=2), 120),
        (format_datetime(NOW + timedelta(seconds=75), usegmt=True), 75),
        ("Wed, 01 Jul 2026 08:01:30 -0000", 90),
        (format_datetime(NOW - timedelta(days=1), usegmt=True), 10),
        (3, 10),
        (-5, 10),
        (86_400, 3600),
        (10**400, 10),
        (timedelta.max, 3600),
        (math.inf, 10),
        (math.nan, 10),
        ("nan", 10),
        ("soon", 10),
        ("", 10),
        ("Wed, 99 Foo 2026", 10),
        (True, 10),
        (None, 10),
        ([90], 10),
        (object(), 10),
    ],
)
def test_an_error_that_says_when_to_come_back_is_heeded(asked, wait):
    assert FIXED.decide(Asking(asked), 1, now_ms=NOW_MS) == RetryIn(wait)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "120"}, 120),
        ({"retry-after": "Wed, 01 Jul 2026 08:01:00 GMT"}, 60),
        ({"Retry-After": "5"}, 10),
        ({}, 10),
    ],
)
def test_the_header_of_an_http_response_is_heeded(headers, wait):
    assert FIXED.decide(http_error(headers), 1, now_ms=NOW_MS) == RetryIn(wait)


def test_the_header_is_found_in_a_plain_dict_and_on_the_error_itself():
    error = OSError()
    error.response = type("Response", (), {"headers": {"Retry-After": "70"}})()
    assert FIXED.decide(error, 1) == RetryIn(70)
    headers = Headers()
    headers["Retry-After"] = "80"
    with urllib.error.HTTPError("http://example.com", 503, "busy", headers, None) as refused:
        assert FIXED.decide(refused, 1) == RetryIn(80)


def test_a_date_is_measured_from_this_machines_clock_if_no_other_is_given():
    later = datetime.now(UTC) + timedelta(seconds=600)
    wait = FIXED.decide(Asking(format_datetime(later, usegmt=True)), 1)
    assert 550 < wait.seconds <= 600


def test_the_limit_of_what_an_error_may_ask_for_can_be_set():
    policy = RetryPolicy(backoff=Fixed(10), max_retry_after_s=30)
    assert policy.decide(Asking(3600), 1) == RetryIn(30)
    assert RetryPolicy(backoff=Fixed(10), max_retry_after_s=0).decide(Asking(60), 1) == RetryIn(10)


def test_an_error_that_resists_being_asked_is_tried_again_as_any_other():
    assert FIXED.decide(Shy(), 1) == RetryIn(10)


# --- checked where it is made --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RetryPolicy(max_attempts=0), "max_attempts = 0: expected a whole number from 1"),
        (lambda: RetryPolicy(max_attempts=True), "max_attempts = True"),
        (lambda: RetryPolicy(max_attempts=2.5), "max_attempts = 2.5"),
        (lambda: RetryPolicy(backoff=()), r"backoff = \(\): expected Exponential"),
        (lambda: RetryPolicy(backoff=5), "backoff = 5: expected Exponential"),
        (lambda: RetryPolicy(backoff=[5]), r"backoff = \[5\]: expected Exponential"),
        (lambda: RetryPolicy(backoff=(5, -1)), "backoff = -1: expected a number of seconds"),
        (lambda: RetryPolicy(backoff=(math.nan,)), "backoff = nan"),
        (lambda: RetryPolicy(retry_on=ValueError), "retry_on = .*: expected a tuple of subclasses"),
        (lambda: RetryPolicy(retry_on=("x",)), "retry_on = .*: expected a tuple of subclasses"),
        (lambda: RetryPolicy(give_up_on=(KeyboardInterrupt,)), "give_up_on = .*: expected a tuple"),
        (lambda: RetryPolicy(give_up_on=(asyncio.CancelledError,)), "give_up_on"),
        (lambda: RetryPolicy(max_retry_after_s=-1), "max_retry_after_s = -1"),
        (lambda: Fixed(-1), "Fixed.seconds = -1: expected a number of seconds from 0"),
        (lambda: Fixed(math.inf), "Fixed.seconds = inf"),
        (lambda: Fixed(10**400), r"Fixed.seconds = 10+… \(401 characters\): expected"),
        (lambda: Fixed("5"), "Fixed.seconds = '5'"),
        (lambda: Exponential(base_s=-1), "Exponential.base_s = -1"),
        (lambda: Exponential(base_s=90), "Exponential.max_s = 60: expected at least base_s = 90"),
        (lambda: Exponential(max_s=math.nan), "Exponential.max_s = nan"),
        (lambda: Exponential(jitter=1.5), "Exponential.jitter = 1.5: expected a number from 0 to"),
        (lambda: Exponential(jitter="half"), "Exponential.jitter = 'half'"),
        (lambda: Exponential(jitter=None), "Exponential.jitter = None"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused_where_it_is_made(make, words):
    with pytest.raises(SettingError, match=words):
        make()


def test_a_wish_for_an_endless_wait_is_refused_where_it_is_made():
    with pytest.raises(ValueError, match="Retry: after = nan: expected a finite number"):
        Retry(after=math.nan)
    with pytest.raises(TypeError, match="Retry: after = '5': expected seconds or a timedelta"):
        Retry(after="5")


def test_policies_are_values():
    assert RetryPolicy(backoff=(1, 2)) == RetryPolicy(backoff=(1, 2))
    assert len({RetryPolicy(), RetryPolicy(), RetryPolicy(max_attempts=2)}) == 2


@pytest.mark.parametrize("wish", [Retry(), Retry(5, "busy"), Retry(timedelta(1)), DeadLetter("x")])
def test_a_wish_travels_between_processes(wish):
    copy = pickle.loads(pickle.dumps(wish))  # noqa: S301  our own
    assert (type(copy), str(copy), vars(copy)) == (type(wish), str(wish), vars(wish))


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (Retry(), "again"),
        (Retry(2.5), "again in 2.5 s"),
        (Retry(timedelta(minutes=1), "the bank is closed"), "again in 60 s: the bank is closed"),
        (Retry(reason="busy"), "busy"),
        (DeadLetter("no such customer"), "no such customer"),
        (DeadLetter(), ""),
    ],
)
def test_a_wish_says_what_it_is(wish, words):
    assert str(wish) == words


# --- what is remembered --------------------------------------------------------------------------


def fails_with(error):
    raise error


def passes_on(error):
    fails_with(error)


def recurses(depth):
    if not depth:
        raise ValueError("deep enough")
    recurses(depth - 1)


def failure_of(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001
        return Failure.of(error, 2, NOW_MS)
    raise AssertionError("it did not fail")


def fingerprint(call, *arguments):
    return failure_of(call, *arguments).fingerprint


def test_a_failure_tells_what_happened_where_and_when():
    failure = failure_of(passes_on, KeyError("order-7"))
    assert failure.error_class == "KeyError"
    assert failure.message == "'order-7'"
    assert "in passes_on" in failure.stack
    assert "in fails_with" in failure.stack
    assert failure.stack.endswith("KeyError: 'order-7'")
    assert (failure.attempt, failure.at_ms) == (2, NOW_MS)
    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure) == failure


def test_a_class_of_a_module_is_named_with_it():
    assert failure_of(fails_with, httpx.ReadTimeout("slow")).error_class == "httpx.ReadTimeout"


def test_causes_and_the_members_of_a_group_are_in_the_stack():
    group = ExceptionGroup("several", [raised(OSError("disk"), cause=KeyError("root"))])
    stack = failure_of(fails_with, group).stack
    assert "OSError: disk" in stack
    assert "KeyError: 'root'" in stack


def test_long_messages_are_cut_and_hide_no_frame():
    failure = failure_of(passes_on, ValueError("x" * 100_000))
    assert len(failure.message) == 1000
    assert failure.message.endswith("x…")
    assert "in passes_on" in failure.stack
    assert len(failure.stack) < 3000


def test_of_a_long_stack_the_end_is_kept():
    error = raised(ValueError("first"))
    for number in range(100):
        error = raised(ValueError(f"number {number} " + "ä" * 100), cause=error)
    failure = Failure.of(error, 1, NOW_MS)
    assert len(failure.stack.encode()) <= 8 * 1024 + len("…\n".encode())
    assert failure.stack.startswith("…\n")
    assert "number 99" in failure.stack
    assert "first" not in failure.stack


def test_an_error_that_cannot_be_told_is_remembered_all_the_same():
    failure = failure_of(passes_on, Shy())
    assert failure.error_class.endswith("Shy")
    assert failure.message == "<cannot be described: RuntimeError>"
    assert "in passes_on" in failure.stack
    assert len(failure.fingerprint) == 16


@given(st.text(st.characters(categories=None)) | st.binary() | st.none())
def test_every_failure_can_be_stored(content):
    failure = failure_of(fails_with, ValueError(content))
    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure) == failure
    assert len(failure.message) <= 1000


def test_errors_that_cause_each_other_are_told_once():
    one, other = raised(ValueError("one")), raised(KeyError("other"))
    one.__cause__, other.__cause__ = other, one
    assert "KeyError" in Failure.of(one, 1, NOW_MS).stack


def test_the_same_bug_has_the_same_fingerprint_whatever_the_data():
    assert fingerprint(passes_on, KeyError("order-7")) == fingerprint(passes_on, KeyError("bob"))


def test_other_classes_other_places_and_other_causes_are_other_bugs():
    prints = {
        fingerprint(passes_on, KeyError("x")),
        fingerprint(passes_on, ValueError("x")),
        fingerprint(fails_with, KeyError("x")),
        fingerprint(fails_with, raised(KeyError("x"), cause=raised(OSError()))),
        fingerprint(fails_with, raised(KeyError("x"), cause=raised(TimeoutError()))),
    }
    assert len(prints) == 5


def test_how_deep_a_recursion_went_does_not_matter():
    assert fingerprint(recurses, 3) == fingerprint(recurses, 30)


def test_lines_do_not_matter():
    namespaces = [{"__name__": "shop"}, {"__name__": "shop"}]
    for lines, namespace in zip(("", "\n\n\n"), namespaces, strict=True):
        exec(f"{lines}def bill():\n    raise ValueError('bad')", namespace)  # noqa: S102
    one, other = (fingerprint(namespace["bill"]) for namespace in namespaces)
    assert one == other


async def test_how_the_handler_was_called_does_not_matter():
    async def in_a_thread():
        await asyncio.to_thread(passes_on, KeyError("x"))

    async def directly():
        passes_on(KeyError("x"))

    prints = set()
    for run in (in_a_thread, directly):
        try:
            await run()
        except KeyError as error:
            called = error.__traceback__.tb_next.tb_next  # without this test and `run`
            prints.add(Failure.of(error.with_traceback(called), 1, NOW_MS).fingerprint)
    assert len(prints) == 1


def test_the_order_in_which_the_tasks_of_a_group_failed_does_not_matter():
    one, other = raised(KeyError("x")), raised(ValueError("y"))
    prints = {
        fingerprint(fails_with, ExceptionGroup("g", members))
        for members in ([one, other], [other, one], [one, other, other])
    }
    assert len(prints) == 1
    assert fingerprint(fails_with, ExceptionGroup("g", [one])) not in prints


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 7 has no customer", "order 12345 has no customer"),
        ("<Order at 0x7f01abcdef10> is odd", "<Order at 0x55aa> is odd"),
        (
            "unknown 0b0ff2c6-8f6b-4a0b-9a53-0a1f3d4e5f60",
            "unknown f3a1c2d4-1111-4eee-8abc-deadbeef0001",
        ),
    ],
)
def test_what_was_returned_is_told_apart_by_its_words_without_numbers_and_addresses(one, other):
    prints = [Failure.of(DeadLetter(words), 1, NOW_MS).fingerprint for words in (one, other)]
    assert prints[0] == prints[1]
    assert Failure.of(DeadLetter("something else"), 1, NOW_MS).fingerprint != prints[0]


def test_reasons_for_dead_letters_are_told_apart_where_they_are_raised_too():
    one = fingerprint(fails_with, DeadLetter("no such customer"))
    assert one != fingerprint(fails_with, DeadLetter("no such product"))
