"""Resources that all document jobs of a process share: configuration, stores, embedders, gate."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from penstock.app import Penstock
from penstock.errors import (
    ConfigurationWrong,
    EmbedderFailed,
    FileRefused,
    RagMissing,
    ServerError,
    StoreAway,
    StoreError,
    StoreFull,
)
from penstock.pipelines.documents.config.models import (
    DocumentsConfig,
    Embeddings,
    RagConfig,
    Sources,
)
from penstock.pipelines.documents.config.reading import (
    changed,
    effective_settings,
    read_configuration,
)
from penstock.pipelines.documents.config.writing import ensure_default_rag, make_folders
from penstock.pipelines.documents.embedding.embedder import Embedder
from penstock.pipelines.documents.embedding.opening import open_embedder
from penstock.pipelines.documents.ledger.ledger import DocumentLedger
from penstock.pipelines.documents.ledger.tables import RagRow
from penstock.pipelines.documents.submit.job_message import ingest_queue
from penstock.queues.options import GateDecision
from penstock.settings import Settings
from penstock.stores.files.folder import Folder
from penstock.stores.files.naming import escaped, unescaped
from penstock.stores.opening import open_tables, open_vectors
from penstock.throttled_log import RateLimitedLog

__all__ = ["DocumentResources", "IngestGate", "RagFolders", "embeddings_text", "physical_name"]
__all__ += ["recipe_of"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)
_LEAST_ROOM = 16 * 1024 * 1024
_LOOK_S = 1.0
"""Interval at which the configuration files are checked for changes."""
_RECIPE = 1
"""Increase it when the same file and configuration give other chunks than before."""


class RagFolders(NamedTuple):
    """Folders of a RAG."""

    incoming: Folder
    processed: Folder
    failed: Folder
    below: str
    """Path of their parent below `sources_root`."""
    max_bytes: int
    """Size of the largest file that the RAG takes."""


class DocumentResources:
    """Configuration, ledger, vectors and embedders of one process."""

    def __init__(self, app: Penstock) -> None:
        self.app = app
        self.settings = app.settings.documents
        self._config = read_configuration(app.settings)
        self._looked_at = time.monotonic()
        settings = effective_settings(app.settings, self._config)
        self.ledger = DocumentLedger(open_tables(settings))
        self.vectors = open_vectors(settings)
        self.gate = IngestGate(self)
        self.queue = ingest_queue(app, self.gate)
        self._embedders: dict[str, Embedder] = {}
        self._opening = asyncio.Lock()
        self._ready: set[str] = set()
        self._rows: dict[str, RagRow] = {}
        self._sources = Folder(self._config.sources_root)
        self._folders: dict[tuple[str, Sources], RagFolders] = {}

    async def open(self) -> None:
        self._config = await asyncio.to_thread(_prepare, self._config)
        await self.ledger.open()
        await self.vectors.open()

    async def close(self) -> None:
        for embedder in self._embedders.values():
            await embedder.close()
        self._embedders.clear()
        await self.vectors.close()
        await self.ledger.close()

    # ---- configuration

    @property
    def config(self) -> DocumentsConfig:
        """The configuration, at most `_LOOK_S` old."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            if changed(self._config):
                self._config = _reread(self.app.settings, self._config)
                self._sources = Folder(self._config.sources_root)
                self._folders.clear()
        return self._config

    def rag(self, rag_id: str) -> RagConfig:
        """Configuration of a RAG; RagMissing or ConfigurationWrong if it cannot be used."""
        if (rag := self.config.rags.get(rag_id)) is not None:
            return rag
        # Its file may be newer than the last check: a job for it must not be refused.
        self._looked_at = -_LOOK_S
        return self.config.rag(rag_id)

    def folders(self, rag: RagConfig) -> RagFolders:
        key = rag.rag_id, rag.sources
        folders = self._folders.get(key)
        if folders is None:
            root = self.config.folder_of(rag)
            folders = self._folders[key] = RagFolders(
                Folder(root / "incoming"),
                Folder(root / "processed"),
                Folder(root / "failed"),
                root.relative_to(self.config.sources_root).as_posix(),
                rag.max_bytes,
            )
        return folders

    def place_of(self, rag: RagConfig, source_path: str) -> tuple[Folder, str]:
        """Folder of the RAG, and path below it, of the `source_path` of a message."""
        relative, folders = self._sources.relative(source_path), self.folders(rag)
        for folder, name in ((folders.incoming, "incoming"), (folders.processed, "processed")):
            place = f"{folders.below}/{name}/"
            if relative.startswith(place):
                return folder, unescaped(relative[len(place) :])
        raise FileRefused(
            f"{source_path[:200]!r} is not in incoming/ of RAG {rag.rag_id!r}",
            "ERR_PATH_OUTSIDE",
            (f"Put the file below {folders.below}/incoming in the folder of all sources",),
        )

    def path_of(self, rag: RagConfig, name: str, folder: str = "incoming") -> str:
        """The `source_path` of a file for a message; the inverse of `place_of`."""
        return escaped(f"{self.folders(rag).below}/{folder}/{name}")

    # ---- RAGs in the stores

    async def rag_row(self, rag: RagConfig) -> RagRow:
        """The ledger's row of a RAG, cached; a new RAG is entered and gets its collection.

        The row may be outdated after a swap: `DocumentLedger.seal` detects that.
        """
        row = self._rows.get(rag.rag_id) or await self.ledger.rag(rag.rag_id)
        if row is None:
            embedder = await self.embedder(rag)
            row = await self.ledger.ensure_rag(
                RagRow(
                    rag_id=rag.rag_id,
                    version=1,
                    physical=physical_name(rag.alias, 1),
                    model=embedder.model,
                    dimension=embedder.dimension,
                    embeddings=embeddings_text(rag.embeddings),
                )
            )
        if row.physical not in self._ready:
            await self.vectors.create(row.physical, row.dimension)
            await self.vectors.alias(rag.alias, row.physical)
            self._ready.add(row.physical)
        self._rows[rag.rag_id] = row
        return row

    async def fresh_row(self, rag: RagConfig) -> RagRow:
        """As `rag_row`, read from the ledger."""
        self._rows.pop(rag.rag_id, None)
        return await self.rag_row(rag)

    async def is_ready(self) -> bool:
        """Whether ledger, vectors and disk can take a document now."""
        try:
            await self.ledger.prove()
            room = await asyncio.to_thread(shutil.disk_usage, self.config.sources_root)
        except (StoreError, OSError):
            return False
        return room.free >= _LEAST_ROOM and (await self.vectors.health()).ok

    def forget_collections(self) -> None:
        """Clear the caches of rows and collections, after a mismatch."""
        self._ready.clear()
        self._rows.clear()

    async def embedder(self, rag: RagConfig, embeddings: str = "") -> Embedder:
        """Embedder of a RAG by its file, or by the `embeddings` of a row; opened on first use."""
        if embeddings:
            settings = msgspec.json.decode(embeddings, type=Embeddings)
            rag = msgspec.structs.replace(rag, embeddings=settings)
        key = embeddings_text(rag.embeddings)
        async with self._opening:
            if key not in self._embedders:
                embedder = open_embedder(rag, self.app)
                await embedder.open()
                self._embedders[key] = embedder
            return self._embedders[key]


