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
    TooMany,
    TopicMissing,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec, Unpacked
from penstock.redis.prepared_call import ELSEWHERE, ScriptCall
from penstock.redis.retry import backoff_s
from penstock.redis.wire import Argument, Reply, pack
from penstock.topics.delayed.mover import Mover
from penstock.topics.message import check_headers
from penstock.topics.partitioners import (
    Crc32,
    JavaHash,
    Partitioner,
    Random,
    RoundRobin,
    check_key,
    check_partition,
)
from penstock.topics.producer.durability import Durability, transport_for
from penstock.topics.producer.metadata_cache import MetadataCache
from penstock.topics.producer.routes import DirectTransport, PartitionRoute, Trimmer
from penstock.topics.storage.entries import (
    forced_partition,
    java_fields,
    message_fields,
)
from penstock.topics.storage.message_signatures import MessageSignatures
from penstock.topics.storage.metadata import TopicMetadata
from penstock.topics.storage.scripts import PublishedMessage, PublishRefusal

__all__ = ["Sender"]

LONGEST_IDEMPOTENCY_KEY = 256
REPEAT_WITHIN_S = 10.0
"""How long a send under an idempotency key is repeated while its outcome is unknown."""
_REPEAT_BASE_S = 0.05
_REPEAT_MAX_S = 1.0
# A stream that is gone is created again; not for ever, as it may be deleted on purpose.
_MOST_TRIES = 3
# Our clock and the server's may disagree by this much about what has passed already.
_CLOCKS_APART_MS = 86_400_000
_NEVER_COMPRESS = 512 * 1024 * 1024

_PublishCall = ScriptCall[PublishedMessage | None]


