"""Reading jobs that workers have claimed, and waiting until a queue is idle."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.delivery.queries import ask, text
from penstock.queues.admin.views import ClaimView, show_job
from penstock.queues.storage.foreign_keys import claims_of
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.lanes import FIXED, fair_lanes, shown_lane
from penstock.queues.storage.pages import read_jobs
from penstock.queues.storage.stored_job import read_item
from penstock.queues.worker.claimed_jobs import claim_number
from penstock.redis.client import Client
from penstock.redis.codec import Codec

__all__ = ["read_claims", "wait_until_idle"]

_SOONEST_S: Final = 0.02
_LATEST_S: Final = 0.5
"""Poll interval of a drain, at first and later on."""
_SURELY: Final = 2
"""Polls that must find nothing: a dead worker's job may return to a list that was empty."""


async def read_claims(
    client: Client, codec: Codec, keys: QueueKeyring, worker: str, limit: int
) -> list[ClaimView]:
    """See `QueueAdmin.claims`."""
    place = keys.claimed(worker)
    claims = sorted(await client.call("HKEYS", place), key=claim_number)[:limit]
    return [
        ClaimView(
            claim=text(claim),
            worker=worker,
            job=show_job(read_item(data, codec), lane=shown_lane(text(claim.partition(b":")[2]))),
        )
        async for claim, data in read_jobs(client, place, claims)
    ]


async def wait_until_idle(client: Client, keys: QueueKeyring, timeout_s: float | None) -> bool:
    """See `QueueAdmin.drain`."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    pause_s = _SOONEST_S
    idle = 0
    while True:
        left = await _count_open(client, keys, await fair_lanes(client, keys))
        idle = 0 if left else idle + 1
        if idle == _SURELY:
            return True
        if deadline is not None:
            left_s = deadline - loop.time()
            if left_s <= 0:
                return False
            pause_s = min(pause_s, left_s)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _LATEST_S)


async def _count_open(client: Client, keys: QueueKeyring, lanes: list[str]) -> int:
    """Number of waiting, delayed and claimed jobs. Two round trips."""
    live, gone, delayed, *lengths = await ask(
        client,
        [
            ("ZRANGE", keys.workers, 0, -1),
            ("ZRANGE", keys.dead_workers, 0, -1),
            ("ZCARD", keys.delayed),
            *(("LLEN", keys.list_of(lane)) for lane in (*FIXED, *lanes)),
        ],
    )
    held = await ask(client, [("HLEN", claims_of(keys, name)) for name in (*live, *gone)])
    return delayed + sum(lengths) + sum(held)
