"""Sending calls of tasks: what travels, what is refused, and what the server may do meanwhile."""

import json
import math
import random
from types import MappingProxyType
from typing import NamedTuple

import pytest
from tests.kit.queue_scripts import items
from tests.kit.workplace import record

from penstock import Penstock
from penstock.errors import CommandRefused, ConfigError, InvalidJob, InvalidName, OutOfMemory
from penstock.queues.options import QueueOptions
from penstock.queues.storage.keys import QueuesKeys
from penstock.queues.storage.stored_job import id_ms
from penstock.redis import Role
from penstock.testing.eventually import eventually
from penstock.testing.servers import ServerProcess


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


class Arguments(NamedTuple):
    user_id: int


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
        with pytest.raises(InvalidJob, match=r"task\.call\(3, lang='fr'\)"):
            await task.send_many([(1,), ((3,), {"lang": "fr"})])
    assert await items(welcome.queue) == []


async def test_any_tuple_and_any_mapping_is_a_call(welcome):
    await welcome.send_many([Arguments(1), MappingProxyType({"user_id": 2})])
    first, second = await items(welcome.queue)
    assert (bytes(first.args), bytes(second.kwargs)) == (b"[1]", b'{"user_id":2}')


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


# ---- queues and servers in odd states


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
    registry = QueuesKeys.of(app.redis.keys).registry
    await app.redis.call("SREM", registry, "mail")
    welcome.queue.declared_until = 0.0
    await welcome.send(2)
    assert await app.redis.call("SISMEMBER", registry, "mail") == 1


async def test_limits_changed_by_others_are_left_alone(app):
    queue = app.queue("jobs", limit=5, levels=(6, 3, 1))
    await queue.declared()
    state = queue.keyring.state
    assert await app.redis.call("HMGET", state, "limit", "levels") == [b"5", b"6,3,1"]
    await app.redis.call("HSET", state, "limit", 2)
    queue.declared_until = 0.0
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
                queue.declared_until = 0.0
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
