"""What groups have pending: delivered, but not settled."""

from __future__ import annotations

from penstock.delivery.failures import read_failures
from penstock.delivery.queries import text
from penstock.errors import GroupMissing, InvalidMessage
from penstock.redis.client import Client
from penstock.redis.wire import Reply
from penstock.topics.admin.views import PendingPage, PendingView
from penstock.topics.storage.admin_scripts import TopicAdminScripts
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.message_id import identify
from penstock.topics.storage.metadata import read_metadata

__all__ = ["list_pending"]


async def list_pending(
    client: Client, topic: str, group: str, cursor: str | None = None, limit: int = 100
) -> PendingPage:
    """List what a group has pending, by partition and id; `GroupMissing` if it is not there.

    The cursor stays valid whatever is settled or delivered meanwhile. One round trip for each
    partition touched and for each 500 messages, more for large ones; and one for the topic.
    """
    if limit < 1:
        raise ValueError(f"limit = {limit!r}: expected 1 or more")
    first, after = _read_cursor(cursor)
    partitions = (await read_metadata(client, topic)).partitions
    pending: list[PendingView] = []
    missing = 0
    for index in range(first, partitions):
        start = f"({after}" if after and index == first else "-"
        may_be_more = True
        while may_be_more:
            page = await _pending_in(client, topic, group, index, start, limit - len(pending))
            missing += page is None
            may_be_more, views = page or (False, [])
            pending += [view for _, view in views]
            if views and len(pending) >= limit:
                return PendingPage(pending=pending, cursor=f"{index}/{views[-1][0]}")
            if views:
                start = f"({views[-1][0]}"
    if missing == partitions:
        raise GroupMissing(topic, group)
    return PendingPage(pending=pending)


async def _pending_in(
    client: Client, topic: str, group: str, index: int, start: str, count: int
) -> tuple[bool, list[tuple[str, PendingView]]] | None:
    """What is pending in one partition, each with its place; whether there may be more."""
    keys = PartitionKeys.of(client.keys, topic, index)
    reply = await TopicAdminScripts.of(client).read_pending(
        stream=keys.stream,
        retry=keys.retry(group),
        failures=keys.failures(group),
        lease=keys.lease(group),
        group=group,
        start=start,
        count=count,
    )
    if reply is None:
        return None
    return reply.has_more, [(text(row[0]), _view(index, reply.owner, row)) for row in reply.rows]


def _view(index: int, owner: bytes | None, row: Reply) -> PendingView:
    entry_id, attempts, idle_ms, due_in_ms, failures, is_there, key, carried = row
    return PendingView(
        partition=index,
        id=identify(index, entry_id, carried),
        attempts=attempts,
        idle_ms=idle_ms,
        key=None if key is None else text(key),
        due_in_ms=None if due_in_ms < 0 else due_in_ms,
        last_failure=_last_failure(failures),
        owner=None if owner is None else text(owner),
        is_gone=not is_there,
    )


def _last_failure(stored: bytes) -> str | None:
    if not stored:
        return None
    failures = read_failures(stored)
    return f"{failures[-1].error_class}: {failures[-1].message}" if failures else text(stored)


def _read_cursor(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return 0, ""
    partition, _, id_ = cursor.partition("/")
    ms, _, sequence = id_.partition("-")
    if not all(part.isascii() and part.isdigit() for part in (partition, ms, sequence)):
        raise InvalidMessage(f"cursor {cursor[:60]!r}: expected one that a page came with")
    return int(partition), id_
