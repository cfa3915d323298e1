"""`doctor`: each fault that would break a promise is found, and the fix it prints mends it."""

import pytest

from penstock import Penstock, Settings
from penstock.inspector.doctor import _judge_version
from penstock.inspector.growth import MANY
from penstock.settings import EmbeddedSettings, TableSettings
from penstock.testing.servers import free_port
from penstock.topics.storage.keys import PartitionKeys, TopicKeys


async def diagnose(server, **settings):
    async with Penstock(settings=Settings(url=server.url, **settings)) as app:
        return await app.doctor()


def of(diagnosis, check):
    return [finding for finding in diagnosis.findings if finding.check == check]


async def test_a_server_set_up_well_is_sound(start_server):
    server = start_server(password="s3cret")
    diagnosis = await diagnose(server)
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
    server.command("SET", "shop::dedupe:0123", "a mark without a TTL")
    server.command("SET", "shop::streaming:mq:topics:registry", "a string where a set belongs")
    server.command("SET", "somebody:elses", "key")
    server.command("SET", "session", "a foreign key that could be a queue by its name")
    diagnosis = await diagnose(server, namespace="shop")
    assert not diagnosis.sound
    [finding] = of(diagnosis, "keys")
    assert "2 orphaned keys" in finding.message
    assert "shop::dedupe:0123 (no TTL)" in finding.message
    assert "registry" in finding.message
    assert "session" not in finding.message
    server.command("UNLINK", "shop::dedupe:0123", "shop::streaming:mq:topics:registry")
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


async def test_what_grows_without_a_bound_is_named_and_the_fix_bounds_it(start_server, open_shell):
    server = start_server()
    shell = open_shell(namespace="", PENSTOCK_URL=server.url)
    stream = ("XADD", "{}", "*", "payload", "1")
    async with Penstock(settings=Settings(url=server.url)) as app:
        for name in ("unread", "left", "refused", "fine"):
            await app.topic(name).metadata()
        keys = app.redis.keys
        streams = {one: PartitionKeys.of(keys, one, 0).stream for one in ("unread", "left", "fine")}
        streams["refused"] = TopicKeys.of(keys, "refused").dlq
        for key in streams.values():
            await app.redis.pipeline([(*stream[:1], key, *stream[2:])] * (MANY + 1))
        await app.redis.call("XGROUP", "CREATE", streams["left"], "gone", "0")
        for name in ("left", "fine"):
            await app.redis.call("XGROUP", "CREATE", streams[name], "past", "$")
        await app.queue("mail", max_size=0).declared()
        await app.redis.call("RPUSH", "dlq:mail", *["{}"] * (MANY + 1))
        findings = of(await app.doctor(), "growth")
        assert {finding.level for finding in findings} == {"warning"}
        told = {finding.message.split(" has ")[0] for finding in findings}
        assert told == {
            "topic unread", "group gone of topic left", "topic refused", "queue mail"
        }  # fmt: skip
        for finding in findings:
            name, *words = finding.fix.replace("30d", "0s").split()
            assert name == "penstock"
            shell.ok(*words, *(["--yes"] if words[0] in {"dlq", "group"} else []))
        [fine] = of(await app.doctor(), "growth")
        assert fine.level == "ok"


async def test_a_window_with_very_many_open_batches_is_named(start_server):
    server = start_server()
    async with Penstock(settings=Settings(url=server.url)) as app:
        window = app.window("orders", to=app.queue("batches"))
        await window.add("key", 1)
        assert {one.level for one in of(await app.doctor(), "growth")} == {"ok"}
        [place] = await window.target.stores()
        members = [part for number in range(MANY) for part in (2**42, f"key-{number}")]
        await app.redis.call("ZADD", place.index.due, *members)
        [finding] = of(await app.doctor(), "growth")
        assert "window orders has 10,001 open batches" in finding.message
        assert finding.fix == "penstock window close orders --all"


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


async def test_a_database_that_others_on_the_way_could_read_is_a_warning(start_server):
    tables = TableSettings(url="postgresql://ann:secret@db.invalid/x")
    diagnosis = await diagnose(start_server(), tables=tables)
    [finding] = of(diagnosis, "stores")
    assert (finding.level, diagnosis.sound) == ("warning", True)
    assert "db.invalid" in finding.message
    assert "sslmode=verify-full" in finding.fix
    assert "secret" not in str(finding)


async def test_a_port_without_a_password_is_a_warning_also_to_who_comes_by_the_socket(start_server):
    server = start_server()
    async with Penstock(settings=Settings(url=f"unix://{server.socket_path}")) as app:
        diagnosis = await app.doctor()
    [access] = of(diagnosis, "access")
    assert (access.level, diagnosis.sound) == ("warning", True)
    assert f"TCP port {server.port} has no password" in access.message


async def test_the_port_of_the_embedded_server_has_a_password(tmp_path):
    embedded = EmbeddedSettings(port=free_port(), linger_s=0.1)
    settings = Settings(home=str(tmp_path / "home"), embedded=embedded)
    async with Penstock(settings=settings) as app:
        assert of(await app.doctor(), "access") == []
