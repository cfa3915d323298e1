"""Defaults of topics and their consumers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from penstock.settings.group import Group, Seconds

__all__ = ["TopicSettings"]


class TopicSettings(Group):
    """Topics and their consumers."""

    section: ClassVar[str] = "topics"
    partitions: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Partitions of a topic that is created without a number."""
    max_topics: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 10_000
    """Maximum number of topics per namespace; 0 for no limit."""
    max_groups: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 1_000
    """Maximum number of groups per topic; 0 for no limit."""
    max_delayed: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 1_000_000
    """Maximum number of delayed messages per partition; 0 for no limit."""
    lease_ttl_s: Annotated[float, Meta(ge=0.2, le=3_600)] = 15.0
    """A consumer silent for this long loses its partitions; renewed five times as often."""
    balance_s: Annotated[float, Meta(ge=0.01, le=60)] = 0.5
    """How often a consumer checks which partitions to take or to release; 10 ms for each
    consumer of a process, if that is more."""
    endless_lease_s: Annotated[float, Meta(ge=0.2, le=86_400)] = 60.0
    """A lease without expiry, left by a Java consumer that died while it took the partition, is
    taken over after it was seen unchanged for this long."""
    fetch: Annotated[int, Meta(ge=1, le=10_000)] = 2_000
    """Maximum number of messages per read, over all partitions."""
    fetch_bytes: Annotated[int, Meta(ge=1, le=512 * 1024 * 1024)] = 16 * 1024 * 1024
    """Maximum bytes per read, estimated from the sizes of earlier messages."""
    max_inflight: Annotated[int, Meta(ge=1, le=1_000_000)] = 8_000
    """Messages fetched but not acknowledged above which a consumer stops reading."""
    max_inflight_bytes: Annotated[int, Meta(ge=1, le=64 * 1024**3)] = 128 * 1024 * 1024
    """Bytes fetched but not acknowledged, by all consumers of a process, above which they stop."""
    claim_above: Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)] = 64 * 1024
    """Payloads of more bytes than this are stored outside the stream."""
    remember_s: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 3_600.0
    """How long an idempotency key is remembered."""
    max_remembered: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 10_000_000
    """Maximum number of idempotency keys remembered per partition; 0 for no limit."""
    refresh_s: Annotated[float, Meta(ge=0.05, le=60)] = 1.0
    """Maximum age of a producer's metadata of a topic."""
    retention_s: Annotated[float, Meta(ge=0, le=3_650 * 86_400)] = 7 * 86_400.0
    """How long messages that every group has handled stay in a topic without retention; 0 for ever.
    A topic without groups keeps all messages."""
    janitor_s: Seconds = 10.0
    """How often retention is applied and large payloads are freed; 0.1 s for each consumer of a
    process, if that is more."""
    audit_s: Annotated[float, Meta(ge=0.05, le=600)] = 5.0
    """How often a consumer compares the pending messages of the server with its own; 0.1 s for each
    consumer of a process, if that is more."""
    durability_s: Seconds = 5.0
    """How long a send waits for the requested durability."""
