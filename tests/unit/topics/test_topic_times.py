"""Times that callers give: when a message is due, and where reading starts."""

import math
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.times import LONGEST_WAIT, due_ms, resolve_position, wait_s

NOW = 1_700_000_000_000
MOMENT = datetime(2026, 7, 1, 8, 0, tzinfo=UTC)
MOMENT_MS = 1_782_892_800_000
LAST = 2**64 - 1
EAST = timezone(timedelta(hours=5, minutes=30))
ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def parts(entry_id):
    return tuple(map(int, entry_id.split("-")))


def test_without_delay_and_moment_nothing_waits():
    assert due_ms(None, None, NOW) is None


@pytest.mark.parametrize(
    ("delay", "after_ms"),
    [
        (0, 0),
        (5, 5000),
        (0.25, 250),
        (2.007, 2007),
        (0.0001, 1),
        (timedelta(minutes=1), 60_000),
        (timedelta(microseconds=1), 1),
        (-3, 0),
        (-0.0, 0),
        (timedelta(days=-1), 0),
        (-(10**400), 0),
        (LONGEST_WAIT, 3652 * 86_400_000),
    ],
)
def test_a_delay_counts_from_now_and_a_negative_one_is_over(delay, after_ms):
    assert due_ms(delay, None, NOW) == NOW + after_ms


@pytest.mark.parametrize(
    ("at", "due"),
    [
        (MOMENT, MOMENT_MS),
        (MOMENT.astimezone(EAST), MOMENT_MS),
        (MOMENT + timedelta(microseconds=1), MOMENT_MS + 1),
        (MOMENT_MS // 1000, MOMENT_MS),
        (MOMENT_MS / 1000 + 0.123, MOMENT_MS + 123),
        (NOW / 1000, NOW),
        (NOW // 1000 - 1, NOW),
        (0, NOW),
        (-1.5, NOW),
        (datetime(1969, 1, 1, tzinfo=UTC), NOW),
        (datetime.min.replace(tzinfo=EAST), NOW),
    ],
)
def test_a_moment_is_taken_as_it_is_and_a_past_one_is_now(at, due):
    assert due_ms(None, at, NOW) == due


@pytest.mark.parametrize(
    ("delay", "at", "words"),
    [
        (1, MOMENT, "exclude each other"),
        (0, 0, "exclude each other"),
        (math.nan, None, "delay = nan: expected a finite number"),
        (math.inf, None, "delay = inf: expected a finite number"),
        (-math.inf, None, "delay = -inf: expected a finite number"),
        (None, math.nan, "at = nan: expected a finite number"),
        (None, math.inf, "at = inf: expected a finite number"),
        (86_400 * 3652 + 1, None, "more than ten years; a number counts seconds"),
        (10**400, None, "more than ten years"),
        (timedelta.max, None, "more than ten years"),
        (None, NOW + 60_000, "more than ten years away; a number is epoch seconds"),
        (None, 10**400, "more than ten years away"),
        (None, 1e308, "more than ten years away"),
        (None, datetime.max.replace(tzinfo=UTC), "more than ten years away"),
        (None, datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))), "more than ten years"),
        (None, MOMENT.replace(tzinfo=None), "no time zone"),
    ],
)
def test_what_cannot_be_meant_is_refused(delay, at, words):
    with pytest.raises(ValueError, match=words):
        due_ms(delay, at, NOW)


@pytest.mark.parametrize(
    ("delay", "at", "words"),
    [
        ("5", None, "delay = '5': expected seconds or a timedelta"),
        (True, None, "delay = True: expected seconds or a timedelta"),
        (MOMENT, None, "expected seconds or a timedelta"),
        (None, "tomorrow", "expected an aware datetime or epoch seconds"),
        (None, date(2026, 7, 1), "expected an aware datetime or epoch seconds"),
        (None, timedelta(1), "expected an aware datetime or epoch seconds"),
        (None, True, "expected an aware datetime or epoch seconds"),
    ],
)
def test_what_is_no_time_is_refused(delay, at, words):
    with pytest.raises(TypeError, match=words):
        due_ms(delay, at, NOW)


@given(st.floats(0, LONGEST_WAIT.total_seconds()))
def test_nothing_is_due_early_nor_more_than_a_millisecond_late(delay):
    due = due_ms(delay, None, NOW)
    assert isinstance(due, int)
    assert delay * 1000 - 0.001 <= due - NOW <= delay * 1000 + 1.001


