"""Systems on one server do not meet; keys of an earlier version are renamed."""

import asyncio
import json

import pytest

from penstock import Penstock, Settings
from penstock.errors import CoordinationError, InvalidItem, JobMissing, PermissionRefused
from penstock.inspector.former_namespace import find_former
from penstock.queues.storage.keys import QueueKeyring, QueueKeys
from penstock.redis.keys.space import KeySpace
from penstock.redis.node import Role
from penstock.runtime.keys import WorkersKeys
from penstock.testing.eventually import eventually

LARGE = "x" * 200_000
"""Stored outside the stream."""


@pytest.fixture
async def open_system(start_server, opened):
    """`await open_system("hsi")` opens applications on a server of their own."""
    server = start_server()

    async def open_one(namespace, url=None):
        app = Penstock(settings=Settings(url=url or server.url, namespace=namespace))
        return await opened.enter_async_context(app)

    open_one.server = server
    return open_one


async def waiting(app, queue):
    return (await app.queues.facts(queue)).waiting


async def test_a_job_of_one_application_is_not_in_the_documents_queue_of_another(open_system):
    documents, other = await open_system(""), await open_system("rag")
    await other.queue("ingest:queue").push({"n": 1}, job_id="j")
    assert await waiting(documents, "rag:ingest:queue") == 0
    assert await waiting(other, "ingest:queue") == 1
    with pytest.raises(JobMissing):
        await documents.queues.job("rag:ingest:queue", "j")


async def test_a_lane_of_one_application_is_not_a_queue_of_another(open_system):
    plain, other = await open_system(""), await open_system("mail")
    await plain.queue("mail").push({"n": 1}, group="bulk")
    assert await waiting(other, "bulk") == 0
    await other.queue("bulk").push({"n": 2})
    assert await waiting(plain, "mail") == 1


async def test_the_access_list_of_the_contract_reaches_no_other_namespace(open_system):
    plain, neighbour = await open_system(""), await open_system("hsi-2")
    for app in (plain, neighbour):
        await app.queue("hsi").push({"n": 1}, group="lane")
        await app.queue("hsi:ingest:queue").push({"n": 1})
    server = open_system.server
    rights = "~hsi::* resetchannels &hsi::* +@all -@admin -@dangerous +info +role"
    server.command("ACL", "SETUSER", "hsi", "on", ">secret", *rights.split())
    app = await open_system("hsi", f"redis://hsi:secret@127.0.0.1:{server.port}")
    await app.queue("mail").push({"n": 1})
    for key in server.command("KEYS", "*"):
        if key.startswith("hsi::"):
            await app.redis.call("TYPE", key)
        else:
            with pytest.raises(PermissionRefused):
                await app.redis.call("TYPE", key)


@pytest.mark.one_server
async def test_a_channel_of_another_namespace_cannot_be_named(app):
    with pytest.raises(InvalidItem, match="'::' ends a namespace"):
        await app.feed("f").publish("a", mirror="rag::security_events")


# ---- names of earlier versions


async def nodes_of(app):
    return [await node.wire(Role.DEFAULT) for node in await app.redis.primaries()]


async def state(app, pattern):
    """Each key that matches, with its type and all that is in it."""
    found = {}
    for wire in await nodes_of(app):
        for key in await wire.call("KEYS", pattern):
            found[key] = await wire.call("DUMP", key)
    return found


async def rename_all(app, old, new):
    for wire in await nodes_of(app):
        for key in await wire.call("KEYS", f"{old}*"):
            assert await wire.call("RENAMENX", key, key.replace(old.encode(), new.encode(), 1))


async def at_work(app):
    """Something of everything, then renamed to what the earlier version called it."""
    name = app.settings.namespace
    await app.topics.create("orders", 2)
    await app.topic("orders").send({"body": LARGE}, key="k")
    await app.queue("mail").push({"n": 1}, job_id="j", unique="u")
    await app.queue("mail").push({"n": 2}, group="bulk")
    await app.queue("rag:ingest:queue").push({"n": 3}, delay=3_600)
    await app.runs.start("nightly")
    await app.window("w", to=app.queue("mail")).add("k", 1)
    await app.limit("l", "5/min").try_acquire()
    await app.feed("f").publish("a", 1)
    await app.cache("c").set("k", 1)
    await app.marks.seen("seen")
    await rename_all(app, f"{name}::", f"{name}:")


async def test_keys_of_the_earlier_version_are_renamed_and_used(app, consume):
    await at_work(app)
    name = app.settings.namespace
    former = await state(app, f"{name}:*")
    assert len(former) > 20
    assert await waiting(app, "mail") == 0
    assert await app.repairs.rename_namespace() == len(former)
    assert await state(app, f"{name}:*") == {
        key.replace(f"{name}:".encode(), f"{name}::".encode(), 1): held
        for key, held in former.items()
    }
    assert await app.repairs.rename_namespace() == 0
    assert await waiting(app, "mail") == 2
    seen = []
    await consume(app.topic("orders"), seen.append)
    await eventually(lambda: seen)
    assert seen == [{"body": LARGE}]


