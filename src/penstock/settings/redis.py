"""Defaults of the connection to the server and of the embedded one."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from penstock.settings.group import Bytes, Count, Group, Seconds, Share

__all__ = [
    "RESERVED_WORDS",
    "ClusterSettings",
    "CodecSettings",
    "EmbeddedSettings",
    "HealthSettings",
    "PoolSettings",
    "RetrySettings",
    "TimeoutSettings",
    "TlsSettings",
]

RESERVED_WORDS: Final = frozenset(
    {
        *("batch", "cache", "courtlistener", "dedupe", "dlq", "overflow", "penstock"),
        *("ratelimit", "stream", "streaming", "upload"),
    }
)
"""First words of keys with a fixed beginning: refused as namespaces and as names of queues."""


class PoolSettings(Group):
    """How many connections each role may hold.

    A role never borrows from another, so blocking reads (`queue`) do not starve others.
    """

    section: ClassVar[str] = "pools"
    cache: Count = 20
    queue: Count = 15
    pubsub: Count = 10
    ratelimit: Count = 10
    default: Count = 20
    wait_s: Seconds = 5.0
    """How long to wait for a free connection before `PoolExhausted`."""


class TimeoutSettings(Group):
    """How long to wait for the server."""

    section: ClassVar[str] = "timeouts"
    connect_s: Seconds = 5.0
    command_s: Seconds = 5.0
    """Without a reply for this long the connection is considered dead: the outcome is unknown."""
    silent_s: Seconds = 0.4
    """Without a reply for this long another connection is tried; if the server answers there, the
    first one counts as dead."""


class RetrySettings(Group):
    """`with_retry`: waits of base_s × 2^(n-1), up to 25 % more, at most max_s, between tries."""

    section: ClassVar[str] = "retry"
    tries: Annotated[int, Meta(ge=1, le=1_000)] = 3
    base_s: Seconds = 1.0
    max_s: Seconds = 30.0


class TlsSettings(Group):
    """For `rediss://` addresses. The server's certificate is always verified."""

    section: ClassVar[str] = "tls"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    check_hostname: bool = True


class ClusterSettings(Group):
    """Servers that a cluster or sentinels name."""

    section: ClassVar[str] = "cluster"
    hosts: str = ""
    """Hosts that they may name, besides those of the address: names, `*.example.com`, addresses and
    networks, separated by commas. Empty for any."""


class EmbeddedSettings(Group):
    """The server that runs when no address is given."""

    section: ClassVar[str] = "embedded"
    start_timeout_s: Seconds = 30.0
    linger_s: Annotated[float, Meta(ge=0, le=86_400)] = 3.0
    """How long the server runs after its last user has left."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """0: no TCP port, the unix socket only. A port listens on 127.0.0.1, with a password."""
    appendfsync: Literal["everysec", "always", "no"] = "everysec"
    maxmemory: Annotated[str, Meta(pattern=r"^(\d+(b|kb?|mb?|gb?)?|([1-9]\d?|100)%)$")] = "50%"
    """As in `512mb`, or a share of the memory of the machine or control group, then at least 64 MB;
    `0` for no limit. Nothing is evicted: a full server refuses to store more."""
    jemalloc: bool = True
    """Use jemalloc where the system has it: it needs less processor time."""


class CodecSettings(Group):
    """How payloads are stored."""

    section: ClassVar[str] = "codec"
    compress_above: Annotated[int, Meta(ge=0, le=512 * 1024 * 1024)] = 1024
    """Payloads of more bytes than this are compressed, if that makes them smaller."""
    max_inflated: Bytes = 64 * 1024 * 1024
    """A stored value that would decompress to more bytes than this is refused."""


class HealthSettings(Group):
    """Thresholds of `health()` and `penstock doctor`."""

    section: ClassVar[str] = "health"
    timeout_s: Seconds = 2.0
    memory_ratio: Share = 0.9
    """Used memory over `maxmemory` from which the server is considered full."""
