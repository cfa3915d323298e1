"""Whether documents can be taken in now."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.pipelines.documents.message import now_text
from penstock.pipelines.documents.metrics import MetricsView
from penstock.pipelines.documents.sending import QUEUE
from penstock.pipelines.documents.workshop import Workshop
from penstock.queues.facts import read_facts
from penstock.stores.vectors.port import VectorHealth

__all__ = ["DocumentsHealth", "check"]

_FRESH_MS = 5_000
"""A worker that was silent for longer counts as gone."""


class DocumentsHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health check of seed 002."""

    queue_name: str
    connection: str
    redis_ok: bool
    qdrant_ok: bool
    ledger_ok: bool
    worker_connected: bool
    """Whether a worker's last sign of life is younger than 5 seconds."""
    last_heartbeat_s: float | None
    """Seconds since then; None if there is no worker."""
    workers: int
    queued: int
    processing: int
    delayed: int
    """Jobs that wait for their next attempt."""
    dead_letters: int
    last_job: dict[str, Any] | None
    problems: tuple[str, ...]
    checked_at: str

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def answered(self) -> bool:
        """Whether all that documents need answers: the server, the vectors and the ledger."""
        return self.redis_ok and self.qdrant_ok and self.ledger_ok


async def check(workshop: Workshop) -> DocumentsHealth:
    """Ask every part, each whether the others answer or not; never raises. Needs no open."""
    problems: list[str] = []
    app = workshop.app
    redis = await app.health()
    facts = None
    if redis.connected:
        try:
            facts = await read_facts(app.redis, app.codec, QUEUE)
        except Exception as error:  # noqa: BLE001  it is the answer
            problems.append(f"queue: {error}")
    else:
        problems.append(f"redis: {redis.status}")
    vectors = await _vectors(workshop)
    if not vectors.ok:
        problems.append(f"vectors: {vectors.detail}")
    last, ledger_ok = None, True
    try:
        await workshop.ledger.open()
        last = await workshop.ledger.jobs.latest()
    except Exception as error:  # noqa: BLE001  it is the answer
        ledger_ok = False
        problems.append(f"ledger: {error}")
    problems += [f"{file}: {'; '.join(said)}" for file, said in workshop.config.problems.items()]
    silent = [worker.silent_ms for worker in facts.workers] if facts is not None else []
    fresh = [ms for ms in silent if ms < _FRESH_MS]
    if not fresh:
        problems.append("no worker: start one with penstock ingest work")
    return DocumentsHealth(
        queue_name=QUEUE,
        connection=str(app.redis.address),
        redis_ok=redis.connected,
        qdrant_ok=vectors.ok,
        ledger_ok=ledger_ok,
        worker_connected=bool(fresh),
        last_heartbeat_s=min(silent) / 1000 if silent else None,
        workers=len(fresh),
        queued=facts.waiting if facts is not None else 0,
        processing=facts.claimed if facts is not None else 0,
        delayed=facts.delayed if facts is not None else 0,
        dead_letters=facts.dead_letters if facts is not None else 0,
        last_job=msgspec.to_builtins(last) if last is not None else None,
        problems=tuple(problems),
        checked_at=now_text(),
    )


async def _vectors(workshop: Workshop) -> VectorHealth:
    try:
        await workshop.vectors.open()
    except Exception as error:  # noqa: BLE001  it is the answer
        return VectorHealth(False, str(error))
    return await workshop.vectors.health()


def merged(views: list[MetricsView]) -> MetricsView:
    """What several processes have done together."""
    seconds: dict[str, float] = {}
    for view in views:
        for stage, spent in view.seconds.items():
            seconds[stage] = round(seconds.get(stage, 0.0) + spent, 6)
    names = [name for name in MetricsView.__struct_fields__ if name != "seconds"]
    totals = {name: sum(getattr(view, name) for view in views) for name in names}
    return MetricsView(**totals, seconds=seconds)
