"""Lanes: priorities, fair groups and their weights, pausing, parking."""

import asyncio
import collections
import itertools

import pytest
from tests.kit.scripts import scripts_of
from tests.kit.workplace import QUICK, in_hand, stored

from penstock.queues.storage.keys import lane_name
from penstock.testing.eventually import eventually

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.settings(queues=QUICK, worker={"grace_s": 1.0, "poll_s": 0.2}),
]


@pytest.fixture
def ran():
    return []


@pytest.fixture
def note(app, ran):
    @app.task(queue="mail", name="note")
    async def note(what: str) -> None:
        ran.append(what)

    return note


@pytest.fixture
def slow_note(app, ran):
    """Too slow to be claimed ahead: each claim is one job, and the order that of the claims."""

    @app.task(queue="mail", name="slow_note")
    async def slow_note(what: str) -> None:
        ran.append(what)
        await asyncio.sleep(0.006)

    return slow_note


async def fill(note, counts, **lane):
    for name, count in counts.items():
        words = {"priority": name} if name in {"high", "normal", "low"} else {"group": name}
        await note.with_options(**(words if name else {}), **lane).send_many([(name,)] * count)


async def test_strict_priorities_go_first_to_last(workplace, app, note, ran):
    await fill(note, {"low": 5, "normal": 5, "high": 5})
    await workplace.start(app, concurrency=1)
    await eventually(lambda: len(ran) == 15)
    assert ran == ["high"] * 5 + ["normal"] * 5 + ["low"] * 5


async def test_a_later_job_of_high_priority_overtakes_those_that_wait(workplace, app, ran):
    first, go_on = asyncio.Event(), asyncio.Event()

    @app.task(queue="mail")
    async def slow(what: str) -> None:
        ran.append(what)
        first.set()
        await go_on.wait()

    await slow.with_options(priority="low").send_many([("low",)] * 5)
    await workplace.start(app, concurrency=1)
    await first.wait()
    await slow.with_options(priority="high").send("high")
    go_on.set()
    await eventually(lambda: len(ran) == 6)
    assert ran.index("high") == 1


async def test_weighted_priorities_share_every_ten_jobs(workplace, app, slow_note, ran):
    app.queue("mail", levels=(6, 3, 1))
    await fill(slow_note, {"low": 40, "normal": 40, "high": 40})
    await workplace.start(app, concurrency=1)
    await eventually(lambda: len(ran) == 120)
    for place in range(0, 60, 10):
        share = collections.Counter(ran[place : place + 10])
        assert share == {"high": 6, "normal": 3, "low": 1}
    assert collections.Counter(ran) == {"high": 40, "normal": 40, "low": 40}


async def test_weights_hold_also_where_many_jobs_are_claimed_at_once(workplace, app, note):
    app.queue("mail", levels=(6, 3, 1))
    await fill(note, {"low": 500, "normal": 500, "high": 500})
    keys, scripts = note.queue.keyring, scripts_of(app.redis)
    await scripts.join_queue(keys=keys, worker="w")
    taken = collections.Counter()
    for first, most in ((1, 7), (8, 100), (108, 1), (109, 192)):
        reply = await scripts.claim_jobs(keys=keys, worker="w", first=first, most=most, done=())
        for lane, items in zip(reply.lanes[::2], reply.lanes[1::2], strict=True):
            taken[lane] += len(items)
    assert taken == {b"high": 180, b"normal": 90, b"low": 30}


async def test_a_level_without_jobs_leaves_its_share_to_the_others(workplace, app, note, ran):
    app.queue("mail", levels=(6, 3, 1))
    await fill(note, {"low": 50})
    await workplace.start(app, concurrency=1)
    await eventually(lambda: ran == ["low"] * 50)


async def test_groups_take_turns_however_many_jobs_one_has(workplace, app, note, ran):
    await fill(note, {"burst": 200, "a": 5, "b": 5})
    await workplace.start(app, concurrency=1)
    await eventually(lambda: len(ran) == 210)
    assert collections.Counter(ran[:15]) == {"burst": 5, "a": 5, "b": 5}


async def test_a_group_with_more_weight_has_more_jobs_in_each_turn(workplace, app, note, ran):
    await app.queues.set_weight("mail", "big", 3)
    await fill(note, {"big": 60, "small": 60})
    await workplace.start(app, concurrency=1)
    await eventually(lambda: len(ran) == 120)
    assert collections.Counter(ran[:40]) == {"big": 30, "small": 10}
    runs = [len(list(same)) for _, same in itertools.groupby(ran[:40])]
    assert max(runs) == 3


