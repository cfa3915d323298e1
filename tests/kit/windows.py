"""Windows as tests use them, and what has come of them, read with plain commands."""

from __future__ import annotations

import json

from penstock.coordination.windows.keys import BatchKeys
from penstock.coordination.windows.window import Window
from penstock.topics.storage.keys import PartitionKeys

LONG = {"max_age": 3600, "idle": 3600}


def window(app, name="gather", queue="batches", **options):
    return Window(app.redis, app.codec, name, to=app.queue(queue), **{**LONG, **options})


async def jobs_in(app, queue="batches", lane=""):
    key = app.queue(queue).keyring.list_of(lane)
    return [json.loads(job) for job in await app.redis.call("LRANGE", key, 0, -1)]


async def messages_in(app, topic, partition):
    entries = await app.redis.call(
        "XRANGE", PartitionKeys.of(app.redis.keys, topic, partition).stream, "-", "+"
    )
    fields = [dict(zip(entry[1][::2], entry[1][1::2], strict=True)) for entry in entries]
    batches = [one for one in fields if b"payload" in one]  # no marks of a topic that has grown
    return [(one[b"key"].decode(), json.loads(one[b"payload"])) for one in batches]


async def events_of(place, app):
    entries = await app.redis.call("XRANGE", place.index.events, "-", "+")
    found = []
    for id_, fields in entries:
        told = dict(zip(fields[::2], fields[1::2], strict=True))
        found.append((id_.decode(), told[b"type"].decode(), json.loads(told[b"data"])))
    return found


async def is_gone(app, batch_id):
    """Whether nothing is left of a batch."""
    keys = BatchKeys.of(app.redis.keys, "batches", batch_id)
    names = (keys.key, keys.items, keys.started_at, keys.last_activity, keys.bytes)
    return await app.redis.call("EXISTS", *names) == 0
