"""The scripts of runs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.coordination.runs.keys import RunKeys
from penstock.redis.script import LuaFolder, ScriptCaller
from penstock.redis.wire import Argument

__all__ = ["NO_RUN", "RunChange", "RunChangeStatus", "RunScripts"]

_LUA = LuaFolder("penstock.coordination.runs")

NO_RUN: Final = -1
"""Reply of scripts that count: there is no such run."""


class RunChangeStatus(IntEnum):
    """How a script that compares before it writes has ended."""

    WRONG_WATERMARK = -2
    """The run has a watermark of another kind."""
    NO_RUN = -1
    CONFLICT = 0
    """Not as expected; nothing was written."""
    DONE = 1


class RunChange(NamedTuple):
    """The reply of a script that compares before it writes."""

    outcome: RunChangeStatus
    version: int
    status: str


class RunScripts(ScriptCaller):
    """Scripts of runs, as calls.

    `token` identifies one call: repeated with it, a call gets the same reply and does nothing more.
    `keep_ms` is for how long a final run is kept, `cap` about how many events.
    """

    lua = _LUA

    async def register_run(self, *, registry: str, run: str, max_runs: int) -> int:
        """Register a run before its record is created: server ms, 0 if there are too many."""
        return await self.run("register_run", (registry,), (run, max_runs))

    async def forget_runs(
        self, *, registry: str, grace_ms: int, runs: Sequence[str | bytes]
    ) -> int:
        """Remove runs from the registry, unless they were registered lately; how many."""
        return await self.run("forget_runs", (registry,), (grace_ms, *runs))

    async def start_run(
        self,
        *,
        keys: RunKeys,
        token: str,
        run: str,
        kind: str,
        cap: int,
        id_field: str,
        facts: Sequence[Argument],
    ) -> bool:
        """Create the record of a run; False if there is one."""
        arguments = (token, run, kind, cap, id_field, *facts)
        return bool(await self.run("start_run", _all(keys), arguments))

    async def change_run(
        self,
        *,
        keys: RunKeys,
        token: str,
        to: str,
        expect: str,
        version: str,
        reopen: bool,
        keep_ms: int,
        cap: int,
        facts: Sequence[Argument],
    ) -> RunChange:
        """Change status or facts."""
        arguments = (token, to, expect, version, int(reopen), keep_ms, cap, *facts)
        return _change(*await self.run("change_run", _all(keys), arguments))

    async def save_checkpoint(
        self,
        *,
        keys: RunKeys,
        token: str,
        cursor: bytes,
        watermark: bytes,
        force: bool,
        version: str,
        cap: int,
        largest_shown: int,
    ) -> RunChange:
        """Save how far a run is."""
        arguments = (token, cursor, watermark, int(force), version, cap, largest_shown)
        return _change(*await self.run("save_checkpoint", _all(keys), arguments))

    async def note_start(
        self, *, keys: RunKeys, task_start: str, token: str, task: bytes, start: bytes, keep_ms: int
    ) -> int:
        """Record the start of a task: 1 if it is the first, 0 if not, `NO_RUN`."""
        places = (*_all(keys), task_start)
        return await self.run("note_start", places, (token, task, start, keep_ms))

    async def mark_processed(
        self, *, keys: RunKeys, token: str, keep_ms: int, cap: int, ids: Sequence[str]
    ) -> int:
        """Record processed items: how many of them are new, `NO_RUN`."""
        return await self.run("mark_processed", _all(keys), (token, keep_ms, cap, *ids))

    async def fail_item(
        self,
        *,
        keys: RunKeys,
        failed: str,
        token: str,
        item: str,
        error_type: str,
        error: str,
        retry: int | str,
        base_ms: int,
        max_ms: int,
        api_calls: int,
        keep_ms: int,
        cap: int,
        failed_ms: int,
    ) -> int:
        """Record a failure: failed attempts so far, 0 if the item was processed, `NO_RUN`."""
        return await self.run(
            "fail_item",
            (*_all(keys), failed),
            (
                *(token, item, error_type, error, retry, base_ms, max_ms),
                *(api_calls, keep_ms, cap, failed_ms),
            ),
        )

    async def resolve_failure(
        self, *, keys: RunKeys, token: str, item: str | bytes, keep_ms: int, cap: int
    ) -> int:
        """Settle a failure: 1, 0 if it was not open, `NO_RUN`."""
        return await self.run("resolve_failure", _all(keys), (token, item, keep_ms, cap))

    async def claim_failures(
        self, *, keys: RunKeys, token: str, most: int, lease_ms: int
    ) -> list[bytes] | int:
        """Claim failures that are due: id, score and info of each; `NO_RUN`."""
        return await self.run("claim_failures", _all(keys), (token, most, lease_ms))

    async def look_at_failures(
        self, *, keys: RunKeys, most: int, due_only: bool, score: str, item: bytes
    ) -> list[bytes]:
        """Read failures as they are due, after a score and an id: id, score and info of each."""
        places = (keys.failures, keys.failure_info)
        return await self.run("look_at_failures", places, (most, int(due_only), score, item))


def _change(outcome: int, version: int, status: bytes) -> RunChange:
    return RunChange(RunChangeStatus(outcome), version, status.decode())


def _all(keys: RunKeys) -> tuple[str, ...]:
    return (
        *(keys.record, keys.events, keys.feed, keys.processed),
        *(keys.failures, keys.failure_info, keys.starts),
    )
