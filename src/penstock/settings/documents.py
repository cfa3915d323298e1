"""Defaults of the stores and of the pipeline of documents."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from penstock.settings.group import Group, Seconds, Secret

__all__ = ["DocumentSettings", "OutboundSettings", "TableSettings", "VectorSettings"]


class TableSettings(Group):
    """Tables: SQLite in the data directory, or PostgreSQL."""

    section: ClassVar[str] = "tables"
    url: Secret | None = None
    """`postgresql://…`, or `sqlite:///path`; without one a file in `home`."""
    connections: Annotated[int, Meta(ge=1, le=100)] = 4
    """Connections of one process to PostgreSQL."""
    wait_s: Seconds = 30.0
    """How long to wait for a connection, for other writers, and for an answer."""


class VectorSettings(Group):
    """Vectors: Qdrant's engine in the data directory, or a Qdrant server."""

    section: ClassVar[str] = "vectors"
    url: Secret | None = None
    """`http://host:6333`; without one the embedded engine runs in a daemon."""
    api_key: Secret | None = None
    """API key of the Qdrant server."""
    answer_s: Seconds = 30.0
    """Without an answer for this long the server is unavailable; the daemon is restarted."""
    start_timeout_s: Seconds = 30.0
    """How long the daemon may take to load its data."""
    linger_s: Annotated[float, Meta(ge=0, le=86_400)] = 5.0
    """How long the daemon runs without users."""


class OutboundSettings(Group):
    """Calls over HTTP to embedders and to a Qdrant server."""

    section: ClassVar[str] = "outbound"
    proxy: Secret | None = None
    """`http://host:port` of a proxy; those of the environment (`HTTPS_PROXY`) are not used."""
    plain_http: Literal["warn", "allow", "refuse"] = "warn"
    """What to do when a key would go over `http://` to another machine."""


class DocumentSettings(Group):
    """The pipeline of documents; what belongs to one RAG is in its YAML file."""

    section: ClassVar[str] = "documents"
    config: str | None = None
    """Path of `client.yaml`; without one `documents/client.yaml` in `home`, if it is there."""
    concurrency: Annotated[int, Meta(ge=1, le=1_000)] = 32
    """Maximum number of documents per worker process."""
    parsers: Annotated[int, Meta(ge=0, le=256)] = 0
    """Most parser processes per worker; 0 for the number of processors."""
    parse_memory_mb: Annotated[int, Meta(ge=64, le=1_048_576)] = 1_024
    """Address space of a parser process; all of them together have half of the memory."""
    fences: Literal["use", "require"] = "use"
    """`require`: a worker reads nothing unless every fence of its parsers stands."""
    parse_cpu_s: Annotated[int, Meta(ge=1, le=86_400)] = 120
    """Processor time for one part of a document."""
    parse_wall_s: Seconds = 300.0
    """Time for one part of a document."""
    parse_total_s: Seconds = 14_400.0
    """Time for all parts of a document, which counts from the last interruption."""
    part_pages: Annotated[int, Meta(ge=1, le=10_000)] = 50
    """Pages of a PDF per part; an interrupted job continues after its last complete part."""
    largest_text: Annotated[int, Meta(ge=1, le=2**31)] = 64 * 1024 * 1024
    """Maximum number of characters of a document; longer ones are refused."""
    upsert: Annotated[int, Meta(ge=1, le=10_000)] = 256
    """Maximum number of vectors per write."""
    embed_batch: Annotated[int, Meta(ge=1, le=10_000)] = 256
    """Maximum number of texts per call of the embedder, over all documents."""
    embed_wait_ms: Annotated[float, Meta(ge=0, le=1_000)] = 2.0
    """How long a text waits for a batch."""
    cache_s: Annotated[float, Meta(gt=0, le=3_650 * 86_400)] = 7 * 86_400.0
    """How long the vector of a text is cached."""
    settle_ms: Annotated[float, Meta(ge=0, le=60_000)] = 500.0
    """How long a file in `incoming/` must be unchanged before it is ingested."""
    rescan_s: Seconds = 30.0
    """How often `incoming/` is scanned, besides file system events."""
    spool_hours: Annotated[float, Meta(gt=0, le=8_760)] = 24.0
    """How long parts of an interrupted job are kept."""
