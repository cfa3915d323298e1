"""Heartbeats: who is at work, as the server knows it."""

import asyncio
import os
import subprocess
import sys

import pytest
from tests.kit.lifecycle import check_lifecycle
from tests.kit.patience import patient

from penstock.errors import CommandRefused, OutOfMemory
from penstock.inspector.workers import list_workers
from penstock.redis.client import Client
from penstock.runtime.heartbeat import Heartbeat
from penstock.runtime.keys import WorkersKeys
from penstock.runtime.service import READY, Readiness
from penstock.runtime.supervised_process import SupervisedProcess
from penstock.settings import Settings, WorkerSettings
from penstock.testing.eventually import eventually
from penstock.testing.processes import is_alive

QUICK = WorkerSettings(heartbeat_s=0.1, heartbeat_ttl_s=0.5)


@pytest.fixture
async def client(any_server, namespace):
    settings = Settings(url=any_server.url, namespace=namespace, worker=QUICK)
    async with Client(settings) as client:
        yield client


def start_program(*command, **environ):
    return subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def start_worker(server, namespace):
    return start_program(
        "-m",
        "penstock",
        "worker",
        PENSTOCK_URL=server.url,
        PENSTOCK_NAMESPACE=namespace,
        PENSTOCK_WORKER_HEARTBEAT_S="0.1",
        PENSTOCK_WORKER_HEARTBEAT_TTL_S="0.5",
    )


async def the_only_worker(client):
    views = await list_workers(client)
    return views[0] if len(views) == 1 else None


async def test_a_worker_is_listed_while_it_beats_and_gone_when_it_leaves(client):
    assert await list_workers(client) == []
    async with Heartbeat(client, lambda: READY) as heartbeat:
        view = await eventually(lambda: the_only_worker(client))
        assert view.id == heartbeat.worker_id
        assert view.alive
        assert view.about.ready
        assert view.about.pid == os.getpid()
        assert view.silent_ms < 4_000
    assert await list_workers(client) == []


async def test_a_worker_says_why_it_is_not_ready(client):
    async with Heartbeat(client, lambda: Readiness(("loop orders hangs",))):
        view = await eventually(lambda: the_only_worker(client))
        assert view.alive
        assert not view.about.ready
        assert view.about.reasons == ["loop orders hangs"]


async def test_the_liveliest_worker_comes_first(client):
    async with Heartbeat(client, lambda: READY) as first:
        await eventually(lambda: the_only_worker(client))
        async with Heartbeat(client, lambda: READY) as second:

            async def both():
                views = await list_workers(client)
                return len(views) == 2 and views

            views = await eventually(both)
            assert {view.id for view in views} == {first.worker_id, second.worker_id}
            assert views[0].silent_ms <= views[1].silent_ms


async def test_a_killed_worker_is_listed_dead_after_its_time(any_server, namespace, client):
    worker = start_worker(any_server, namespace)
    view = await eventually(lambda: the_only_worker(client))
    assert view.about.pid == worker.pid
    worker.kill()
    worker.communicate()

    async def dead():
        view = await the_only_worker(client)
        return view is not None and not view.alive and view

    view = await eventually(dead)
    assert view.about is None
    assert view.silent_ms >= 400


async def test_a_worker_that_ends_in_good_order_leaves_the_list(any_server, namespace, client):
    worker = start_worker(any_server, namespace)
    await eventually(lambda: the_only_worker(client))
    worker.terminate()
    await asyncio.to_thread(worker.communicate, timeout=10)
    assert worker.returncode == 0
    assert await list_workers(client) == []


@pytest.mark.parametrize("binary", ["valkey", "redis7"])
async def test_a_full_server_still_takes_heartbeats(start_server, binary):
    server = start_server(binary)
    async with Client(Settings(url=server.url, worker=QUICK)) as client:
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(OutOfMemory):
            await client.call("SET", "key", "value")
        async with Heartbeat(client, lambda: READY) as heartbeat:
            view = await eventually(lambda: the_only_worker(client))
            assert view.alive
            beats = heartbeat.rounds
            await eventually(lambda: heartbeat.rounds > beats + 3)
            assert heartbeat.failures == 0
        assert await list_workers(client) == []


