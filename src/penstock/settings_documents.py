"""Defaults of the stores and of the pipeline of documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from msgspec import Meta

from penstock.settings_group import Group, Seconds

__all__ = ["DocumentSettings", "TableSettings", "VectorSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(Group):
    """Tables: SQLite in the data directory, or PostgreSQL."""

    section: ClassVar[str] = "tables"
    url: str | None = field(default=None, repr=False)
    """`postgresql://…`, or `sqlite:///path`; without one a file in `home`."""
    connections: Annotated[int, Meta(ge=1, le=100)] = 4
    """Connections of one process to PostgreSQL."""
    wait_s: Seconds = 30.0
    """How long to wait for a connection, for other writers, and for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSettings(Group):
    """Vectors: Qdrant's engine in the data directory, or a Qdrant server."""

    section: ClassVar[str] = "vectors"
    url: str | None = field(default=None, repr=False)
    """`http://host:6333`; without one the engine runs here, in a process that all share."""
    api_key: str | None = field(default=None, repr=False)
    """For a Qdrant server that asks for one."""
    answer_s: Seconds = 30.0
    """Without an answer for this long a server is away, and the engine's process is ended."""
    start_timeout_s: Seconds = 30.0
    """How long the engine's process may take to read its data."""
    linger_s: Annotated[float, Meta(ge=0, le=86_400)] = 5.0
    """How long the engine's process stays without users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSettings(Group):
    """The pipeline of documents; what belongs to one RAG is in its YAML file."""

    section: ClassVar[str] = "documents"
    config: str | None = None
    """Path of `client.yaml`; without one `documents/client.yaml` in `home`, if it is there."""
    concurrency: Annotated[int, Meta(ge=1, le=1_000)] = 32
    """Documents that one worker process has in hand."""
    parsers: Annotated[int, Meta(ge=0, le=256)] = 0
    """Processes of one worker that read files; 0 for as many as there are processors."""
    parse_memory_mb: Annotated[int, Meta(ge=64, le=1_048_576)] = 1_024
    """Address space of a process that reads files."""
    parse_cpu_s: Annotated[int, Meta(ge=1, le=86_400)] = 120
    """Processor time for one part of a document."""
    parse_wall_s: Seconds = 300.0
    """Time for one part of a document."""
    part_pages: Annotated[int, Meta(ge=1, le=10_000)] = 50
    """Pages of a PDF that are read as one part; an interrupted job goes on after its last one."""
    largest_text: Annotated[int, Meta(ge=1, le=2**31)] = 64 * 1024 * 1024
    """Most characters of a document's text; one that has more is refused."""
    upsert: Annotated[int, Meta(ge=1, le=10_000)] = 256
    """Most vectors of one write."""
    embed_batch: Annotated[int, Meta(ge=1, le=10_000)] = 256
    """Most texts that go to the embedder at once, from however many documents."""
    embed_wait_ms: Annotated[float, Meta(ge=0, le=1_000)] = 2.0
    """How long a text waits for others to go with."""
    cache_s: Annotated[float, Meta(gt=0, le=3_650 * 86_400)] = 7 * 86_400.0
    """How long the vector of a text is remembered."""
    settle_ms: Annotated[float, Meta(ge=0, le=60_000)] = 500.0
    """How long a file in `incoming/` has to stay as it is before it is taken."""
    rescan_s: Seconds = 30.0
    """How often `incoming/` is looked through without a sign from the file system."""
    spool_hours: Annotated[float, Meta(gt=0, le=8_760)] = 24.0
    """How long parts of an interrupted job are kept."""
