"""The embedded server's memory has a limit; when it is full, work can still be done."""

import asyncio
import secrets

import pytest

from penstock import Penstock, Settings
from penstock.errors import OutOfMemory
from penstock.processes.machine import memory_bytes
from penstock.redis.embedded import server as embedding
from penstock.settings import EmbeddedSettings
from penstock.testing.eventually import eventually
from penstock.testing.resp import RespClient

MB = 1024 * 1024


def max_memory(embedded):
    embedded.attach()
    with RespClient(embedded.socket) as client:
        return int(client.call("CONFIG", "GET", "maxmemory")[1])


def test_by_default_it_takes_half_of_the_memory_at_most(embed):
    assert max_memory(embed()) == memory_bytes() // 2


@pytest.mark.parametrize(
    ("setting", "limit", "expected"),
    [
        ("25%", 1024 * MB, 256 * MB),
        ("50%", 100 * MB, 64 * MB),
        ("100mb", 1024 * MB, 100 * MB),
        ("0", 1024 * MB, 0),
    ],
)
def test_a_share_is_one_of_what_there_is(embed, monkeypatch, setting, limit, expected):
    monkeypatch.setattr(embedding, "memory_bytes", lambda: limit)
    assert max_memory(embed(maxmemory=setting)) == expected


async def test_a_full_server_refuses_jobs_and_still_runs_those_it_has(home):
    settings = Settings(home=str(home), embedded=EmbeddedSettings(linger_s=0.1, maxmemory="8mb"))
    done = []
    async with Penstock(settings=settings) as app:

        @app.task()
        async def carry(text):
            done.append(len(text))

        sent = 0

        async def fill():
            nonlocal sent
            while True:
                await carry.send(secrets.token_hex(100_000))
                sent += 1

        with pytest.raises(OutOfMemory):
            await fill()
        health = await app.health()
        assert (health.healthy, health.nodes[0].max_memory) == (False, 8 * MB)
        worker = asyncio.create_task(app.worker().run())
        await eventually(lambda: len(done) == sent, what="the jobs")
        await carry.send("there is room again")
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
