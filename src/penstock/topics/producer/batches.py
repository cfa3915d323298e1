"""Many messages in one call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError, Rejected, SendBatchFailed, TopicMissing
from penstock.redis.codec import Unpacked
from penstock.redis.prepared_call import ELSEWHERE
from penstock.redis.wire import Reply
from penstock.topics.message import Outgoing
from penstock.topics.producer.routes import PartitionRoute
from penstock.topics.producer.sender import Sender
from penstock.topics.storage.metadata import TopicMetadata

__all__ = ["send_batch"]

_CHUNK = 500
_CHUNK_BYTES = 1024 * 1024
_IN_FLIGHT = 2


@dataclass(slots=True)
class _Part:
    """Messages of one chunk for one partition."""

    route: PartitionRoute
    commands: list[bytes]
    places: list[int]
    replies: asyncio.Future[list[Reply]]


async def send_batch(
    sender: Sender, messages: Sequence[Any], key: Callable[[Any], str | None] | None
) -> list[str]:
    """See `Topic.send_batch`."""
    return await _Batch(sender, messages, key).send()


class _Batch:
    """Messages go out in chunks, the next one while the last is on its way.

    After a failure nothing more is sent, so that no message overtakes one that its key's order
    puts before it.
    """

    def __init__(
        self, sender: Sender, messages: Sequence[Any], key: Callable[[Any], str | None] | None
    ) -> None:
        self._sender, self._messages, self._key = sender, messages, key
        self._next = 0
        self._outcomes: list[str | PenstockError | None] = [None] * len(messages)
        self._failure: PenstockError | None = None
        self._draining = False
        self._under_way: deque[list[_Part]] = deque()
        self._large: Unpacked | None = None
        """The payload of the next message, where it is to be compressed in a thread."""

    async def send(self) -> list[str]:
        while self._unsent or self._under_way:
            if self._unsent and not self._draining:
                await self._send_chunk()
            if len(self._under_way) >= _IN_FLIGHT or not self._unsent or self._draining:
                await self._finish_chunk()
        return self._ids()

    @property
    def _unsent(self) -> bool:
        return self._failure is None and self._next < len(self._messages)

    async def _send_chunk(self) -> None:
        sender, chunk = self._sender, list[_Part]()
        try:
            packed = None if self._large is None else await sender.codec.finish(self._large)
            self._large = None
            metadata = sender.known.fresh() or await sender.known.get()
            end, collected = self._collect(metadata, packed)
        except PenstockError as error:
            if not self._next:
                raise  # nothing was sent at all
            self._failure = error
            return
        self._next = end
        self._under_way.append(chunk)
        for route, (commands, places) in collected.items():
            try:
                replies = await sender.transport.begin(route, commands)
            except PenstockError as error:
                self._note(route, places, [error] * len(places))
                return
            chunk.append(_Part(route, commands, places, replies))

    def _collect(
        self, metadata: TopicMetadata, packed: bytes | None
    ) -> tuple[int, dict[PartitionRoute, tuple[list[bytes], list[int]]]]:
        """Encode the next chunk; where it ends, and its commands by partition.

        It ends before a large payload. The first one's is `packed` if that was one.
        """
        sender, messages, key_of = self._sender, self._messages, self._key
        encode, entry = sender.encode, sender.entry
        collected: dict[PartitionRoute, tuple[list[bytes], list[int]]] = {}
        size, end = 0, min(self._next + _CHUNK, len(messages))
        for place in range(self._next, end):
            payload, key, headers = messages[place], None, None
            if type(payload) is Outgoing:
                payload, key, headers = payload.payload, payload.key, payload.headers
            if key is None and key_of is not None:
                key = key_of(payload)
            data = encode(payload) if packed is None else packed
            packed = None
            if type(data) is Unpacked:
                self._large = data
                return place, collected
            route, command = entry(metadata, data, key, headers)
            if (part := collected.get(route)) is None:
                part = collected[route] = ([], [])
            part[0].append(command)
            part[1].append(place)
            size += len(command)
            if size > _CHUNK_BYTES:
                return place + 1, collected
        return end, collected

    async def _finish_chunk(self) -> None:
        for part in self._under_way.popleft() if self._under_way else ():
            try:
                replies = await part.replies
            except PenstockError as error:
                replies = [error] * len(part.places)
            refused = self._note(part.route, part.places, replies)
            if refused and self._failure is None:
                # What is still on its way may be refused, too: it is next, before anything new.
                self._draining = True
                wanted = set(refused)
                again = [
                    command
                    for place, command in zip(part.places, part.commands, strict=True)
                    if place in wanted
                ]
                await self._mend(part.route, again, refused)
            if self._sender.trimmer.every:
                self._sender.trimmer.sent(part.route, len(part.places))
        self._draining = self._draining and bool(self._under_way)

    def _note(self, route: PartitionRoute, places: list[int], replies: list[Reply]) -> list[int]:
        """Note each message's end; which of them were not stored and may be sent once more."""
        outcomes, refused, id_head = self._outcomes, list[int](), route.id_head
        for place, reply in zip(places, replies, strict=True):
            if type(reply) is bytes:
                outcomes[place] = f"{id_head}{reply.decode()}"
            elif reply is None:
                outcomes[place] = TopicMissing(self._sender.topic)
                refused.append(place)
            elif isinstance(reply, PenstockError):
                outcomes[place] = reply
                if isinstance(reply, ELSEWHERE):
                    refused.append(place)
                else:
                    self._failure = self._failure or reply
            else:
                outcomes[place] = route.message_id(reply)
        return refused

    async def _mend(self, route: PartitionRoute, commands: list[bytes], places: list[int]) -> None:
        try:
            if any(isinstance(self._outcomes[place], TopicMissing) for place in places):
                await self._sender.known.again()
            replies = await self._sender.transport.mend(route, commands)
        except PenstockError as error:
            self._failure = error
            return
        if refused := self._note(route, places, replies):
            failure = self._outcomes[refused[0]]
            self._failure = failure if isinstance(failure, PenstockError) else self._failure

    def _ids(self) -> list[str]:
        ids = [outcome for outcome in self._outcomes if isinstance(outcome, str)]
        if len(ids) == len(self._outcomes):
            return ids
        skipped = Rejected("not sent: an earlier message of the batch failed")
        outcomes = [skipped if outcome is None else outcome for outcome in self._outcomes]
        if self._failure is not None and self._outcomes[self._next : self._next + 1] == [None]:
            outcomes[self._next] = self._failure
        raise SendBatchFailed(outcomes) from self._failure
