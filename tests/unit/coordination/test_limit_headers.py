"""Limits in HTTP headers: what providers say is understood, and nonsense does no harm."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordination.limits.headers import read_retry_after, read_usages, to_headers
from penstock.coordination.limits.rates import parse_rates
from penstock.coordination.limits.result import LimitResult, Usage

NOW = 1_700_000_000.0
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"  # the same moment
COURTLISTENER = parse_rates(["5/min", "50/hour", "125/day"])


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("7", 7),
            (" 120 ", 120),
            ("0", 0),
            ("1.5", 1.5),
            ("86400", 86_400),
            ("Tue, 14 Nov 2023 22:14:20 GMT", 60),
            ("Tuesday, 14-Nov-23 22:14:20 GMT", 60),
            ("Tue Nov 14 22:14:20 2023", 60),
            ("Tue, 14 Nov 2023 21:00:00 GMT", 0),  # over already
            ("1700000030", 30),  # a time of day where seconds belong
            ("1700000030000", 30),
            ("999999999", 366 * 86_400),  # for ever is a year here
        ],
    )
    def test_seconds_dates_and_times_of_day_are_read(self, text, expected):
        assert read_retry_after({"Retry-After": text}, now_s=NOW) == expected

    @pytest.mark.parametrize(
        "text",
        ["", "soon", "-5", "1e3", "nan", "inf", "7 seconds", "0x10", "٣", "Tue, 99 Nov 2023"],
    )
    def test_nonsense_is_not_said(self, text):
        assert read_retry_after({"Retry-After": text}, now_s=NOW) is None

    def test_nothing_said_is_not_zero(self):
        assert read_retry_after({}) is None

    def test_a_date_is_held_against_the_provider_s_own_clock(self):
        headers = {"retry-after": "Tue, 14 Nov 2023 22:14:20 GMT", "DATE": DATE}
        assert read_retry_after(headers, now_s=NOW + 5_000) == 60
        assert read_retry_after(headers) == 60


class TestUsages:
    def test_the_standard_names_every_window(self):
        headers = {
            "RateLimit-Policy": '"burst";q=100;w=60, "day";q=1000;w=86400;pk=:Zm9v:',
            "RateLimit": '"burst";r=50;t=30,"day";r=999;t=80000',
        }
        assert read_usages(headers) == [
            Usage(100, 60.0, remaining=50, reset_s=30.0),
            Usage(1000, 86_400.0, remaining=999, reset_s=80_000.0),
        ]

    def test_a_policy_without_its_state_is_told_too(self):
        headers = {"RateLimit-Policy": '"a";q=5;w=60, "b";q=50;w=3600', "RateLimit": '"b";r=4'}
        assert read_usages(headers) == [Usage(5, 60.0), Usage(50, 3600.0, remaining=4)]

    def test_a_state_without_its_policy_is_of_the_only_known_rate(self):
        headers = {"RateLimit": '"default";r=3;t=9'}
        told = {"remaining": 3, "reset_s": 9.0}
        assert read_usages(headers, parse_rates("5/min")) == [Usage(5, 60.0, **told)]
        assert read_usages(headers, COURTLISTENER) == [Usage(None, None, **told)]

    def test_other_units_than_requests_are_passed_over(self):
        headers = {
            "RateLimit-Policy": '"bytes";q=100;qu="content-bytes";w=60,"day";q=10;w=86400',
            "RateLimit": '"bytes";r=50,"day";r=3',
        }
        assert read_usages(headers) == [Usage(10, 86_400.0, remaining=3)]

    def test_names_may_be_quoted_with_anything(self):
        headers = {
            "RateLimit-Policy": r'"a, \"b\";c";q=9;w=10',
            "RateLimit": r'"a, \"b\";c";r=1',
        }
        assert read_usages(headers) == [Usage(9, 10.0, remaining=1)]

    @pytest.mark.parametrize(
        "headers",
        [
            {"RateLimit": "limit=100, remaining=50, reset=30", "RateLimit-Policy": "100;w=60"},
            {
                "RateLimit-Limit": "100",
                "RateLimit-Remaining": "50",
                "RateLimit-Reset": "30",
                "RateLimit-Policy": "10;w=1, 100;w=60",
            },
            {
                "RateLimit-Limit": "100, 100;w=60",
                "RateLimit-Remaining": "50",
                "RateLimit-Reset": "30",
            },
            {
                "X-RateLimit-Limit": "100, 10;w=1, 100;w=60",
                "X-RateLimit-Remaining": "50",
                "X-RateLimit-Reset": "30",
            },
        ],
    )
    def test_earlier_drafts_are_read(self, headers):
        assert read_usages(headers) == [Usage(100, 60.0, remaining=50, reset_s=30.0)]

    @pytest.mark.parametrize("reset", ["60", "1700000060", "1700000060000", "1700000060.0"])
    def test_the_customary_reset_is_seconds_or_a_time_of_day(self, reset):
        headers = {
            "x-ratelimit-limit": "50",
            "x-ratelimit-remaining": "49",
            "x-ratelimit-used": "1",
            "x-ratelimit-reset": reset,
        }
        assert read_usages(headers, COURTLISTENER, now_s=NOW) == [
            Usage(50, 3600.0, used=1, remaining=49, reset_s=60.0)
        ]

    def test_a_limit_that_no_known_rate_has_is_of_no_known_period(self):
        headers = {"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": "12"}
        assert read_usages(headers, COURTLISTENER) == [Usage(5000, None, remaining=12)]
        assert read_usages(headers, parse_rates("4000/hour")) == [Usage(5000, 3600.0, remaining=12)]

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"X-RateLimit-Limit": "100"},
            {"X-RateLimit-Remaining": "many"},
            {"X-RateLimit-Remaining": "-1"},
            {"X-RateLimit-Remaining": "9" * 30},
            {"RateLimit": '"a";r=', "RateLimit-Policy": '"a";q=5;w=60'},
            {"RateLimit": '"a;r=5', "RateLimit-Policy": '"a";q=5;w=60'},
            {"RateLimit": "5 5 5"},
            {"RateLimit-Policy": '"a";q=5;w=60'},
            {"RateLimit": '"a";r=5,' * 5_000},
        ],
    )
    def test_nonsense_and_silence_tell_nothing(self, headers):
        assert read_usages(headers, COURTLISTENER) == []


class TestToHeaders:
    def test_every_window_and_the_tightest_are_told(self):
        answer = LimitResult(
            True, 1, rates=COURTLISTENER, windows_left=(4, 60_000, 3, 3_599_001, 100, 0)
        )
        assert to_headers(answer, now_s=NOW) == {
            "RateLimit-Policy": '"5/min";q=5;w=60, "50/hour";q=50;w=3600, "125/day";q=125;w=86400',
            "RateLimit": '"5/min";r=4;t=60, "50/hour";r=3;t=3600, "125/day";r=100;t=0',
            "X-RateLimit-Limit": "50",
            "X-RateLimit-Remaining": "3",
            "X-RateLimit-Reset": "1700003600",
        }

    @pytest.mark.parametrize(("wait_s", "told"), [(0.001, "1"), (7.0, "7"), (7.2, "8")])
    def test_who_is_refused_learns_when_to_come_back_and_never_too_early(self, wait_s, told):
        answer = LimitResult(False, 0, wait_s, "limit", COURTLISTENER[:1], (0, 60_000))
        assert to_headers(answer)["Retry-After"] == told

    def test_for_ever_is_not_told(self):
        answer = LimitResult(False, 0, math.inf, "limit", COURTLISTENER[:1], (5, 0))
        assert "Retry-After" not in to_headers(answer)

    def test_what_is_told_is_read_back(self):
        answer = LimitResult(
            True, 1, rates=COURTLISTENER, windows_left=(4, 1_000, 49, 2_000, 124, 3_000)
        )
        assert read_usages(to_headers(answer)) == [
            Usage(5, 60.0, remaining=4, reset_s=1.0),
            Usage(50, 3600.0, remaining=49, reset_s=2.0),
            Usage(125, 86_400.0, remaining=124, reset_s=3.0),
        ]


NAMES = [
    *("Retry-After", "Date", "RateLimit", "RateLimit-Policy", "RateLimit-Limit"),
    *("RateLimit-Remaining", "RateLimit-Reset", "X-RateLimit-Limit", "X-RateLimit-Remaining"),
    *("X-RateLimit-Used", "X-RateLimit-Reset", "X-Rate-Limit-Reset"),
]
PIECES = st.sampled_from(
    [
        *('"a"', '"', "\\", ";", ",", "=", "q=5", "w=60", "r=3", "t=1", "limit=5", "remaining=2"),
        *(
            "reset=",
            "?1",
            ":aa:",
            "0",
            "7",
            "-1",
            "1e9",
            "nan",
            " ",
            "\t",
            DATE,
            "9" * 20,
            "é",
            "١",
        ),
        *("Tue, 99", "-0000", "+9999", "99:99:99", "31 Feb 0000"),
    ]
)
TEXTS = st.text(max_size=40) | st.lists(PIECES, max_size=12).map("".join)


@given(st.dictionaries(st.sampled_from(NAMES), TEXTS))
def test_whatever_a_provider_sends_no_harm_is_done(headers):
    wait_s = read_retry_after(headers)
    assert wait_s is None or 0 <= wait_s <= 366 * 86_400
    for usage in read_usages(headers, COURTLISTENER):
        assert (usage.used, usage.remaining) != (None, None) or usage.limit is not None
        for number in (usage.limit, usage.used, usage.remaining):
            assert number is None or (type(number) is int and 0 <= number <= 1_000_000_000)
        for seconds in (usage.period_s, usage.reset_s):
            assert seconds is None or 0 <= seconds <= 366 * 86_400
