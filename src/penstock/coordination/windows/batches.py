"""Open batches: reading them changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from penstock.coordination.stored_names import BATCH_ITEMS
from penstock.coordination.windows.targets import BatchStore
from penstock.delivery.queries import ask, exact, text
from penstock.errors import CommandRefused, ServerError, SettingError
from penstock.redis.client import Client
from penstock.redis.wire import Command, Reply

__all__ = ["OpenBatch", "batch_facts", "batch_of", "open_batches", "stored_ms"]

_FIELDS: Final = ("started_at", "last_activity", "bytes")
_MOST_SHOWN: Final = 1_000_000
_MOST_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that still takes items; times are the server's."""

    batch_id: str
    key: str
    count: int
    bytes: int
    started_ms: int
    last_ms: int
    due_ms: int
    """When it will be closed unless another item comes."""


async def batch_of(client: Client, store: BatchStore, window: str, key: str) -> OpenBatch | None:
    """The open batch of one window."""
    batch, due = await ask(
        client, [("GET", store.current(window)), ("ZSCORE", store.index.due, window)]
    )
    if batch is None:
        return None
    found = await _read(client, [(store, batch, key, due)])
    return found[0] if found else None


async def open_batches(
    client: Client, stores: Sequence[BatchStore], key_of: Callable[[str], str], limit: int
) -> list[OpenBatch]:
    """Open batches of all windows of one name, by the time at which they are due."""
    if type(limit) is not int or not 1 <= limit <= _MOST_SHOWN:
        raise SettingError("limit", limit, f"a whole number from 1 to {_MOST_SHOWN}")
    pages = await ask(
        client, [("ZRANGE", store.index.due, 0, limit - 1, "WITHSCORES") for store in stores]
    )
    waiting = [
        (float(page[at + 1]), store, page[at])
        for store, page in zip(stores, pages, strict=True)
        for at in range(0, len(page), 2)
    ]
    first = sorted(waiting, key=lambda one: (one[0], one[2]))[:limit]
    ids = await _ask(client, [("GET", store.current(exact(window))) for _, store, window in first])
    wanted = [
        (store, batch, key_of(text(window)), due)
        for (due, store, window), batch in zip(first, ids, strict=True)
        if batch is not None
    ]
    return await _read(client, wanted)


async def _read(
    client: Client, wanted: Sequence[tuple[BatchStore, bytes, str, float | bytes | None]]
) -> list[OpenBatch]:
    """Read batches; leaves out those that were closed meanwhile, or whose keys hold other data."""
    if not wanted:
        return []
    replies = await _ask(
        client,
        [
            command
            for store, batch, _, _ in wanted
            for command in (
                ("MGET", *(store.batch(exact(batch), field) for field in _FIELDS)),
                ("LLEN", store.batch(exact(batch), BATCH_ITEMS)),
            )
        ],
    )
    batches = [
        batch_facts(text(batch), key, replies[2 * at], replies[2 * at + 1], due)
        for at, (_, batch, key, due) in enumerate(wanted)
    ]
    return [batch for batch in batches if batch is not None]


def batch_facts(
    batch: str,
    key: str,
    facts: Sequence[bytes | None] | None,
    count: int | None,
    due: float | bytes | None,
) -> OpenBatch | None:
    """Read what is stored of one batch; None if it was closed meanwhile."""
    started, last, size = facts or (None, None, None)
    if not count or started is None:
        return None
    started_ms = stored_ms(started)
    return OpenBatch(
        batch_id=batch,
        key=key,
        count=count,
        bytes=int(size) if size and _is_digits(size) else 0,
        started_ms=started_ms,
        last_ms=stored_ms(last) if last else started_ms,
        due_ms=int(float(due)) if _is_time(due) else started_ms,
    )


def stored_ms(text: bytes) -> int:
    """Read a time by its digits, as scripts do: a float is not exact. 0 for what is no time."""
    seconds, _, parts = text.partition(b".")
    if not _is_digits(seconds) or (parts and not _is_digits(parts)):
        return 0
    return int(seconds + parts[:3].ljust(3, b"0"))


def _is_digits(text: bytes) -> bool:
    return text.isdigit() and len(text) <= _MOST_DIGITS


def _is_time(due: float | bytes | None) -> TypeGuard[float | bytes]:
    return due is not None and math.isfinite(float(due))


async def _ask(client: Client, commands: Sequence[Command]) -> list[Reply]:
    """As `ask`, with None for a command that is refused: its key holds something else."""
    replies = await client.pipeline(commands)
    for reply in replies:
        if isinstance(reply, ServerError) and not isinstance(reply, CommandRefused):
            raise reply
    return [None if isinstance(reply, CommandRefused) else reply for reply in replies]