@given(st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1), timezones=ZONES))  # noqa: DTZ001
def test_a_datetime_and_its_epoch_seconds_are_due_together(at):
    due, by_number = due_ms(None, at, NOW), due_ms(None, at.timestamp(), NOW)
    assert due >= NOW
    assert abs(due - by_number) <= 1  # a float of today's seconds is not exact to the microsecond


@given(st.floats() | st.integers() | st.timedeltas())
def test_a_wait_is_a_sane_number_of_seconds_or_refused(wait):
    try:
        seconds = wait_s(wait)
    except ValueError:
        return
    assert isinstance(seconds, float)
    assert 0 <= seconds <= LONGEST_WAIT.total_seconds()


def test_a_refused_wait_is_named_as_the_caller_knows_it():
    with pytest.raises(ValueError, match="Retry\\(after\\) = nan"):
        wait_s(math.nan, "Retry(after)")


@pytest.mark.parametrize(
    ("position", "entry_id"),
    [
        ("0", "0-0"),
        ("earliest", "0-0"),
        ("0-0", "0-0"),
        ("$", "$"),
        ("latest", "$"),
        ("123-4", "123-4"),
        ("12-1700000000000-4", "1700000000000-4"),
        ("123", "123-0"),
        ("0007-01", "7-1"),
        ("20260701", "20260701-0"),
        (f"{LAST}-{LAST}", f"{LAST}-{LAST}"),
        (MOMENT, f"{MOMENT_MS - 1}-{LAST}"),
        (MOMENT.astimezone(EAST), f"{MOMENT_MS - 1}-{LAST}"),
        (MOMENT + timedelta(microseconds=999), f"{MOMENT_MS - 1}-{LAST}"),
        ("2026-07-01T08:00:00Z", f"{MOMENT_MS - 1}-{LAST}"),
        ("2026-07-01 13:30+05:30", f"{MOMENT_MS - 1}-{LAST}"),
        ("2026-07-01T08:00:00.001Z", f"{MOMENT_MS}-{LAST}"),
        ("1970-01-01T00:00:00Z", "0-0"),
        ("1969-12-31T23:59:59Z", "0-0"),
        (datetime.min.replace(tzinfo=EAST), "0-0"),
    ],
)
def test_a_position_becomes_the_id_after_which_reading_starts(position, entry_id):
    assert resolve_position(position) == entry_id


@pytest.mark.parametrize(
    ("position", "words"),
    [
        ("", 'expected "earliest"'),
        ("Earliest", 'expected "earliest"'),
        ("yesterday", 'expected "earliest"'),
        ("123-", 'expected "earliest"'),
        ("-1", 'expected "earliest"'),
        ("1-2-3", 'expected "earliest"'),
        ("1-1700000000000-3-4", 'expected "earliest"'),
        ("123-*", 'expected "earliest"'),
        (" 123", 'expected "earliest"'),
        ("123\n", 'expected "earliest"'),
        ("١٢٣", 'expected "earliest"'),
        ("9" * 5000, 'expected "earliest"'),
        (f"{LAST + 1}", "64 bits"),
        (f"1-{LAST + 1}", "64 bits"),
        ("2026-07-01T08:00:00", "no time zone"),
        ("2026-07-01", "no time zone"),
        (MOMENT.replace(tzinfo=None), "no time zone"),
    ],
)
def test_what_is_no_position_is_refused_with_what_would_be_one(position, words):
    with pytest.raises(ValueError, match=words) as refused:
        resolve_position(position)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("position", [0, 123, None, b"0", date(2026, 7, 1)])
def test_a_position_of_another_type_is_refused(position):
    with pytest.raises(TypeError, match='expected "earliest"'):
        resolve_position(position)


@given(st.integers(0, LAST), st.integers(0, LAST))
def test_an_entry_id_stays_what_it_is(ms, sequence):
    assert resolve_position(f"{ms}-{sequence}") == f"{ms}-{sequence}"


@given(st.datetimes(timezones=ZONES))
def test_reading_from_a_moment_skips_only_what_is_older(moment):
    ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    after = parts(resolve_position(moment))
    assert after == parts(resolve_position(moment.isoformat()))
    if ms > 0:
        assert (ms - 1, LAST) == after
        assert after < (ms, 0)
    else:
        assert after == (0, 0)
