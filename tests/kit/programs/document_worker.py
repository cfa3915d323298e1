"""The worker process of the fault tests of documents; see `serving.py` for how it starts."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal

from tests.kit.programs.serving import serve, tell_when_up
from tests.kit.settings import settings_of

from penstock import Penstock
from penstock.delivery.retries import RetryPolicy
from penstock.errors import DocumentRefused
from penstock.pipelines.documents import resources
from penstock.pipelines.documents.embedding import builtin  # noqa: F401  before the fork
from penstock.pipelines.documents.ingest import cleanup
from penstock.pipelines.documents.ingest.finished_files import FinishedFiles
from penstock.pipelines.documents.ingest.indexing import Indexer
from penstock.pipelines.documents.ingest.intake import Intake
from penstock.pipelines.documents.ingest.rebuilding import Rebuilder
from penstock.pipelines.documents.ledger.ledger import DocumentLedger
from penstock.pipelines.documents.ledger.rebuilds import RebuildLedger
from penstock.pipelines.documents.service import Documents
from penstock.pipelines.documents.submit import job_message
from penstock.queues.storage.scripts import QueueScripts
from penstock.stores.files.folder import Folder
from penstock.stores.vectors.daemon_client import EmbeddedVectors

POISON = "POISON"
STEPS = {
    "open": (Folder, "open"),
    "begin": (DocumentLedger, "begin"),
    "write": (Indexer, "_write"),
    "upsert": (EmbeddedVectors, "upsert"),
    "seal": (DocumentLedger, "seal"),
    "delete_before": (EmbeddedVectors, "delete_before"),
    "delete_generation": (EmbeddedVectors, "delete_generation"),
    "store": (FinishedFiles, "store"),
    "set_aside": (FinishedFiles, "set_aside"),
    "move": (Folder, "move"),
    "done": (DocumentLedger, "done"),
    "forget_parts": (Indexer, "forget_parts"),
    "failed": (DocumentLedger, "failed"),
    "end_job": (DocumentLedger, "end_job"),
    "perform": (Intake, "perform"),
    "finish_jobs": (QueueScripts, "finish_jobs"),
    "bury_job": (QueueScripts, "bury_job"),
    "copied": (DocumentLedger, "copied"),
    "fill": (Rebuilder, "_fill"),
    "swap": (RebuildLedger, "swap"),
    "alias": (EmbeddedVectors, "alias"),
    "drop": (EmbeddedVectors, "drop"),
    "drop_former": (RebuildLedger, "drop_former"),
}


def hurry(told: dict) -> None:
    """Wait shorter than in earnest between attempts, and between looks at what others left."""
    job_message.RETRY = RetryPolicy(
        max_attempts=told["max_attempts"],
        backoff=tuple(told["backoff"]),
        give_up_on=(DocumentRefused,),
    )
    cleanup._EVERY_S, cleanup._SETTLED_MS = told["tidy_s"], told["settled_ms"]
    resources._EMBEDDER_S = told["embedder_s"]


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

    @functools.wraps(take)
    async def step_(*args, **options):
        crashes("before")
        result = await take(*args, **options)
        crashes("after")
        return result

    @functools.wraps(take)
    def plain_step(*args, **options):
        crashes("before")
        result = take(*args, **options)
        crashes("after")
        return result

    setattr(owner, name, step_ if inspect.iscoroutinefunction(take) else plain_step)


def plant_poison() -> None:
    """Let some texts end the process that wants their vectors."""
    make = Indexer._vectors

    async def vectors(self, writing, chunks, *rest):
        if any(POISON in chunk.text for chunk in chunks):
            os._exit(9)
        return await make(self, writing, chunks, *rest)

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
        tell_when_up(told)
        return await worker.run(handle_signals=True)


if __name__ == "__main__":
    serve(work)