def _prepare(config: DocumentsConfig) -> DocumentsConfig:
    """Create a first RAG if there is none, and the folders of all."""
    config = ensure_default_rag(config)
    make_folders(config)
    return config


def _reread(settings: Settings, former: DocumentsConfig) -> DocumentsConfig:
    """Configuration after a change; a RAG whose file is invalid now keeps its former settings."""
    try:
        config = read_configuration(settings)
    except ConfigurationWrong as error:
        quiet.error("client", "the former configuration stays in use: %s", error)
        return former
    broken = {rag.rag_id: rag for rag in former.rags.values() if _is_broken(rag, config)}
    for rag_id in broken:
        quiet.error(rag_id, "RAG %s keeps its former settings: its file is invalid now", rag_id)
    config = msgspec.structs.replace(config, rags={**broken, **config.rags})
    make_folders(config)
    return config


def _is_broken(rag: RagConfig, config: DocumentsConfig) -> bool:
    """Whether a RAG is missing because of a mistake in its file, and was not removed."""
    if rag.rag_id in config.rags:
        return False
    try:
        config.rag(rag.rag_id)
    except ConfigurationWrong:
        return True
    except RagMissing:
        return False
    return False


def embeddings_text(embeddings: Embeddings) -> str:
    """Settings of embeddings in the form that the ledger stores."""
    return msgspec.json.encode(embeddings).decode()


