"""What limits count stays right when keys expire, clocks jump and processes are set otherwise."""

from __future__ import annotations

import asyncio
import math

import pytest
from tests.kit.model.limit_line import Group
from tests.kit.scripts import load_script, scripts_of

from penstock.coordination.limits.limit import Limit
from penstock.coordination.limits.result import Usage
from penstock.coordination.limits.setting import setting_of
from penstock.redis.client import Client
from penstock.redis.node import Role
from penstock.redis.prepared_call import SharedLink
from penstock.settings.coordination import LimitSettings
from penstock.testing.virtual_time import VirtualTime

pytestmark = pytest.mark.one_server

ALGORITHMS = ["exact", "compact", "gcra"]
NOON_MS = 1_800_000_000_000


@pytest.fixture
async def clock(client):
    clock = VirtualTime(client)
    await clock.set_ms(NOON_MS)
    return clock


def limit_of(client: Client, rates, *, name="limit", lease=0, **options) -> Limit:
    return Limit(client, name, setting_of(rates, **options), lease=lease)


def waiters_of(client: Client, limit: Limit, permits: int):
    """`await ask(ticket)` asks for the permits as the waiter with this ticket does."""

    async def ask(ticket: str) -> list[int | bytes]:
        return (
            await scripts_of(client)
            .acquire_limit(
                link=SharedLink(client, role=Role.RATELIMIT),
                keys=limit.keys("all"),
                algorithm="exact",
                wanted=permits,
                fewest=permits,
                share=1,
                hold_ms=0,
                ticket=ticket,
                priority=0,
                waiting=Group([permits], pause_ms=3_000).told(),
                setting=limit.setting.arguments(100),
            )
            .send()
        )

    return ask


async def test_calls_are_forgotten_when_their_log_has_expired_before(client, clock):
    limit = limit_of(client, "3/min")
    for _ in range(3):
        assert await limit.try_acquire()
    await client.call("DEL", limit.keys("all").log)
    await clock.advance(59.999)
    assert not await limit.try_acquire()
    await clock.advance(0.001)
    assert (await limit.peek()).remaining == 3


async def test_a_log_that_was_empty_for_a_moment_expires_all_the_same(client):
    limit = limit_of(client, "10/min")
    reservation = await limit.reserve(5)
    await reservation.refund()
    assert await limit.try_acquire()
    assert await client.call("PTTL", limit.keys("all").log) > 0
    other = await limit.reserve(5, key="other")
    await other.settle(1)
    assert await client.call("PTTL", limit.keys("other").log) > 0


