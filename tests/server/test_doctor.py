"""`doctor`: each fault that would break a promise is found, and the fix it prints mends it."""

import pytest

from penstock import Penstock, Settings
from penstock.redis.doctor import _judge_version


async def diagnose(server, **settings):
    async with Penstock(settings=Settings(url=server.url, **settings)) as app:
        return await app.doctor()


def of(diagnosis, check):
    return [finding for finding in diagnosis.findings if finding.check == check]


async def test_a_server_set_up_well_is_sound(start_server):
    diagnosis = await diagnose(start_server())
    assert diagnosis.sound
    assert {finding.level for finding in diagnosis.findings} == {"ok"}


async def test_the_embedded_server_is_sound(tmp_path):
    async with Penstock(settings=Settings(home=str(tmp_path / "home"))) as app:
        diagnosis = await app.doctor()
    assert diagnosis.sound
    assert {finding.level for finding in diagnosis.findings} == {"ok"}


@pytest.mark.parametrize(
    ("policy", "level"),
    [("allkeys-lru", "failure"), ("allkeys-random", "failure"), ("volatile-lru", "warning")],
)
async def test_an_evicting_server_is_found_and_the_fix_mends_it(start_server, policy, level):
    server = start_server()
    server.command("CONFIG", "SET", "maxmemory-policy", policy)
    diagnosis = await diagnose(server)
    [finding] = of(diagnosis, "eviction")
    assert finding.level == level
    assert policy in finding.message
    assert diagnosis.sound is (level != "failure")
    server.command(*finding.fix.split())
    assert of(await diagnose(server), "eviction")[0].level == "ok"


async def test_a_server_that_persists_nothing_is_found_and_the_fix_mends_it(start_server):
    server = start_server("valkey", "--appendonly", "no")
    diagnosis = await diagnose(server)
    [finding] = of(diagnosis, "persistence")
    assert not diagnosis.sound
    assert finding.level == "failure"
    server.command(*finding.fix.split())
    assert (await diagnose(server)).sound


async def test_snapshots_alone_are_a_warning(start_server):
    server = start_server("valkey", "--appendonly", "no", "--save", "60 1000")
    diagnosis = await diagnose(server)
    assert of(diagnosis, "persistence")[0].level == "warning"
    assert diagnosis.sound


async def test_low_head_room_is_found_and_the_fix_mends_it(start_server):
    server = start_server()
    used = int(server.info("memory")["used_memory"])
    server.command("CONFIG", "SET", "maxmemory", str(int(used * 1.2)))
    diagnosis = await diagnose(server)
    [finding] = of(diagnosis, "memory")
    assert not diagnosis.sound
    server.command(*finding.fix.split())
    assert of(await diagnose(server), "memory")[0].level == "ok"


async def test_orphaned_keys_are_found_and_named(start_server):
    server = start_server()
    server.command("SET", "shop:dedupe:0123", "a mark without a TTL")
    server.command("SET", "shop:streaming:mq:topics:registry", "a string where a set belongs")
    server.command("SET", "somebody:elses", "key")
    server.command("SET", "session", "a foreign key that could be a queue by its name")
    diagnosis = await diagnose(server, namespace="shop")
    assert not diagnosis.sound
    [finding] = of(diagnosis, "keys")
    assert "2 orphaned keys" in finding.message
    assert "shop:dedupe:0123 (no TTL)" in finding.message
    assert "registry" in finding.message
    assert "session" not in finding.message
    server.command("UNLINK", "shop:dedupe:0123", "shop:streaming:mq:topics:registry")
    assert (await diagnose(server, namespace="shop")).sound


async def test_foreign_keys_are_nobodys_orphans(start_server):
    server = start_server()
    server.command("SET", "session", "x")
    server.command("HSET", "user:17", "name", "x")
    assert (await diagnose(server)).sound


async def test_an_unhealthy_server_is_unsound(start_server):
    primary = start_server()
    replica = start_server("valkey", "--replicaof", "127.0.0.1", str(primary.port))
    diagnosis = await diagnose(replica)
    assert not diagnosis.sound
    assert "ReadOnlyReplica" in of(diagnosis, "health")[0].message


async def test_every_primary_of_a_cluster_is_judged(cluster):
    async with Penstock(settings=Settings(url=cluster.url)) as app:
        diagnosis = await app.doctor()
    assert len({finding.endpoint for finding in of(diagnosis, "version")}) == 3


@pytest.mark.parametrize(
    ("server", "version", "level"),
    [
        ("redis", "5.0.14", "failure"),
        ("redis", "6.0.20", "failure"),
        ("redis", "6.2.14", "warning"),
        ("redis", "6.2.20", "ok"),
        ("redis", "7.0.15", "warning"),
        ("redis", "7.2.10", "warning"),
        ("redis", "7.4.6", "ok"),
        ("redis", "8.4.0", "ok"),
        ("valkey", "7.2.5", "warning"),
        ("valkey", "8.1.4", "ok"),
        ("valkey", "9.1.2", "ok"),
    ],
)
def test_versions_are_judged_by_their_series(server, version, level):
    info = {"server_name": server, "redis_version": version}
    if server == "valkey":
        info |= {"redis_version": "7.2.4", "valkey_version": version}
    [finding] = _judge_version(info)
    assert finding.level == level
