"""Every topic script called by hand on one partition of one topic."""

from __future__ import annotations

import uuid
from typing import Any

from tests.kit.scripts import scripts_of

from penstock.redis.client import Client
from penstock.topics.dead_letters.letter import bury
from penstock.topics.message import Message, Source
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.metadata import ensure_topic
from penstock.topics.storage.scripts import CONSUMER, PartitionOwner, PublishKeys

GROUP = "billing"
LEASE_MS = 600_000


class Desk:
    """One partition, one group; owners are names, epochs are passed around as numbers."""

    def __init__(self, client: Client, topic: str = "orders") -> None:
        self.client, self.scripts, self.topic = client, scripts_of(client), topic
        self.keys = PartitionKeys.of(client.keys, topic, 0)
        self.topic_keys = TopicKeys.of(client.keys, topic)

    async def open(self, messages: int = 0) -> list[str]:
        """Make the topic with a group; the ids of its messages."""
        await ensure_topic(self.client, self.topic, 1)
        await self.register()
        return await self.add(messages)

    async def add(self, messages: int) -> list[str]:
        command = ("XADD", self.keys.stream, "*", "payload", "x" * 200)
        ids: list[bytes] = []
        for start in range(0, messages, 1_000):
            ids += await self.client.pipeline([command] * min(1_000, messages - start))
        return [id_.decode() for id_ in ids]

    async def stored(self) -> dict[bytes, Any]:
        """Everything in the namespace, byte by byte."""
        pattern = f"{self.client.settings.namespace}::*"
        keys = sorted(await self.client.call("KEYS", pattern))
        dumps = await self.client.pipeline([("DUMP", key) for key in keys])
        return dict(zip(keys, dumps, strict=True))

    def _keys(self, *names: str) -> dict[str, str]:
        found = {name: getattr(self.keys, name) for name in names}
        return {name: key if isinstance(key, str) else key(GROUP) for name, key in found.items()}

    @property
    def _fences(self) -> str:
        return self.keys.fence(GROUP, 0).removesuffix("0")

    # ---- groups and owners

    async def register(self, start: str = "0") -> int:
        keys = self._keys("stream", "epochs", "commit")
        return await self.scripts.register_group(**keys, group=GROUP, start=start)

    async def acquire(self, owner: str = "anna", dead_owner: str = "") -> int:
        return await self.scripts.acquire_partition(
            **self._keys("lease", "epochs"),
            group=GROUP,
            owner=owner,
            ttl_ms=LEASE_MS,
            fences=self._fences,
            dead_owner=dead_owner,
        )

    async def expire(self) -> None:
        await self.client.call("DEL", self.keys.lease(GROUP))

    def owner(self, epoch: int, name: str = "anna") -> PartitionOwner:
        return PartitionOwner.of(self.keys, GROUP, name, epoch)

    async def renew(self, epoch: int, owner: str = "anna") -> bool:
        return await self.scripts.renew_partition(self.owner(epoch, owner), ttl_ms=LEASE_MS)

    async def refence(self, epoch: int, number: int, owner: str = "anna") -> bool:
        return await self.scripts.refence_partition(
            self.owner(epoch, owner), number=number, ttl_ms=LEASE_MS
        )

    async def release(self, epoch: int, unbegun: list[str], owner: str = "anna") -> bool:
        return await self.scripts.release_partition(self.owner(epoch, owner), unbegun=unbegun)

    async def reset(self, position: str) -> int:
        keys = self._keys("stream", "epochs", "commit", "lease", "retry", "failures")
        return await self.scripts.reset_group(
            **keys, group=GROUP, position=position, fences=self._fences
        )

    async def drop(self) -> bool:
        keys = self._keys("stream", "epochs", "commit", "lease", "retry", "failures")
        return await self.scripts.drop_group(**keys, group=GROUP, fences=self._fences)

    # ---- messages

    def read_command(self, epoch: int, count: int, block_ms: int | None = None) -> tuple[Any, ...]:
        block = () if block_ms is None else ("BLOCK", block_ms)
        streams = (self.keys.stream, self.keys.fence(GROUP, epoch), ">", ">")
        return (
            *("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", count, *block),
            *("STREAMS", *streams),
        )

    async def read(self, epoch: int, count: int = 100) -> list[str]:
        reply = await self.client.call(*self.read_command(epoch, count))
        return [id_.decode() for _, entries in reply or () for id_, _ in entries]

    async def settle(self, epoch: int, ids: list[str], failed_before: int = 0) -> int:
        return await self.scripts.ack_messages(
            self.owner(epoch), failed_before=failed_before, ids=ids
        )

    async def fail(self, epoch: int, ids: list[str], wait_ms: int = 0) -> int:
        failed = [part for id_ in ids for part in (id_, wait_ms, "[]")]
        return await self.scripts.retry_later(self.owner(epoch), failed=failed)

    async def begin(
        self, epoch: int, ids: list[str], attempt: int = 2, not_attempts: int = 0
    ) -> Any:
        known = [part for id_ in ids for part in (id_, attempt - 1)]
        return await self.scripts.begin_messages(
            self.owner(epoch), not_attempts=not_attempts, known=known
        )

    async def uncharge(self, ids: list[str]) -> int:
        return await self.scripts.uncharge_messages(self.owner(0), ids=ids)

    async def pending(self, epoch: int, count: int = 200) -> Any:
        return await self.scripts.pending_page(self.owner(epoch), start="-", count=count)

    async def due(self, epoch: int, count: int = 200) -> Any:
        return await self.scripts.due_retries(self.owner(epoch), count=count, ids=())

    async def bury(self, id_: str) -> str:
        source = Source(self.topic, 0, GROUP, bytes)
        message = Message(source, id_.encode(), [b"payload", b"x"])
        return await bury(self.client, message, reason="fatal", attempts=1)

    async def park(self, epoch: int, ids: list[str]) -> int:
        return await self.scripts.park_messages(self.owner(epoch), ids=ids)

    async def unpark(self, epoch: int, ids: list[str]) -> list[str]:
        found = await self.scripts.unpark_messages(self.owner(epoch), ids=ids)
        return [id_.decode() for id_, _ in found]

    async def beat(self, member: str = "anna", version: bytes = b"") -> Any:
        return await self.scripts.beat_member(
            members=self.topic_keys.members(GROUP),
            member_info=self.topic_keys.member_info(GROUP),
            meta=self.topic_keys.meta,
            member=member,
            about=b"{}",
            ttl_ms=LEASE_MS,
            version=version,
        )

    async def publish(
        self, *, once: str = "", body: bytes = b"", wait_ms: int | None = None
    ) -> Any:
        name = uuid.uuid4().hex if body else ""
        return await self.scripts.publish_message(
            keys=PublishKeys.of(self.keys, name),
            idempotency_key=once,
            remember_ms=LEASE_MS,
            payload_name=name,
            body=body,
            waiting_id="" if wait_ms is None else f"d-{uuid.uuid4().hex}",
            wait_ms=wait_ms or 0,
            fields=("payload", "x"),
        )

    async def move(self, count: int = 500) -> list[int]:
        return await self.scripts.move_due(
            **self._keys("stream", "delayed", "delayed_bodies", "payloads", "counters"),
            count=count,
            generation=1,
        )

    async def trim(self, *, max_length: int = 0, hard_length: int = 0) -> list[int]:
        return await self.scripts.trim_partition(
            **self._keys("stream", "counters", "payloads"),
            max_length=max_length,
            max_age_ms=0,
            max_bytes=0,
            hard_length=hard_length,
            payload_prefix=self.keys.payload("_").removesuffix("_"),
        )