async def test_a_cancelled_job_of_the_earlier_version_frees_its_unique_key(app):
    job = await app.queue("mail", status=True).push({"n": 1}, unique="u")
    keys, name = QueueKeyring.of(app.redis.keys, "mail"), app.settings.namespace
    former = keys.unique("u").replace("::", ":", 1)
    await app.redis.call("HSET", keys.record(job.job_id), "unique", former)
    await rename_all(app, f"{name}::", f"{name}:")
    await app.repairs.rename_namespace()
    assert await app.redis.call("GET", keys.unique("u")) == job.job_id.encode()
    await app.queues.cancel("mail", job.job_id)
    assert await app.redis.call("GET", keys.unique("u")) is None


async def test_keys_that_expire_meanwhile_stop_no_renaming(app):
    await at_work(app)
    name = app.settings.namespace
    former = await state(app, f"{name}:*")
    # What one has renamed is not there any more for the other.
    both = await asyncio.gather(*[app.repairs.rename_namespace() for _ in range(2)])
    assert sum(both) == len(former)
    assert not [key async for key in former_keys(app)]


async def former_keys(app):
    for node in await app.redis.primaries():
        async for _, page in find_former(app.redis, node):
            for key in page:
                yield key


async def test_keys_stay_that_are_of_no_contract_or_of_a_system_without_a_namespace(open_system):
    app, plain = await open_system("hsi"), await open_system("")
    await plain.queue("hsi").push({"n": 1}, group="bulk")
    await plain.queue("hsi:ingest:queue").push({"n": 1}, job_id="j")
    await plain.redis.call("SET", "hsi:session", "of a web application")
    await plain.redis.call("SET", "hsi:a b", "of a web application")
    before = await state(plain, "*")
    assert await app.repairs.rename_namespace() == 0
    assert await state(plain, "*") == before
    await plain.redis.call("RPUSH", "hsi:detection_queue", "{}")
    await plain.queues.delete("hsi")
    assert await app.repairs.rename_namespace() == 1
    assert await waiting(app, "detection_queue") == 1


async def test_nothing_is_renamed_while_a_worker_of_the_earlier_version_lives(app):
    await app.queue("mail").push({"n": 1})
    workers = WorkersKeys.of(app.redis.keys)
    seconds, _ = await app.redis.call("TIME")
    await app.redis.call("ZADD", workers.heartbeats, int(seconds) * 1000, "w1")
    await app.redis.call("HSET", workers.info("w1"), "about", json.dumps({"host": "h"}))
    await app.redis.call("EXPIRE", workers.info("w1"), 60)
    name = app.settings.namespace
    await rename_all(app, f"{name}::", f"{name}:")
    before = await state(app, f"{name}:*")
    with pytest.raises(CoordinationError, match=r"stop the workers .*: w1"):
        await app.repairs.rename_namespace()
    assert await state(app, f"{name}:*") == before


async def test_a_key_whose_new_name_is_taken_stays_and_is_named(app):
    await at_work(app)
    await app.queue("mail").push({"n": 4})
    taken = QueueKeys.of(app.redis.keys, "mail").waiting
    with pytest.raises(CoordinationError, match=rf"not, as their new names are taken.*{taken}"):
        await app.repairs.rename_namespace()
    former = taken.replace("::", ":", 1)
    assert await app.redis.call("LLEN", former) == 1
    assert await app.redis.call("LLEN", taken) == 1


@pytest.mark.one_server
async def test_the_doctor_warns_of_names_of_the_earlier_version(app, open_shell, place):
    shell = open_shell(PENSTOCK_URL=place.url)
    former = f"{app.settings.namespace}:detection_queue"
    assert not [one for one in (await app.doctor()).findings if one.check == "namespace"]
    await app.redis.call("RPUSH", former, "{}")
    [found] = [one for one in (await app.doctor()).findings if one.check == "namespace"]
    assert found.level == "warning"
    assert former in found.message
    shell.ok("repair", "--rename-namespace")
    assert await waiting(app, "detection_queue") == 1
    assert not [one for one in (await app.doctor()).findings if one.check == "namespace"]


async def test_a_system_without_a_namespace_has_nothing_to_rename(open_system):
    app = await open_system("")
    await app.queue("mail").push({"n": 1})
    before = await state(app, "*")
    assert KeySpace().prefix == ""
    assert await app.repairs.rename_namespace() == 0
    assert await state(app, "*") == before