async def test_a_cost_above_the_burst_never_comes(client):
    limit = limit_of(client, "10/min", algorithm="gcra", burst=3)
    answer = await limit.try_acquire(4)
    assert answer.retry_after_s == math.inf
    assert await limit.try_acquire(3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_processes_with_other_buckets_count_together(
    valkey_server, open_client, namespace, algorithm
):
    limits = [
        limit_of(
            await open_client(
                valkey_server.url, namespace=namespace, limits=LimitSettings(buckets=buckets)
            ),
            "10/min",
            algorithm=algorithm,
        )
        for buckets in (100, 30, 1000)
    ]
    taken = sum([bool(await limits[number % 3].try_acquire()) for number in range(30)])
    assert taken == (1 if algorithm == "gcra" else 10)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_what_was_reserved_before_a_reset_gives_nothing_back(client, clock, algorithm):
    """Calls after it would go, which have the places of those before."""
    limit = limit_of(client, "10/min", algorithm=algorithm, **_burst(algorithm, 10))
    reservation = await limit.reserve(10)
    await limit.reset()
    await clock.advance(0.001)
    assert await limit.try_acquire(10)
    assert await reservation.refund() == 0
    assert not await limit.try_acquire()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_penalty_lasts_as_long_after_the_clock_was_set_back(client, clock, algorithm):
    limit = limit_of(client, "10/min", algorithm=algorithm)
    await limit.penalise(10)
    await clock.advance(-3600)
    answer = await limit.try_acquire()
    assert answer.reason == "penalty"
    assert answer.retry_after_s <= 10
    await clock.advance(10)
    assert await limit.try_acquire()


async def test_those_who_wait_are_not_overtaken_after_a_reset(client, clock):
    limit = limit_of(client, "1/min")
    for _ in range(3):
        await limit.try_acquire(key="other")  # so that numbers differ
    assert await limit.try_acquire()
    ask = waiters_of(client, limit, permits=1)
    assert (await ask("first"))[0] == 0
    await clock.advance(0.001)
    assert (await ask("second"))[0] == 0
    await limit.reset()
    await clock.advance(0.002)
    assert (await ask("first"))[0] == 1
    assert (await ask("third"))[0] == 0
    await clock.advance(2)
    await ask("second")
    await clock.advance(2)
    await ask("second"), await ask("third")
    await clock.advance(1)
    await limit.reset()
    assert (await ask("third"))[0] == 0
    assert (await ask("second"))[0] == 1


async def test_a_dead_waiter_gives_up_its_place_after_the_clock_was_set_back(client, clock):
    limit = limit_of(client, "2/min")
    assert await limit.try_acquire(2)
    ask = waiters_of(client, limit, permits=2)
    await ask("dead"), await ask("alive")
    await clock.advance(-3600)
    granted = 0
    for _ in range(70):
        granted = granted or (await ask("alive"))[0]
        await clock.advance(1)
    assert granted == 2


async def test_a_limit_that_counts_by_drains_heeds_what_the_provider_has_counted(client, clock):
    limit = limit_of(client, "100/min", algorithm="gcra", burst=10)
    await limit.reconcile([Usage(100, 60, used=97, reset_s=30)])
    taken = 0
    for _ in range(300):
        taken += bool(await limit.try_acquire())
        await clock.advance(0.1)
    assert taken <= 3


@pytest.mark.parametrize("used", [10, 8])
async def test_a_refund_does_not_change_what_the_provider_has_counted_since(client, clock, used):
    """Nor if so much has not drained yet that its figure changes nothing at first."""
    limit = limit_of(client, "10/min", algorithm="gcra", burst=10)
    reservation = await limit.reserve(7)
    await clock.advance(61)
    await limit.reconcile([Usage(10, 60, used=used, reset_s=60)])
    await reservation.refund()
    assert (await limit.peek()).remaining <= 10 - used


async def test_many_drains_do_not_add_up_to_one_too_many(client, clock):
    """A time of day in ms has only so many places after the point."""
    limit = limit_of(client, "90000/10s", algorithm="gcra", burst=20)
    await limit.peek()  # loads the script
    ask = _ask_for(20, client, limit)
    commands = [command for ms in range(10_000) for command in (clock.setting(NOON_MS + ms), ask)]
    taken = 0
    for first in range(0, len(commands), 2_000):
        replies = await client.pipeline(commands[first : first + 2_000])
        taken += sum(reply[0] for reply in replies if isinstance(reply, list))
    assert 89_000 < taken <= 90_000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_changes_of_the_algorithm_forget_nothing(client, clock, algorithm):
    first = limit_of(client, ["10/min", "15/hour"])
    assert await first.try_acquire(4)
    others = [other for other in ALGORITHMS if other != "gcra"]
    for other in (*others, algorithm):
        limit = limit_of(client, ["10/min", "15/hour"], name="limit", algorithm=other)
        await limit.edit(limit.setting)
        await limit.try_acquire(2)
        await clock.advance(1)
    answer = await limit.peek()
    assert answer.windows[0].remaining <= 10 - 8 or algorithm == "gcra"
    assert not await limit.try_acquire(5)


def _ask_for(wanted: int, client: Client, limit: Limit) -> tuple[object, ...]:
    keys = limit.keys("all")
    arguments = ("gcra", wanted, 1, 1, 0, "", 0, 3_000, "", 0, 0, 0, *limit.setting.arguments(100))
    script = client.substituted(load_script("acquire_limit"))
    places = (keys.log, keys.state)
    places += (keys.waiting, keys.tickets)
    return script.by_digest(client.server_version, places, arguments)


def _burst(algorithm: str, burst: int) -> dict[str, int]:
    return {"burst": burst} if algorithm == "gcra" else {}


async def test_a_long_log_with_weights_is_read_in_parts_and_once_per_call(client, clock):
    limit = limit_of(client, "9001/min")
    for _ in range(3):
        assert all(await asyncio.gather(*(limit.try_acquire(2) for _ in range(1_500))))
        await clock.advance(0.001)
    await clock.advance(30)
    assert await limit.try_acquire()
    await client.call("CONFIG", "RESETSTAT")
    waiting = Group([2], depths=[(250 * number, 2) for number in range(1, 17)], pause_ms=3_000)
    told = (
        await scripts_of(client)
        .acquire_limit(
            link=SharedLink(client, role=Role.RATELIMIT),
            keys=limit.keys("all"),
            algorithm="exact",
            wanted=2,
            fewest=2,
            share=1,
            hold_ms=0,
            ticket="t",
            priority=0,
            waiting=waiting.told(),
            setting=limit.setting.arguments(100),
        )
        .send()
    )
    # By the time of the moment in which the last permit that is needed was taken.
    assert told[-16:] == [29_997 + (250 * number - 1) // 3_000 for number in range(1, 17)]
    stats: bytes = await client.call("INFO", "commandstats")
    calls = int(stats.split(b"cmdstat_zrange:calls=")[1].split(b",")[0])
    assert calls <= 25
    await scripts_of(client).leave_limit(keys=limit.keys("all"), ticket="t")

    await clock.advance(30)
    remaining = [(await limit.peek()).remaining for _ in range(4)]
    assert remaining == [3_000, 6_000, 9_000, 9_000]
