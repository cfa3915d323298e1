"""When something recurs: the moments of cron expressions and periods, and what is refused."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, InvalidName
from penstock.queues.schedules.cron import Cron, Every, read_when
from penstock.queues.schedules.schedule import MISSED_AFTER_MS, MOST_MISSED, Schedule

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
FRIDAY = datetime(2026, 7, 3, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def ms(moment):
    return round(moment.timestamp() * 1000)


def berlin(*parts, fold=0):
    return ms(datetime(*parts, tzinfo=BERLIN, fold=fold))


def schedule(**options):
    given = {"name": "tick", "when": Every(60), "queue": "work", "make": lambda id_, tick: b"{}"}
    return Schedule(**{**given, **options})


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("*/5 * * * *", NOON, NOON + timedelta(minutes=5)),
        ("*/5 * * * *", NOON - timedelta(milliseconds=1), NOON),
        ("*/5 * * * *", NOON + timedelta(milliseconds=1), NOON + timedelta(minutes=5)),
        ("0 0 29 2 *", NOON, datetime(2028, 2, 29, tzinfo=UTC)),
        ("30 6 * * mon-fri", FRIDAY, FRIDAY + timedelta(days=2, hours=18.5)),
        ("0 0 L * *", NOON, datetime(2026, 7, 31, tzinfo=UTC)),
        ("0 0 * * 7", NOON, datetime(2026, 7, 5, tzinfo=UTC)),
        ("0 0 13 * FRI", NOON, datetime(2026, 7, 3, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_the_next_moment_is_later_than_the_one_given(expression, after, expected):
    assert Cron(expression).next_after(ms(after)) == ms(expected)


def test_a_time_of_day_is_that_of_its_time_zone():
    cron = Cron("30 6 * * *", tz="Europe/Berlin")
    assert cron.next_after(ms(NOON)) == berlin(2026, 7, 2, 6, 30)
    assert cron.next_after(berlin(2026, 12, 1)) == ms(datetime(2026, 12, 1, 5, 30, tzinfo=UTC))


def test_a_time_of_day_that_is_left_out_in_spring_comes_at_the_end_of_the_gap():
    cron = Cron("30 2 * * *", tz="Europe/Berlin")
    ticks = cron.between(berlin(2026, 3, 28, 12), berlin(2026, 3, 30, 12), 10)
    assert ticks == [berlin(2026, 3, 29, 3, 0), berlin(2026, 3, 30, 2, 30)]


def test_a_time_of_day_that_comes_twice_in_autumn_counts_once():
    cron = Cron("30 2 * * *", tz="Europe/Berlin")
    ticks = cron.between(berlin(2026, 10, 24, 12), berlin(2026, 10, 26, 12), 10)
    assert ticks == [berlin(2026, 10, 25, 2, 30), berlin(2026, 10, 26, 2, 30)]


def test_the_hour_that_comes_twice_never_leads_back():
    cron = Cron("45 2 * * *", tz="Europe/Berlin")
    second_time = berlin(2026, 10, 25, 2, 40, fold=1)
    assert cron.next_after(second_time) == berlin(2026, 10, 26, 2, 45)


@pytest.mark.parametrize("day", [(2026, 3, 29), (2026, 10, 25)])
def test_what_recurs_within_the_hour_follows_the_real_hours(day):
    cron = Cron("*/30 * * * *", tz="Europe/Berlin")
    start = berlin(*day)
    ticks = cron.between(start, start + 6 * 3_600_000, 100)
    assert ticks == [start + half * 1_800_000 for half in range(1, 13)]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("61 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 31 4,6 *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("* * * * * *", "6 fields.*Every"),
        ("* * * *", "4 fields"),
        ("", "0 fields"),
        ("@hourly", "1 fields"),
        ("a b c d e", "bad minute"),
        ("-1 * * * *", "bad minute"),
        ("² * * * *", "bad minute"),
        ("* * * * L", "bad day-of-week"),
        ("1 " * 200, "more than"),
        (None, "expected text"),
        (5, "expected text"),
    ],
)
def test_an_expression_that_cannot_be_is_refused_with_the_reason(expression, words):
    with pytest.raises(ConfigError, match=words):
        Cron(expression)


@pytest.mark.parametrize(
    "tz", ["Europe/Atlantis", "", "Europe", "/etc/passwd", "../UTC", "CEST", "a\0b", None, 3, [1]]
)
def test_an_unknown_time_zone_is_refused(tz):
    with pytest.raises(ConfigError, match="time zone"):
        Cron("* * * * *", tz=tz)


@given(st.text(alphabet="0123456789*/,-L#WMONab ", max_size=30))
def test_any_text_is_an_expression_or_refused(text):
    try:
        cron = Cron(text)
    except ConfigError:
        return
    assert cron.next_after(ms(NOON)) > ms(NOON)


@given(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "0,45 1-3 * * *", "0 */5 * * *", "15 3 * * SUN"]),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Cairo"]),
    st.integers(0, 366 * 24 * 60),
    st.integers(0, 3 * 24 * 60),
)
def test_walking_and_asking_for_a_span_give_the_same_moments(expression, tz, start, minutes):
    cron = Cron(expression, tz)
    begin = ms(NOON) + start * 60_000
    end = begin + minutes * 60_000
    walked, tick = [], cron.next_after(begin)
    while tick <= end:
        walked.append(tick)
        tick = cron.next_after(tick)
    assert walked == sorted(set(walked))
    assert cron.between(begin, end, 10_000) == walked
    assert cron.between(begin, end, 3) == walked[-3:]


def test_a_long_span_costs_only_its_end():
    ticks = Cron("* * * * *").between(0, ms(NOON), 2)
    assert ticks == [ms(NOON) - 60_000, ms(NOON)]


def test_blanks_make_no_difference():
    assert Cron(" */5  * * *\t* ") == Cron("*/5 * * * *")
    assert Cron("0 0 * * *", "Europe/Berlin") != Cron("0 0 * * *")


def test_periods_are_counted_from_1970():
    assert Every(60).next_after(ms(NOON)) == ms(NOON) + 60_000
    assert Every(60).next_after(ms(NOON) - 1) == ms(NOON)
    assert Every(0.1).next_after(ms(NOON) + 50) == ms(NOON) + 100
    assert Every(HOUR, offset=120).next_after(ms(NOON)) == ms(NOON) + 120_000
    assert Every(HOUR) == Every(3600)


def test_a_span_of_periods_ends_with_the_last():
    assert Every(10).between(0, 30_000, 10) == [10_000, 20_000, 30_000]
    assert Every(10).between(0, 39_999, 2) == [20_000, 30_000]
    assert Every(10).between(30_000, 30_000, 10) == []
    assert Every(10, offset=5).between(0, 30_000, 10) == [5_000, 15_000, 25_000]


@pytest.mark.parametrize(
    "period", [0, -1, 0.001, float("nan"), float("inf"), 10**12, "5", None, True, timedelta(0)]
)
def test_a_period_that_cannot_be_is_refused(period):
    with pytest.raises(ConfigError, match="every"):
        Every(period)


@pytest.mark.parametrize("offset", [60, -1, timedelta(seconds=-1), "x", float("nan")])
def test_an_offset_that_cannot_be_is_refused(offset):
    with pytest.raises(ConfigError, match="offset"):
        Every(60, offset=offset)


@pytest.mark.parametrize(
    "when", [Cron("*/5 * * * *"), Cron("0 6 * * MON", "Europe/Berlin"), Every(0.1), Every(90, 30)]
)
def test_what_is_stored_can_be_read(when):
    assert read_when(when.text) == when


@pytest.mark.parametrize(
    "text",
    ["", "cron", "cron UTC 61 * * * *", "every", "every x 1", "lunar 3", f"every 1 {10**400}"],
)
def test_what_others_have_stored_is_not_guessed(text):
    assert read_when(text) is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"missed": "never"}, ConfigError),
        ({"when": "*/5 * * * *"}, ConfigError),
        ({"jitter_s": float("nan")}, ConfigError),
        ({"jitter_s": "1"}, ConfigError),
        ({"name": "a b"}, InvalidName),
        ({"name": ""}, InvalidName),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(options, error):
    with pytest.raises(error):
        schedule(**options)


def test_skipping_waits_for_the_next_tick():
    skipping = schedule(when=Every(3600), missed="skip")
    assert skipping.due_ticks(0, 5 * 3_600_000 + 20_000) == ([], 6 * 3_600_000)
    assert skipping.due_ticks(0, MISSED_AFTER_MS) == ([0], 3_600_000), "only late, not missed"


def test_once_stands_for_all_that_was_missed():
    once = schedule(when=Every(3600), missed="once")
    assert once.due_ticks(0, 5 * 3_600_000 + 20_000) == ([5 * 3_600_000], 6 * 3_600_000)


def test_all_that_was_missed_comes_up_to_a_limit():
    everything = schedule(when=Every(1), missed="all")
    assert everything.due_ticks(0, 3_500) == ([0, 1_000, 2_000, 3_000], 4_000)
    ticks, after = everything.due_ticks(0, 5_000_000)
    assert (len(ticks), ticks[-1], after) == (MOST_MISSED, 5_000_000, 5_001_000)


def test_jitter_is_the_same_for_everyone_and_stays_in_its_bounds():
    spread = schedule(jitter_s=2)
    delays = [spread.delay_ms(tick) for tick in range(0, 6_000_000, 60_000)]
    assert delays == [schedule(jitter_s=2).delay_ms(tick) for tick in range(0, 6_000_000, 60_000)]
    assert 0 <= min(delays) < 200
    assert 1_800 < max(delays) <= 2_000
    assert schedule().delay_ms(60_000) == 0
