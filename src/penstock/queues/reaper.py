"""Returning what dead workers had in hand."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.delivery.retries import RetryPolicy
from penstock.queues.attempts import after_crash
from penstock.queues.counts import Counts
from penstock.queues.items import Item, read_item
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys import QueueKeyring
from penstock.redis.wire import Argument

__all__ = ["Reaper"]

logger = logging.getLogger(__name__)

_AT_ONCE = 100


class Reaper:
    """Gives up the silent workers of a queue and returns their jobs to the front.

    Any number may do so at the same time: a job leaves the dead worker's claims in the same step in
    which it is queued or buried, so each is returned once, and one that stops half-way leaves the
    rest to the others.
    """

    def __init__(
        self,
        client: Client,
        codec: Codec,
        keys: QueueKeyring,
        policy_of: Callable[[Item], RetryPolicy],
        counts: Counts,
    ) -> None:
        self._client, self._codec, self._keys = client, codec, keys
        self._policy_of, self._counts = policy_of, counts
        queues = client.settings.queues
        self._silence_ms = round(queues.silence_s * 1000)
        self._keep_ms = round(queues.keep_s * 1000)

    async def reap(self, now_ms: int, worker: str = "") -> int:
        """Look for dead workers and return their jobs: how many. One round trip if none is dead.

        `worker` is the one that looks; if it was silent itself, the server may have been away.
        """
        returned = 0
        for name in await self._client.scripts.find_dead(
            keys=self._keys, silence_ms=self._silence_ms, worker=worker
        ):
            dead = name.decode()
            moved = await self._return_claims(dead, now_ms)
            returned += moved
            level = logging.WARNING if moved else logging.INFO
            logger.log(
                level,
                "queue %s: worker %s is dead, jobs returned: %d",
                self._keys.queue,
                dead,
                moved,
            )
        self._counts.reaped += returned
        return returned

    async def _return_claims(self, worker: str, now_ms: int) -> int:
        """From the last claimed to the first, so that the first ends up in front."""
        key = self._keys.claimed(worker)
        names: list[bytes] = await self._client.call("HKEYS", key)
        claims = sorted(names, key=_number, reverse=True)
        moved = 0
        for place in range(0, len(claims) or 1, _AT_ONCE):
            some = claims[place : place + _AT_ONCE][::-1]
            items: list[bytes | None] = await self._client.call("HMGET", key, *some) if some else []
            told: list[Argument] = []
            for claim, data in zip(some, items, strict=True):
                if data is not None:
                    told += self._verdict(worker, claim.decode(), data, now_ms)
            moved += await self._client.scripts.reap_claims(
                keys=self._keys, worker=worker, keep_ms=self._keep_ms, jobs=told
            )
        return moved

    def _verdict(self, worker: str, claim: str, data: bytes, now_ms: int) -> list[Argument]:
        item = read_item(data, self._codec)
        job_id, verdict, stored, why = after_crash(
            item,
            self._policy_of(item),
            self._codec,
            queue=self._keys.queue,
            lane=claim.partition(":")[2],
            worker=worker,
            now_ms=now_ms,
        )
        unique = self._keys.unique(item.meta.unique) if item.meta.unique else ""
        return [claim, self._keys.record_name(job_id), unique, verdict, stored, why]


def _number(claim: bytes) -> int:
    head = claim.partition(b":")[0]
    return int(head) if head.isdigit() else 0
