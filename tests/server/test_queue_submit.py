"""Sending calls of tasks: what travels, records, unique keys, times and their refusal."""

import asyncio
import json
import math
import random
from datetime import UTC, datetime, timedelta

import pytest

from penstock import Penstock, RetryPolicy, Role
from penstock.errors import (
    CommandRefused,
    ConfigError,
    InvalidJob,
    InvalidName,
    OutcomeUnknown,
    OutOfMemory,
    QueueFull,
    SendBatchFailed,
    SettingError,
)
from penstock.queues.items import id_ms, read_item
from penstock.queues.options import QueueOptions
from penstock.settings import QueueSettings, Settings
from penstock.testing.eventually import eventually
from penstock.testing.servers import ServerProcess

ODD_ID = "order 7/ü:{x}%*"


@pytest.fixture
async def open_queues(namespace, place):
    opened = []

    async def open_one(**queues):
        settings = Settings(url=place.url, namespace=namespace, queues=QueueSettings(**queues))
        app = Penstock(settings=settings)
        await app.open()
        opened.append(app)
        return app

    yield open_one
    for app in opened:
        await app.close()


@pytest.fixture
async def app(open_queues):
    return await open_queues()


@pytest.fixture
def welcome(app):
    @app.task(queue="mail", name="mail.welcome")
    async def welcome(user_id: int, *, lang: str = "en") -> str:
        return f"{user_id} {lang}"

    return welcome


@pytest.fixture
def tracked(app):
    @app.task(queue="mail", name="mail.tracked", status=True, retry=RetryPolicy(max_attempts=3))
    async def tracked(user_id: int) -> int:
        return user_id

    return tracked


async def items(queue, lane=""):
    stored = await queue.client.call("LRANGE", queue.keyring.list_of(lane), 0, -1)
    return [read_item(data, queue.codec) for data in stored]


async def record(queue, job_id):
    flat = await queue.client.call("HGETALL", queue.keyring.record(job_id))
    flat = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
    return {name.decode(): value.decode() for name, value in flat.items()}


async def delayed(queue):
    members = await queue.client.call("ZRANGE", queue.keyring.delayed, 0, -1)
    return [member.decode() for member in members]


async def test_a_call_stands_on_the_list_as_any_language_would_write_it(welcome):
    job = await welcome.send(42, lang="de")
    (data,) = await welcome.queue.client.call("LRANGE", welcome.queue.keyring.waiting, 0, -1)
    assert json.loads(data) == {
        "id": job.id,
        "task": "mail.welcome",
        "args": [42],
        "kwargs": {"lang": "de"},
    }
    assert job.queue == "mail"
    assert job.created
    assert id_ms(job.id) is not None


async def test_calling_a_task_runs_its_function(welcome):
    assert await welcome(1, lang="fr") == "1 fr"
    assert welcome.__name__ == "welcome"


async def test_many_calls_keep_their_order_and_have_ids_that_sort(welcome):
    welcome.queue.configure(QueueOptions(max_size=0))
    calls = [(n,) for n in range(700)] + [{"user_id": 700}] + [welcome.call(701, lang="de")]
    jobs = await welcome.send_many(calls)
    found = await items(welcome.queue)
    assert [item.id for item in found] == [job.id for job in jobs]
    assert sorted(job.id for job in jobs) == [job.id for job in jobs]
    assert json.loads(bytes(found[700].kwargs)) == {"user_id": 700}
    assert (bytes(found[701].args), bytes(found[701].kwargs)) == (b"[701]", b'{"lang":"de"}')
    assert await welcome.send_many([]) == []


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        *(((), {}), ((1, 2), {}), ((1,), {"user_id": 1}), ((1,), {"language": "de"})),
        *(((object(),), {}), ((math.nan,), {}), (({1: {2, 3}, "x": object},), {})),
    ],
)
async def test_what_the_function_could_not_be_called_with_is_not_sent(welcome, args, kwargs):
    with pytest.raises(InvalidJob):
        await welcome.send(*args, **kwargs)
    with pytest.raises(InvalidJob):
        await welcome.with_options(delay=1).send(*args, **kwargs)
    assert await items(welcome.queue) == []


