"""What `client.yaml` and the file of a RAG say. Read by `configuration_reading.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock.errors.documents import ConfigurationWrong, RagMissing

__all__ = [
    "BUILTIN_DIMENSION",
    "TAKEN_IDS",
    "TYPES",
    "Chunking",
    "ClientConfig",
    "Collection",
    "DocumentsConfig",
    "Embeddings",
    "PathsConfig",
    "QdrantConfig",
    "RagConfig",
    "RedisConfig",
    "Retrieval",
    "Sources",
    "Stamp",
]

TYPES: Final = {
    ".pdf": "pdf",
    ".docx": "docx",
    ".md": "md",
    ".markdown": "md",
    ".txt": "txt",
    ".text": "txt",
    ".html": "html",
    ".htm": "html",
}
"""The extensions that are read, and the type that each stands for."""

BUILTIN_DIMENSION: Final = 256
"""Of the vectors of the built-in model."""

TAKEN_IDS: Final = frozenset({"high", "normal", "low", "queue"})
"""What no RAG can be called: the queue has lanes and keys of these names."""

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of a file: what it does not know is a mistake, and is told as one."""


class QdrantConfig(_Section, frozen=True, kw_only=True):
    url: str | None = None
    """Of a Qdrant server; without one the engine runs here."""
    api_key: str | None = None
    """For a server that asks for one."""
    timeout: Seconds | None = None
    """How long it may take to answer; `vectors.answer_s` by default."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"  # the key, and an address may hold one


class RedisConfig(_Section, frozen=True, kw_only=True):
    url: str | None = None
    """Of a server; without one Penstock's own settings say where it is."""
    password: str | None = None
    """For an address that does not say one."""
    db: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    """For an address that does not say one."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class PathsConfig(_Section, frozen=True, kw_only=True):
    sources_root: str | None = None
    """Each RAG has a folder there, with `incoming/`, `processed/` and `failed/`."""
    rags_config_dir: str | None = None
    """The YAML files of the RAGs."""


class ClientConfig(_Section, frozen=True, kw_only=True):
    """`client.yaml`."""

    qdrant: QdrantConfig = QdrantConfig()
    redis: RedisConfig = RedisConfig()
    paths: PathsConfig = PathsConfig()


class Collection(_Section, frozen=True, kw_only=True):
    name: str = ""
    """In the store of vectors, an alias; by default the RAG's id."""


class Embeddings(_Section, frozen=True, kw_only=True):
    provider: Literal["builtin", "http", "sentence-transformers", "python"] = "builtin"
    """`builtin` needs nothing else; `http` is any OpenAI-compatible API, `python` your function."""
    model: str = ""
    """Of the provider; the built-in one has one. Of `python`: `package.module:factory`."""
    dimension: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    """By default the model's; what differs from it is a mistake."""
    batch: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Most texts of one call; `documents.embed_batch` by default."""
    url: str | None = None
    """Of an OpenAI-compatible API, up to `/v1`."""
    api_key_env: str | None = None
    """The environment variable that holds its key. The key itself is in no file."""
    timeout: Seconds = 60.0
    """How many seconds an answer of the API may take."""
    calls_per_minute: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    """Shared by all workers of all machines."""
    tokens_per_minute: Annotated[int, Meta(ge=1, le=10**12)] | None = None
    """The same."""
    cache: bool | None = None
    """Remember vectors of texts; by default where making them costs more than asking Redis."""


class Chunking(_Section, frozen=True, kw_only=True):
    strategy: Literal["recursive", "structure"] = "structure"
    """`structure` keeps headings, tables and code together; `recursive` goes by size alone."""
    size: Annotated[int, Meta(ge=64, le=4_096)] = 512
    """Most characters of a chunk."""
    overlap: Annotated[int, Meta(ge=0, le=1_024)] = 128
    """Characters that neighbours share; less than `size`."""


class Sources(_Section, frozen=True, kw_only=True):
    directory: str | None = None
    """By default the RAG's id below `sources_root`."""
    extensions: tuple[str, ...] = tuple(TYPES)
    """Files that are taken, with the leading dot."""
    max_mb: Annotated[float, Meta(gt=0, le=500)] = 50.0
    """Largest file, in units of 1,048,576 bytes."""
    watch: bool = True
    """Take what is put into `incoming/`."""
    ocr: bool = False
    """Read pages that are pictures; needs the program `tesseract`."""


class Retrieval(_Section, frozen=True, kw_only=True):
    top_k: Annotated[int, Meta(ge=1, le=50)] = 5
    """Chunks that a search finds."""
    threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Least similarity of what is found."""


class RagConfig(_Section, frozen=True, kw_only=True):
    """The YAML file of one RAG."""

    rag_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,64}\Z")]
    """Letters, digits and `_`; the only field that has to be there."""
    display_name: str = ""
    """For people; by default the id."""
    description: str = ""
    """For people."""
    collection: Collection = Collection()
    embeddings: Embeddings = Embeddings()
    chunking: Chunking = Chunking()
    sources: Sources = Sources()
    retrieval: Retrieval = Retrieval()
    weight: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Documents that it may have in one turn among the RAGs."""

    @property
    def alias(self) -> str:
        """The name of its collection."""
        return self.collection.name or self.rag_id

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.display_name or self.rag_id

    @property
    def max_bytes(self) -> int:
        return int(self.sources.max_mb * 1024 * 1024)

    def folder_in(self, sources_root: Path) -> Path:
        """Where its `incoming/`, `processed/` and `failed/` are."""
        return sources_root / (self.sources.directory or self.rag_id)


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """What a file was when it was read."""

    name: str
    size: int
    mtime_ns: int
    inode: int


class DocumentsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is configured, read and checked."""

    client: ClientConfig
    rags: dict[str, RagConfig]
    """Those that can be used. `rag()` tells why another one cannot."""
    problems: dict[str, tuple[str, ...]] = {}
    """By file, what is wrong with RAGs that cannot be used; the others can."""
    files: dict[str, str] = {}
    """The file of each RAG by its id, those that cannot be used included."""
    sources_root: Path
    rags_dir: Path
    work_dir: Path
    """For parts of documents that are being read."""
    client_file: Path | None = None
    """`client.yaml`, or where it would be."""
    stamps: tuple[Stamp, ...] = ()
    """Of all files that were read, for `changed()`."""

    def rag(self, rag_id: str) -> RagConfig:
        """What is configured for a RAG.

        `RagMissing` if nothing is, `ConfigurationWrong` with every mistake if it cannot be used.
        """
        if (found := self.rags.get(rag_id)) is not None:
            return found
        # A file too broken to tell its id counts as that of the RAG it is named after.
        file = self.files.get(rag_id) or next(
            (name for name in self.problems if Path(name).stem == rag_id), None
        )
        if file is None or file not in self.problems:
            raise RagMissing(rag_id, tuple(sorted(self.rags)))
        raise ConfigurationWrong(str(self.rags_dir / file), self.problems[file])

    def folder_of(self, rag: RagConfig) -> Path:
        """Where the RAG's `incoming/`, `processed/` and `failed/` are."""
        return rag.folder_in(self.sources_root)
