"""The scripts of runs."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.redis.keys import RunKeys
from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument

__all__ = ["RunScripts"]


class RunScripts(ScriptCaller):
    """Scripts of runs, as calls.

    `token` is the caller's name for one call: repeated with it, a call is answered as before and
    does nothing more. `keep_ms` is for how long a final run is kept, `cap` about how many events.
    """

    async def register_run(self, *, registry: str, run: str) -> int:
        """Note a run before its record is made; the server's ms."""
        return await self.run("register_run", (registry,), (run,))

    async def forget_runs(
        self, *, registry: str, grace_ms: int, runs: Sequence[str | bytes]
    ) -> int:
        """Take runs out of the registry, unless they entered it lately; how many left."""
        return await self.run("forget_runs", (registry,), (grace_ms, *runs))

    async def start_run(
        self,
        *,
        keys: RunKeys,
        token: str,
        run: str,
        kind: str,
        cap: int,
        facts: Sequence[Argument],
    ) -> bool:
        """Make the record of a run; False if there is one."""
        return bool(
            await self.run("start_run", _all(keys), (token, run, kind, cap, *facts)),
        )

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
    ) -> tuple[int, int, str]:
        """Change status or facts: 1 done, 0 not as expected, -1 no run; then version, status."""
        arguments = (token, to, expect, version, int(reopen), keep_ms, cap, *facts)
        done, now, status = await self.run("change_run", _all(keys), arguments)
        return done, now, status.decode()

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
        most_told: int,
    ) -> tuple[int, int, str]:
        """Note how far a run is; as `change_run`, and -2 for a watermark of another kind."""
        arguments = (token, cursor, watermark, int(force), version, cap, most_told)
        done, now, status = await self.run("save_checkpoint", _all(keys), arguments)
        return done, now, status.decode()

    async def note_start(
        self, *, keys: RunKeys, task_start: str, token: str, task: bytes, start: bytes, keep_ms: int
    ) -> int:
        """Note that a task began: 1 if for the first time, 0 if not, -1 no run."""
        places = (*_all(keys), task_start)
        return await self.run("note_start", places, (token, task, start, keep_ms))

    async def mark_processed(
        self, *, keys: RunKeys, token: str, keep_ms: int, cap: int, ids: Sequence[str]
    ) -> int:
        """Note what was processed: how many of them are new, -1 no run."""
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
        """Note a failure: failed attempts so far, 0 if the item was processed, -1 no run."""
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
        """Settle a failure: 1, 0 if it was not open, -1 no run."""
        return await self.run("resolve_failure", _all(keys), (token, item, keep_ms, cap))

    async def claim_failures(
        self, *, keys: RunKeys, token: str, most: int, lease_ms: int
    ) -> list[bytes] | int:
        """Take failures that are due: id, score and facts of each; -1 no run."""
        return await self.run("claim_failures", _all(keys), (token, most, lease_ms))

    async def look_at_failures(
        self, *, keys: RunKeys, most: int, due_only: bool, score: str, item: bytes
    ) -> list[bytes]:
        """Show failures as they are due, after a score and an id: id, score and facts of each."""
        places = (keys.failures, keys.failure_info)
        return await self.run("look_at_failures", places, (most, int(due_only), score, item))


def _all(keys: RunKeys) -> tuple[str, ...]:
    return (
        *(keys.pipeline, keys.events, keys.feed, keys.processed),
        *(keys.failures, keys.failure_info, keys.starts),
    )