async def test_one_bad_call_of_many_sends_none(welcome, tracked):
    for task in (welcome, tracked):
        with pytest.raises(InvalidJob):
            await task.send_many([(1,), (2, 3, 4)])
        with pytest.raises(InvalidJob, match="expected a tuple"):
            await task.send_many([(1,), "text"])
    assert await items(welcome.queue) == []


async def test_tasks_are_sent_by_name_without_their_code(app):
    job = await app.send("other.task", [1, "a"], {"b": None}, queue="mail", priority="low")
    (item,) = await items(app.queue("mail"), "low")
    assert (item.id, item.task, bytes(item.args), bytes(item.kwargs)) == (
        *(job.id, "other.task", b'[1,"a"]', b'{"b":null}'),
    )
    with pytest.raises(InvalidJob, match="queue"):
        await app.send("unknown.task")
    for args in ("text", 5, None):
        with pytest.raises(InvalidJob):
            await app.send("other.task", args, queue="mail")


async def test_a_task_of_the_program_is_sent_by_name_as_by_its_function(app, welcome, tracked):
    await app.send("mail.welcome", [1])
    with pytest.raises(InvalidJob):
        await app.send("mail.welcome", ["a", "b", "c"])
    job = await app.send("mail.tracked", [1])
    assert (await record(tracked.queue, job.id))["status"] == "queued"


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a\n", "x" * 257, "\ud800", "a\x00", 5, None, b"x"]
)
async def test_names_that_no_task_can_have(app, name):
    with pytest.raises(InvalidJob):
        await app.send(name, queue="mail")
    if name is not None:
        with pytest.raises(InvalidJob):
            app.task(name=name)(lambda: None)


async def test_two_tasks_of_one_name_are_a_mistake(app, welcome):
    with pytest.raises(ConfigError, match=r"mail\.welcome"):
        app.task(name="mail.welcome")(lambda: None)


async def test_a_task_is_named_after_its_module_and_function(app):
    @app.task
    def plain() -> None: ...

    assert plain.name.endswith("test_queue_submit.plain")
    assert plain.queue is app.queue("default")


# ---- options


async def test_what_is_to_be_remembered_travels_with_the_job(welcome):
    sender = welcome.with_options(group="tenant a", max_attempts=2, headers={"trace": "1"})
    await sender.with_options(expires=60).send(1)
    lane = welcome.queue.keyring.lane("tenant a")
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
        {"max_attempts": 10**9},
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
        {"timeout": -1},
        {"timeout": math.nan},
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


# ---- records


async def test_a_record_is_written_with_the_push(tracked):
    job = await tracked.send(5)
    assert await record(tracked.queue, job.id) | {"submitted_at": "…"} == {
        "job_id": job.id,
        "status": "queued",
        "queue": "mail",
        "task": "mail.tracked",
        "max_attempts": "3",
        "max_retries": "2",
        "retry_count": "0",
        "submitted_at": "…",
    }
    (item,) = await items(tracked.queue)
    assert (item.id, item.meta.tracked) == (job.id, True)
    index = await tracked.queue.client.call("ZRANGE", tracked.queue.keyring.jobs("queued"), 0, -1)
    assert index == [job.id.encode()]
    later = await tracked.with_options(delay=60).send(6)
    assert (await record(tracked.queue, later.id))["status"] == "submitted"


async def test_many_calls_have_records_too(tracked):
    jobs = await tracked.send_many([(n,) for n in range(100)])
    found = await items(tracked.queue)
    assert {item.id for item in found} == {job.id for job in jobs}
    assert (await record(tracked.queue, jobs[99].id))["status"] == "queued"


async def test_a_raw_job_keeps_its_own_id_and_gives_fields_to_its_record(app):
    queue = app.queue("rag:ingest:queue", status=True, push="left", status_fields=("rag_id", "n"))
    result = await queue.push({"job_id": "j-1", "rag_id": "r", "n": 5, "secret": "s", "x": None})
    assert result.job_id == "j-1"
    told = await record(queue, "j-1")
    assert (told["rag_id"], told["n"], told["status"]) == ("r", "5", "queued")
    assert not {"secret", "x"} & told.keys()
    (item,) = await items(queue)
    assert (item.id, item.meta.tracked) == ("j-1", True)
    assert json.loads(item.body)["secret"] == "s"
    raw = await queue.push("no object at all")
    (item, _) = await items(queue)
    assert (item.id, item.body) == (raw.job_id, b"no object at all")