async def test_a_full_redis_before_7_refuses_them_and_the_worker_says_so(start_server):
    server = start_server("redis62")
    async with Client(Settings(url=server.url, worker=QUICK)) as client:
        server.command("CONFIG", "SET", "maxmemory", "1")
        async with Heartbeat(client, lambda: READY) as heartbeat:
            await eventually(heartbeat.trouble)
            assert "OutOfMemory" in heartbeat.trouble()
            assert await list_workers(client) == []
            server.command("CONFIG", "SET", "maxmemory", "0")
            await eventually(lambda: the_only_worker(client))


async def test_who_speaks_otherwise_is_alive_all_the_same(client):
    keys = WorkersKeys.of(client.keys)
    seconds, _ = await client.call("TIME")
    await client.call("ZADD", keys.heartbeats, int(seconds) * 1000, "stranger")
    await client.call("HSET", keys.info("stranger"), "about", b'{"a": "newer"')
    [view] = await list_workers(client)
    assert view.alive
    assert view.about is None
    await client.call("DEL", keys.heartbeats, keys.info("stranger"))


async def test_a_list_that_cannot_be_read_is_not_an_empty_one(client):
    heartbeats = WorkersKeys.of(client.keys).heartbeats
    await client.call("SET", heartbeats, "a string")
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await list_workers(client)
    await client.call("DEL", heartbeats)


async def test_a_heartbeat_keeps_the_contract_of_services(valkey_server, namespace):
    settings = Settings(url=valkey_server.url, namespace=namespace, worker=QUICK)
    async with Client(settings) as client:
        await check_lifecycle(lambda: Heartbeat(client, lambda: READY), within_s=20)


async def test_leaving_a_server_that_is_gone_takes_no_time_and_is_no_failure(start_server):
    server = start_server()
    async with Client(Settings(url=server.url, worker=QUICK)) as client:
        heartbeat = Heartbeat(client, lambda: READY)
        await heartbeat.start()
        await eventually(lambda: the_only_worker(client))
        server.pause()
        async with asyncio.timeout(patient(8)):
            await heartbeat.stop()
        server.resume()


# The child process that `penstock up` keeps


def child(code, environ=os.environ):
    return SupervisedProcess("child", [sys.executable, "-c", code], environ)


WAITING = "import sys; sys.stdin.read()"


async def test_a_child_that_dies_is_started_again():
    service = child(WAITING)
    async with service:
        first = await eventually(lambda: service.pid)
        assert service.trouble() is None
        os.kill(first, 9)
        second = await eventually(lambda: service.pid not in {None, first} and service.pid)
        assert second != first
    assert not is_alive(second)
    assert service.trouble() is not None


async def test_a_child_ends_when_its_parent_is_gone(tmp_path):
    """The far end of its standard input closes with the parent, however that ends."""
    parent = (
        "import asyncio, sys\n"
        "from penstock.runtime.supervised_process import SupervisedProcess\n"
        f"service = SupervisedProcess('child', [sys.executable, '-c', {WAITING!r}], None)\n"
        "async def main():\n"
        "    await service.start()\n"
        "    while not service.pid: await asyncio.sleep(0.01)\n"
        "    print(service.pid, flush=True)\n"
        "    await service.wait()\n"
        "asyncio.run(main())\n"
    )
    process = start_program("-c", parent)
    pid = int(await asyncio.to_thread(process.stdout.readline))
    process.kill()
    process.communicate()
    await eventually(lambda: not is_alive(pid))


async def test_a_child_that_cannot_be_started_is_tried_again(tmp_path, caplog):
    program = tmp_path / "program"
    service = SupervisedProcess("child", [str(program)], os.environ)
    async with service:
        await eventually(lambda: "could not be started" in caplog.text)
        program.write_text(f"#!{sys.executable}\n{WAITING}")
        program.chmod(0o700)
        await eventually(lambda: service.pid)


async def test_a_cancelled_child_is_killed():
    service = child("import signal; signal.signal(15, signal.SIG_IGN)\n" + WAITING)
    task = asyncio.create_task(service.serve())
    pid = await eventually(lambda: service.pid)
    task.cancel()
    await asyncio.wait([task])
    assert not is_alive(pid)


async def test_a_child_keeps_the_contract_of_services():
    await check_lifecycle(lambda: child(WAITING), within_s=30)
