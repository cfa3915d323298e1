"""The producing side of a topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zlib import crc32

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.times import due_ms
from penstock.errors import (
    DurabilityMissed,
    InvalidMessage,
    OutcomeUnknown,
    ScriptMissing,
    ServerError,
    TopicMissing,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec, Unpacked
from penstock.redis.retry import backoff_s
from penstock.redis.wire import Argument, Reply, pack
from penstock.topics.claims import Publication, publication
from penstock.topics.delayed import Mover
from penstock.topics.durability import Durability, route_for
from penstock.topics.entries import (
    add_keyed,
    add_plain,
    check_key,
    forced_partition,
    java_fields,
    message_fields,
)
from penstock.topics.facts import Facts
from penstock.topics.known import Known
from penstock.topics.lanes import ELSEWHERE, Direct, Lane, Trimmer
from penstock.topics.packing import Packing
from penstock.topics.partitioners import (
    Crc32,
    JavaHash,
    Partitioner,
    Random,
    RoundRobin,
    check_partition,
)

__all__ = ["Sender"]

LONGEST_IDEMPOTENCY_KEY = 256
REPEAT_WITHIN_S = 10.0
"""How long a send under an idempotency key is repeated by itself while its end is not known."""
_REPEAT_BASE_S = 0.05
_REPEAT_MAX_S = 1.0
# A stream that is gone is made again; if it goes again, somebody wants it gone.
_MOST_TRIES = 3
# Our clock and the server's may disagree by this much about what has passed already.
_CLOCKS_APART_MS = 86_400_000
_NEVER_COMPRESS = 512 * 1024 * 1024


class Sender:
    """Encodes messages, places them, and sends each the shortest way that keeps its promise."""

    def __init__(
        self,
        client: Client,
        codec: Codec,
        topic: str,
        known: Known,
        *,
        type_: Any = Any,
        partitioner: Partitioner | None = None,
        durability: Durability = "accepted",
        interop: bool = False,
        mover: Mover | None = None,
    ) -> None:
        settings = client.settings
        if interop:
            codec = Codec(replace(settings.codec, compress_above=_NEVER_COMPRESS))
        self.client, self.topic, self.known = client, topic, known
        self.codec, self.encode, self._packing = codec, codec.beginner(type_), Packing(codec)
        self.trimmer = Trimmer(client, topic)
        self._direct = Direct(client)
        self.route = route_for(client, self._direct, durability)
        self._interop = interop
        self._claim_above = settings.topics.claim_above
        self._remember_ms = int(settings.topics.remember_s * 1000)
        self.partitioner = partitioner or (JavaHash() if interop else Crc32())
        self._keys_ignored = isinstance(self.partitioner, RoundRobin | Random)
        self._facts: Facts | None = None
        self._lanes: list[Lane] = []
        self._mover = mover
        self._owns_mover = mover is None

    async def close(self) -> None:
        """End what goes on in the background. May come twice."""
        await self.known.close()
        await self.route.close()
        if self._owns_mover and self._mover is not None:
            await self._mover.stop()

    async def send(
        self,
        payload: Any,
        key: str | None,
        headers: Mapping[str, str] | None,
        delay: float | timedelta | None,
        at: datetime | float | None,
        idempotency_key: str | None,
    ) -> str:
        """See `Topic.send`."""
        data = self.encode(payload)
        if self._packing.last or type(data) is Unpacked:
            data = await self._packing.in_turn(key, data)
        if delay is not None or at is not None or idempotency_key is not None:
            return await self._send_once_or_later(
                data, key, headers, _wait_ms(delay, at), idempotency_key
            )
        for _ in range(_MOST_TRIES):
            facts = self.known.fresh() or await self.known.get()
            lane, command = self.entry(facts, data, key, headers)
            wire = self._direct.ready(lane)
            if wire is None or self.route is not self._direct:
                reply = await self._ask(lane, command)
            else:
                reply = (await wire.send_packed((command,)))[0]
                if isinstance(reply, ELSEWHERE):
                    reply = (await self._direct.mend(lane, (command,)))[0]
            if reply is not None:
                return self._stored(lane, reply)
            await self.known.again()
        raise TopicMissing(self.topic)

    async def _send_once_or_later(
        self,
        data: bytes,
        key: str | None,
        headers: Mapping[str, str] | None,
        wait_ms: int | None,
        idempotency_key: str | None,
    ) -> str:
        if idempotency_key is not None:
            _check_idempotency_key(idempotency_key)
        for _ in range(_MOST_TRIES):
            facts = self.known.fresh() or await self.known.get()
            lane = self._lane_for(facts, key, headers, idempotency_key)
            call = self._publication(lane, data, key, headers, wait_ms, idempotency_key)
            reply = await self._publish(lane, call, repeats=idempotency_key is not None)
            if reply is not None:
                if wait_ms is not None:
                    await self._move_later(lane, reply[2])
                return self._stored(lane, reply)
            await self.known.again()
        raise TopicMissing(self.topic)

    def entry(
        self, facts: Facts, data: bytes, key: str | None, headers: Mapping[str, str] | None
    ) -> tuple[Lane, bytes]:
        """Place a message, and build the packed command that stores it there."""
        if headers or self._interop or len(data) > self._claim_above:
            lane = self._lane_for(facts, key, headers)
            return lane, self._long_command(lane, data, key, headers)
        if facts is not self._facts:
            self._adopt(facts)
        stored_key = None if key is None else check_key(key)
        count = facts.partitions
        place = self.partitioner.partition(key, count)
        if type(place) is not int or not 0 <= place < count:
            check_partition(place, count)
        lane = self._lanes[place]
        if stored_key is None:
            return lane, add_plain(lane.to_add, data)
        return lane, add_keyed(lane.to_add_keyed, data, stored_key)

    def _lane_for(
        self,
        facts: Facts,
        key: str | None,
        headers: Mapping[str, str] | None,
        idempotency_key: str | None = None,
    ) -> Lane:
        """Place a message. What has an idempotency key meets its repeat in the same partition."""
        if facts is not self._facts:
            self._adopt(facts)
        count = facts.partitions
        place = forced_partition(headers, count)
        if place is None and key is not None:
            check_key(key)
        if place is None and idempotency_key is not None and (key is None or self._keys_ignored):
            place = crc32(idempotency_key.encode()) % count
        if place is None:
            place = check_partition(self.partitioner.partition(key, count), count)
        return self._lanes[place]

    def _adopt(self, facts: Facts) -> None:
        self._facts = facts
        made = range(len(self._lanes), facts.partitions)
        self._lanes += [Lane(self.client, self.topic, index) for index in made]
        self.trimmer.follow(facts.options.retention)

    def _long_command(
        self, lane: Lane, data: bytes, key: str | None, headers: Mapping[str, str] | None
    ) -> bytes:
        if len(data) > self._claim_above:
            # By its text: were it refused, what is sent right after it would overtake it.
            return self._publication(lane, data, key, headers).by_text(self.client.server_version)
        fields = message_fields(data, None if key is None else check_key(key), headers)
        more = self._java_fields(lane)
        return pack((b"XADD", lane.stream, b"NOMKSTREAM", b"*", *fields, *more))

    def _stored(self, lane: Lane, reply: Reply) -> str:
        if isinstance(reply, ServerError):
            raise reply
        if self.trimmer.every:
            self.trimmer.sent(lane, 1)
        return lane.message_id(reply)

    def _java_fields(self, lane: Lane) -> tuple[Argument, ...]:
        return java_fields(self.topic, lane.index) if self._interop else ()

    def _publication(
        self,
        lane: Lane,
        data: bytes,
        key: str | None,
        headers: Mapping[str, str] | None,
        wait_ms: int | None = None,
        idempotency_key: str | None = None,
    ) -> Publication:
        return publication(
            lane,
            data,
            None if key is None else check_key(key),
            headers,
            beside=len(data) > self._claim_above,
            more_fields=self._java_fields(lane),
            idempotency_key=idempotency_key or "",
            remember_ms=self._remember_ms,
            wait_ms=wait_ms,
        )

    async def _publish(self, lane: Lane, call: Publication, *, repeats: bool) -> Reply:
        """Run the script; with `repeats`, until it is known how that ended.

        A refusal that follows an attempt of unknown end does not say that nothing was stored.
        """
        doubt: OutcomeUnknown | None = None
        deadline = time.monotonic() + REPEAT_WITHIN_S
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._publish_once(lane, call)
            except DurabilityMissed:
                raise
            except ServerError as error:
                if isinstance(error, OutcomeUnknown):
                    doubt = error
                if doubt is None:
                    raise
                if not repeats or not error.transient or time.monotonic() > deadline:
                    raise doubt from error
            await asyncio.sleep(backoff_s(attempt, base_s=_REPEAT_BASE_S, max_s=_REPEAT_MAX_S))

    async def _publish_once(self, lane: Lane, call: Publication) -> Reply:
        reply = await self._ask(lane, call.by_digest(self.client.server_version))
        if isinstance(reply, ScriptMissing):
            reply = await self._ask(lane, call.by_text(self.client.server_version))
        if isinstance(reply, ServerError):
            raise reply
        return reply

    async def _ask(self, lane: Lane, command: bytes) -> Reply:
        reply = (await (await self.route.begin(lane, (command,))))[0]
        if isinstance(reply, ELSEWHERE):
            reply = (await self.route.mend(lane, (command,)))[0]
        return reply

    async def _move_later(self, lane: Lane, wait_ms: int) -> None:
        if self._mover is None or (self._owns_mover and self._mover.ended):
            self._mover = Mover(self.client)
        if self._owns_mover:
            await self._mover.start()
        self._mover.nudge(self.topic, lane.index, wait_ms, self.partitioner)


def _check_idempotency_key(key: object) -> None:
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_IDEMPOTENCY_KEY:
        raise InvalidMessage(
            f"idempotency_key {str(key)[:60]!r}: expected a text of 1 to "
            f"{LONGEST_IDEMPOTENCY_KEY} characters"
        )
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(f"idempotency_key {key[:60]!r}: not Unicode text") from None


def _wait_ms(delay: float | timedelta | None, at: datetime | float | None) -> int | None:
    """Ms to wait; negated, the moment in epoch ms; None for what need not wait at all.

    The server decides what has passed already: our clock may be wrong.
    """
    try:
        if at is None:
            return due_ms(delay, None, 0) or None
        moment = due_ms(delay, at, SYSTEM_CLOCK.wall_ms() - _CLOCKS_APART_MS)
    except (TypeError, ValueError) as error:
        raise InvalidMessage(str(error)) from None
    return None if moment is None else -moment
