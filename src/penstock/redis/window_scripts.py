"""The scripts of aggregation windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument

__all__ = ["WindowPlace", "WindowScripts"]


@dataclass(frozen=True, slots=True)
class WindowPlace:
    """What all scripts of windows begin with: where batches are, and what gets them."""

    keys: tuple[str, ...]
    """KEYS[1..9]."""
    arguments: tuple[Argument, ...]
    """ARGV[1..16]."""


class WindowScripts(ScriptCaller):
    """Scripts of windows, as calls. `keys` stands for the place in a script's header."""

    async def add_to_window(
        self,
        *,
        keys: WindowPlace,
        current: str,
        seen: str,
        max_items: int,
        max_bytes: int,
        remember_ms: int,
        window: str,
        key: bytes,
        item: bytes,
        item_id: bytes,
        batch_id: bytes,
        fast_id: bytes,
    ) -> list[Any]:
        """Add an item: how it ended, batch, its size, batch closed, queue's length, lost jobs."""
        return await self.run(
            "add_to_window",
            (*keys.keys, current, seen),
            (
                *keys.arguments,
                *(max_items, max_bytes, remember_ms, window, key, item, item_id, batch_id, fast_id),
            ),
        )

    async def close_windows(
        self,
        *,
        keys: WindowPlace,
        pointers: str,
        prefix: str,
        most: int,
        reason: str,
        windows: Sequence[Argument] = (),
    ) -> list[Any]:
        """Close batches: how it ended, ms until the next is due, length, ids, lost jobs."""
        return await self.run(
            "close_windows",
            keys.keys,
            (*keys.arguments, pointers, prefix, most, reason, *windows),
        )