async def test_a_job_cannot_overwrite_what_its_record_says(app):
    queue = app.queue("jobs", status=True, status_fields=("status", "job_id", "queue"))
    await queue.push({"job_id": "a", "status": "done", "queue": "other"})
    told = await record(queue, "a")
    assert (told["status"], told["queue"], told["job_id"]) == ("queued", "jobs", "a")


async def test_an_id_of_odd_characters_is_encoded_in_keys_alone(app, tracked):
    job = await tracked.with_options(job_id=ODD_ID).send(1)
    name = tracked.queue.keyring.record_name(ODD_ID)
    assert job.id == ODD_ID
    assert not set(name) & set("/ :{}*")
    assert (await record(tracked.queue, ODD_ID))["job_id"] == ODD_ID
    index = await app.redis.call("ZRANGE", tracked.queue.keyring.jobs("queued"), 0, -1)
    assert index == [name.encode()]
    again = await tracked.with_options(job_id=ODD_ID).send(2)
    assert (again.id, again.created) == (ODD_ID, False)
    assert await job.cancel()
    assert (await job.status()).status == "cancelled"


async def test_two_ids_for_one_raw_job_are_a_mistake(app):
    with pytest.raises(InvalidJob, match="says"):
        await app.queue("jobs").push({"job_id": "a"}, job_id="b")
    result = await app.queue("jobs").push({"n": 1}, job_id="b")
    assert result.job_id == "b"


# ---- unique


async def test_a_unique_key_is_held_by_one_job_until_it_ends(welcome):
    sender = welcome.with_options(unique="daily report")
    first, second = await sender.send(1), await sender.send(2)
    assert (first.created, second.created) == (True, False)
    assert second.id == first.id
    (item,) = await items(welcome.queue)
    assert item.meta.unique == "daily report"
    client, key = welcome.queue.client, welcome.queue.keyring.unique("daily report")
    assert await client.call("GET", key) == first.id.encode()
    assert 6 * 86_400_000 < await client.call("PTTL", key) <= 7 * 86_400_000
    other = await welcome.with_options(unique="other").send(3)
    assert other.created


async def test_a_window_outlives_the_job_so_the_job_does_not_know_of_it(tracked):
    sender = tracked.with_options(unique="w", unique_for=timedelta(seconds=30))
    first, second = await sender.send(1), await sender.send(1)
    assert (second.created, second.id) == (False, first.id)
    (item,) = await items(tracked.queue)
    assert item.meta.unique == ""
    assert await first.cancel()
    assert not (await sender.send(1)).created
    assert "unique" not in await record(tracked.queue, first.id)


async def test_a_cancelled_job_lets_its_unique_key_go(tracked):
    sender = tracked.with_options(unique="u", job_id=ODD_ID)
    job = await sender.send(1)
    assert await job.cancel()
    assert (await tracked.with_options(unique="u").send(1)).created


async def test_a_refused_job_leaves_no_mark(app):
    @app.task(queue="small", name="small.one", status=True)
    def one() -> None: ...

    app.queue("small", max_size=1)
    await one.send()
    with pytest.raises(QueueFull):
        await one.with_options(unique="u", job_id="j").send()
    assert await app.redis.call("EXISTS", one.queue.keyring.unique("u")) == 0
    assert await record(one.queue, "j") == {}


async def test_a_task_can_be_unique_by_its_arguments(app):
    @app.task(queue="mail", name="mail.once", unique=True)
    def once(user: int, *, lang: str = "en", region: str = "eu") -> None: ...

    @app.task(queue="mail", name="mail.by_user", unique=lambda user: f"user {user}")
    def by_user(user: int) -> None: ...

    @app.task(queue="mail", name="mail.single", unique="single")
    def single(user: int) -> None: ...

    first = await once.send(1, lang="a", region="b")
    assert (await once.send(1, region="b", lang="a")).id == first.id
    assert (await once.send(2)).created
    assert [job.created for job in await by_user.send_many([(1,), (2,), (1,)])] == [
        *(True, True, False),
    ]
    assert (await single.send(1)).created
    assert not (await single.send(2)).created


