"""Who waits for a limit, who goes before whom, and who has gone: by a list kept by hand."""

from __future__ import annotations

from random import Random

import pytest
from tests.kit.model.limit_line import Group, Line
from tests.kit.scripts import scripts_of

from penstock.coordination.limits.keys import LimitKeys
from penstock.coordination.limits.setting import setting_of
from penstock.redis.node import Role
from penstock.redis.prepared_call import SharedLink
from penstock.testing.virtual_time import VirtualTime

pytestmark = pytest.mark.one_server

NOON_MS = 1_800_000_000_000
PERIOD_MS, LIMIT = 60_000, 5
PRIORITIES = {"anna": 0, "bert": 0, "carl": 2, "dora": 0, "emil": -1, "": 0}


@pytest.fixture
def ask(client):
    """`await ask("anna", Group([1]))` asks as a process whose foremost callers these are."""
    keys = LimitKeys.of(client.keys, "line", "all")

    async def ask_for(name, group, *, rates=f"{LIMIT}/min", priority=0, **options):
        setting = setting_of(rates, **options)
        return (
            await scripts_of(client)
            .acquire_limit(
                link=SharedLink(client, role=Role.RATELIMIT),
                keys=keys,
                algorithm=setting.algorithm,
                wanted=sum(group.costs),
                fewest=group.costs[0],
                share=1,
                hold_ms=0,
                ticket=name,
                priority=priority,
                waiting=group.told() if name else b"",
                setting=setting.arguments(100),
            )
            .send()
        )

    return ask_for


@pytest.fixture
async def clock(client):
    clock = VirtualTime(client)
    await clock.set_ms(NOON_MS)
    return clock


@pytest.mark.parametrize("seed", range(40))
async def test_a_line_is_kept(client, clock, ask, seed):
    random, line, now = Random(seed), Line(LIMIT, PERIOD_MS), NOON_MS  # noqa: S311
    keys, came = LimitKeys.of(client.keys, "line", "all"), dict.fromkeys(PRIORITIES, 0)
    groups: dict[str, Group] = {}
    story: list[object] = []
    for step in range(60):
        now += random.choice((0, 1, 90, 500, 700, 2_999, 3_001, 20_000))
        await clock.set_ms(now)
        name = random.choice(list(PRIORITIES))
        if name and random.random() < 0.1:
            story.append((now, name, "leaves"))
            left = await scripts_of(client).leave_limit(keys=keys, ticket=name)
            assert left == (name in line.tickets)
            line.tickets.pop(name, None)
            continue
        if name and name in line.tickets and random.random() < 0.8:
            group = groups[name]
            group.age_ms = now - came[name] - random.choice((0, 0, 3))
            group.costs = group.costs[: random.randint(1, len(group.costs))]
        else:
            costs = [random.choice((1, 1, 2, 3, 5)) for _ in range(random.choice((1, 1, 2, 4)))]
            group = Group(costs if name else costs[:1], number=step, age_ms=random.randrange(3_000))
            came[name] = now - group.age_ms
        group.last_age_ms = random.randint(0, max(0, group.age_ms))
        group.behind, groups[name] = random.choice((0, 0, 2, 50)), group
        reply = await ask(name, group, priority=PRIORITIES[name])
        story.append((now, name, group, reply))
        assert (reply[0], reply[5]) == line.ask(name, PRIORITIES[name], group, now), story


async def test_permits_of_a_group_have_ids_of_their_own(client, ask):
    reply = await ask("anna", Group([1, 2, 1, 5]))
    assert reply[0] == 4, "the fourth has to wait for all of its permits"
    keys, first = LimitKeys.of(client.keys, "line", "all"), int(reply[3])
    back = [
        await scripts_of(client).settle_limit(
            keys=keys,
            algorithm="exact",
            permits=(first + number, cost, 0, reply[2]),
            as_of_now=False,
            setting=setting_of(f"{LIMIT}/min").arguments(100),
        )
        for number, cost in enumerate((1, 2, 1))
    ]
    assert back == [1, 2, 1]


async def test_a_heavy_caller_is_not_starved_by_light_ones_behind_it(clock, ask):
    assert (await ask("", Group([3])))[0] == 3
    await ask("anna", Group([4]))
    await clock.advance(0.4)
    assert (await ask("bert", Group([1])))[0] == 0
    assert (await ask("", Group([1])))[0] == 0
    await ask("anna", Group([4], age_ms=400))
    await clock.advance(59.6)
    await ask("bert", Group([1], age_ms=59_600))
    assert (await ask("anna", Group([4], age_ms=60_000)))[0] == 4


