"""No schedule brings a limit over any window, by a log of all uses that knows nothing of it."""

from __future__ import annotations

import time

import pytest
from tests.kit.model.limit_judge import Broken
from tests.kit.model.limit_player import play_all
from tests.kit.model.limit_schedules import NOON_MS
from tests.kit.model.playing import plant_mistake
from tests.kit.scripts import scripts_of

from penstock.coordination.limits.keys import LimitKeys
from penstock.coordination.limits.setting import setting_of
from penstock.redis.node import Role
from penstock.redis.prepared_call import SharedLink
from penstock.testing.virtual_time import VirtualTime

pytestmark = pytest.mark.one_server

FREE_TIER = ["5/min", "50/hour", "125/day"]


async def test_random_schedules_exceed_no_window_and_use_what_there_is(client):
    assert await play_all(client, range(3_000)) > 6_000


async def test_so_it_is_on_the_oldest_server(start_server, open_client, namespace):
    client = await open_client(start_server("redis62").url, namespace=namespace)
    assert await play_all(client, range(1_000)) > 2_000


@pytest.mark.torture
@pytest.mark.timeout(7_200)
async def test_a_million_random_schedules(client, figure):
    count, began = 1_000_000, time.monotonic()
    first = int(time.time()) * 1_000_000
    admitted = await play_all(client, range(first, first + count))
    figure("torture-limits", "random schedules, none over a window", count, "", ">=", 1_000_000)
    figure("torture-limits", "permits in them", admitted, "", ">=", count)
    figure("torture-limits", "their time", time.monotonic() - began, "s", "<=", 7_200)


@pytest.mark.parametrize(
    ("rates", "periods"),
    [(FREE_TIER, 4), (["200/s", "500/3s"], 12), (["1/s"], 60), (["7/min", "97/hour"], 10)],
)
async def test_a_greedy_caller_uses_nearly_all_of_the_quota(client, rates, periods):
    """By buckets as by a log: no less than 98 % of it."""
    admitted: dict[str, int] = {}
    for algorithm in ("exact", "compact"):
        setting = setting_of(rates, algorithm=algorithm)
        longest_ms = setting.rates[-1].period_ms
        admitted[algorithm] = await _take_all(client, setting, algorithm, periods * longest_ms)
    quota = periods * setting.rates[-1].limit
    assert admitted["exact"] == quota
    assert 0.98 * quota <= admitted["compact"] <= quota


async def _take_all(client, setting, name, for_ms) -> int:
    """Ask again and again, after each refusal at the moment that it tells."""
    clock, at, admitted = VirtualTime(client), 0, 0
    while at < for_ms:
        await clock.set_ms(NOON_MS + 12_345 + at)
        reply = (
            await scripts_of(client)
            .acquire_limit(
                link=SharedLink(client, role=Role.RATELIMIT),
                keys=LimitKeys.of(client.keys, "greedy", name),
                algorithm=setting.algorithm,
                wanted=40,
                fewest=1,
                share=1,
                hold_ms=0,
                ticket="",
                priority=0,
                waiting=b"",
                setting=setting.arguments(100),
            )
            .send()
        )
        admitted += reply[0]
        at += reply[1]
    return admitted


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "text", "instead"),
    [
        ("acquire_limit", "local edge = now - window.ms\n", "local edge = now - window.ms + 1\n"),
        (
            "acquire_limit",
            "and tonumber(found[2]) + window.ms - now or",
            "and found[2] + window.ms + 1 - now or",
        ),
        ("acquire_limit", "local at = now + hold", "local at = now"),
        ("acquire_limit", "if state[5] > now then", "if state[5] > now + 1 then"),
        (
            "acquire_limit",
            "number_of(now, window) + AHEAD\n",
            "number_of(now, window) + AHEAD + 1\n",
        ),
        ("acquire_limit", "window.burst + 1)", "window.burst + 2)"),
        ("acquire_limit", "and now + math.max(0, at - last) or at", "and now or at"),
        ("acquire_limit", "if room < left then left = room", "if room < left then left = room + 1"),
        (
            "settle_limit",
            "window.used = window.used - old + new",
            "window.used = window.used - old",
        ),
        (
            "settle_limit",
            "local drained = math.max(now, state[4]) - logged_at",
            "local drained = 0",
        ),
        ("settle_limit", "if number <= window.since then", "if false then"),
        ("reconcile_limit", "math.max(0, used - window.used), now + reset", "0, now"),
        ("reconcile_limit", "if least > 0 then", "if false then"),
        ("penalise_limit", "math.max(state[5], now + ms)", "now + ms"),
    ],
    ids=[
        "calls leave a moment early",
        "callers are told to come too late",
        "permits in hand count from their beginning",
        "a penalty ends a moment early",
        "a bucket leaves early",
        "more drains than may",
        "permits in hand are forgotten when the clock is set back",
        "one too many",
        "what was used is not counted when it is settled",
        "what has drained is given back",
        "what others used is given back",
        "what the provider has counted is forgotten",
        "what the provider has counted may drain",
        "a shorter penalty ends a longer one",
    ],
)
async def test_a_script_that_breaks_a_promise_is_found(client, monkeypatch, name, text, instead):
    """The schedules that find the rarest of them are the first to be played."""
    plant_mistake(monkeypatch, name, text, instead)
    with pytest.raises(Broken):
        await play_all(client, [*range(2_500, 3_000), *range(6_500, 7_000), *range(60_000)])
