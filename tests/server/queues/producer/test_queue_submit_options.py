"""Options of tasks and of single calls: lanes, times, limits, and their refusal."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from tests.kit.queue_scripts import delayed, items

from penstock.errors import ConfigError, InvalidJob, QueueFull, SettingError
from penstock.queues.storage.keys import lane_name

ODD_ID = "order 7/ü:{x}%*"


async def test_what_is_to_be_remembered_travels_with_the_job(welcome):
    sender = welcome.with_options(group="tenant a", max_attempts=2, headers={"trace": "1"})
    await sender.with_options(expires=60).send(1)
    lane = lane_name("tenant a")
    (item,) = await items(welcome.queue, lane)
    assert (item.meta.group, item.meta.max_attempts) == ("tenant a", 2)
    assert item.meta.headers == {"trace": "1"}
    server = await welcome.queue.client.call("TIME")
    left_ms = item.meta.expires_ms - int(server[0]) * 1000
    assert 55_000 < left_ms < 62_000
    assert not item.meta.tracked


async def test_many_calls_with_options_go_in_chunks_too(welcome):
    jobs = await welcome.with_options(priority="high", headers={"a": "b"}).send_many(
        [(n,) for n in range(3)]
    )
    found = await items(welcome.queue, "high")
    assert [item.id for item in found] == [job.id for job in jobs]
    assert all(item.meta.headers == {"a": "b"} for item in found)


async def test_a_task_has_options_of_its_own(app):
    @app.task(queue="mail", priority="high", expires=timedelta(minutes=1))
    def urgent() -> None: ...

    await urgent.send()
    (item,) = await items(urgent.queue, "high")
    assert item.meta.expires_ms
    await urgent.with_options(priority="low").send()
    assert len(await items(urgent.queue, "low")) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -math.inf},
        {"delay": math.nan},
        {"delay": "1"},
        {"delay": True},
        {"delay": 100 * 365 * 86400},
        {"delay": timedelta(days=36500)},
        {"delay": 1, "at": 1},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001  that is the point
        {"at": datetime(9999, 1, 1, tzinfo=UTC)},
        {"at": 1e309},
        {"at": 1_900_000_000_000},
        {"at": "2030-01-01T00:00:00Z"},
        {"expires": 0},
        {"expires": -5},
        {"expires": math.nan},
        {"expires": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"priority": "urgent"},
        {"priority": -1},
        {"priority": math.nan},
        {"priority": "high", "group": "a"},
        {"group": ""},
        {"group": 5},
        {"group": "\ud800"},
        {"group": "x" * 257},
        {"unique": ""},
        {"unique": 7},
        {"unique": "x" * 70_000},
        {"unique_for": 5},
        {"unique": "a", "unique_for": 0},
        {"unique": "a", "unique_for": math.inf},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 10_000},
        {"idempotency_key": "a", "job_id": "b"},
        {"job_id": ""},
        {"job_id": 5},
        {"job_id": "\udfff"},
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"max_attempts": True},
        {"max_attempts": 10**9 + 1},
        {"max_attempts": math.nan},
        {"headers": {"a": 1}},
        {"headers": {"": "a"}},
        {"headers": ["a"]},
        {"headers": {"a": "\ud800"}},
        {"headers": {"a": "x" * 10_000}},
        {"headers": {str(n): "" for n in range(1000)}},
    ],
)
async def test_options_that_no_job_can_have_are_refused_when_they_are_given(welcome, options):
    with pytest.raises(InvalidJob):
        welcome.with_options(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": -1},
        {"timeout_s": math.nan},
        {"concurrency": 0},
        {"retry": 5},
        {"status": "yes"},
    ],
)
async def test_options_that_no_task_can_have(app, options):
    with pytest.raises(SettingError):
        app.task(**options)(lambda: None)
    with pytest.raises(ConfigError):
        app.task(isolate="yes")(lambda: None)
    with pytest.raises(ConfigError):
        app.task(unique=5)(lambda: None)


async def test_what_is_already_past_is_due_now(welcome):
    await welcome.with_options(delay=-5).send(1)
    await welcome.with_options(at=datetime(2000, 1, 1, tzinfo=UTC)).send(2)
    assert len(await items(welcome.queue)) + len(await delayed(welcome.queue)) == 2


async def test_a_delayed_job_waits_apart_with_its_lane(welcome):
    job = await welcome.with_options(delay=3600, group="a").send(1)
    at = datetime.now(UTC) + timedelta(hours=2)
    later = await welcome.with_options(at=at).send(2)
    assert await delayed(welcome.queue) == [job.id, later.id]
    keys = welcome.queue.keyring
    body = await welcome.queue.client.call("HGET", keys.delayed_bodies, job.id)
    assert body.startswith(b"ba\n{")
    score = await welcome.queue.client.call("ZSCORE", keys.delayed, later.id)
    assert abs(float(score) - at.timestamp() * 1000) < 2
    assert await items(welcome.queue) == []


async def test_a_second_delayed_job_of_the_same_id_does_not_replace_the_first(welcome):
    first = await welcome.with_options(delay=3600, job_id=ODD_ID).send(1)
    second = await welcome.with_options(delay=1800, job_id=ODD_ID).send(2)
    assert (first.created, second.created, second.id) == (True, False, ODD_ID)
    (body,) = await welcome.queue.client.call("HVALS", welcome.queue.keyring.delayed_bodies)
    assert b'"args":[1]' in body


async def test_as_many_jobs_may_wait_for_their_time_as_for_a_worker(open_queues):
    queue = (await open_queues()).queue("jobs", max_size=2)
    await queue.push_many(["a", "b"], delay=60)
    with pytest.raises(QueueFull):
        await queue.push("c", delay=60)
    assert (await queue.push("d")).success