async def test_who_does_not_ask_in_turn_is_passed_over_and_keeps_its_place(clock, ask):
    assert (await ask("", Group([5])))[0] == 5
    wait_ms = (await ask("anna", Group([1] * 5, pause_ms=60_000, ticket_ms=90_000)))[1]
    await clock.advance(wait_ms / 1000 + 0.1)
    assert (await ask("bert", Group([1])))[0] == 0, "it may still come"
    await clock.advance(0.001)
    assert (await ask("bert", Group([1])))[0] == 1, "it is late"
    assert (await ask("anna", Group([1] * 5, age_ms=60_101)))[0] == 4
    assert (await ask("bert", Group([1], number=2)))[5] == 1, "and first, once it has come"


async def test_who_is_next_asks_as_soon_as_the_one_before_it_is_late(clock, ask):
    assert (await ask("", Group([5])))[0] == 5
    await ask("anna", Group([1] * 5, pause_ms=20))
    await clock.advance(0.015)
    reply = await ask("bert", Group([1] * 5))
    wait_ms, pause_ms = reply[1], reply[-1]
    assert (wait_ms, pause_ms) == (119_985, 106)
    await clock.advance(0.001)
    assert (await ask("carl", Group([1])))[-1] > 60_000, "bert asks before"
    await clock.advance(0.105)
    assert (await ask("bert", Group([1] * 5, age_ms=106)))[5] == 0


async def test_callers_that_came_earlier_go_first_whatever_process_asks_first(clock, ask):
    assert (await ask("", Group([5])))[0] == 5
    await ask("late", Group([1], age_ms=10))
    await ask("early", Group([1], age_ms=2_000))
    assert (await ask("late", Group([1], age_ms=10)))[5] == 1
    assert (await ask("early", Group([1], age_ms=2_000)))[5] == 0


@pytest.mark.parametrize("algorithm", ["exact", "compact"])
async def test_the_wait_of_who_stands_far_behind_is_known(clock, ask, algorithm):
    """Those before use up whole windows: fifteen of them at five a minute are three minutes."""
    group = Group([1] * 15, depths=[(15, 1), (16, 1), (20, 1), (21, 1)])
    reply = await ask("anna", group, algorithm=algorithm)
    assert reply[0] == 5
    minutes = [wait_ms / 60_000 for wait_ms in reply[-4:]]
    assert minutes == pytest.approx([2, 3, 3, 4], rel=0.015)
    assert reply[1] / 60_000 == pytest.approx(1, rel=0.015)
    await clock.advance(0.001)
    other = await ask("bert", Group([1]), algorithm=algorithm)
    assert other[1] / 60_000 == pytest.approx(3, rel=0.015)


@pytest.mark.parametrize("burst", [1, 20])
async def test_gcra_drains_a_line_longer_than_its_burst_at_its_pace(clock, ask, burst):
    rates = {"rates": "200/s", "algorithm": "gcra", "burst": burst}
    pace_ms = 1_000 / (200 - burst + 1)
    reply = await ask("anna", Group([1] * 100, behind=900, depths=[(1_000, 1)]), **rates)
    assert reply[0] == burst
    assert reply[1] == pytest.approx(pace_ms, abs=1)
    assert reply[-1] == pytest.approx((1_000 - burst) * pace_ms, abs=1)
    await clock.advance(0.001)
    other = await ask("bert", Group([1]), **rates)
    assert other[1] == pytest.approx((1_001 - burst) * pace_ms, abs=1)


async def test_the_first_in_line_has_permits_of_gcra_ahead_each_for_its_time(clock, ask):
    rates = {"rates": "200/s", "algorithm": "gcra", "burst": 1}
    group = Group([1] * 9, early_ms=20, depths=[(9, 1)])
    reply = await ask("anna", group, **rates)
    assert (reply[0], reply[1]) == (5, 26), "a period is longer by the 20 ms"
    assert reply[-7:-5] == [26, 41]
    assert reply[-5:] == [0, 6, 11, 16, 21]
    await clock.advance(0.013)
    group.costs, group.age_ms = [1] * 4, 13
    reply = await ask("anna", group, **rates)
    assert (reply[0], reply[-2:]) == (2, [13, 18])
    assert (await ask("bert", Group([1], early_ms=20), **rates))[0] == 0, "anna is before"
    assert (await ask("", Group([1]), **rates))[0] == 0
    assert (await ask("carl", Group([2], early_ms=20), priority=1, **rates))[1] == -1


