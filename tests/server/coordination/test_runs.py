"""Records of runs: status by compare-and-set, checkpoints, starts of tasks, events, the end."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.coordination.runs.runs import Runs
from penstock.errors import EncodeError, InvalidItem, InvalidName, NotOpen, RunConflict, RunMissing
from penstock.inspector.key_contract import read_key
from penstock.testing.virtual_time import VirtualTime

ID = "manual_2024-09-17T14:30:00+00:00"
NOON_MS = 1_726_574_400_000  # 2024-09-17T12:00:00Z
HOUR_MS = 3_600_000
KEEP_MS = 25 * HOUR_MS


@pytest.fixture
def runs(app):
    return app.runs


@pytest.fixture
async def run(runs):
    return await runs.start(ID, facts={"source": "courtlistener"})


async def types(run):
    return [event.type for event in await run.events()]


async def remaining(run):
    """PTTL of each key of a run that is there."""
    keys = run.keys
    places = (
        *(keys.record, keys.events, keys.feed, keys.processed, keys.failures),
        *(keys.failure_info, keys.starts),
    )
    left = [await run.client.call("PTTL", key) for key in places]
    return [one for one in left if one != -2]


# ---- starting and finding


async def test_a_run_is_made_once_and_found_again_with_its_facts(runs):
    first = await runs.start(ID, kind="nightly", facts={"source": "courtlistener", "pages": "7"})
    second = await runs.start(ID, kind="other", facts={"source": "elsewhere"})
    assert (first.created, second.created) == (True, False)
    record = await runs.get(ID)
    assert record == await second.record()
    assert (record.id, record.kind, record.status, record.version) == (ID, "nightly", "created", 1)
    assert record.facts == {"source": "courtlistener", "pages": "7"}
    assert record.start_time.startswith(f"{datetime.now(UTC):%Y-%m-%dT%H}"[:11])
    assert record.started_ms == record.updated_ms
    assert (record.processed, record.failures, record.events) == (0, 0, 1)
    assert await types(first) == ["started"]


async def test_of_many_that_start_a_run_at_once_one_makes_it(runs):
    started = await asyncio.gather(*(runs.start("r") for _ in range(20)))
    assert sum(run.created for run in started) == 1
    assert await types(started[0]) == ["started"]


@pytest.mark.parametrize(
    "run_id", [ID, "scheduled__2024-09-17T14:30:00+00:00", "a b/c{d}%3A*", "ü→😀", "x" * 512]
)
async def test_an_id_may_have_any_characters(runs, run_id):
    run = await runs.start(run_id)
    await run.note_task_start("load: all")
    await run.fail("1:2", "no")
    assert (await run.record()).id == run_id
    assert [one.id for one in await runs.list()] == [run_id]
    found = read_key(run.keys.record, run.client.keys.namespace)
    assert found.arguments == {"run": run_id}


@pytest.mark.parametrize("run_id", ["", "x" * 513, "\ud800", None, 7, b"bytes"])
async def test_what_can_be_no_id_is_refused(runs, run_id):
    with pytest.raises(InvalidName):
        await runs.start(run_id)
    assert await runs.list() == []


@pytest.mark.parametrize(
    "facts",
    [
        {"status": "running"},
        {"redis_keys": "{}"},
        {"": "empty"},
        {"number": 7},
        {"bad": "\ud800"},
        {str(number): "" for number in range(501)},
    ],
)
async def test_facts_that_cannot_be_kept_are_refused_and_nothing_is_stored(runs, facts):
    with pytest.raises(InvalidItem):
        await runs.start("r", facts=facts)
    assert await runs.list() == []


async def test_everything_about_a_run_that_is_not_there_says_so(runs):
    run = runs.open("nobody")
    calls = [
        lambda: runs.get("nobody"),
        run.record,
        lambda: run.move("running"),
        run.finish,
        run.reopen,
        lambda: run.note({"a": "b"}),
        lambda: run.checkpoint(1),
        lambda: run.note_task_start("t"),
        lambda: run.mark_processed("1"),
        lambda: run.fail("1", "no"),
        lambda: run.resolve("1"),
        run.claim_due,
        run.contract_view,
    ]
    for call in calls:
        with pytest.raises(RunMissing):
            await call()
    assert await remaining(run) == []
    assert (await run.failures()).failures == []
    assert await run.task_starts() == []


# ---- status


async def test_a_run_goes_its_way_and_each_step_has_a_version(run):
    assert await run.move("running") == 2
    assert await run.move("paused", facts={"why": "lunch"}) == 3
    assert await run.move("running", expect="paused", version=3) == 4
    assert await run.finish("completed", expect={"running", "paused"}) == 5
    record = await run.record()
    assert (record.status, record.version, record.is_final) == ("completed", 5, True)
    assert record.facts == {"source": "courtlistener", "why": "lunch"}
    assert record.ended_ms is not None
    events = await run.events()
    assert [event.number for event in events] == [1, 2, 3, 4, 5]
    assert [event.type for event in events] == ["started", "status", "status", "status", "finished"]
    assert events[2].data == {
        "version": 3,
        "from": "running",
        "status": "paused",
        "facts": {"why": "lunch"},
    }
    assert events[4].data == {
        "version": 5,
        "from": "running",
        "status": "completed",
        "processed": 0,
        "failures": 0,
    }


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([], "created"),
        ([], "paused"),
        (["running"], "running"),
        (["running"], "created"),
        (["running", "completed"], "running"),
        (["running", "completed"], "completed"),
        (["failed"], "paused"),
        (["cancelled"], "failed"),
    ],
)
async def test_a_step_that_is_not_legal_changes_nothing(run, first, then):
    for status in first:
        await run.move(status)
    before = await run.record()
    with pytest.raises(RunConflict) as conflict:
        await run.move(then, facts={"lost": "yes"})
    assert (conflict.value.status, conflict.value.version) == (before.status, before.version)
    assert await run.record() == before


async def test_a_step_from_another_status_or_version_than_thought_changes_nothing(run):
    await run.move("running")
    before = await run.record()
    for guess in ({"expect": "paused"}, {"version": 1}, {"expect": "running", "version": 3}):
        with pytest.raises(RunConflict):
            await run.finish(**guess)
    assert await run.record() == before
    assert await run.finish(expect="running", version=2) == 3


async def test_a_run_ends_from_each_status_that_is_not_final(runs):
    for number, steps in enumerate(([], ["running"], ["running", "paused"])):
        for final in ("completed", "failed", "cancelled"):
            run = await runs.start(f"{number}-{final}")
            for step in steps:
                await run.move(step)
            await run.finish(final)
            assert (await run.record()).status == final


@pytest.mark.parametrize("bad", ["done", "", "running", "created", None])
async def test_a_run_cannot_finish_in_a_status_that_is_not_final(run, bad):
    with pytest.raises(InvalidItem):
        await run.finish(bad)
    assert (await run.record()).version == 1


async def test_arguments_that_make_no_sense_are_refused_before_anything_is_sent(run):
    for bad in (
        lambda: run.move("Running"),
        lambda: run.move("running", expect=()),
        lambda: run.move("running", expect={"sleeping"}),
        lambda: run.move("running", version="2"),
        lambda: run.move("running", version=True),
        lambda: run.note({}),
        lambda: run.events(-1),
        lambda: run.note_task_start(""),
        lambda: run.note_task_start("t", attempt=0),
        lambda: run.note_task_start("t", map_index=-1),
    ):
        with pytest.raises(InvalidItem):
            await bad()
    assert (await run.record()).version == 1


async def test_facts_are_noted_in_any_status_by_compare_and_set(run):
    assert await run.note({"pages": "1"}) == 2
    with pytest.raises(RunConflict):
        await run.note({"pages": "9"}, version=1)
    await run.finish()
    assert await run.note({"pages": "2"}, version=3) == 4
    record = await run.record()
    assert record.facts["pages"] == "2"
    assert record.status == "completed"
    assert (await run.last_events(1))[0].data == {"version": 4, "facts": {"pages": "2"}}


async def test_only_what_has_ended_is_reopened(run):
    with pytest.raises(RunConflict):
        await run.reopen()
    await run.finish("failed")
    with pytest.raises(RunConflict):
        await run.reopen(version=1)
    assert await run.reopen(version=2) == 3
    record = await run.record()
    assert (record.status, record.ended_ms, record.ends_ms) == ("running", None, None)
    await run.finish()


# ---- how long it is kept


async def test_a_run_that_goes_on_has_no_end_and_a_final_one_has(run):
    await run.move("running")
    await run.mark_processed("1", "2")
    await run.note_task_start("load")
    await run.checkpoint({"page": 1})
    assert set(await remaining(run)) == {-1}
    await run.finish()
    left = await remaining(run)
    assert len(left) == 5
    assert all(KEEP_MS - 60_000 < one <= KEEP_MS for one in left)
    record = await run.record()
    assert record.ends_ms == record.ended_ms + KEEP_MS


async def test_a_final_run_is_kept_until_its_last_failure_is_resolved(run):
    await run.fail("1", "no")
    await run.fail("2", "no")
    await run.finish("failed")
    assert set(await remaining(run)) == {-1}
    assert (await run.record()).ends_ms is None
    await run.resolve("1")
    assert set(await remaining(run)) == {-1}
    await run.mark_processed("2")
    assert min(await remaining(run)) > KEEP_MS - 60_000
    await run.fail("3", "late")
    assert set(await remaining(run)) == {-1}
    await run.resolve("3")
    assert min(await remaining(run)) > KEEP_MS - 60_000
    await run.reopen()
    assert set(await remaining(run)) == {-1}


async def test_keys_written_after_the_end_go_with_the_others(run):
    await run.finish()
    await run.mark_processed("late")
    await run.note_task_start("late")
    left = await remaining(run)
    assert len(left) == 5
    assert min(left) > 0


async def test_what_comes_after_the_end_does_not_put_it_off(open_app, valkey_server):
    app = await open_app(valkey_server)
    time = VirtualTime(app.redis)
    await time.set_ms(NOON_MS)
    run = await Runs(app.redis, app.codec).start("r")
    await run.finish()
    await time.advance(3_600)
    await run.mark_processed("late")
    left = await remaining(run)
    assert all(KEEP_MS - HOUR_MS - 60_000 < one <= KEEP_MS - HOUR_MS for one in left)
    assert (await run.record()).ends_ms == NOON_MS + KEEP_MS


async def test_a_run_begins_anew_after_its_record_is_gone(runs, run):
    await run.mark_processed("1")
    await run.fail("2", "no")
    await run.client.call("DEL", run.keys.record)
    again = await runs.start(ID)
    assert again.created
    assert await again.processed_count() == 0
    assert (await again.failures()).failures == []
    assert [event.number for event in await again.events()] == [1]


# ---- checkpoints


@pytest.mark.parametrize("cursor", [{"page": 7, "next": "a/b?x=ü"}, [1, 2], "text", 7, None, False])
async def test_a_cursor_comes_back_as_it_was(run, cursor):
    assert await run.checkpoint(cursor) == 2
    record = await run.record()
    assert record.checkpoint == cursor
    assert record.watermark is None
    (event,) = await run.last_events(1)
    assert (event.type, event.data) == ("checkpoint", {"version": 2, "cursor": cursor})


async def test_a_large_cursor_is_stored_as_plain_json_and_not_repeated_in_the_feed(run):
    cursor = {"ids": list(range(2_000))}
    await run.checkpoint(cursor)
    stored = await run.client.call("HGET", run.keys.record, "checkpoint")
    assert stored.startswith(b'{"ids":[0,1,')
    assert (await run.record()).checkpoint == cursor
    assert (await run.last_events(1))[0].data == {"version": 2}


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (1, 2),
        (-1.5, 0),
        (9, 10),
        ("2024-09-17T09:00:00Z", "2024-09-17T10:00:00Z"),
        ("B", "a"),
        ("a", "aa"),
        ("z", "ä"),
        (datetime(2024, 9, 17, 14, tzinfo=timezone(timedelta(hours=9))),
         datetime(2024, 9, 17, 14, tzinfo=UTC)),
    ],
)  # fmt: skip
async def test_a_watermark_never_goes_back_unless_forced(run, low, high):
    await run.checkpoint("a", watermark=high)
    top = (await run.record()).watermark
    await run.checkpoint("b", watermark=low)
    record = await run.record()
    assert (record.checkpoint, record.watermark) == ("b", top)
    await run.checkpoint("c")
    assert (await run.record()).watermark == top
    await run.checkpoint("d", watermark=low, force=True)
    low_mark = (await run.record()).watermark
    assert low_mark != top
    await run.checkpoint("e", watermark=high)
    assert (await run.record()).watermark == top


async def test_a_watermark_of_another_kind_is_refused_unless_forced(run):
    await run.checkpoint(1, watermark=5)
    with pytest.raises(InvalidItem):
        await run.checkpoint(2, watermark="5")
    assert (await run.record()).checkpoint == 1
    await run.checkpoint(2, watermark="5", force=True)
    assert (await run.record()).watermark == "5"


@pytest.mark.parametrize(
    "bad",
    [
        float("nan"),
        float("inf"),
        2**53 + 1,
        pytest.param(10**400, id="huge"),
        True,
        [1],
        datetime(2024, 1, 1),  # noqa: DTZ001
    ],
)
async def test_what_is_no_watermark_is_refused(run, bad):
    with pytest.raises(InvalidItem):
        await run.checkpoint(1, watermark=bad)
    assert (await run.record()).checkpoint is None


async def test_a_cursor_that_is_not_json_is_refused(run):
    for bad in (float("nan"), object(), {1, float("inf")}):
        with pytest.raises(EncodeError):
            await run.checkpoint(bad)


async def test_of_two_checkpoints_from_the_same_version_one_is_saved(run):
    version = await run.move("running")
    ends = await asyncio.gather(
        *(run.checkpoint(number, version=version) for number in range(8)), return_exceptions=True
    )
    winners = [number for number, end in enumerate(ends) if end == version + 1]
    assert len(winners) == 1
    assert sum(isinstance(end, RunConflict) for end in ends) == 7
    assert (await run.record()).checkpoint == winners[0]


async def test_a_run_that_has_ended_takes_no_checkpoint(run):
    await run.checkpoint("good")
    await run.finish()
    with pytest.raises(RunConflict):
        await run.checkpoint("stale")
    assert (await run.record()).checkpoint == "good"


# ---- tasks


async def test_the_first_start_of_a_task_stays_and_each_attempt_is_noted(open_app, valkey_server):
    app = await open_app(valkey_server)
    time = VirtualTime(app.redis)
    await time.set_ms(NOON_MS)
    run = await Runs(app.redis, app.codec).start("r")
    assert await run.note_task_start("load")
    await time.advance(10)
    assert not await run.note_task_start("load", attempt=2)
    assert not await run.note_task_start("load", attempt=2)
    assert await run.note_task_start("load", map_index=0)
    assert not await run.note_task_start("load", map_index=0, attempt=2)
    starts = [
        (one.task, one.map_index, one.attempt, one.started_ms - NOON_MS)
        for one in await run.task_starts()
    ]
    assert starts == [
        ("load", None, 1, 0),
        ("load", None, 2, 10_000),
        ("load", 0, 1, 10_000),
        ("load", 0, 2, 10_000),
    ]
    value = await run.client.call("GET", run.keys.task_start("load"))
    assert value == b"2024-09-17T12:00:00.000Z"
    assert await run.client.call("GET", run.keys.task_start("load[0]")) is not None


# ---- the list


async def test_runs_are_listed_the_latest_first_by_pages_and_by_status(runs):
    for number in range(7):
        run = await runs.start(f"run {number}")
        await run.client.call("ZADD", runs._registry, number, run.id)  # one ms is enough for many
        if number % 2:
            await run.move("running")
    listed = await runs.list()
    assert [one.id for one in listed] == [f"run {number}" for number in reversed(range(7))]
    first = await runs.list(limit=3)
    second = await runs.list(limit=3, before=first[-1].id)
    third = await runs.list(limit=3, before=second[-1])
    assert [*first, *second, *third] == listed
    assert [one.id for one in await runs.list(status="running")] == ["run 5", "run 3", "run 1"]
    assert [one.id for one in await runs.list(1, status="running", before="run 5")] == ["run 3"]
    assert await runs.list(status="paused") == []
    with pytest.raises(InvalidItem):
        await runs.list(status="asleep")
    with pytest.raises(InvalidItem):
        await runs.list(limit=0)
    with pytest.raises(RunMissing):
        await runs.list(before="nobody")


async def test_more_runs_than_a_page_are_listed(runs):
    for start in range(0, 250, 50):
        await asyncio.gather(*(runs.start(f"r{number}") for number in range(start, start + 50)))
    listed = await runs.list(limit=1_000)
    assert len({one.id for one in listed}) == len(listed) == 250
    assert [one.id for one in await runs.list(limit=30, before=listed[199])] == [
        one.id for one in listed[200:230]
    ]


async def test_ids_of_runs_that_are_gone_are_swept_but_not_those_just_registered(runs, app):
    old, new = await runs.start("old"), await runs.start("new")
    registry = runs._registry
    for run in (old, new):
        await app.redis.call("DEL", run.keys.record)
    await app.redis.call("ZADD", registry, 1, "old")
    assert await runs.list() == []
    assert await app.redis.call("ZRANGE", registry, 0, -1) == [b"new"]


async def test_starting_runs_sweeps_those_that_are_gone(runs, app):
    registry = runs._registry
    await app.redis.call("ZADD", registry, *(x for n in range(10) for x in (n, f"gone {n}")))
    await runs.start("r")
    assert await app.redis.call("ZRANGE", registry, 0, -1) == [b"r"]


# ---- the feed


async def test_readers_of_the_feed_begin_with_how_things_stand_and_end_with_the_run(runs, run):
    await run.move("running")
    await run.mark_processed("1")
    feed = runs.open(ID).feed
    reader = feed.read()
    first = await anext(reader)
    assert (first.number, first.is_snapshot) == (3, True)
    assert first.data == {"status": "running", "version": 2, "processed": 1, "failures": 0}
    await run.fail("2", "no", final=True)
    await run.finish("failed")
    rest = [(event.number, event.type, event.final) async for event in reader]
    assert rest == [(4, "failed", False), (5, "finished", True)]
    everything = [event.type async for event in feed.read(after=0)]
    assert everything == ["started", "status", "progress", "failed", "finished"]


async def test_who_reads_the_feed_after_the_end_sees_it_whatever_came_later(runs, run):
    await run.fail("2", "no")
    await run.finish("failed")
    await run.mark_processed("2", "late")
    feed = runs.open(ID).feed
    (last,) = [event async for event in feed.read()]
    assert (last.is_snapshot, last.final) == (True, True)
    assert last.data == {"status": "failed", "version": 2, "processed": 2, "failures": 0}
    later = [event.type async for event in feed.read(after=3)]
    assert later == ["resolved"], "each event after the end is an end for those who read"
    await run.reopen()
    reader = feed.read()
    assert not (await anext(reader)).final
    await run.finish()
    assert [event.type async for event in reader] == ["finished"]


async def test_a_run_outside_an_application_has_no_feed(app):
    with pytest.raises(NotOpen):
        _ = Runs(app.redis, app.codec).open("r").feed


# ---- what is remembered of calls


async def test_answers_are_remembered_for_a_while_and_then_forgotten(open_app, valkey_server):
    app = await open_app(valkey_server)
    time = VirtualTime(app.redis)
    await time.set_ms(NOON_MS)
    run = await Runs(app.redis, app.codec).start("r")
    for number in range(100):
        await run.mark_processed(number)
    crowded = await app.redis.call("HLEN", run.keys.feed)
    assert crowded > 200
    await time.advance(600)
    for number in range(120):
        await run.mark_processed(f"late {number}")
    fields = await app.redis.call("HKEYS", run.keys.feed)
    assert sum(field.startswith(b"call:") for field in fields) == 120
    assert sum(field.startswith(b"called:") for field in fields) == 120
