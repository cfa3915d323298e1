"""Compares what is pending on the server with what is in hand here, and has the rest brought in."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

from penstock.errors import ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.topics.crowd import crowd_of
from penstock.topics.held import Held
from penstock.topics.recovery import InHand

__all__ = ["StrayAudit"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_PAGE = 1_000
# Of many consumers in a process each looks less often, so that looking stays cheap.
_AUDIT_EACH_S = 0.1


class StrayAudit:
    """Looks for messages that were delivered to this consumer and are not in its hands.

    After lost reads they are found at once. This is for every other cause, such as a program that
    reads under our name: without it they would stay pending until the partition changes hands.

    A message that stays pending becomes the oldest pending one of its partition sooner or later, or
    stands behind one that waits for a retry. So one summary for each partition is enough as long as
    the oldest one changes. If it does not, it has to be in hand, and no more may be pending than
    what is in hand.
    """

    def __init__(
        self,
        client: Client,
        helds: Callable[[], Iterable[Held]],
        in_hand: Callable[[Held], InHand],
    ) -> None:
        self._client, self._helds, self._in_hand = client, helds, in_hand
        self._every_s, self._crowd = client.settings.topics.audit_s, crowd_of(client)
        self._oldest: dict[Held, bytes] = {}

    async def run(self) -> None:
        """Look every `topics.audit_s` seconds until cancelled; less often, if there are many."""
        share = random.random()  # noqa: S311  of the first interval: so that consumers take turns
        while True:
            await asyncio.sleep(share * self._crowd.interval_s(self._every_s, _AUDIT_EACH_S))
            share = 1.0
            try:
                await self._look()
            except ServerError as error:
                quiet.warning(
                    "audit", "cannot compare what is pending with what is here: %s", error
                )

    async def _look(self) -> None:
        helds = [held for held in self._helds() if held.readable and not held.closing]
        replies = await self._client.pipeline(
            [("XPENDING", held.stream, held.source.group) for held in helds]
        )
        before, self._oldest = self._oldest, {}
        for held, reply in zip(helds, replies, strict=True):
            if not isinstance(reply, ServerError) and reply[0]:
                pending, oldest = reply[:2]
                self._oldest[held] = oldest
                if before.get(held) == oldest and await self._has_strays(held, oldest, pending):
                    held.suspect_strays()

    async def _has_strays(self, held: Held, oldest: bytes, pending: int) -> bool:
        known = self._in_hand(held)
        if oldest in known and pending <= len(known):
            return False
        start, retries = "-", held.claim.keys.retry(held.source.group)
        # What was delivered less long ago may still be on its way here.
        head = ("XPENDING", held.stream, held.source.group, "IDLE", round(self._every_s * 1000))
        while held.readable and not held.closing:
            rows = await self._client.call(*head, start, "+", _PAGE)
            unknown = [row[0] for row in rows if row[0] not in known]
            if unknown and None in await self._client.call("ZMSCORE", retries, *unknown):
                return held.readable and not held.closing
            if len(rows) < _PAGE:
                return False
            start = f"({rows[-1][0].decode()}"
        return False