@pytest.mark.parametrize("seed", range(20))
async def test_permits_ahead_bring_no_window_over_its_limit(client, clock, ask, seed):
    random, now, uses = Random(seed), NOON_MS, dict[int, tuple[int, int]]()  # noqa: S311
    burst, windows, granted = random.randint(1, 4), {100: 10, 400: 30}, 0
    rates = {"rates": ["10/100ms", "30/400ms"], "algorithm": "gcra", "burst": burst}
    for _ in range(150):
        now += random.choice((0, 1, 3, 10, 20, 45))
        await clock.set_ms(now)
        name, early_ms = random.choice((("anna", 20), ("anna", 20), ("bert", 11), ("", 0)))
        costs = [random.randint(1, burst) for _ in range(random.randint(1, 6) if name else 1)]
        reply = await ask(name, Group(costs, early_ms=early_ms), **rates)
        ready = reply[11:] if name else []
        left, granted = reply[0], granted + reply[0]
        for place, cost in enumerate(costs):
            if left < cost:
                break
            left -= cost
            used = reply[2] + (ready[place] if ready else 0)
            uses[int(reply[3]) + place] = (used, cost)
        if uses and random.random() < 0.2:
            permit = random.choice(list(uses))
            used, cost = uses.pop(permit)
            await scripts_of(client).settle_limit(
                keys=LimitKeys.of(client.keys, "line", "all"),
                algorithm="gcra",
                permits=(permit, cost, 0, used),
                as_of_now=False,
                setting=setting_of(rates["rates"], algorithm="gcra", burst=burst).arguments(100),
            )
    for end, _ in uses.values():
        for period_ms, limit in windows.items():
            inside = [cost for at, cost in uses.values() if end - period_ms < at <= end]
            assert sum(inside) <= limit
    assert granted > 0.25 * (now - NOON_MS) * (30 - burst + 1) / 400


async def test_a_cost_above_the_limit_is_told_apart_from_a_long_wait(clock, ask):
    reply = await ask("anna", Group([1, 6], depths=[(7, 6), (8, 1)]))
    assert reply[0] == 1
    assert reply[-2] == -1
    assert reply[-1] > 0
    assert (await ask("anna", Group([6], number=2)))[1] == -1


async def test_a_line_of_thousands_is_not_walked(client, clock, ask):
    """By the commands of the server: as many for the last of 3,000 as for the 100th."""
    assert (await ask("", Group([5])))[0] == 5
    commands: list[int] = []
    for number in range(3_000):
        if number in {100, 2_999}:
            before = await _calls(client)
            reply = await ask(f"{number}", Group([1], age_ms=3_000 - number))
            commands.append(await _calls(client) - before)
            assert reply[5] == number
            assert reply[1] == (number // LIMIT + 1) * PERIOD_MS
        else:
            await ask(f"{number}", Group([1], age_ms=3_000 - number))
    assert commands[1] <= commands[0]


async def _calls(client) -> int:
    lines = (await client.call("INFO", "commandstats")).decode().splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line)


async def test_hundreds_of_dead_tickets_hold_up_nobody(client, clock, ask):
    for number in range(700):
        await ask(f"{number}", Group([5, 5]))
        await clock.advance(0.001)
    await clock.advance(64)
    await ask("anna", Group([1]))
    assert (await ask("anna", Group([1], number=2)))[0] == 1


async def test_a_clock_that_is_set_back_costs_nobody_the_place(clock, ask):
    assert (await ask("", Group([5])))[0] == 5
    await ask("first", Group([1]))
    await clock.advance(0.01)
    await ask("second", Group([1]))
    await clock.advance(-7_200)
    for name, age_ms in (("second", 300), ("first", 310)):
        assert (await ask(name, Group([1], age_ms=age_ms)))[0] == 0
    assert (await ask("second", Group([1], age_ms=300)))[5] == 1
    assert (await ask("first", Group([1], age_ms=310)))[5] == 0
