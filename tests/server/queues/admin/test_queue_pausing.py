"""Queues and groups held back: paused, parked, weighed, limited."""

import pytest
from tests.kit.queue_scripts import claim, everything, job, join, push

from penstock.errors import CommandRefused, InvalidJob
from penstock.queues.storage.keys import lane_name
from penstock.testing.eventually import eventually


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(client, keys, admin):
    await push(client, keys, job("a"))
    await join(client, keys)
    assert await admin.pause("mail", who="anna")
    assert not await admin.pause("mail")
    assert await claim(client, keys) == {}
    facts = await admin.facts("mail")
    assert facts.paused
    assert await admin.resume("mail", who="bo")
    assert not await admin.resume("mail")
    assert await claim(client, keys) == {"": ["a"]}
    assert [(act.who, act.what) for act in await admin.audit("mail")] == [
        ("bo", "resume"),
        ("anna", "pause"),
    ]


@pytest.mark.parametrize("lane", ["", "high", "normal", "low"])
async def test_one_priority_is_paused_and_the_others_flow(client, keys, admin, lane):
    for name in ("", "high", "normal", "low"):
        await push(client, keys, job(f"job{name}"), lane=name)
    await join(client, keys)
    assert await admin.pause("mail", lane)
    assert not await admin.pause("mail", lane)
    taken = await claim(client, keys)
    assert set(taken) == {"", "high", "normal", "low"} - {lane}
    shown = {one.name: one.paused for one in (await admin.facts("mail")).lanes}
    assert shown == {name: name == lane for name in ("", "high", "normal", "low")}
    assert await admin.resume("mail", lane)
    assert await claim(client, keys, first=10) == {lane: [f"job{lane}"]}
    assert await client.call("HEXISTS", keys.state, "paused_lanes") == 0


async def test_several_priorities_are_paused_and_resumed_one_by_one(client, keys, admin):
    await admin.pause("mail", "high")
    await admin.pause("mail", "")
    await admin.pause("mail", "low")
    assert await admin.resume("mail", "")
    assert not await admin.resume("mail", "")
    paused = {one.name for one in (await admin.facts("mail")).lanes if one.paused}
    assert paused == {"high", "low"}


async def test_a_paused_group_waits_and_the_others_take_their_turns(client, keys, admin):
    for group in ("a b", "c"):
        await push(client, keys, job(f"1{group}"), job(f"2{group}"), lane=lane_name(group))
    await join(client, keys)
    assert await admin.pause("mail", "a b")
    await push(client, keys, job("3a b"), lane=lane_name("a b"))
    assert await claim(client, keys) == {"c": ["1c", "2c"]}
    shown = {one.name: one for one in (await admin.facts("mail")).lanes}
    assert (shown["a b"].paused, shown["a b"].waiting) == (True, 3)
    assert not await admin.pause("mail", "a b")
    assert await admin.park("mail", "a b", 0) == 0
    assert await admin.resume("mail", "a b")
    assert await claim(client, keys, first=10) == {lane_name("a b"): ["1a b", "2a b", "3a b"]}


async def test_a_group_that_was_paused_empty_gets_its_turn_with_its_first_job(client, keys, admin):
    await join(client, keys)
    await admin.pause("mail", "g")
    assert await admin.resume("mail", "g")
    await push(client, keys, job("a"), lane="g")
    assert await client.call("LRANGE", keys.ring, 0, -1) == [b"g"]
    assert await claim(client, keys) == {"g": ["a"]}


async def test_a_parked_group_comes_back_by_itself(client, keys, admin):
    await push(client, keys, job("a"), lane="g")
    await join(client, keys)
    until = await admin.park("mail", "g", 0.2)
    assert await claim(client, keys) == {}
    assert 0 < (await admin.facts("mail")).lanes[-1].parked_ms <= 200
    numbers = iter(range(100, 10_000))

    async def comes():
        return await claim(client, keys, first=next(numbers)) == {"g": ["a"]}

    await eventually(comes)
    seconds, micros = await client.call("TIME")
    assert int(seconds) * 1000 + int(micros) // 1000 >= until


async def test_a_parked_group_can_be_resumed_early(client, keys, admin):
    await push(client, keys, job("a"), lane="g")
    await join(client, keys)
    await admin.park("mail", "g", 3_600)
    assert await admin.resume("mail", "g")
    assert await claim(client, keys) == {"g": ["a"]}


async def test_a_heavier_group_gets_more_in_its_turn(client, keys, admin):
    for group in ("a", "b"):
        await push(client, keys, *(job(f"{group}{number}") for number in range(9)), lane=group)
    await join(client, keys)
    await admin.set_weight("mail", "a", 2)
    taken = await claim(client, keys, 6)
    assert (len(taken["a"]), len(taken["b"])) == (4, 2)
    await admin.set_weight("mail", "a", 1)
    assert await client.call("EXISTS", keys.weights) == 0


async def test_limits_are_set_and_lifted(client, keys, admin):
    await push(client, keys, job("a"), job("b"), job("c"))
    await join(client, keys)
    await admin.set_limits("mail", limit=2, lane_limit=5)
    facts = await admin.facts("mail")
    assert (facts.limit, facts.lane_limit) == (2, 5)
    assert await claim(client, keys) == {"": ["a", "b"]}
    await admin.set_limits("mail", limit=0)
    facts = await admin.facts("mail")
    assert (facts.limit, facts.lane_limit) == (0, 5)
    assert await claim(client, keys, first=10) == {"": ["c"]}


@pytest.mark.parametrize("value", [-1, True, "3", 1.5, float("nan"), 10**9])
async def test_numbers_that_cannot_be_are_refused(client, keys, admin, value):
    before = await everything(client, keys)
    for act in (
        admin.set_weight("mail", "g", value),
        admin.set_limits("mail", limit=value),
        admin.set_limits("mail", lane_limit=value),
    ):
        with pytest.raises(InvalidJob):
            await act
    with pytest.raises(InvalidJob):
        await admin.set_limits("mail")
    assert await everything(client, keys) == before


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", None, True])
async def test_times_that_cannot_be_are_refused(admin, seconds):
    with pytest.raises(InvalidJob):
        await admin.park("mail", "g", seconds)


@pytest.mark.parametrize("group", ["{a}b}", "a:b", "* ? [x]", "..", "a\nb", "☃", "%2e", "queue"])
async def test_any_group_has_a_lane_of_its_own(client, keys, admin, group):
    await push(client, keys, job("a"), lane=lane_name(group))
    await join(client, keys)
    assert await admin.pause("mail", group)
    assert await claim(client, keys) == {}
    assert (await admin.facts("mail")).lanes[-1].name == group
    assert [one.id for one in await admin.peek("mail", group)] == ["a"]
    assert await admin.resume("mail", group)
    assert await claim(client, keys) == {lane_name(group): ["a"]}


@pytest.mark.parametrize("part", ["state", "ring", "parked", "audit"])
async def test_a_key_of_a_wrong_type_stops_a_pause_before_it_writes(client, keys, admin, part):
    await client.call("SET", getattr(keys, part), "x")
    before = await everything(client, keys)
    for act in (
        admin.pause("mail"),
        admin.pause("mail", "high"),
        admin.pause("mail", "g"),
        admin.resume("mail"),
        admin.park("mail", "g", 1),
    ):
        with pytest.raises(CommandRefused, match="WRONGTYPE"):
            await act
    assert await everything(client, keys) == before