async def test_the_plain_list_and_the_groups_do_not_starve_each_other(
    workplace, app, slow_note, ran
):
    await fill(slow_note, {"": 60, "a": 30, "b": 30})
    await workplace.start(app, concurrency=1)
    await eventually(lambda: len(ran) == 120)
    assert collections.Counter(ran[:60]) == {"": 30, "a": 15, "b": 15}


@pytest.mark.parametrize("name", ["high", "queue", "a:b", "ü ü", "*", "{x}", "%41", "x" * 200])
async def test_groups_of_any_name_are_worked_off(workplace, app, note, ran, name):
    await note.with_options(group=name).send(name)
    await workplace.start(app)
    await eventually(lambda: ran == [name])
    keys = note.queue.keyring
    await eventually(lambda: _done(note.queue, 1))
    assert await app.redis.call("LLEN", keys.ring) == 0
    assert await app.redis.call("EXISTS", keys.list_of(lane_name(name))) == 0


async def _done(queue, count):
    return int(await queue.client.call("HGET", queue.keyring.counters, "done") or 0) == count


# ---- pausing


async def test_a_paused_queue_stands_still_and_goes_on_where_it_was(workplace, app, note, ran):
    await workplace.start(app, concurrency=1)
    await app.queues.pause("mail")
    await note.send_many([(str(number),) for number in range(20)])
    marker = app.queue("other")
    seen = []

    @marker.handler
    async def handle(job: str) -> None:
        seen.append(job)

    await workplace.start(app, queues=["other"])
    await marker.push("go")
    await eventually(lambda: seen == ["go"])
    assert ran == []
    assert len(await stored(note.queue)) == 20
    await app.queues.resume("mail")
    await eventually(lambda: ran == [str(number) for number in range(20)])


async def test_what_runs_when_a_queue_is_paused_ends(workplace, app):
    began, go_on, ended = asyncio.Event(), asyncio.Event(), []

    @app.task(queue="mail")
    async def work(number: int) -> None:
        began.set()
        await go_on.wait()
        ended.append(number)

    await workplace.start(app, concurrency=1)
    await work.send(1)
    await began.wait()
    await app.queues.pause("mail")
    await work.send(2)
    go_on.set()
    await eventually(lambda: ended == [1])
    await eventually(lambda: _none_in_hand(work.queue))
    assert len(await stored(work.queue)) == 1
    await app.queues.resume("mail")
    await eventually(lambda: ended == [1, 2])


async def _none_in_hand(queue):
    return not await in_hand(queue)


@pytest.mark.parametrize("lane", ["high", "tenant"])
async def test_a_paused_lane_lets_the_others_pass(workplace, app, note, ran, lane):
    await app.queues.pause("mail", lane)
    await workplace.start(app)
    await fill(note, {lane: 5, "low": 5, "other": 5, "": 5})
    await eventually(lambda: len(ran) == 15)
    assert lane not in ran
    await app.queues.resume("mail", lane)
    await eventually(lambda: ran.count(lane) == 5)


async def test_a_parked_group_comes_back_by_itself(workplace, app, note, ran):
    await app.queues.park("mail", "tenant", for_s=0.4)
    await workplace.start(app)
    await fill(note, {"tenant": 3, "other": 3})
    await eventually(lambda: ran == ["other"] * 3)
    assert ran.count("tenant") == 0
    await eventually(lambda: ran.count("tenant") == 3)


# ---- what comes back, comes back to its lane


@pytest.mark.parametrize("lane", ["", "high", "tenant"])
@pytest.mark.parametrize("side", ["right", "left"])
async def test_what_a_worker_gives_back_is_at_the_front_of_its_lane(workplace, lane, side):
    app, began, go_on = await workplace.open(), [], asyncio.Event()
    app.queue("mail", push=side)

    @app.task(queue="mail")
    async def hold(number: int) -> None:
        began.append(number)
        await go_on.wait()

    words = {"": {}, "high": {"priority": "high"}, "tenant": {"group": "tenant"}}[lane]
    await hold.with_options(**words).send_many([(number,) for number in range(6)])
    queue = hold.queue
    before = await stored(queue, lane)
    keys, scripts = queue.keyring, scripts_of(app.redis)
    await scripts.join_queue(keys=keys, worker="w")
    taken = await scripts.claim_jobs(keys=keys, worker="w", first=1, most=4, done=())
    assert sum(map(len, taken.lanes[1::2])) == 4
    end = f":{lane}" if lane else ""
    told = list(itertools.chain(*((f"{number}{end}", "", b"") for number in (1, 2, 3, 4))))
    assert await scripts.give_back(keys=keys, worker="w", jobs=told) == 4
    assert await stored(queue, lane) == before
    await workplace.start(app, concurrency=6)
    await eventually(lambda: began == [0, 1, 2, 3, 4, 5])
    go_on.set()
