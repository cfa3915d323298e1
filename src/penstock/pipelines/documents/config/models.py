"""Configuration in `client.yaml` and in the files of RAGs; `reading.py` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock.errors.documents import ConfigurationWrong, RagMissing

__all__ = ["BUILTIN_DIMENSION", "TAKEN_IDS", "TYPES", "Chunking", "ClientConfig", "Collection"]
__all__ += ["DocumentsConfig", "Embeddings", "PathsConfig", "QdrantConfig", "RagConfig"]
__all__ += ["RedisConfig", "Retrieval", "Sources", "Stamp"]

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
"""Extensions that can be read, with their types."""

BUILTIN_DIMENSION: Final = 256
"""Dimension of the built-in model."""

TAKEN_IDS: Final = frozenset({"high", "normal", "low", "queue"})
"""Reserved ids: the queue has lanes and keys of these names."""

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of a file; unknown fields are mistakes."""


class QdrantConfig(_Section, frozen=True, kw_only=True):
    url: str | None = None
    """Address of a Qdrant server; the embedded engine by default."""
    api_key: str | None = None
    """API key of the server."""
    timeout: Seconds | None = None
    """Longest wait for an answer in seconds; `vectors.answer_s` by default."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"  # its key is secret, and an address may contain one


class RedisConfig(_Section, frozen=True, kw_only=True):
    url: str | None = None
    """Address of a server; by default that of Penstock's settings."""
    password: str | None = None
    """Used if the address has none."""
    db: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    """Used if the address has none."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class PathsConfig(_Section, frozen=True, kw_only=True):
    sources_root: str | None = None
    """Parent of the RAGs' folders, each with `incoming/`, `processed/` and `failed/`."""
    rags_config_dir: str | None = None
    """Folder with the YAML files of the RAGs."""


class ClientConfig(_Section, frozen=True, kw_only=True):
    """`client.yaml`."""

    qdrant: QdrantConfig = QdrantConfig()
    redis: RedisConfig = RedisConfig()
    paths: PathsConfig = PathsConfig()


class Collection(_Section, frozen=True, kw_only=True):
    name: str = ""
    """Alias in the vector store; by default the RAG's id."""


class Embeddings(_Section, frozen=True, kw_only=True):
    provider: Literal["builtin", "http", "sentence-transformers", "python"] = "builtin"
    """`builtin` needs no more fields; `http` is an OpenAI-compatible API, `python` a function."""
    model: str = ""
    """Model of the provider, not for `builtin`; for `python`: `package.module:factory`."""
    dimension: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    """Vector dimension; by default the model's, which it must equal."""
    batch: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Maximum texts of one call; `documents.embed_batch` by default."""
    url: str | None = None
    """Address of an OpenAI-compatible API, up to `/v1`."""
    api_key_env: str | None = None
    """Environment variable with the API's key. The key itself belongs in no file."""
    timeout: Seconds = 60.0
    """Longest wait for an answer of the API in seconds."""
    calls_per_minute: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    """Limit on calls, shared by all workers of all machines."""
    tokens_per_minute: Annotated[int, Meta(ge=1, le=10**12)] | None = None
    """Limit on tokens, shared in the same way."""
    cache: bool | None = None
    """Cache vectors of texts in Redis; by default for all providers but `builtin`."""


class Chunking(_Section, frozen=True, kw_only=True):
    strategy: Literal["recursive", "structure"] = "structure"
    """`structure` keeps headings, tables and code together; `recursive` splits by size alone."""
    size: Annotated[int, Meta(ge=64, le=4_096)] = 512
    """Maximum characters of a chunk."""
    overlap: Annotated[int, Meta(ge=0, le=1_024)] = 128
    """Characters that neighbouring chunks share; less than `size`."""


class Sources(_Section, frozen=True, kw_only=True):
    directory: str | None = None
    """Folder below `sources_root`; by default the RAG's id."""
    extensions: tuple[str, ...] = tuple(TYPES)
    """Accepted extensions, with the leading dot."""
    max_mb: Annotated[float, Meta(gt=0, le=500)] = 50.0
    """Maximum size of a file in MiB."""
    watch: bool = True
    """Submit files that are put into `incoming/`."""
    ocr: bool = False
    """Recognise the text of scanned pages; needs the program `tesseract`."""


class Retrieval(_Section, frozen=True, kw_only=True):
    top_k: Annotated[int, Meta(ge=1, le=50)] = 5
    """Number of hits of a search."""
    threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Minimum similarity of a hit."""


class RagConfig(_Section, frozen=True, kw_only=True):
    """The YAML file of one RAG."""

    rag_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,64}\Z")]
    """Letters, digits and `_`; the only required field."""
    display_name: str = ""
    """Display name; by default the id."""
    description: str = ""
    """Purpose of the RAG."""
    collection: Collection = Collection()
    embeddings: Embeddings = Embeddings()
    chunking: Chunking = Chunking()
    sources: Sources = Sources()
    retrieval: Retrieval = Retrieval()
    weight: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Share of the workers: documents per turn among the RAGs."""

    @property
    def alias(self) -> str:
        """Name of its collection."""
        return self.collection.name or self.rag_id

    @property
    def title(self) -> str:
        """Its display name."""
        return self.display_name or self.rag_id

    @property
    def max_bytes(self) -> int:
        return int(self.sources.max_mb * 1024 * 1024)

    def folder_in(self, sources_root: Path) -> Path:
        """Folder with its `incoming/`, `processed/` and `failed/`."""
        return sources_root / (self.sources.directory or self.rag_id)


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Identity of a file when it was read."""

    name: str
    size: int
    mtime_ns: int
    inode: int


class DocumentsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration, validated."""

    client: ClientConfig
    rags: dict[str, RagConfig]
    """RAGs with a valid file; `rag()` raises the problem of another one."""
    problems: dict[str, tuple[str, ...]] = {}
    """Mistakes by file, of RAGs that cannot be used."""
    files: dict[str, str] = {}
    """Files of all RAGs by id, invalid ones included."""
    sources_root: Path
    rags_dir: Path
    work_dir: Path
    """Spool for parts of documents that are being read."""
    client_file: Path | None = None
    """`client.yaml`, which need not exist."""
    stamps: tuple[Stamp, ...] = ()
    """Of all files that were read, for `changed`."""

    def rag(self, rag_id: str) -> RagConfig:
        """Configuration of a RAG; RagMissing, or ConfigurationWrong with all its mistakes."""
        if (found := self.rags.get(rag_id)) is not None:
            return found
        # A file without a readable id counts as that of the RAG it is named after.
        file = self.files.get(rag_id) or next(
            (name for name in self.problems if Path(name).stem == rag_id), None
        )
        if file is None or file not in self.problems:
            raise RagMissing(rag_id, tuple(sorted(self.rags)))
        raise ConfigurationWrong(str(self.rags_dir / file), self.problems[file])

    def folder_of(self, rag: RagConfig) -> Path:
        """Folder with the RAG's `incoming/`, `processed/` and `failed/`."""
        return rag.folder_in(self.sources_root)
