"""What a process needs to work on documents, opened once and shared by all of its jobs."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from penstock.app import Penstock
from penstock.errors import ConfigurationWrong, FileRefused, RagMissing, StoreError
from penstock.pipelines.documents.configuration import DocumentsConfig, Embeddings, RagConfig
from penstock.pipelines.documents.configuration_reading import (
    changed,
    effective_settings,
    ensure_default_rag,
    make_folders,
    read_configuration,
)
from penstock.pipelines.documents.embedding.opening import open_embedder
from penstock.pipelines.documents.embedding.port import Embedder
from penstock.pipelines.documents.holding_back import HoldingBack
from penstock.pipelines.documents.ids import physical_name
from penstock.pipelines.documents.ledger import Ledger
from penstock.pipelines.documents.ledger_rows import RagRow
from penstock.pipelines.documents.sending import ingest_queue
from penstock.quiet import RateLimitedLog
from penstock.settings import Settings
from penstock.stores.files.folder import Folder
from penstock.stores.files.naming import escaped, unescaped
from penstock.stores.tables.opening import open_tables
from penstock.stores.vectors.opening import open_vectors

__all__ = ["Folders", "Workshop", "embeddings_text", "recipe_of"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

_LEAST_ROOM = 16 * 1024 * 1024
_LOOK_S = 1.0
"""How old the knowledge of the configuration may be."""
_RECIPE = 1
"""Raised when the same file and configuration give other chunks than before."""


class Folders(NamedTuple):
    """Where the files of a RAG are."""

    incoming: Folder
    processed: Folder
    failed: Folder
    below: str
    """Where all of them are, below the folder of all sources."""


class Workshop:
    """Configuration, ledger, vectors and embedders of one process."""

    def __init__(self, app: Penstock) -> None:
        self.app = app
        self.settings = app.settings.documents
        self._config = read_configuration(app.settings)
        self._looked_at = time.monotonic()
        settings = effective_settings(app.settings, self._config)
        self.ledger = Ledger(open_tables(settings))
        self.vectors = open_vectors(settings)
        self.gate = HoldingBack(self)
        self.queue = ingest_queue(app, self.gate)
        self._embedders: dict[str, Embedder] = {}
        self._opening = asyncio.Lock()
        self._ready: set[str] = set()
        self._rows: dict[str, RagRow] = {}
        self._sources = Folder(self._config.sources_root)
        self._folders: dict[str, Folders] = {}

    async def open(self) -> None:
        self._config = await asyncio.to_thread(_made_ready, self._config)
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
        """As the files say now, or said a moment ago."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            if changed(self._config):
                self._config = _reread(self.app.settings, self._config)
                self._sources = Folder(self._config.sources_root)
                self._folders.clear()
        return self._config

    def rag(self, rag_id: str) -> RagConfig:
        """RagMissing or ConfigurationWrong if it cannot be used."""
        if rag_id not in self.config.rags:
            # It may be newer than our last look: a job for it must not fail for good.
            self._looked_at = -_LOOK_S
        return self.config.rag(rag_id)

    def folders(self, rag: RagConfig) -> Folders:
        directory = rag.sources.directory or rag.rag_id
        found = self._folders.get(directory)
        if found is None:
            root = self.config.folder_of(rag)
            found = self._folders[directory] = Folders(
                Folder(root / "incoming"), Folder(root / "processed"), Folder(root / "failed"),
                root.relative_to(self.config.sources_root).as_posix(),
            )  # fmt: skip
        return found

    def place_of(self, rag: RagConfig, source_path: str) -> tuple[Folder, str]:
        """The folder of the RAG, and the path below it, that a path of a message means."""
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
        """The path that a message has for a file; see `place_of`."""
        return escaped(f"{self.folders(rag).below}/{folder}/{name}")

    # ---- RAGs as they are

    async def rag_row(self, rag: RagConfig) -> RagRow:
        """The ledger's row of a RAG; one that is new is entered, and gets its collection.

        It may be a moment old: what writes says so to the ledger, which knows better (`seal`).
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
        """As `rag_row`, as the ledger has it now."""
        self._rows.pop(rag.rag_id, None)
        return await self.rag_row(rag)

    async def is_fit(self) -> bool:
        """Whether the stores would do now what a document needs."""
        try:
            await self.ledger.prove()
            room = await asyncio.to_thread(shutil.disk_usage, self.config.sources_root)
        except (StoreError, OSError):
            return False
        return room.free >= _LEAST_ROOM and (await self.vectors.health()).ok

    def look_again(self) -> None:
        """Forget which collections there are: one of them is not what we thought."""
        self._ready.clear()
        self._rows.clear()

    async def remove_points(self, rag_id: str, doc_id: str, generation: int) -> None:
        """Remove what a forgotten document has left in the store of vectors, and say so."""
        row = await self.ledger.rag(rag_id)
        if row is not None:
            for collection in filter(None, (row.physical, row.shadow)):
                await self.vectors.delete_before(collection, doc_id, generation)
        await self.ledger.forgotten(rag_id, doc_id, generation)

    async def embedder(self, rag: RagConfig, embeddings: str = "") -> Embedder:
        """The embedder of a RAG: of its file, or as `embeddings` (a row's) says."""
        if embeddings:
            made = msgspec.json.decode(embeddings, type=Embeddings)
            rag = msgspec.structs.replace(rag, embeddings=made)
        key = embeddings_text(rag.embeddings)
        async with self._opening:
            if key not in self._embedders:
                embedder = open_embedder(rag, self.app)
                await embedder.open()
                self._embedders[key] = embedder
            return self._embedders[key]


def _made_ready(config: DocumentsConfig) -> DocumentsConfig:
    """Let there be a RAG at least, and the folders of all."""
    config = ensure_default_rag(config)
    make_folders(config)
    return config


def _reread(settings: Settings, former: DocumentsConfig) -> DocumentsConfig:
    """The configuration after a change. What an edit broke stays as it was until it is mended."""
    try:
        config = read_configuration(settings)
    except ConfigurationWrong as error:
        quiet.error("client", "the configuration stays as it was: %s", error)
        return former
    broken = {rag.rag_id: rag for rag in former.rags.values() if _is_broken(rag, config)}
    for rag_id in broken:
        quiet.error(rag_id, "RAG %s stays as it was: its file is wrong now", rag_id)
    config = msgspec.structs.replace(config, rags={**broken, **config.rags})
    make_folders(config)
    return config


def _is_broken(rag: RagConfig, config: DocumentsConfig) -> bool:
    """Whether a RAG is no longer there because of a mistake, rather than removed."""
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
    """How vectors are made, as the ledger keeps it."""
    return msgspec.json.encode(embeddings).decode()


def recipe_of(rag: RagConfig, model: str) -> str:
    """What chunks and vectors hang on, beside the file and the versions of the parsers."""
    told = msgspec.json.encode((_RECIPE, rag.chunking, rag.sources.ocr, model))
    return blake2b(told, digest_size=8).hexdigest()