async def test_a_submission_of_unknown_end_is_repeated_until_it_is_known(
    tracked, welcome, monkeypatch
):
    scripts, calls = tracked.queue.client.scripts, []
    submit = scripts.submit_job

    async def lose_the_first_reply(**arguments):
        answer = await submit(**arguments)
        calls.append(list(answer))
        if len(calls) == 1:
            raise OutcomeUnknown("the reply was lost")
        return answer

    monkeypatch.setattr(scripts, "submit_job", lose_the_first_reply)
    job = await tracked.send(1)
    assert (job.created, [answer[0] for answer in calls]) == (True, [1, 2])
    assert [item.id for item in await items(tracked.queue)] == [job.id]
    # Without a record nobody could tell whether it is there: the caller decides.
    calls.clear()
    with pytest.raises(OutcomeUnknown):
        await welcome.with_options(delay=60).send(1)
    assert len(calls) == 1


async def test_a_hundred_parallel_submits_of_one_key_are_one_job(open_queues):
    apps = [await open_queues() for _ in range(4)]
    jobs = await asyncio.gather(
        *(
            apps[n % 4].send("a.task", [n], queue="jobs", idempotency_key="order 7")
            for n in range(100)
        )
    )
    assert {job.id for job in jobs} == {"order 7"}
    assert sum(job.created for job in jobs) == 1
    (item,) = await items(apps[0].queue("jobs"))
    assert item.meta.tracked
    unique = await asyncio.gather(
        *(apps[n % 4].send("a.task", [n], queue="others", unique="u") for n in range(100))
    )
    assert len({job.id for job in unique}) == 1
    assert sum(job.created for job in unique) == 1


async def test_many_jobs_cannot_share_one_id(welcome):
    with pytest.raises(InvalidJob):
        await welcome.with_options(job_id="a").send_many([(1,), (2,)])
    with pytest.raises(InvalidJob):
        await welcome.with_options(idempotency_key="a").send_many([(1,), (2,)])


# ---- losses of full queues


@pytest.mark.parametrize("job_id", ["plain", ODD_ID])
@pytest.mark.parametrize("by", ["push", "submit"])
async def test_a_dropped_job_is_told_in_its_record_and_lets_its_unique_key_go(app, job_id, by):
    queue = app.queue("jobs", max_size=1, overflow="drop_oldest")

    @app.task(queue="jobs", name="jobs.tracked", status=True)
    def tracked() -> None: ...

    @app.task(queue="jobs", name="jobs.plain")
    def plain() -> None: ...

    job = await tracked.with_options(job_id=job_id, unique="ü/1").send()
    await (plain if by == "push" else tracked).send()
    told = await job.status()
    assert (told.status, told.error_type) == ("failed", "Overflow")
    assert await app.redis.call("PTTL", queue.keyring.record(job_id)) > 0
    assert await app.redis.call("EXISTS", queue.keyring.unique("ü/1")) == 0


@pytest.mark.parametrize("by", ["push", "push many", "submit"])
async def test_a_dropped_job_that_is_compressed_is_told_in_its_record_too(app, by):
    queue = app.queue("jobs", max_size=1, overflow="drop_oldest")

    @app.task(queue="jobs", name="jobs.tracked", status=True)
    def tracked(text: str = "") -> None: ...

    @app.task(queue="jobs", name="jobs.plain")
    def plain() -> None: ...

    job = await tracked.with_options(unique="ü/1").send("a" * 5000)
    if by == "push many":
        await plain.send_many([()])
    else:
        await (plain if by == "push" else tracked).send()
    told = await job.status()
    assert (told.status, told.error_type) == ("failed", "Overflow")
    assert await app.redis.call("EXISTS", queue.keyring.unique("ü/1")) == 0


async def test_a_raw_job_that_was_moved_aside_is_told_in_its_record(app):
    queue = app.queue("jobs", max_size=1, overflow="dlq", status=True)
    named = await queue.push({"job_id": ODD_ID})
    await queue.push("text")
    assert (await queue.job(named.job_id).status()).status == "failed"


async def test_what_is_stored_of_many_submissions_is_told_one_by_one(app):
    @app.task(queue="small", status=True)
    def one(n: int) -> None: ...

    app.queue("small", max_size=3)
    with pytest.raises(SendBatchFailed) as failed:
        await one.send_many([(n,) for n in range(5)])
    kinds = [type(outcome) for outcome in failed.value.outcomes]
    assert (kinds.count(str), kinds.count(QueueFull)) == (3, 2)
    assert len(await items(one.queue)) == 3


