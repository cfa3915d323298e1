"""The scripts of aggregation windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from penstock.queues.storage.scripts import QUEUE_LUA
from penstock.redis.prepared_call import Prepared, SharedLink
from penstock.redis.script import LuaFolder, ScriptCaller
from penstock.redis.wire import Argument

__all__ = [
    "AddReply",
    "AddStatus",
    "BatchArguments",
    "CloseReply",
    "CloseStatus",
    "WindowScripts",
]

_LUA = LuaFolder("penstock.coordination.windows", QUEUE_LUA)


@dataclass(frozen=True, slots=True)
class BatchArguments:
    """What all scripts of windows begin with: where batches are stored, and what gets them."""

    keys: tuple[str, ...]
    """KEYS[1..9]."""
    arguments: tuple[Argument, ...]
    """ARGV[1..18]."""


class AddStatus(IntEnum):
    """What became of an item."""

    TOO_MANY = -2
    """As many batches are open as may be, and nothing was stored."""
    MISSING = -1
    """There is no such partition."""
    FULL = 0
    """The queue is full, and nothing was stored."""
    ADDED = 1
    REPEATED = 2
    """An item with this id was added before."""
    FAST = 3
    """It went to the high lane as a batch of its own."""


class AddReply(NamedTuple):
    """The reply to `add_to_window`."""

    status: int
    """An `AddStatus`."""
    batch_id: bytes
    """Empty if the batch is closed."""
    size: int
    closed: bytes
    """Id of a batch that was closed, or empty."""
    length: int
    """Of the queue."""
    lost_jobs: list[bytes]
    """Compressed jobs that were dropped for it: see `note_losses`."""


class CloseStatus(IntEnum):
    """How closing batches ended."""

    MISSING = -1
    """There is no such partition."""
    FULL = 0
    """The queue is full."""
    DONE = 1


class CloseReply(NamedTuple):
    """The reply to `close_windows`."""

    status: int
    """A `CloseStatus`."""
    wait_ms: int
    """Until the next batch is due; -1 for none."""
    length: int
    closed: list[bytes]
    lost_jobs: list[bytes]
    broken: Sequence[bytes] = ()
    """Windows that cannot be closed and their errors, in turn."""


class WindowScripts(ScriptCaller):
    """Scripts of windows, as calls. `keys` has what their headers have in common."""

    lua = _LUA

    def add_to_window(
        self,
        *,
        link: SharedLink,
        keys: BatchArguments,
        current: str,
        seen: str,
        max_items: int,
        max_bytes: int,
        remember_ms: int,
        window: str,
        key: bytes,
    ) -> Prepared:
        """Add items of one key: send item, its id, ids of a new and of a fast batch, most open.

        The reply is an `AddReply`.
        """
        return Prepared(
            link,
            self.script("add_to_window"),
            (*keys.keys, current, seen),
            (*keys.arguments, max_items, max_bytes, remember_ms, window, key),
        )

    async def close_windows(
        self,
        *,
        keys: BatchArguments,
        windows_prefix: str,
        name_prefix: str,
        limit: int,
        reason: str,
        windows: Sequence[Argument] = (),
    ) -> CloseReply:
        """Close the batches of these windows; without any, those that are due."""
        arguments = (*keys.arguments, windows_prefix, name_prefix, limit, reason, *windows)
        return CloseReply(*await self.run("close_windows", keys.keys, arguments))
