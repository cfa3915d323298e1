"""What a producer knows of its topic, and for how long that may be trusted."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from penstock.errors import PenstockError, TopicError
from penstock.redis.client import Client
from penstock.topics.facts import Facts, Options, ensure_topic, read_facts
from penstock.topics.growth import OverdueGrowth

__all__ = ["Known"]

_LOOK_AGAIN_S = 0.02
_LONGEST_HOLD_S = 30.0


@dataclass(frozen=True, slots=True)
class _Snapshot:
    facts: Facts
    refresh_at: float
    """From then on a newer one is fetched while this one is used."""
    ends_at: float
    """From then on this one is not used any more."""


class Known:
    """The facts of one topic, never older than `topics.refresh_s`.

    The first look makes the topic. Later ones do not: who deletes a topic does not want it to come
    back with the next message, so then `TopicMissing` is raised.

    While the topic grows, messages are placed by the old number for as long as every producer may
    still do so, and held from then on until the new number shows. If whatever began the growth is
    gone by then, it is completed here.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        partitions: int | None = None,
        options: Options | None = None,
    ) -> None:
        self._client, self._topic = client, topic
        self._partitions, self._options = partitions, options
        self._refresh_s = client.settings.topics.refresh_s
        self._snapshot: _Snapshot | None = None
        self._overdue = OverdueGrowth(client)
        self._made = False
        self._asking = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None

    def fresh(self) -> Facts | None:
        """Facts that may be used right now, without waiting; None: ask `get`."""
        snapshot = self._snapshot
        if snapshot is None:
            return None
        now = time.monotonic()
        if now >= snapshot.refresh_at:
            if now >= snapshot.ends_at:
                return None
            self._refresh_soon()
        return snapshot.facts

    async def get(self) -> Facts:
        """Facts that may be used now; waits while the topic changes hands between two numbers."""
        deadline = time.monotonic() + _LONGEST_HOLD_S
        while (facts := self.fresh()) is None:
            await self._ask()
            if (facts := self.fresh()) is not None:
                break
            if time.monotonic() > deadline:
                raise TopicError(
                    f"topic {self._topic!r} has been growing for more than {_LONGEST_HOLD_S:g} s, "
                    "so nothing can be sent to it; grow it once more to complete that"
                )
            await self._until_grown()
        return facts

    async def again(self) -> Facts:
        """Look at the server now; open streams that are not there. `TopicMissing` if it is gone."""
        async with self._asking:
            self._snapshot = None
            await read_facts(self._client, self._topic)
            self._note(time.monotonic(), await ensure_topic(self._client, self._topic))
        return await self.get()

    async def close(self) -> None:
        """End what goes on in the background. May come twice."""
        refreshing, self._refreshing = self._refreshing, None
        if refreshing is not None:
            refreshing.cancel()
            await asyncio.wait([refreshing])

    async def _ask(self) -> None:
        wanted_at = time.monotonic()
        async with self._asking:
            snapshot = self._snapshot
            if snapshot is not None and snapshot.ends_at > max(wanted_at, time.monotonic()):
                return  # another one asked meanwhile
            asked_at = time.monotonic()
            if self._made:
                facts = await self._read()
            else:
                facts = await ensure_topic(
                    self._client, self._topic, self._partitions, self._options
                )
                self._made = True
            self._note(asked_at, facts)

    async def _read(self) -> Facts:
        """Read the facts; if the topic was deleted and made again, see to its partitions first."""
        facts, before = await read_facts(self._client, self._topic), self._snapshot
        if before is not None and before.facts.life != facts.life:
            return await ensure_topic(self._client, self._topic)
        return facts

    async def _until_grown(self) -> None:
        """Wait a moment for the end of a growth, or bring it about."""
        async with self._asking:
            snapshot = self._snapshot
            if snapshot is not None and await self._overdue.look(snapshot.facts):
                return
        await asyncio.sleep(_LOOK_AGAIN_S)

    def _note(self, asked_at: float, facts: Facts) -> None:
        ends_at = asked_at + self._refresh_s
        if facts.growing_to:
            # What was placed by the old number needs time to arrive before the switch.
            ends_at = min(ends_at, asked_at + facts.switch_ms / 1000 - self._refresh_s)
        refresh_at = asked_at + self._refresh_s / 2
        self._snapshot = _Snapshot(facts, min(refresh_at, ends_at), ends_at)

    def _refresh_soon(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name=f"facts {self._topic}")

    async def _refresh(self) -> None:
        """Ask ahead of time. If that fails, whoever needs the answer asks again and is told."""
        try:
            async with self._asking:
                asked_at = time.monotonic()
                self._note(asked_at, await self._read())
        except PenstockError:
            return