@pytest.mark.parametrize("broken", ["counters", "state", "delayed", "delayed_bodies"])
async def test_a_key_of_a_wrong_type_is_found_before_a_job_is_there(app, tracked, broken):
    queue = tracked.queue
    await queue.declared()
    await app.redis.call("DEL", getattr(queue.keyring, broken))
    await app.redis.call("SET", getattr(queue.keyring, broken), "not mine")
    delay = 60 if broken.startswith("delayed") else None
    with pytest.raises(CommandRefused):
        await tracked.with_options(delay=delay, unique="u", job_id="j", group="g").send(1)
    assert await items(queue) == []
    assert await record(queue, "j") == {}
    assert await app.redis.call("EXISTS", queue.keyring.unique("u")) == 0


async def test_large_calls_are_compressed_and_the_largest_are_refused(open_queues):
    app = await open_queues(max_job_bytes=3000)

    @app.task(queue="jobs")
    def store(text: str) -> None: ...

    await store.send("a" * 4000)
    (item,) = await items(store.queue)
    assert item.data.startswith(b"Z:")
    assert json.loads(bytes(item.args)) == ["a" * 4000]
    noise = random.Random(4).randbytes(4000).hex()  # noqa: S311
    for sender in (store, store.with_options(delay=5)):
        with pytest.raises(InvalidJob, match="max_job_bytes"):
            await sender.send(noise)
    assert (await store.with_options(job_id="z" * 256).send("a")).id == "z" * 256


async def test_lanes_are_names_and_words_for_priorities_stay_free(welcome):
    await welcome.with_options(group="high").send(1)
    assert await items(welcome.queue, "high") == []
    with pytest.raises((InvalidJob, InvalidName)):
        await welcome.with_options(group="x" * 600).send(1)


async def test_a_deleted_queue_is_registered_again(app, welcome, monkeypatch):
    await welcome.send(1)
    registry = app.redis.keys.queues().registry
    await app.redis.call("SREM", registry, "mail")
    welcome.queue._declared_until = 0.0
    await welcome.send(2)
    assert await app.redis.call("SISMEMBER", registry, "mail") == 1


async def test_limits_changed_by_others_are_left_alone(app):
    queue = app.queue("jobs", limit=5, levels=(6, 3, 1))
    await queue.declared()
    state = queue.keyring.state
    assert await app.redis.call("HMGET", state, "limit", "levels") == [b"5", b"6,3,1"]
    await app.redis.call("HSET", state, "limit", 2)
    queue._declared_until = 0.0
    await queue.declared()
    assert await app.redis.call("HGET", state, "limit") == b"2"


async def test_a_full_server_refuses_new_jobs_whole_and_lets_workers_begin():
    with ServerProcess("valkey") as server:
        async with Penstock(server.url) as app:
            await app.queue("jobs", push="left", max_size=2, overflow="drop_oldest").push("a")
            memory = (await app.redis.call("INFO", "memory")).decode()
            used = int(memory.partition("used_memory:")[2].split()[0])
            await app.redis.call("CONFIG", "SET", "maxmemory", used - 100_000)
            async with Penstock(server.url) as worker:
                assert await worker.queue("jobs", limit=5).declared() == "left"
                queue = worker.queue("jobs")
                for refused in (
                    queue.push("b"),
                    queue.push_many(["b", "c"]),
                    queue.push("b", unique="u", delay=5),
                    worker.send("t", queue="jobs", idempotency_key="k"),
                ):
                    with pytest.raises(OutOfMemory):
                        await refused
                assert await app.redis.call("LRANGE", "jobs", 0, -1) == [b"a"]
                assert await record(queue, "k") == {}
                await app.redis.call("CONFIG", "SET", "maxmemory", 0)
                queue._declared_until = 0.0
                await queue.declared()
                assert await app.redis.call("HGET", queue.keyring.state, "limit") == b"5"


async def _is_there(client, key):
    return await client.call("EXISTS", key) == 1


async def test_a_forgotten_script_is_sent_again(app, welcome):
    await welcome.send(1)
    for node in await app.redis.primaries():
        wire = await node.wire(Role.DEFAULT)
        await wire.call("SCRIPT", "FLUSH")
    await welcome.send(2)
    await welcome.with_options(delay=60).send(3)
    await eventually(lambda: _is_there(app.redis, welcome.queue.keyring.delayed))
    assert len(await items(welcome.queue)) == 2
