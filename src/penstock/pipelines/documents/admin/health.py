"""Health of the pipeline, of a RAG, and of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.errors import PenstockError
from penstock.inspector.workers import list_workers
from penstock.pipelines.documents.admin.views import RagView, status_of
from penstock.pipelines.documents.config.models import RagConfig
from penstock.pipelines.documents.config.reading import effective_settings
from penstock.pipelines.documents.ingest.indexing import IngestMetricsView
from penstock.pipelines.documents.ledger.tables import DocumentRow, JobRow, RagRow
from penstock.pipelines.documents.parsing.sandbox.fence_check import DETAIL
from penstock.pipelines.documents.resources import DocumentResources, recipe_of
from penstock.pipelines.documents.submit.job_message import QUEUE, now_text
from penstock.queues.admin.status import read_facts
from penstock.queues.storage.job_record import JobRecord
from penstock.stores.exposure import exposed_key, exposed_stores
from penstock.stores.vectors.port import VectorHealth

__all__ = ["DocumentsHealth", "Explanation", "check", "check_rag", "explain", "view_rag"]

_FRESH_MS = 5_000
"""A worker without a heartbeat for longer counts as gone."""


class DocumentsHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health of the pipeline, with the fields of docs/contracts.md."""

    queue_name: str
    connection: str
    redis_ok: bool
    qdrant_ok: bool
    ledger_ok: bool
    worker_connected: bool
    """Whether the last heartbeat of a worker is less than 5 seconds old."""
    last_heartbeat_s: float | None
    """Age of the last heartbeat; None if there is no worker."""
    workers: int
    queued: int
    processing: int
    delayed: int
    """Jobs that wait for a retry."""
    dead_letters: int
    last_job: dict[str, Any] | None
    fences: dict[str, str]
    """By worker: `all`, or `without fences: …` with the reasons."""
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    """Connections on which others could read or answer; the pipeline works all the same."""
    checked_at: str

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def answered(self) -> bool:
        """Whether the server, the vectors and the ledger answer."""
        return self.redis_ok and self.qdrant_ok and self.ledger_ok


async def check(resources: DocumentResources) -> DocumentsHealth:
    """Check every part independently; never raises, and needs no `open`."""
    problems: list[str] = []
    app = resources.app
    redis = await app.health()
    facts = None
    if redis.connected:
        try:
            facts = await read_facts(app.redis, app.codec, QUEUE)
        except Exception as error:  # noqa: BLE001  it is the answer
            problems.append(f"queue: {error}")
    else:
        problems.append(f"redis: {redis.status}")
    fences = await _fences(resources) if facts is not None else {}
    vectors = await _vectors(resources)
    if not vectors.ok:
        problems.append(f"vectors: {vectors.detail}")
    last, ledger_ok = None, True
    try:
        await resources.ledger.open()
        last = await resources.ledger.jobs.latest()
    except Exception as error:  # noqa: BLE001  it is the answer
        ledger_ok = False
        problems.append(f"ledger: {error}")
    wrong = resources.config.problems.items()
    problems += [f"{file}: {'; '.join(mistakes)}" for file, mistakes in wrong]
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
        fences=fences,
        problems=tuple(problems),
        warnings=tuple(_warnings(resources)),
        checked_at=now_text(),
    )


def _warnings(resources: DocumentResources) -> Iterator[str]:
    settings = effective_settings(resources.app.settings, resources.config)
    found = exposed_stores(settings)
    for rag in resources.config.rags.values():
        embeddings = rag.embeddings
        url = embeddings.url or ""
        if embeddings.provider == "http" and (embeddings.api_key_env or "@" in url):
            found += exposed_key(f"RAG {rag.rag_id}: embeddings.url", url, settings)
    return (f"{message}: {fix}" for message, fix in dict.fromkeys(found))


async def _fences(resources: DocumentResources) -> dict[str, str]:
    """What the living workers report of the fences of their parsers."""
    try:
        workers = await list_workers(resources.app.redis)
    except PenstockError:  # the server answered a moment ago
        return {}
    reports = {view.id: view.about.details for view in workers if view.about is not None}
    return {id_: details[DETAIL] for id_, details in reports.items() if DETAIL in details}


async def _vectors(resources: DocumentResources) -> VectorHealth:
    try:
        await resources.vectors.open()
    except Exception as error:  # noqa: BLE001  it is the answer
        return VectorHealth(False, str(error))
    return await resources.vectors.health()


def merged(views: list[IngestMetricsView]) -> IngestMetricsView:
    """Sum of the metrics of several processes."""
    seconds: dict[str, float] = {}
    for view in views:
        for stage, spent in view.seconds.items():
            seconds[stage] = round(seconds.get(stage, 0.0) + spent, 6)
    names = [name for name in IngestMetricsView.__struct_fields__ if name != "seconds"]
    totals = {name: sum(getattr(view, name) for view in views) for name in names}
    return IngestMetricsView(**totals, seconds=seconds)


_FLOAT = 4
_PROBE = "Does the embedder answer?"