def recipe_of(rag: RagConfig, model: str) -> str:
    """Digest of the settings that determine chunks and vectors."""
    settings = msgspec.json.encode((_RECIPE, rag.chunking, rag.sources.ocr, model))
    return blake2b(settings, digest_size=8).hexdigest()


def physical_name(alias: str, version: int) -> str:
    """Name of the collection behind a RAG's alias; each rebuild has another version."""
    return f"{alias}--v{version}"


_FIRST_S, _LONGEST_S = 1.0, 15.0
_EMBEDDER_S, _LONGEST_PARKED_S = 5.0, 300.0


class IngestGate:
    """Admission gate of the ingest queue, closed while a store is unreachable or full.

    Jobs stay queued instead of using up their attempts. When the stores are ready again one job is
    admitted as a probe, and all others when it succeeds. An embedder that is busy parks only the
    lane of its RAG.
    """

    def __init__(self, resources: DocumentResources) -> None:
        self._resources = resources
        self._closed_until = 0.0
        self._wait_s = 0.0
        self._parked_until: dict[str, float] = {}
        self.closed_while: Callable[[], bool] = lambda: False
        """Keeps it closed whatever the stores are."""

    @property
    def is_open(self) -> bool:
        return not self._wait_s

    async def failed(self, rag_id: str, error: Exception) -> None:
        """Close the gate, or park the RAG, after an error of a store or an embedder."""
        now = time.monotonic()
        if isinstance(error, StoreAway | StoreFull) and now >= self._closed_until:
            self._wait_s = min(max(self._wait_s * 2, _FIRST_S), _LONGEST_S)
            self._closed_until = now + self._wait_s
        if isinstance(error, EmbedderFailed) and now >= self._parked_until.get(rag_id, 0.0):
            for_s = min(error.retry_after or _EMBEDDER_S, _LONGEST_PARKED_S)
            self._parked_until[rag_id] = now + for_s
            queue = self._resources.queue.name
            with suppress(ServerError):  # without parking, its documents fail one by one
                await self._resources.app.queues.park(queue, rag_id, for_s, who="embedder")

    def succeeded(self) -> None:
        """Open the gate: the stores work."""
        self._wait_s = self._closed_until = 0.0

    async def admit(self, queue: str, wanted: int) -> GateDecision:  # noqa: ARG002  there is one
        """As `Gate.admit`."""
        if self.closed_while():
            return GateDecision(0, _FIRST_S)
        if not self._wait_s:
            return GateDecision(wanted)
        left_s = self._closed_until - time.monotonic()
        if left_s <= 0 and await self._resources.is_ready():
            self._closed_until = time.monotonic() + self._wait_s
            return GateDecision(1, self._wait_s)
        return GateDecision(0, max(left_s, _FIRST_S))

    async def give_back(self, queue: str, count: int) -> None:  # noqa: ARG002  there is one
        """As `Gate.give_back`: the queue had no job for the probe."""
        if count:
            self._closed_until = min(self._closed_until, time.monotonic())
