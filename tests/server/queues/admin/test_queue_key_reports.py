"""Keys of another type under a queue's names: reported, worked around, renamed or deleted."""

import json

import pytest
from tests.kit.workplace import QUICK, counters, in_hand, letters, stored

from penstock import Fixed, RetryPolicy
from penstock.errors import CommandRefused, QueueError
from penstock.inspector.doctor import diagnose
from penstock.testing.eventually import eventually

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.settings(queues=QUICK, worker={"grace_s": 1.0, "poll_s": 0.2}),
]

SOON = RetryPolicy(max_attempts=2, backoff=Fixed(0.01))


@pytest.fixture
def ran():
    return []


@pytest.fixture
def note(app, ran):
    @app.task(queue="mail", name="note", retry=SOON)
    async def note(number: int) -> None:
        ran.append(number)

    return note


async def _nothing_in_hand(queue):
    return not await in_hand(queue)


@pytest.mark.parametrize("lane", ["high", "normal", "low"])
async def test_a_lane_of_another_type_stops_no_other_lane(workplace, app, note, ran, lane):
    queue, others = note.queue, [one for one in ("high", "normal", "low") if one != lane]
    key = queue.keyring.list_of(lane)
    for number, other in enumerate(others):
        await note.with_options(priority=other).send(number)
    await note.with_options(group="g").send(2)
    await note.send(3)
    await app.redis.call("SET", key, "spoilt")
    worker = workplace.begin(app)
    await eventually(lambda: sorted(ran) == [0, 1, 2, 3])
    fault = f"key {key} holds a string where a list is expected"
    await eventually(lambda: any(fault in why for why in worker.readiness().reasons))
    await eventually(lambda: _nothing_in_hand(queue))
    assert await letters(queue) == []
    assert (await counters(queue)).get("reaped", 0) == 0
    assert await app.redis.call("GET", key) == b"spoilt"


async def test_a_job_that_is_due_in_a_lane_of_another_type_waits_uncharged(
    workplace, app, note, ran
):
    queue = note.queue
    await note.with_options(delay=0.01, priority="low").send(1)
    await note.with_options(delay=0.01).send(2)
    await app.redis.call("SET", queue.keyring.list_of("low"), "spoilt")
    workplace.begin(app)
    await eventually(lambda: ran == [2])
    assert await app.redis.call("ZCARD", queue.keyring.delayed) == 1
    assert await letters(queue) == []


@pytest.mark.parametrize(
    "name",
    [
        *("waiting", "ring", "parked", "state", "counters", "workers", "delayed", "schedule"),
        *("delayed_bodies", "dead_letters", "overflow", "dead_workers", "weights", "cancelled"),
        *("audit",),
    ],
)
async def test_any_key_of_another_type_is_reported_and_the_rest_is_shown(app, note, name):
    await note.send(1)
    await note.with_options(priority="high").send(2)
    key = getattr(note.queue.keyring, name)
    await app.redis.call("UNLINK", key)
    wrong = "list" if name in {"state", "counters", "weights", "delayed_bodies"} else "hash"
    await app.redis.call(*(("LPUSH", key, "x") if wrong == "list" else ("HSET", key, "x", "x")))
    facts = await app.queues.facts("mail")
    assert [(one.key, one.type) for one in facts.foreign] == [(key, wrong)]
    assert facts.known
    assert facts.waiting == (1 if name == "waiting" else 2)
    [line] = await app.queues.list()
    seen = name not in {"schedule", "dead_workers", "weights", "cancelled", "audit", "counters"}
    assert line.foreign == (seen and name != "delayed_bodies")
    assert await app.queues.foreign_keys("mail") == facts.foreign
    assert isinstance(await app.queues.workers("mail"), list)


async def test_a_fair_lane_and_claims_of_another_type_are_reported(app, note):
    keys = note.queue.keyring
    await app.redis.call("RPUSH", keys.ring, "g")
    await app.redis.call("SET", keys.list_of("g"), "x")
    await app.redis.call("ZADD", keys.workers, 1, "stranger")
    await app.redis.call("SET", keys.claimed("stranger"), "x")
    expected = {keys.list_of("g"), keys.claimed("stranger")}
    assert {one.key for one in (await app.queues.facts("mail")).foreign} == expected
    assert {one.key for one in await app.queues.foreign_keys("mail")} == expected


