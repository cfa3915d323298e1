"""Every default, its range, and the one order in which values win.

    arguments  >  environment (PENSTOCK_…)  >  TOML file  >  the defaults in this package

A setting in a group is written `pools.cache` here, `[pools] cache = 20` in the file and
`PENSTOCK_POOLS_CACHE=20` in the environment. The file is the one given, else the one named by
PENSTOCK_CONFIG, else `penstock.toml` in the working directory if there is one that only this user
can have written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from penstock.errors import SettingError
from penstock.settings.coordination import (
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
from penstock.settings.documents import (
    DocumentSettings,
    OutboundSettings,
    TableSettings,
    VectorSettings,
)
from penstock.settings.file import read_file
from penstock.settings.group import Group, Seconds, Secret
from penstock.settings.queues import QueueSettings
from penstock.settings.reading import (
    CONFIG_VARIABLE,
    checked,
    from_environment,
    groups_of,
    names_of,
    suggestion,
)
from penstock.settings.redis import (
    ClusterSettings,
    CodecSettings,
    EmbeddedSettings,
    HealthSettings,
    PoolSettings,
    RetrySettings,
    TimeoutSettings,
    TlsSettings,
)
from penstock.settings.signing import SigningSettings
from penstock.settings.topics import TopicSettings

__all__ = [
    "CacheSettings",
    "ClusterSettings",
    "CodecSettings",
    "DocumentSettings",
    "EmbeddedSettings",
    "FeedSettings",
    "HealthSettings",
    "HourlySettings",
    "LimitSettings",
    "LogSettings",
    "OnceSettings",
    "OutboundSettings",
    "PoolSettings",
    "QueueSettings",
    "RetrySettings",
    "RunSettings",
    "Settings",
    "SigningSettings",
    "SlotSettings",
    "TableSettings",
    "TimeoutSettings",
    "TlsSettings",
    "TopicSettings",
    "VectorSettings",
    "WindowSettings",
    "WorkerSettings",
]


class WorkerSettings(Group):
    """The worker process."""

    section: ClassVar[str] = "worker"
    grace_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """Grace period: how long a stopping worker may finish its jobs and messages."""
    heartbeat_s: Seconds = 5.0
    heartbeat_ttl_s: Seconds = 15.0
    """A worker without a heartbeat for this long is considered dead."""
    poll_s: Seconds = 1.0
    """Longest wait of one read; a loop silent for two polls is not ready and is restarted. Reads of
    more than 30 subscriptions in a process wait longer, up to 5 s."""


class LogSettings(Group):
    section: ClassVar[str] = "log"
    format: Literal["human", "json"] = "human"
    level: Literal["debug", "info", "warning", "error"] = "info"
    redact: bool = True
    """Hide passwords, tokens and keys in log lines and in stored errors."""


class Settings(Group):
    """All settings of one Penstock. Secrets are kept out of `repr`."""

    url: Secret | None = None
    """Address of the server; without one the embedded server of `home` is used."""
    username: str | None = None
    password: Secret | None = None
    password_file: str | None = None
    """File with the password; a trailing newline is ignored."""
    sentinel_username: str | None = None
    sentinel_password: Secret | None = None
    allow_unauthenticated: bool = False
    """Use a server on a network although it asks for no password."""
    home: str | None = None
    """Data directory of the embedded server."""
    namespace: str = ""
    """Prefix of every key, so that several systems can share a server."""
    pools: PoolSettings = field(default_factory=PoolSettings)
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
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
    outbound: OutboundSettings = field(default_factory=OutboundSettings)
    documents: DocumentSettings = field(default_factory=DocumentSettings)
    signing: SigningSettings = field(default_factory=SigningSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
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
        known = names_of(cls)
        values = from_environment(environ, cls, FOREIGN_VARIABLES)
        values |= {name: value for name, value in (arguments or {}).items() if value is not None}
        if file := read_file(config or environ.get(CONFIG_VARIABLE)):
            file.check_secrets(known)
            file.check_addresses(values)
            values = {**file.values, **values}
        groups: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if name not in known:
                # The value is not shown: it may be a password under a misspelled name.
                raise SettingError(name, "…", suggestion(name, known))
            section, _, key = name.rpartition(".")
            groups.setdefault(section, {})[key] = checked(name, value, known[name])
        made = {name: kind(**groups.get(name, {})) for name, kind in groups_of(cls).items()}
        return cls(**groups.get("", {}), **made)


def _default_home() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "penstock"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "penstock"
