"""`health()`: healthy only when a script just wrote, and an answer in time whatever happens."""

import time

import pytest
from tests.kit.patience import patient

from penstock import Penstock, Settings
from penstock.settings import HealthSettings, TimeoutSettings
from penstock.testing.eventually import eventually
from penstock.testing.servers import free_port


def settings(url, **groups):
    return Settings(url=url, **groups)


async def health_of(url, **groups):
    app = Penstock(settings=settings(url, **groups))
    try:
        return await app.health()
    finally:
        await app.close()


async def test_a_server_that_takes_writes_is_healthy(any_server):
    found = await health_of(any_server.url)
    assert found.status == "healthy"
    assert found.healthy
    assert found.reasons == []
    assert found.connected
    [node] = found.nodes
    assert node.version == ".".join(map(str, any_server.binary.version))
    assert found.redis_version == node.version
    assert node.role == "master"
    assert node.writable
    assert node.aof_enabled
    assert node.latency_ms is not None
    assert node.latency_ms < 1000
    assert found.connections.success_rate == 1.0


async def test_the_probe_leaves_nothing_without_a_ttl(valkey_server, namespace):
    await health_of(valkey_server.url, namespace=namespace)
    keys = valkey_server.command("KEYS", f"{namespace}::*")
    assert len(keys) == 1
    assert 0 < valkey_server.command("PTTL", keys[0]) <= 60_000


async def test_a_read_only_replica_is_never_healthy(start_server):
    primary = start_server()
    replica = start_server("valkey", "--replicaof", "127.0.0.1", str(primary.port))
    found = await health_of(replica.url)
    assert found.status == "unhealthy"
    assert not found.nodes[0].writable
    assert "ReadOnlyReplica" in found.reasons[0]


async def test_a_loading_server_is_never_healthy(start_server):
    slow = ("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")
    server = start_server("valkey", *slow)
    server.command("DEBUG", "POPULATE", "4000", "key", "100")
    server.command("BGREWRITEAOF")
    await eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0")
    server.stop()
    server.start(wait_loaded=False)
    found = await health_of(server.url)
    assert found.status == "unhealthy"
    assert "StillLoading" in found.reasons[0]
    server.kill()


@pytest.mark.parametrize("binary", ["valkey", "redis7", "redis62"])
async def test_a_full_server_is_never_healthy(start_server, binary):
    server = start_server(binary)
    server.command("CONFIG", "SET", "maxmemory", "1")
    found = await health_of(server.url)
    assert found.status == "unhealthy"
    assert "OutOfMemory" in found.reasons[0]
    server.command("CONFIG", "SET", "maxmemory", "0")
    assert (await health_of(server.url)).healthy


async def test_a_nearly_full_server_is_degraded(start_server):
    server = start_server()
    used = int(server.info("memory")["used_memory"])
    server.command("CONFIG", "SET", "maxmemory", str(used * 2))
    found = await health_of(server.url, health=HealthSettings(memory_ratio=0.3))
    assert found.status == "degraded"
    assert not found.healthy
    assert "memory is" in found.reasons[0]


async def test_a_frozen_server_gets_its_answer_within_the_time_limit(start_server):
    server = start_server()
    app = Penstock(settings=settings(server.url, health=HealthSettings(timeout_s=0.3)))
    async with app:
        server.pause()
        began = time.monotonic()
        found = await app.health()
        assert time.monotonic() - began < patient(4)
        assert found.status == "unhealthy"
        assert "within 0.3 s" in found.reasons[0]
        server.resume()
        assert (await app.health()).healthy


async def test_nobody_there_is_an_answer_not_an_exception():
    found = await health_of(f"redis://127.0.0.1:{free_port()}")
    assert found.status == "unhealthy"
    assert not found.connected
    assert "Unreachable" in found.reasons[0]
    assert found.connections.failures >= 1
    assert found.connections.consecutive_failures >= 1
    assert found.connections.success_rate < 1


async def test_a_wrong_password_is_told_and_not_shown(start_server):
    server = start_server(password="right-word")
    found = await health_of(f"redis://:canary-4711@127.0.0.1:{server.port}")
    assert found.status == "unhealthy"
    assert "AuthenticationFailed" in found.reasons[0]
    assert "canary" not in str(found)


async def test_counters_remember_an_outage_and_its_end(start_server):
    server = start_server()
    timeouts = TimeoutSettings(connect_s=0.5, command_s=0.5)
    async with Penstock(settings=settings(server.url, timeouts=timeouts)) as app:
        server.kill()
        for _ in range(2):
            assert not (await app.health()).healthy
        failed = app.redis.counters.consecutive_failures
        assert failed >= 1
        server.start()

        async def well():
            return (await app.health()).healthy

        await eventually(well)
        assert app.redis.counters.consecutive_failures == 0
        assert app.redis.counters.failures >= failed
