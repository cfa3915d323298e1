"""Moving a plain stream from before the topic into the topic."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from zlib import crc32

from penstock.delivery.message_sizes import MessageSizes
from penstock.delivery.queries import as_dict, ask, text
from penstock.errors import TopicError
from penstock.redis.client import Client
from penstock.redis.keys.names import check_name
from penstock.redis.wire import Command
from penstock.topics.admin.views import Adopted
from penstock.topics.message import KEY, Fields, field_of
from penstock.topics.partitioners import Crc32, Partitioner, check_partition
from penstock.topics.producer.publish_call import publish_once
from penstock.topics.storage.admin_scripts import TopicAdminScripts
from penstock.topics.storage.group_registration import register_group
from penstock.topics.storage.keys import TopicKeys
from penstock.topics.storage.message_id import id_numbers
from penstock.topics.storage.metadata import TopicMetadata, ensure_topic

__all__ = ["adopt_stream", "legacy_key"]

_PAGE = 100

_Id = tuple[int, int]
_Entry = tuple[bytes, Fields]


def legacy_key(client: Client, topic: str) -> str:
    """Key of the stream that a topic had before it had partitions: its name."""
    return f"{TopicKeys.of(client.keys, topic).root}{topic}"


async def adopt_stream(
    client: Client, topic: str, partitions: int | None, partitioner: Partitioner | None
) -> Adopted:
    """See `TopicAdmin.adopt`."""
    legacy = legacy_key(client, topic)
    await _check_type(client, topic, legacy)
    groups = {
        check_name("group", text(metadata["name"])): id_numbers(metadata["last-delivered-id"])
        for metadata in map(as_dict, await client.call("XINFO", "GROUPS", legacy))
    }
    metadata = await ensure_topic(client, topic, partitions)
    if metadata.growing_to:
        raise TopicError(f"topic {topic!r} is growing; adopt its old stream when that is done")
    for group in groups:
        await register_group(client, metadata, group, "0")  # before anything is in the topic
    mover = _Mover(client, metadata, legacy, groups, partitioner or Crc32())
    while True:
        while await mover.move_page():
            pass
        if await TopicAdminScripts.of(client).drop_legacy(stream=legacy):
            return mover.result()


async def _check_type(client: Client, topic: str, legacy: str) -> None:
    kind = text(await client.call("TYPE", legacy))
    if kind == "none":
        raise TopicError(f"there is no stream {legacy!r} from before topic {topic!r}")
    if kind != "stream":
        raise TopicError(f"key {legacy!r} is a {kind}, not a stream: not adopted")


class _Mover:
    """Moves the entries of a stream page by page, the oldest first."""

    def __init__(
        self,
        client: Client,
        metadata: TopicMetadata,
        legacy: str,
        groups: Mapping[str, _Id],
        partitioner: Partitioner,
    ) -> None:
        self._client, self._topic, self._legacy = client, metadata.name, legacy
        self._count = metadata.partitions
        self._groups = groups
        self._read_by_all = min(groups.values(), default=(0, 0))
        self._partitioner = partitioner
        self._moved = self._repeated = self._settled = 0
        self._sizes = MessageSizes(client.settings.topics.fetch_bytes, first=4)

    def result(self) -> Adopted:
        return Adopted(
            moved=self._moved,
            repeated=self._repeated,
            settled=self._settled,
            groups=sorted(self._groups),
        )

    async def move_page(self) -> bool:
        """Move the next entries and take them away; False if there are none."""
        page: list[_Entry] = await self._client.call(
            "XRANGE", self._legacy, "-", "+", "COUNT", min(_PAGE, self._sizes.fitting())
        )
        if not page:
            return False
        self._sizes.note_entries(page)
        needed = await self._needed(page)
        routes: dict[int, list[_Entry]] = {}
        for entry in needed:
            routes.setdefault(self._place(entry), []).append(entry)
        ends = await asyncio.gather(
            *(self._move(index, route) for index, route in routes.items()), return_exceptions=True
        )
        for end in ends:
            if end is not None:
                raise end
        self._settled += len(page) - len(needed)
        # What is interrupted before this comes again, and is recognised by its id.
        await self._client.call("XDEL", self._legacy, *(id_ for id_, _ in page))
        return True

    async def _needed(self, page: Sequence[_Entry]) -> list[_Entry]:
        """Entries that some group has not settled; all, if there are no groups."""
        if not self._groups or id_numbers(page[0][0]) > self._read_by_all:
            return list(page)
        first, last = page[0][0], page[-1][0]
        commands: list[Command] = [
            ("XPENDING", self._legacy, group, first, last, len(page)) for group in self._groups
        ]
        pending = {line[0] for lines in await ask(self._client, commands) for line in lines}
        return [
            entry
            for entry in page
            if entry[0] in pending or id_numbers(entry[0]) > self._read_by_all
        ]

    async def _move(self, index: int, route: Sequence[_Entry]) -> None:
        for id_, fields in route:
            is_new = await publish_once(
                self._client,
                self._topic,
                index,
                fields=fields,
                idempotency_key=f"adopt/{text(id_)}",
            )
            self._moved += is_new
            self._repeated += not is_new

    def _place(self, entry: _Entry) -> int:
        id_, fields = entry
        key = field_of(fields, KEY)
        if key is None:
            # Not by turns: a repeat has to meet the message in the same partition.
            return crc32(id_) % self._count
        place = self._partitioner.partition(text(key), self._count)
        return check_partition(place, self._count)
