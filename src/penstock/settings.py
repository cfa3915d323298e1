"""Every default, its range, and the one order in which values win.

    arguments  >  environment (PENSTOCK_…)  >  TOML file  >  the defaults below

A setting in a group is written `pools.cache` here, `[pools] cache = 20` in the file and
`PENSTOCK_POOLS_CACHE=20` in the environment. The file is the one given, else the one named by
PENSTOCK_CONFIG, else `penstock.toml` in the working directory if there is one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from penstock.errors import SettingError
from penstock.settings_coordination import (
    FOREIGN_VARIABLES,
    CacheSettings,
    FeedSettings,
    HourlySettings,
    LimitSettings,
    OnceSettings,
    RunSettings,
    SlotSettings,
    WindowSettings,
)
from penstock.settings_documents import DocumentSettings, TableSettings, VectorSettings
from penstock.settings_group import Bytes, Count, Group, Seconds, Share
from penstock.settings_reading import (
    CONFIG_VARIABLE,
    checked,
    from_environment,
    from_file,
    groups_of,
    names_of,
    suggestion,
)

__all__ = [
    "CacheSettings",
    "CodecSettings",
    "DocumentSettings",
    "EmbeddedSettings",
    "FeedSettings",
    "HealthSettings",
    "HourlySettings",
    "LimitSettings",
    "LogSettings",
    "OnceSettings",
    "PoolSettings",
    "QueueSettings",
    "RetrySettings",
    "RunSettings",
    "Settings",
    "SlotSettings",
    "TableSettings",
    "TimeoutSettings",
    "TlsSettings",
    "TopicSettings",
    "VectorSettings",
    "WindowSettings",
    "WorkerSettings",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings(Group):
    """How many connections each role may hold.

    A role never borrows from another, so reads that block (`queue`) starve nobody.
    """

    section: ClassVar[str] = "pools"
    cache: Count = 20
    queue: Count = 15
    pubsub: Count = 10
    ratelimit: Count = 10
    default: Count = 20
    wait_s: Seconds = 5.0
    """How long to wait for a free connection before `PoolExhausted`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings(Group):
    """How long to wait for the server."""

    section: ClassVar[str] = "timeouts"
    connect_s: Seconds = 5.0
    command_s: Seconds = 5.0
    """Without a reply for this long the connection counts as dead: the outcome is unknown."""
    silent_s: Seconds = 0.4
    """Without a reply for this long another connection is tried; if the server answers there, the
    first one counts as dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings(Group):
    """`with_retry`: waits of min(base_s·2^(n-1)·(1 + 0…25 %), max_s) between the tries."""

    section: ClassVar[str] = "retry"
    tries: Annotated[int, Meta(ge=1, le=1_000)] = 3
    base_s: Seconds = 1.0
    max_s: Seconds = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings(Group):
    """For `rediss://` and its relatives. The server's certificate is always verified."""

    section: ClassVar[str] = "tls"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings(Group):
    """The server that runs when no address is given."""

    section: ClassVar[str] = "embedded"
    start_timeout_s: Seconds = 30.0
    linger_s: Annotated[float, Meta(ge=0, le=86_400)] = 3.0
    """How long the server stays after its last user has gone."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """0: no TCP port, the unix socket only. A port listens on 127.0.0.1."""
    appendfsync: Literal["everysec", "always", "no"] = "everysec"
    maxmemory: Annotated[str, Meta(pattern=r"^\d+(b|kb?|mb?|gb?)?$")] = "0"
    """`0` is without limit; `512mb` and the like otherwise. Never evicts."""
    jemalloc: bool = True
    """Let the server use jemalloc, where the system has it: it takes less processor time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecSettings(Group):
    """How payloads are stored."""

    section: ClassVar[str] = "codec"
    compress_above: Annotated[int, Meta(ge=0, le=512 * 1024 * 1024)] = 1024
    """Payloads of more bytes than this are compressed, if that makes them smaller."""
    max_inflated: Bytes = 64 * 1024 * 1024
    """A stored value that would unpack to more than this is refused before it is unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings(Group):
    """What `health()` and `penstock doctor` consider well."""

    section: ClassVar[str] = "health"
    timeout_s: Seconds = 2.0
    memory_ratio: Share = 0.9
    """Used memory over `maxmemory`, from which on the server counts as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(Group):
    """The worker process."""

    section: ClassVar[str] = "worker"
    grace_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """How long a stopping worker may finish what it has begun."""
    heartbeat_s: Seconds = 5.0
    heartbeat_ttl_s: Seconds = 15.0
    """A worker silent for this long counts as dead."""
    poll_s: Seconds = 1.0
    """Longest wait of one read; a loop silent for two polls is not ready and is restarted. Reads of
    more than 30 subscriptions in a process wait longer, up to 5 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings(Group):
    """Topics and their consumers."""

    section: ClassVar[str] = "topics"
    partitions: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Partitions of a topic that is created without saying how many."""
    lease_ttl_s: Annotated[float, Meta(ge=0.2, le=3_600)] = 15.0
    """A consumer silent for this long loses its partitions; renewed five times as often."""
    balance_s: Annotated[float, Meta(ge=0.01, le=60)] = 0.5
    """How often a consumer looks for partitions to take or to give up; 10 ms for each consumer of a
    process, if that is more."""
    endless_lease_s: Annotated[float, Meta(ge=0.2, le=86_400)] = 60.0
    """A lease without expiry, left by a Java consumer that died while it took the partition, is
    taken over after it was seen unchanged for this long."""
    fetch: Annotated[int, Meta(ge=1, le=10_000)] = 2_000
    """Most messages of one read, over all partitions."""
    fetch_bytes: Annotated[int, Meta(ge=1, le=512 * 1024 * 1024)] = 16 * 1024 * 1024
    """Most bytes of one read, as far as the sizes of the messages before tell."""
    max_inflight: Annotated[int, Meta(ge=1, le=1_000_000)] = 8_000
    """Messages fetched but not settled, above which a consumer stops reading."""
    max_inflight_bytes: Annotated[int, Meta(ge=1, le=64 * 1024**3)] = 128 * 1024 * 1024
    """Bytes fetched but not settled, by all consumers of a process, above which they stop."""
    claim_above: Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)] = 64 * 1024
    """Payloads of more bytes than this are kept beside the stream."""
    remember_s: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 3_600.0
    """How long the repeat of an idempotency key is recognised."""
    refresh_s: Annotated[float, Meta(ge=0.05, le=60)] = 1.0
    """How old a producer's knowledge of a topic may be."""
    retention_s: Annotated[float, Meta(ge=0, le=3_650 * 86_400)] = 7 * 86_400.0
    """How long messages that every group is past stay in a topic without a retention; 0 for ever.
    A topic without any group keeps all of them."""
    janitor_s: Seconds = 10.0
    """How often retention is applied and large payloads are freed; 0.1 s for each consumer of a
    process, if that is more."""
    audit_s: Annotated[float, Meta(ge=0.05, le=600)] = 5.0
    """How often a consumer compares what is pending on the server with what it has in hand; 0.1 s
    for each consumer of a process, if that is more."""
    durability_s: Seconds = 5.0
    """How long a send waits for the durability that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings(Group):
    """Queues and their workers."""

    section: ClassVar[str] = "queues"
    max_size: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 10_000
    """Most jobs that wait in a queue or in one of its lanes; 0 for any number."""
    overflow_policy: Literal["reject", "dlq", "drop_oldest"] = "reject"
    """What a full queue does with a new job: see `docs/how-to/queues.md`."""
    pressure: Share = 0.8
    """How full a queue is when a push comes back with a warning."""
    max_overflow: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 10_000
    """Most jobs that the policy `dlq` moves aside; beyond it the queue rejects."""
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 32
    """Jobs of one queue that run at the same time in one worker process."""
    prefetch: Annotated[int, Meta(ge=1, le=2_000)] = 250
    """Most jobs of one claim. Only jobs quicker than a few milliseconds are claimed ahead."""
    prefetch_bytes: Bytes = 4 * 1024 * 1024
    """Most bytes of one claim, and of jobs claimed ahead, unless a single job has more."""
    poll_s: Annotated[float, Meta(ge=0.005, le=10)] = 0.1
    """How often the process that tends a queue looks for jobs of which no worker was told."""
    beat_s: Annotated[float, Meta(ge=0.05, le=600)] = 1.0
    """How often a worker tells its queues that it lives, from a thread of its own."""
    silence_s: Annotated[float, Meta(ge=0.2, le=3_600)] = 5.0
    """A worker silent for this long is dead: its jobs go back to the front."""
    keep_s: Annotated[float, Meta(gt=0, le=3_650 * 86_400)] = 7 * 86_400.0
    """How long the record of a job stays after the job has ended."""
    unique_s: Annotated[float, Meta(gt=0, le=3_650 * 86_400)] = 7 * 86_400.0
    """Has no effect any more: a unique key is held until its job has ended."""
    max_job_bytes: Bytes = 512 * 1024
    """Largest job, as it is stored. Put larger data elsewhere and queue its address."""
    max_result_bytes: Bytes = 4 * 1024 * 1024
    """Largest result, as it is stored: the record of a job with a larger one says so instead."""
    unknown_s: Annotated[float, Meta(ge=0, le=30 * 86_400)] = 3_600.0
    """How long a job whose task or arguments no worker knows waits for one that does; then it is a
    dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(Group):
    section: ClassVar[str] = "log"
    format: Literal["human", "json"] = "human"
    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Group):
    """All settings of one Penstock. Secrets are kept out of `repr`."""

    url: str | None = field(default=None, repr=False)
    """Address of the server; without one the embedded server of `home` is used."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    """A file that holds the password; its last newline does not count."""
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    home: str | None = None
    """Data directory of the embedded server."""
    namespace: str = ""
    """Put before every key, so that several systems can share a server."""
    pools: PoolSettings = field(default_factory=PoolSettings)
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)
    codec: CodecSettings = field(default_factory=CodecSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    queues: QueueSettings = field(default_factory=QueueSettings)
    once: OnceSettings = field(default_factory=OnceSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    hourly: HourlySettings = field(default_factory=HourlySettings)
    windows: WindowSettings = field(default_factory=WindowSettings)
    runs: RunSettings = field(default_factory=RunSettings)
    slots: SlotSettings = field(default_factory=SlotSettings)
    feeds: FeedSettings = field(default_factory=FeedSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    tables: TableSettings = field(default_factory=TableSettings)
    vectors: VectorSettings = field(default_factory=VectorSettings)
    documents: DocumentSettings = field(default_factory=DocumentSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        Group.__post_init__(self)
        if self.worker.heartbeat_s >= self.worker.heartbeat_ttl_s:
            raise SettingError(
                "worker.heartbeat_s",
                self.worker.heartbeat_s,
                f"less than worker.heartbeat_ttl_s ({self.worker.heartbeat_ttl_s})",
            )
        if self.queues.beat_s >= self.queues.silence_s:
            raise SettingError(
                "queues.beat_s",
                self.queues.beat_s,
                f"less than queues.silence_s ({self.queues.silence_s})",
            )
        if self.retry.base_s > self.retry.max_s:
            raise SettingError(
                "retry.base_s", self.retry.base_s, f"at most retry.max_s ({self.retry.max_s})"
            )

    @property
    def home_path(self) -> Path:
        """The data directory in force."""
        return Path(self.home).expanduser().absolute() if self.home else _default_home()

    @classmethod
    def load(
        cls,
        arguments: Mapping[str, object] | None = None,
        *,
        config: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Settings:
        """Read the file and the environment, put `arguments` (dotted names) on top, check all.

        An argument of None counts as not given.
        """
        environ = os.environ if environ is None else environ
        values = from_file(config or environ.get(CONFIG_VARIABLE))
        values |= from_environment(environ, cls, FOREIGN_VARIABLES)
        values |= {name: value for name, value in (arguments or {}).items() if value is not None}
        known = names_of(cls)
        groups: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if name not in known:
                # Its value stays unsaid: a misspelled password is one, too.
                raise SettingError(name, "…", suggestion(name, known))
            section, _, key = name.rpartition(".")
            groups.setdefault(section, {})[key] = checked(name, value, known[name])
        made = {name: kind(**groups.get(name, {})) for name, kind in groups_of(cls).items()}
        return cls(**groups.get("", {}), **made)


def _default_home() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "penstock"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "penstock"
