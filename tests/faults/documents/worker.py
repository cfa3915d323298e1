"""The worker process of the fault tests of documents; see `topics/worker.py` for how it starts."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from pathlib import Path

from topics.worker import serve

from penstock import Penstock
from penstock.delivery.retries import RetryPolicy
from penstock.errors import DocumentRefused
from penstock.pipelines.documents import holding_back, sending, tidying
from penstock.pipelines.documents.embedding import builtin  # noqa: F401  before the fork
from penstock.pipelines.documents.indexing import Indexer
from penstock.pipelines.documents.intake import Intake
from penstock.pipelines.documents.ledger import Ledger
from penstock.pipelines.documents.ledger_rebuilds import RebuildBook
from penstock.pipelines.documents.rebuilding import Rebuilding
from penstock.pipelines.documents.service import Documents
from penstock.pipelines.documents.storing import Storing
from penstock.redis.scripts import Scripts
from penstock.settings import (
    DocumentSettings,
    EmbeddedSettings,
    QueueSettings,
    Settings,
    TableSettings,
    TimeoutSettings,
    VectorSettings,
    WorkerSettings,
)
from penstock.stores.files.folder import Folder
from penstock.stores.vectors.housed import Housed

POISON = "POISON"
GROUPS = {
    "queues": QueueSettings,
    "worker": WorkerSettings,
    "timeouts": TimeoutSettings,
    "embedded": EmbeddedSettings,
    "tables": TableSettings,
    "vectors": VectorSettings,
    "documents": DocumentSettings,
}
STEPS = {
    "open": (Folder, "open"),
    "begin": (Ledger, "begin"),
    "write": (Indexer, "_write"),
    "upsert": (Housed, "upsert"),
    "seal": (Ledger, "seal"),
    "delete_before": (Housed, "delete_before"),
    "delete_generation": (Housed, "delete_generation"),
    "store": (Storing, "store"),
    "set_aside": (Storing, "set_aside"),
    "move": (Folder, "move"),
    "done": (Ledger, "done"),
    "forget_parts": (Indexer, "forget_parts"),
    "failed": (Ledger, "failed"),
    "end_job": (Ledger, "end_job"),
    "perform": (Intake, "perform"),
    "finish_jobs": (Scripts, "finish_jobs"),
    "bury_job": (Scripts, "bury_job"),
    "copied": (Ledger, "copied"),
    "fill": (Rebuilding, "_fill"),
    "swap": (RebuildBook, "swap"),
    "alias": (Housed, "alias"),
    "drop": (Housed, "drop"),
    "drop_former": (RebuildBook, "drop_former"),
}


def settings_of(told: dict) -> Settings:
    groups = {name: kind(**told.get(name, {})) for name, kind in GROUPS.items()}
    return Settings(url=told["url"], namespace=told["namespace"], home=told["home"], **groups)


def hurry(told: dict) -> None:
    """Wait shorter than in earnest between attempts, and between looks at what others left."""
    sending.RETRY = RetryPolicy(
        max_attempts=told["max_attempts"],
        backoff=tuple(told["backoff"]),
        give_up_on=(DocumentRefused,),
    )
    tidying._EVERY_S, tidying._SETTLED_MS = told["tidy_s"], told["settled_ms"]
    holding_back._EMBEDDER_S = told["embedder_s"]


def plant_crash(point: str) -> None:
    """End the process right before or after the n-th time that it takes a step.

    "after upsert", "before seal", "after upsert 2"
    """
    if not point:
        return
    when, step, *nth = point.split()
    owner, name = STEPS[step]
    left = int(nth[0]) if nth else 1
    take = getattr(owner, name)

    def crashes(moment: str) -> None:
        nonlocal left
        if moment == when:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    async def step_(*args, **options):
        crashes("before")
        result = await take(*args, **options)
        crashes("after")
        return result

    def plain_step(*args, **options):
        crashes("before")
        result = take(*args, **options)
        crashes("after")
        return result

    setattr(owner, name, step_ if inspect.iscoroutinefunction(take) else plain_step)


def plant_poison() -> None:
    """Let some texts end the process that wants their vectors."""
    make = Indexer._vectors

    async def vectors(self, writing, chunks, indexed):
        if any(POISON in chunk.text for chunk in chunks):
            os._exit(9)
        return await make(self, writing, chunks, indexed)

    Indexer._vectors = vectors


def slow_down(pause_s: float) -> None:
    """Let every part of every document take a while."""
    write = Indexer._write

    async def write_(self, writing, part, indexed):
        await asyncio.sleep(pause_s)
        await write(self, writing, part, indexed)

    Indexer._write = write_


async def work(told: dict) -> int:
    hurry(told)
    plant_crash(told["crash"])
    if told["poison"]:
        plant_poison()
    if told["pause_s"]:
        slow_down(told["pause_s"])
    app = Penstock(settings=settings_of(told))
    documents = Documents(app)
    services = documents.attend(watch=told["watch"])
    async with app, documents:
        worker = app.worker(services=services)
        up = Path(told["folder"]) / f"{told['actor']}.up"
        asyncio.get_running_loop().call_soon(up.touch)
        return await worker.run(handle_signals=True)


if __name__ == "__main__":
    serve(work)