class Sender:
    """Encodes messages, places them, and sends each the shortest way that keeps its promise."""

    def __init__(
        self,
        client: Client,
        codec: Codec,
        topic: str,
        known: MetadataCache,
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
        self.codec, self.encode, self._compression = (
            codec,
            codec.beginner(type_),
            _Compression(codec),
        )
        self.trimmer = Trimmer(client, topic)
        self._direct = DirectTransport(client)
        self.transport = transport_for(client, self._direct, durability)
        self._interop = interop
        self._signatures = MessageSignatures.of(client, topic)
        self._has_more = interop or self._signatures is not None
        """Whether every entry has more than payload and key."""
        self._claim_above = settings.topics.claim_above
        self._remember_ms = int(settings.topics.remember_s * 1000)
        self.partitioner = partitioner or (JavaHash() if interop else Crc32())
        self._keys_ignored = isinstance(self.partitioner, RoundRobin | Random)
        self._metadata: TopicMetadata | None = None
        self._routes: list[PartitionRoute] = []
        self._mover = mover
        self._owns_mover = mover is None

    async def close(self) -> None:
        """End background tasks. Repeatable."""
        await self.known.close()
        await self.transport.close()
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
        if self._compression.last or type(data) is Unpacked:
            data = await self._compression.in_turn(key, data)
        if delay is not None or at is not None or idempotency_key is not None:
            return await self._send_once_or_later(
                data, key, headers, _wait_ms(delay, at), idempotency_key
            )
        for _ in range(_MOST_TRIES):
            metadata = self.known.fresh() or await self.known.get()
            route, command = self.entry(metadata, data, key, headers)
            wire = self._direct.ready(route)
            if wire is None or self.transport is not self._direct:
                reply = await self._ask(route, command)
            else:
                reply = (await wire.send_packed((command,)))[0]
                if isinstance(reply, ELSEWHERE):
                    reply = (await self._direct.mend(route, (command,)))[0]
            if reply is not None:
                return self._stored(route, reply)
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
            metadata = self.known.fresh() or await self.known.get()
            route = self._route_for(metadata, key, headers, idempotency_key)
            signed = self._signed(data, key, headers)
            call = self._publish_call(route, data, key, signed, wait_ms, idempotency_key)
            reply = await self._publish(route, call, repeats=idempotency_key is not None)
            if reply is not None:
                if wait_ms is not None:
                    await self._move_later(route, reply[2])
                return self._stored(route, reply)
            await self.known.again()
        raise TopicMissing(self.topic)

    def entry(
        self,
        metadata: TopicMetadata,
        data: bytes,
        key: str | None,
        headers: Mapping[str, str] | None,
    ) -> tuple[PartitionRoute, bytes]:
        """Place a message, and build the packed command that stores it there."""
        if headers or self._has_more or len(data) > self._claim_above:
            route = self._route_for(metadata, key, headers)
            return route, self._long_command(route, data, key, headers)
        if metadata is not self._metadata:
            self._adopt(metadata)
        stored_key = None if key is None else check_key(key)
        count = metadata.partitions
        place = self.partitioner.partition(key, count)
        if type(place) is not int or not 0 <= place < count:
            check_partition(place, count)
        route = self._routes[place]
        if stored_key is None:
            return route, route.add_plain(data)
        return route, route.add_keyed(data, stored_key)

    def _route_for(
        self,
        metadata: TopicMetadata,
        key: str | None,
        headers: Mapping[str, str] | None,
        idempotency_key: str | None = None,
    ) -> PartitionRoute:
        """Place a message. What has an idempotency key meets its repeat in the same partition."""
        if metadata is not self._metadata:
            self._adopt(metadata)
        if headers:
            check_headers(headers)
        count = metadata.partitions
        place = forced_partition(headers, count)
        if place is None and key is not None:
            check_key(key)
        if place is None and idempotency_key is not None and (key is None or self._keys_ignored):
            place = crc32(idempotency_key.encode()) % count
        if place is None:
            place = check_partition(self.partitioner.partition(key, count), count)
        return self._routes[place]

    def _adopt(self, metadata: TopicMetadata) -> None:
        self._metadata = metadata
        made = range(len(self._routes), metadata.partitions)
        self._routes += [PartitionRoute(self.client, self.topic, index) for index in made]
        self.trimmer.follow(metadata.options.retention)

    def _long_command(
        self, route: PartitionRoute, data: bytes, key: str | None, headers: Mapping[str, str] | None
    ) -> bytes:
        headers = self._signed(data, key, headers)
        if len(data) > self._claim_above:
            # By its text: were it refused, what is sent right after it would overtake it.
            return self._publish_call(route, data, key, headers).packed(by_text=True)
        fields = message_fields(data, None if key is None else check_key(key), headers)
        more = self._java_fields(route)
        return pack((b"XADD", route.stream, b"NOMKSTREAM", b"*", *fields, *more))

    def _signed(
        self, data: bytes, key: str | None, headers: Mapping[str, str] | None
    ) -> Mapping[str, str] | None:
        """Return the headers of a message, with its signature if it is to have one."""
        if self._signatures is None:
            return headers
        return self._signatures.signed(data, None if key is None else check_key(key), headers)

    def _stored(self, route: PartitionRoute, reply: Reply) -> str:
        if isinstance(reply, ServerError):
            raise reply
        if self.trimmer.every:
            self.trimmer.sent(route, 1)
        return route.message_id(reply)

    def _java_fields(self, route: PartitionRoute) -> tuple[Argument, ...]:
        return java_fields(self.topic, route.index) if self._interop else ()

    def _publish_call(
        self,
        route: PartitionRoute,
        data: bytes,
        key: str | None,
        headers: Mapping[str, str] | None,
        wait_ms: int | None = None,
        idempotency_key: str | None = None,
    ) -> _PublishCall:
        return route.publish_calls.make(
            data,
            None if key is None else check_key(key),
            headers,
            is_large=len(data) > self._claim_above,
            more_fields=self._java_fields(route),
            idempotency_key=idempotency_key or "",
            remember_ms=self._remember_ms,
            wait_ms=wait_ms,
        )

    async def _publish(self, route: PartitionRoute, call: _PublishCall, *, repeats: bool) -> Reply:
        """Run the script; with `repeats`, until it is known how that ended.

        A refusal that follows an attempt of unknown end does not mean that nothing was stored.
        """
        doubt: OutcomeUnknown | None = None
        deadline = time.monotonic() + REPEAT_WITHIN_S
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._publish_once(route, call)
            except DurabilityMissed:
                raise
            except ServerError as error:
                if isinstance(error, OutcomeUnknown):
                    doubt = error
                if doubt is None:
                    raise
                if not repeats or not error.transient or time.monotonic() > deadline:
                    raise doubt from error
            except TooMany as error:
                if doubt is None:
                    raise
                raise doubt from error
            await asyncio.sleep(backoff_s(attempt, base_s=_REPEAT_BASE_S, max_s=_REPEAT_MAX_S))

    async def _publish_once(self, route: PartitionRoute, call: _PublishCall) -> Reply:
        reply = await self._ask(route, call.packed())
        if isinstance(reply, ScriptMissing):
            reply = await self._ask(route, call.packed(by_text=True))
        if isinstance(reply, ServerError):
            raise reply
        if isinstance(reply, int):
            raise self._refused(PublishRefusal(reply))
        return reply

    def _refused(self, refusal: PublishRefusal) -> TooMany:
        settings = self.client.settings.topics
        if refusal is PublishRefusal.TOO_MANY_DELAYED:
            what, setting, limit = "delayed messages", "max_delayed", settings.max_delayed
        else:
            what, setting, limit = "idempotency keys", "max_remembered", settings.max_remembered
        return TooMany(f"{what} per partition", limit, f"topics.{setting}")

    async def _ask(self, route: PartitionRoute, command: bytes) -> Reply:
        reply = (await (await self.transport.begin(route, (command,))))[0]
        if isinstance(reply, ELSEWHERE):
            reply = (await self.transport.mend(route, (command,)))[0]
        return reply

    async def _move_later(self, route: PartitionRoute, wait_ms: int) -> None:
        if self._mover is None or (self._owns_mover and self._mover.ended):
            self._mover = Mover(self.client)
        if self._owns_mover:
            await self._mover.start()
        self._mover.nudge(self.topic, route.index, wait_ms, self.partitioner)


class _Compression:
    """Compresses large payloads in a thread; no message of their key overtakes them meanwhile."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.last: dict[str | None, asyncio.Future[None]] = {}
        """Of each key that has a large message under way, the end of the last one."""

    async def in_turn(self, key: str | None, encoded: bytes | Unpacked) -> bytes:
        """Return the payload as it is stored, after those of the same key that came before.

        The caller sends it without awaiting anything else before.
        """
        before, mine = self.last.get(key), asyncio.get_running_loop().create_future()
        self.last[key] = mine
        try:
            if isinstance(encoded, Unpacked):
                encoded = await self._codec.finish(encoded)
            if before is not None:
                await asyncio.shield(before)
            return encoded
        finally:
            if self.last.get(key) is mine:
                del self.last[key]
            if before is None or before.done():
                mine.set_result(None)
            else:  # cut short: the next one still waits for those before
                before.add_done_callback(lambda _: mine.set_result(None))


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
