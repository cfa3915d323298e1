"""Queues handled past their API: one script at a time, lists read as they stand."""

from __future__ import annotations

import msgspec
from tests.kit.scripts import scripts_of

from penstock.queues.dead_letters.letter import build_letter
from penstock.queues.queue import Queue
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.stored_job import Item, Meta, read_item, task_item
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings

CODEC = Codec(CodecSettings())
DAY_MS = 86_400_000


def job(id_: str, meta: Meta | None = None, task: str = "mail.send") -> bytes:
    """A call as it stands on a list."""
    return task_item(CODEC, id=id_, task=task, args=b"[]", kwargs=b"{}", meta=meta)


def dead(id_: str) -> bytes:
    """The dead letter of such a call."""
    return build_letter(
        read_item(job(id_), CODEC), queue="mail", lane="", reason="exhausted", attempts=3,
        max_attempts=3, failures=[], now_ms=1,
    )  # fmt: skip


async def push(
    client: Client, keys: QueueKeyring, *items: bytes, lane: str = "", side: str = "right"
) -> object:
    """Add jobs without a record."""
    return await scripts_of(client).push_jobs(
        keys=keys,
        lane=lane,
        side=side,
        policy="reject",
        max_size=0,
        max_bytes=0,
        max_overflow=0,
        max_lanes=0,
        items=items,
    )


async def submit(
    client: Client,
    keys: QueueKeyring,
    id_: str,
    *,
    lane: str = "",
    unique: str = "",
    wait: int | str = "",
    meta: Meta | None = None,
    **fields: str,
) -> None:
    """Add one job with a record, now or after `wait` milliseconds."""
    meta = meta or Meta(tracked=True, unique=unique)
    name, own = keys.record_name(id_), msgspec.json.encode(["job_id", id_])
    head = f"{name} {wait or '-'} {keys.unique(unique) if unique else '-'} 0 - 0 0 {len(own)}\n"
    shared = [part for item in {"task": "mail.send", **fields}.items() for part in item]
    reply = await scripts_of(client).submit_jobs(
        keys=keys,
        lane=lane,
        side="right",
        policy="reject",
        max_size=0,
        max_bytes=0,
        max_overflow=0,
        max_lanes=0,
        max_delayed=0,
        fields=msgspec.json.encode(shared),
        jobs=[head.encode() + own + job(id_, meta)],
    )
    assert reply[3] == 1


async def join(client: Client, keys: QueueKeyring, worker: str = "w1") -> None:
    await scripts_of(client).join_queue(keys=keys, worker=worker)


async def claim(
    client: Client, keys: QueueKeyring, most: int = 100, *, worker: str = "w1", first: int = 1
) -> dict[str, list[str]]:
    """Ids that a claim gets, by lane."""
    reply = await scripts_of(client).claim_jobs(
        keys=keys, worker=worker, first=first, most=most, done=[]
    )
    taken: dict[str, list[str]] = {}
    for lane, items in zip(reply.lanes[::2], reply.lanes[1::2], strict=True):
        taken.setdefault(lane.decode(), []).extend(read_item(item, CODEC).id for item in items)
    return taken


async def ids(client: Client, key: str) -> list[str]:
    """Ids of the jobs on a list."""
    return [read_item(data, CODEC).id for data in await client.call("LRANGE", key, 0, -1)]


async def everything(client: Client, keys: QueueKeyring) -> list[bytes | None]:
    """All that is stored of a queue, to see that nothing was written."""
    places = [
        *(keys.waiting, keys.state, keys.counters, keys.overflow, keys.dead_letters, keys.ring),
        *(keys.parked, keys.weights, keys.delayed, keys.delayed_bodies, keys.workers),
        *(keys.dead_workers, keys.audit),
    ]
    return [await client.call("DUMP", place) for place in places]


async def items(queue: Queue, lane: str = "") -> list[Item]:
    """The jobs that wait in a lane."""
    stored = await queue.client.call("LRANGE", queue.keyring.list_of(lane), 0, -1)
    return [read_item(data, queue.codec) for data in stored]


async def delayed(queue: Queue) -> list[str]:
    """Ids of the jobs that wait for their time, the soonest first."""
    members = await queue.client.call("ZRANGE", queue.keyring.delayed, 0, -1)
    return [member.decode() for member in members]
