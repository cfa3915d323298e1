"""Slots: never more holders than the limit, each in its turn, and none of them leaks."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from tests.kit.scripts import scripts_of

from penstock.coordination.leases import Leases
from penstock.coordination.slots.keys import SlotKeys, SlotsKeys
from penstock.coordination.slots.slots import Slots
from penstock.coordination.wakeups import Wakeups
from penstock.errors import (
    InvalidName,
    OutcomeUnknown,
    ServerError,
    SettingError,
    SlotLost,
    SlotsTaken,
)
from penstock.redis.retry import repeat_until_known
from penstock.settings.coordination import SlotSettings
from penstock.testing.eventually import eventually
from penstock.testing.virtual_time import VirtualTime


@pytest.fixture
async def process(open_client, place, namespace):
    """`await process(recheck_s=…)` gives slots as another process would have them."""
    async with AsyncExitStack() as opened:

        async def start(name="gpu", limit=2, *, hinted=True, **settings) -> Slots:
            client = await open_client(
                place.url, namespace=namespace, slots=SlotSettings(**settings)
            )
            leases, wakeups = Leases(client), Wakeups(client)
            opened.push_async_callback(leases.close)
            opened.push_async_callback(wakeups.close)
            return Slots(client, name, limit, leases=leases, wakeups=wakeups if hinted else None)

        yield start


@pytest.fixture
async def gpu(process):
    return await process()


@pytest.fixture
async def clocked(open_client, valkey_server, namespace):
    """A clock that is set by hand, and one slot that goes by it."""
    client = await open_client(valkey_server.url, namespace=namespace)
    clock, leases = VirtualTime(client), Leases(client)
    await clock.set_ms(1_700_000_000_000)
    yield clock, Slots(client, "gpu", 1, leases=leases)
    await leases.close()


def client_of(slots):
    return slots._client


def keys_of(slots):
    return SlotKeys.of(client_of(slots).keys, slots.name)


async def die(slots):
    """Renew nothing any more, as if the process was gone."""
    await slots._leases.close()


async def ask(scripts, keys, token, *, ticket="", limit=1, ticket_ms=0, again=False):
    """Ask as a process with one caller, which came just now."""
    return await scripts.take_slot(
        keys=keys,
        ticket=ticket,
        limit=limit,
        ticket_ms=ticket_ms,
        again=again,
        keep_ms=5000,
        waiting=1,
        next_came="0",
        callers=[(token, 5000, "0")],
    )


async def waiting(slots, count):
    async def look():
        return (await slots.state()).waiting == count

    await eventually(look, what=f"{count} waiting")


# ---- taking and releasing


async def test_there_are_as_many_slots_as_the_limit_says(gpu, process):
    other = await process()
    first, second = await gpu.take(), await other.take()
    with pytest.raises(SlotsTaken) as refused:
        await gpu.take()
    assert (refused.value.name, refused.value.limit) == ("gpu", 2)
    assert await first.release()
    third = await other.take()
    assert first.fence < second.fence < third.fence
    assert not second.lost
    assert not third.lost


async def test_a_slot_is_released_at_the_end_of_the_block_whatever_happens(gpu):
    async def fail():
        async with gpu.hold():
            assert (await gpu.state()).taken == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (await gpu.state()).taken == 0


async def test_release_may_come_twice_and_takes_nothing_from_others(gpu):
    slot = await gpu.take()
    assert await slot.release()
    other = await gpu.take()
    assert not await slot.release()
    assert slot.lost
    with pytest.raises(SlotLost):
        await slot.check()
    assert [holder.fence for holder in await gpu.holders()] == [other.fence]


async def test_holders_and_state_tell_who_has_what(gpu):
    before = time.time() * 1000
    first = await gpu.take(lease=30)
    second = await gpu.take(lease=timedelta(seconds=60))
    one, two = await gpu.holders()
    assert (one.id, one.fence) == (first.id, first.fence)
    assert (two.id, two.fence) == (second.id, second.fence)
    assert 29_000 < one.until_ms - before < 40_000
    assert 59_000 < two.until_ms - before < 70_000
    assert one.about.split(":")[1].isdigit()  # the process
    state = await gpu.state()
    assert (state.limit, state.taken, state.waiting) == (2, 2, 0)


async def test_a_caller_that_gave_up_waiting_has_left_the_line(gpu, process):
    other = await process()
    async with gpu.hold(), gpu.hold():
        for _ in range(5):
            with pytest.raises(SlotsTaken):
                await gpu.take(timeout_s=0.01)
            assert (await other.state()).waiting == 0


async def test_names_do_not_share_their_slots(gpu, process):
    other = await process("disk/a:b {c}")
    await gpu.take()
    await gpu.take()
    await other.take()
    assert (await other.state()).taken == 1


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "4", 10**9])
async def test_a_limit_that_makes_no_sense_is_refused(process, limit):
    with pytest.raises(SettingError):
        await process(limit=limit)


async def test_bad_arguments_are_refused_before_anything_is_sent(gpu, process):
    with pytest.raises(InvalidName):
        await process("")
    with pytest.raises(SettingError):
        await gpu.take(lease=0.1)
    with pytest.raises(SettingError, match="timeout"):
        await gpu.take(timeout_s=float("nan"))
    with pytest.raises(SettingError):
        await gpu.set_limit(-1)
    assert await client_of(gpu).call("EXISTS", keys_of(gpu).holders) == 0


async def test_every_key_has_a_time_to_live_but_the_registry(gpu):
    async with gpu.hold(), gpu.hold():
        waiter = asyncio.create_task(gpu.take(timeout_s=5))
        await waiting(gpu, 1)
        keys = keys_of(gpu)
        for key in (keys.holders, keys.waiting, keys.tickets, keys.state):
            assert await client_of(gpu).call("PTTL", key) > 0, key
    await (await waiter).release()
    for key in (keys.holders, keys.waiting, keys.tickets):
        assert await client_of(gpu).call("EXISTS", key) == 0, key
    registry = SlotsKeys.of(client_of(gpu).keys).registry
    assert await client_of(gpu).call("HGET", registry, "gpu") == b'{"limit":2}'


# ---- leases and fences


async def test_a_held_slot_is_renewed_beyond_its_lease(gpu, process):
    other = await process(limit=1)
    slot = await gpu.take(lease=0.3)
    until = (await gpu.holders())[0].until_ms

    async def renewed_thrice():
        return (await gpu.holders())[0].until_ms > until + 350

    await eventually(renewed_thrice)
    assert not slot.lost
    with pytest.raises(SlotsTaken):
        await other.take()


async def test_capacity_returns_after_the_lease_of_a_process_that_is_gone(gpu, process):
    other = await process(recheck_s=30, hinted=False)
    for _ in range(2):
        await gpu.take(lease=0.4)
    gone = time.monotonic()
    await die(gpu)
    slot = await other.take(timeout_s=25)
    assert time.monotonic() - gone > 0.3  # and long before the next look
    assert not slot.lost


async def test_a_lost_slot_says_so_and_takes_nothing_from_the_next_holder(gpu, process):
    other = await process(limit=1)
    old = await gpu.take(lease=0.2)
    await die(gpu)
    await eventually(lambda: old.lost)
    new = await other.take(timeout_s=60)
    assert new.fence > old.fence
    with pytest.raises(SlotLost) as lost:
        await old.check()
    assert lost.value.fence == old.fence
    assert not await old.release()
    assert [holder.fence for holder in await other.holders()] == [new.fence]
    await new.check()


async def test_a_slot_that_the_server_has_taken_away_is_lost_at_the_next_renewal(gpu):
    slot = await gpu.take(lease=0.3)
    await client_of(gpu).call("DEL", keys_of(gpu).holders)
    await eventually(lambda: slot.lost)
    asked = await gpu.take()
    await client_of(gpu).call("DEL", keys_of(gpu).holders)
    with pytest.raises(SlotLost):
        await asked.check()
    assert asked.lost


async def test_a_holder_that_stood_still_knows_at_once_that_it_is_late(gpu, process):
    other = await process(limit=1)
    slot = await gpu.take(lease=0.2)
    time.sleep(0.2)  # noqa: ASYNC251  a handler that computes, or a process that was stopped
    assert slot.lost
    assert (await other.take(timeout_s=60)).fence > slot.fence
    assert not await slot.release()
    assert (await other.state()).taken == 1


async def test_an_ended_lease_is_not_renewed_even_if_nobody_has_the_slot_yet(gpu):
    slot = await gpu.take(lease=5)
    holder = (await client_of(gpu).call("ZRANGE", keys_of(gpu).holders, 0, -1))[0].decode()
    await client_of(gpu).call("ZADD", keys_of(gpu).holders, 1, holder)
    with pytest.raises(SlotLost):
        await slot.check()
    assert await gpu.holders() == []


async def test_fences_rise_even_if_the_server_forgets_the_latest(gpu):
    slot = await gpu.take()
    await slot.release()
    await client_of(gpu).call("DEL", keys_of(gpu).state)
    assert (await gpu.take()).fence > slot.fence


async def test_fences_rise_even_if_the_clock_is_set_back(clocked):
    clock, slots = clocked
    first = await slots.take()
    await first.release()
    await clock.advance(-3_600)
    second = await slots.take()
    assert second.fence == first.fence + 1


async def test_a_lease_ends_at_its_very_millisecond(clocked):
    clock, slots = clocked
    held = await slots.take(lease=10)
    await clock.advance(9.999)
    with pytest.raises(SlotsTaken):
        await slots.take()
    await clock.advance(0.001)
    assert not await held.renew()
    assert (await slots.take()).fence > held.fence


# ---- waiting


@pytest.mark.parametrize("hinted", [True, False])
async def test_who_waits_gets_the_slot_that_is_released(process, hinted):
    holder = await process(limit=1)
    waiter = await process(limit=1, hinted=hinted, recheck_s=60 if hinted else 0.05)
    slot = await holder.take()
    asked = asyncio.create_task(waiter.take(timeout_s=None))
    await waiting(holder, 1)
    if hinted:  # until then a hint would be for nobody
        await eventually(lambda: waiter._wakeups.is_connected)
    await slot.release()
    async with asyncio.timeout(30):
        assert not (await asked).lost
    await waiting(holder, 0)


async def test_slots_are_given_in_the_order_in_which_callers_came(process):
    crowd = [await process(limit=1, recheck_s=0.05) for _ in range(3)]
    slot, order, waiters = await crowd[0].take(), [], []

    async def wait(number):
        async with crowd[number % 3].hold() as mine:
            order.append((number, mine.fence))

    for number in range(12):
        waiters.append(asyncio.create_task(wait(number)))
        await waiting(crowd[0], number + 1)
    await slot.release()
    await asyncio.gather(*waiters)
    assert [number for number, _ in order] == list(range(12))
    assert order == sorted(order, key=lambda one: one[1])


async def test_who_does_not_wait_does_not_pass_those_who_do(process):
    patient, hasty = await process(limit=1, recheck_s=60), await process(limit=1)
    slot = await hasty.take()
    asked = asyncio.create_task(patient.take(timeout_s=50))
    await waiting(hasty, 1)
    holder = (await client_of(hasty).call("ZRANGE", keys_of(hasty).holders, 0, -1))[0]
    await client_of(hasty).call("ZREM", keys_of(hasty).holders, holder)  # and no hint
    with pytest.raises(SlotsTaken):
        await hasty.take()
    await client_of(hasty).call("PUBLISH", keys_of(hasty).holders, "free")
    assert (await asked).fence > slot.fence


async def test_a_process_that_stood_still_gets_its_place_in_line_back(process):
    still, other = await process(limit=1, recheck_s=0.05), await process(limit=1)
    slot = await other.take()
    first = asyncio.create_task(still.take(timeout_s=None))
    await waiting(other, 1)
    second = asyncio.create_task(other.take(timeout_s=None))
    await waiting(other, 2)
    # Its ticket has lapsed: another process has seen that, and it asks for the next time.
    ticket = still._waiters._ticket
    await client_of(other).call("ZREM", keys_of(other).waiting, ticket)
    await client_of(other).call("HDEL", keys_of(other).tickets, ticket, f"n:{ticket}")
    await waiting(other, 2)
    await slot.release()
    await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    assert first.done()
    await first.result().release()
    await (await second).release()


async def test_a_caller_gives_up_in_time_and_leaves_the_line(gpu):
    async with gpu.hold(), gpu.hold():
        began = time.monotonic()
        with pytest.raises(SlotsTaken):
            await gpu.take(timeout_s=0.2)
        assert time.monotonic() - began >= 0.2
        await waiting(gpu, 0)


async def test_a_cancelled_caller_leaves_the_line_and_the_next_one_moves_up(process):
    slots = await process(limit=1, recheck_s=60)
    slot = await slots.take()
    first = asyncio.create_task(slots.take(timeout_s=60))
    await waiting(slots, 1)
    second = asyncio.create_task(slots.take(timeout_s=60))
    await waiting(slots, 2)
    first.cancel()
    await waiting(slots, 1)
    await slot.release()
    async with asyncio.timeout(30):
        assert not (await second).lost
    assert first.cancelled()


async def test_cancelling_at_any_moment_leaks_no_slot(process):
    slots = await process(limit=2, lease_s=30)
    for steps in range(40):
        asked = asyncio.create_task(slots.take(timeout_s=5))
        for _ in range(steps):
            await asyncio.sleep(0)
        if not asked.cancel():
            await (await asked).release()
        await asyncio.gather(asked, return_exceptions=True)
        if not asked.cancelled():
            await asked.result().release()
    await waiting(slots, 0)
    assert (await slots.state()).taken == 0
    assert len(slots._leases) == 0


async def test_callers_that_died_in_line_hold_nobody_up(process):
    slots = await process(limit=2, recheck_s=0.1)
    scripts, keys = scripts_of(client_of(slots)), keys_of(slots)
    held = [await slots.take(), await slots.take()]
    for dead in ("one:", "two:", "three:"):
        *_, fence = await ask(scripts, keys, dead, ticket=dead, limit=2, ticket_ms=300)
        assert fence == 0
    asked = [asyncio.create_task(slots.take(timeout_s=5)) for _ in range(2)]
    await waiting(slots, 5)
    for slot in held:
        await slot.release()
    for slot in await asyncio.gather(*asked):
        assert not slot.lost


@pytest.mark.parametrize("patience_s", [0, 5])
async def test_very_many_that_died_are_passed_a_number_at_a_time(gpu, patience_s):
    keys, call, scripts = keys_of(gpu), client_of(gpu).call, scripts_of(client_of(gpu))
    dead = [f"dead-{number}" for number in range(1_500)]
    await call("ZADD", keys.waiting, *(part for name in dead for part in (1, name)))
    await call("HSET", keys.tickets, *(part for name in dead for part in (name, 1)))
    await call("ZADD", keys.holders, *(part for name in dead for part in (1, f"1:{name}")))
    *_, fence = await ask(scripts, keys, "new:", limit=2)
    assert fence == 0, "others may wait behind those"
    assert await call("ZCARD", keys.waiting) == 1_400
    for taken in (1, 2):
        await gpu.take(timeout_s=patience_s)
        assert (await gpu.state()).taken == taken
    with pytest.raises(SlotsTaken):
        await gpu.take()


async def test_a_thousand_callers_in_one_process_share_few_slots(process, monkeypatch):
    slots = await process(limit=8, recheck_s=5)
    inside = most = asked = 0
    scripts = scripts_of(client_of(slots))
    take = scripts.take_slot

    async def count(**words):
        nonlocal asked
        asked += len(words["callers"])
        return await take(**words)

    monkeypatch.setattr(scripts, "take_slot", count)

    async def work():
        nonlocal inside, most
        async with slots.hold():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.timeout(30):
        await asyncio.gather(*(work() for _ in range(1000)))
    assert 1 < most <= 8
    assert asked < 4 * 1000, "the server is asked for the foremost only"
    await waiting(slots, 0)
    assert (await slots.state()).taken == 0


# ---- an operator's limit


async def test_an_operators_limit_wins_over_the_code_everywhere(gpu, process):
    other = await process(recheck_s=0.1)
    await gpu.take()
    await gpu.take()
    asked = asyncio.create_task(other.take(timeout_s=60))
    await waiting(gpu, 1)
    await gpu.set_limit(3)
    async with asyncio.timeout(30):
        await asked
    assert (await other.state()).limit == 3
    late = await process(limit=50)
    assert await late.limit() == 3
    await gpu.reset_limit()
    assert (await gpu.state()).limit == 2


async def test_a_limit_below_what_is_taken_lets_holders_finish(gpu):
    first, second = await gpu.take(), await gpu.take()
    await gpu.set_limit(0)
    await first.check()
    await second.release()
    with pytest.raises(SlotsTaken):
        await gpu.take()
    assert (await gpu.state()).taken == 1


async def test_what_nobody_can_read_in_the_registry_counts_for_nothing(gpu):
    registry = SlotsKeys.of(client_of(gpu).keys).registry
    for text in ("nonsense", '{"edited": true}', '{"limit": -5, "edited": true}', "[]"):
        await client_of(gpu).call("HSET", registry, "gpu", text)
        assert (await gpu.state()).limit == 2


# ---- a server in trouble


async def test_a_slot_whose_grant_was_not_heard_of_is_not_taken_twice(gpu):
    scripts, keys = scripts_of(client_of(gpu)), keys_of(gpu)
    *_, first = await ask(scripts, keys, "me:")
    assert first > 0
    assert (await ask(scripts, keys, "me:", again=True))[-1] == first
    assert (await gpu.state()).taken == 1
    assert await scripts.release_slot(keys=keys, holder="", token="me:")
    assert (await gpu.state()).taken == 0


@pytest.fixture
async def behind_proxy(open_client, fault_proxy, valkey_server, namespace):
    """Slots whose words go through a proxy, with scripts and limit known; and the proxy."""
    proxy = fault_proxy(valkey_server)
    client = await open_client(
        proxy.url, namespace=namespace, slots=SlotSettings(recheck_s=0.05, lease_s=5)
    )
    leases = Leases(client)
    slots = Slots(client, "gpu", 1, leases=leases)
    await (await slots.take()).release()
    yield slots, proxy
    await leases.close()


@pytest.mark.parametrize("fault", ["swallow", "cut_before"])
async def test_a_lost_answer_to_take_or_release_is_made_good_inside(behind_proxy, fault):
    slots, proxy = behind_proxy
    rule = getattr(proxy, fault)("EVALSHA")
    slot = await slots.take()
    assert rule.hits == 1
    assert [holder.fence for holder in await slots.holders()] == [slot.fence]
    rule = getattr(proxy, fault)("EVALSHA")
    # What was carried out unheard of looks like a slot that was lost.
    assert await slot.release() == (fault == "cut_before")
    assert rule.hits == 1
    assert await slots.holders() == []


async def test_a_slot_that_was_granted_unheard_is_given_back_when_we_give_up(behind_proxy):
    slots, proxy = behind_proxy
    proxy.swallow("EVALSHA", times=None)  # the last word of a caller that gives up included
    with pytest.raises(OutcomeUnknown):
        await slots.take()
    proxy.heal()
    assert (await repeat_until_known(slots.state, insist=True)).taken == 0


async def test_who_waits_goes_on_waiting_while_the_server_is_away(behind_proxy, valkey_server):
    slots, proxy = behind_proxy
    slot = await slots.take()
    asked = asyncio.create_task(slots.take(timeout_s=20))
    await waiting(slots, 1)
    proxy.refuse()
    proxy.cut(reset=True)
    await eventually(lambda: len(proxy.attempts) > 3)
    assert not asked.done()
    proxy.heal()
    assert await repeat_until_known(slot.release, insist=True)
    assert not (await asked).lost


async def test_who_could_not_look_until_the_end_of_its_patience_says_that(behind_proxy):
    slots, proxy = behind_proxy
    await slots.take()
    asked = asyncio.create_task(slots.take(timeout_s=2))
    await waiting(slots, 1)
    proxy.refuse()
    proxy.cut(reset=True)
    with pytest.raises(ServerError):
        await asked


async def test_a_block_ends_well_if_the_server_cannot_be_told_of_it(behind_proxy, caplog):
    slots, proxy = behind_proxy
    async with slots.hold():
        proxy.refuse()
        proxy.cut(reset=True)
    assert "free only after its lease" in caplog.text


async def test_a_user_who_may_not_publish_releases_all_the_same(
    start_server, open_client, namespace
):
    server = start_server()
    server.command("ACL", "SETUSER", "shy", "on", ">secret", "~*", "resetchannels", "+@all")
    url = server.url.replace("redis://", "redis://shy:secret@")
    client = await open_client(url, namespace=namespace, slots=SlotSettings(recheck_s=0.05))
    leases = Leases(client)
    slots = Slots(client, "gpu", 1, leases=leases)
    slot = await slots.take()
    asked = asyncio.create_task(slots.take(timeout_s=5))
    await waiting(slots, 1)
    assert await slot.release()
    assert await (await asked).release()
    await leases.close()


@pytest.mark.parametrize("binary", ["valkey", "redis62"])
async def test_a_full_server_still_gives_out_slots_and_takes_them_back(
    start_server, open_client, namespace, binary
):
    server = start_server(binary)
    client = await open_client(server.url, namespace=namespace, slots=SlotSettings(recheck_s=0.05))
    leases = Leases(client)
    slots = Slots(client, "gpu", 1, leases=leases)
    server.command("CONFIG", "SET", "maxmemory", "1")
    slot = await slots.take()
    await slot.check()
    asked = asyncio.create_task(slots.take(timeout_s=5))
    await waiting(slots, 1)
    await slot.release()
    assert await (await asked).release()
    server.command("CONFIG", "SET", "maxmemory", "0")
    await leases.close()
