"""Runs, as people look at them."""

from __future__ import annotations

import msgspec

from penstock.app import Penstock
from penstock.coordination.runs.records import Failure, RunEvent, RunRecord, TaskStart

__all__ = ["RunView", "show_run"]


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run with what happened in it."""

    run: RunRecord
    failures: list[Failure]
    """Open ones, those due first; at most so many as were asked for."""
    starts: list[TaskStart]
    """All of them, the earliest first."""
    events: list[RunEvent]
    """The latest, in order."""
    at_ms: int
    """When this was so, by the server's clock."""


async def show_run(app: Penstock, run_id: str, *, failures: int = 20, events: int = 10) -> RunView:
    """Show a run; `RunMissing` if there is none. Five round trips, O(starts of tasks)."""
    run = app.runs.open(run_id)
    record = await run.record()
    seconds, micros = await app.redis.call("TIME")
    return RunView(
        run=record,
        failures=(await run.failures(failures)).failures,
        starts=await run.task_starts(),
        events=await run.last_events(events),
        at_ms=int(seconds) * 1000 + int(micros) // 1000,
    )