async def view_rag(resources: DocumentResources, rag: RagConfig) -> RagView:
    """Configuration and contents of a RAG.

    Costs three reads of the ledger, and opens its embedder.
    """
    ledger = resources.ledger
    row = await ledger.rag(rag.rag_id)
    counts = await ledger.counts(rag.rag_id)
    model, needs, trouble = rag.embeddings.model, "", ""
    try:
        model = (await resources.embedder(rag)).model
        if row is not None and row.model != model:
            needs = f"it is indexed with {row.model}, its file has {model}"
    except (PenstockError, OSError) as error:
        trouble = f"embedder: {error}"
    if row is not None and not needs:
        # By the row's model: a changed model was reported above.
        needs = _otherwise(await ledger.rebuilds.outdated(rag.rag_id, recipe_of(rag, row.model)))
    return RagView(
        rag_id=rag.rag_id,
        description=rag.description,
        collection=rag.alias,
        model=row.model if row is not None else model,
        dimension=row.dimension if row is not None else 0,
        documents={state: count for state, count in counts.items() if state != "chunks"},
        chunks=counts.get("chunks", 0),
        folder=str(resources.config.folder_of(rag)),
        rebuilding=row.shadow if row is not None else "",
        needs_reindex=needs,
        trouble=trouble,
    )


def _otherwise(count: int) -> str:
    if not count:
        return ""
    are = "1 document is" if count == 1 else f"{count:,} documents are"
    return f"{are} split or read otherwise than its file says now"


async def check_rag(
    resources: DocumentResources, rag: RagConfig, *, probe: bool = False
) -> list[str]:
    """Problems of a RAG with a valid file; `probe` also requests a vector from its embedder.

    Costs one read of the ledger, two of the vector store, and opens its embedder.
    """
    row = await resources.ledger.rag(rag.rag_id)
    found = await _embedder(resources, rag, row, probe=probe)
    try:
        return [*found, *(await _collection(resources, rag, row))]
    except PenstockError as error:
        return [*found, f"vectors: {error}"]


async def _embedder(
    resources: DocumentResources, rag: RagConfig, row: RagRow | None, *, probe: bool
) -> list[str]:
    reindex = f"penstock ingest reindex --rag {rag.rag_id}"
    found: list[str] = []
    try:
        embedder = await resources.embedder(rag)
        if row is not None and row.model != embedder.model:
            found.append(
                f"it is indexed with {row.model}, its file has {embedder.model}: {reindex}"
            )
        elif row is not None and row.dimension != embedder.dimension:
            found.append(
                f"it is indexed with {row.dimension} dimensions, its model has "
                f"{embedder.dimension}: {reindex}"
            )
        if probe:
            vector = (await embedder.embed([_PROBE])).vectors[0]
            if len(vector) != embedder.dimension * _FLOAT:
                found.append(
                    f"the embedder makes {len(vector) // _FLOAT} dimensions, not "
                    f"{embedder.dimension}"
                )
    except (PenstockError, OSError) as error:
        found.append(f"embedder: {error}")
    return found


async def _collection(
    resources: DocumentResources, rag: RagConfig, row: RagRow | None
) -> list[str]:
    if row is None:
        return []  # nothing was indexed yet
    found: list[str] = []
    made = await resources.vectors.describe(row.physical)
    if made is None:
        found.append(f"collection {row.physical} is gone from the vector store")
    elif made.dimension != row.dimension:
        found.append(
            f"collection {row.physical} has {made.dimension} dimensions, not {row.dimension}"
        )
    elif (await resources.vectors.aliases()).get(rag.alias) != row.physical:
        found.append(f"the name {rag.alias} does not stand for collection {row.physical}")
    return found


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a job with the reasons for it."""

    job_id: str
    status: dict[str, Any]
    lines: tuple[str, ...]
    document: DocumentRow | None = None


async def explain(resources: DocumentResources, job_id: str) -> Explanation:
    """Explain a job by its record, the ledger and the health; JobMissing if there is none."""
    record = await resources.queue.job(job_id).status()
    row = await resources.ledger.jobs.get(job_id)
    document = await resources.ledger.document(row.rag_id, row.doc_id) if row is not None else None
    lines = await _lines(resources, record, row, document)
    return Explanation(
        job_id=job_id, status=status_of(record), lines=tuple(lines), document=document
    )


async def _lines(
    resources: DocumentResources,
    record: JobRecord,
    row: JobRow | None,
    document: DocumentRow | None,
) -> list[str]:
    lines = [_where(record)]
    if record.error and record.status != "done":
        lines.append(f"last error: {record.error} ({record.error_code or record.error_type})")
        lines += [f"try: {suggestion}" for suggestion in record.suggestions]
    if record.status in {"queued", "retrying"}:
        state = await check(resources)
        waiting = "1 job waits" if state.queued == 1 else f"{state.queued:,} jobs wait"
        workers = "1 worker lives" if state.workers == 1 else f"{state.workers:,} workers live"
        runs = "runs" if state.processing == 1 else "run"
        lines.append(f"{waiting}, {state.processing:,} {runs}, {workers}")
        lines += [f"in the way: {problem}" for problem in state.problems]
    if document is not None:
        if document.sealed:
            lines.append(f"generation {document.sealed} is found, {document.chunks} chunks")
        else:
            lines.append("no version of the document is found")
        if document.job_id != record.job_id:
            lines.append(f"a later job has the document: {document.job_id}")
        if document.duplicate_of:
            lines.append(f"the same content as {document.duplicate_of}")
    elif row is None:
        lines.append("the ledger has no entry: no worker has begun it")
    return lines


def _where(record: JobRecord) -> str:
    done = record.progress
    where = f"{record.status}, attempt {record.attempt} of {record.max_attempts or '?'}"
    if done.note:
        where += f", {done.note}"
    if done.total:
        where += f" ({done.done} of {done.total})"
    return where