async def test_a_key_of_another_type_is_renamed_or_deleted_and_nothing_else_is(app, note):
    await note.send(1)
    keys = note.queue.keyring
    low, high = keys.list_of("low"), keys.list_of("high")
    await app.redis.call("SET", low, "theirs")
    await app.redis.call("SET", high, "theirs, too")
    with pytest.raises(QueueError, match="no key of another type"):
        await app.queues.rename_foreign("mail", keys.waiting, "x")
    with pytest.raises(QueueError, match="there is a key"):
        await app.queues.rename_foreign("mail", low, high)
    aside = f"{keys.waiting}-kept"
    await app.queues.rename_foreign("mail", low, aside)
    await app.queues.delete_foreign("mail", high)
    assert await app.queues.foreign_keys("mail") == []
    assert await app.redis.call("GET", aside) == b"theirs"
    assert await app.redis.call("EXISTS", low, high) == 0
    assert len(await stored(note.queue)) == 1
    told = [act.what for act in await app.queues.audit("mail")]
    assert told == ["delete foreign key", "rename foreign key"]


async def test_purging_a_queue_empties_every_lane_that_can_be(app, note):
    keys = note.queue.keyring
    for lane in ("high", "normal"):
        await note.with_options(priority=lane).send(1)
    await app.redis.call("UNLINK", keys.list_of("high"))
    await app.redis.call("SET", keys.list_of("high"), "theirs")
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await app.queues.purge("mail")
    assert await stored(note.queue, "normal") == []


async def test_a_record_of_another_type_hides_no_other_job(app):
    @app.task(queue="mail", name="work", status=True)
    async def work() -> None: ...

    jobs = [await work.send() for _ in range(3)]
    keys = work.queue.keyring
    await app.redis.call("UNLINK", keys.record(jobs[1].id))
    await app.redis.call("SET", keys.record(jobs[1].id), "theirs")
    await app.redis.call("ZADD", keys.jobs("queued"), "inf", "later", "-inf", b"\xff%ED%A0%80")
    await app.redis.call("HSET", keys.record("later"), "status", "queued")
    found = (await app.queues.jobs("mail")).jobs
    assert {job.job_id for job in found} == {*(job.id for job in jobs), "later"}
    assert [job.job_id for job in found if "WRONGTYPE" in job.error] == [jobs[1].id]
    assert len((await app.queues.jobs("mail", name="work")).jobs) == 2


async def test_the_doctor_reports_lists_of_queues_that_hold_something_else(app, note):
    await note.send(1)
    low = note.queue.keyring.list_of("low")
    await app.redis.call("SET", low, "theirs")
    await app.redis.call("SET", f"{app.settings.namespace}::nobodys", "of another program")
    findings = [one for one in (await diagnose(app.redis)).findings if one.check == "keys"]
    assert [one.level for one in findings] == ["failure"]
    assert f"1 orphaned keys: {low} (a string, list expected)" in findings[0].message


async def test_the_command_line_shows_renames_and_deletes_such_keys(app, note, shell):
    await note.send(1)
    low = note.queue.keyring.list_of("low")
    await app.redis.call("SET", low, "theirs")
    fault = f"key {low} holds a string where a list is expected"
    shown = shell("queue", "status", "mail")
    assert shown.returncode == 0
    assert f"In its way: {fault}" in shown.stdout
    assert "keys of another type" in shell("queue", "list").stdout
    found = shell("queue", "repair", "mail")
    assert found.returncode == 1
    assert fault in found.stdout
    told = shell("queue", "repair", "mail", "--json")
    assert [one["key"] for one in json.loads(told.stdout)] == [low]
    mended = shell("queue", "repair", "mail", "--rename", low, f"{low}-kept")
    assert (mended.returncode, mended.stdout) == (0, "queue mail: every key holds what it should\n")
    await app.redis.call("SET", low, "theirs")
    assert shell("queue", "repair", "mail", "--delete", low, "--yes").returncode == 0
    assert await app.redis.call("EXISTS", low) == 0
