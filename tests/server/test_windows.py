"""Windows: items are gathered by key, and each batch goes on exactly once."""

from __future__ import annotations

import json

import pytest

from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.window import Window
from penstock.testing.eventually import eventually


async def jobs_in(app, queue="batches", lane=""):
    key = app.queue(queue).keyring.list_of(lane)
    return [json.loads(job) for job in await app.redis.call("LRANGE", key, 0, -1)]


def window(app, name="gather", queue="batches", **options):
    return Window(app.redis, app.codec, name, to=app.queue(queue), **options)


async def test_items_become_one_job_when_their_batch_is_due(app):
    gather = window(app, max_age=0.3, idle=10)
    first = await gather.add("a", {"n": 1})
    second = await gather.add("a", [2, "zwei"])
    assert first.batch_id == second.batch_id
    assert (first.size, second.size) == (1, 2)
    async with WindowCloser(app.redis, app.codec, [gather]):
        [job] = await eventually(lambda: jobs_in(app), 3)
    assert job["batch_id"] == first.batch_id
    assert job["key"] == "a"
    assert job["items"] == [{"n": 1}, [2, "zwei"]]
    assert (job["count"], job["reason"]) == (2, "max_age")
    assert 300 <= job["ended_ms"] - job["started_ms"] < 1300
    assert await gather.open_batches() == []
