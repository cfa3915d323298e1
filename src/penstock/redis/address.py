"""Where the server is and who we are to it: URLs in, checked facts out.

redis://[user:password@]host[:6379][/database]            rediss:// the same over TLS
unix://[user:password@]/path/to/socket[?db=database]
redis+sentinel://[user:password@]host[:26379],…/service[/database]    rediss+sentinel://
redis+cluster://[user:password@]host[:6379],…                         rediss+cluster://
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from penstock.errors import AddressError, SettingError
from penstock.settings import Settings, TlsSettings

__all__ = [
    "Address",
    "Credentials",
    "Endpoint",
    "Topology",
    "parse_address",
    "tls_context",
]

_REDIS_PORT = 6379
_SENTINEL_PORT = 26379
_HIGHEST_PORT = 65_535
_DATABASE = re.compile(r"[0-9]{1,9}")


class Topology(StrEnum):
    """What stands behind an address."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES = {
    "redis": (Topology.SINGLE, False),
    "rediss": (Topology.SINGLE, True),
    "unix": (Topology.SINGLE, False),
    "redis+sentinel": (Topology.SENTINEL, False),
    "rediss+sentinel": (Topology.SENTINEL, True),
    "redis+cluster": (Topology.CLUSTER, False),
    "rediss+cluster": (Topology.CLUSTER, True),
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One place to connect to: host and port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""
    own: bool = False
    """Whether the server at this socket must be a process of this user, as the embedded one is."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are to the server; the password stays out of `repr`."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """A checked address. Its text shows no secret."""

    topology: Topology
    endpoints: tuple[Endpoint, ...]
    credentials: Credentials = Credentials()
    sentinel_credentials: Credentials = Credentials()
    service: str = ""
    """Name of the primary, as the sentinels know it."""
    database: int = 0
    tls: bool = False

    def __str__(self) -> str:
        places = ",".join(map(str, self.endpoints))
        if self.endpoints[0].path:
            return f"unix://{places}"
        kind = "" if self.topology is Topology.SINGLE else f"+{self.topology}"
        parts = [self.service] if self.service else []
        parts += [str(self.database)] if self.database else []
        return f"redis{'s' if self.tls else ''}{kind}://" + "/".join([places, *parts])


def parse_address(url: str, settings: Settings) -> Address:
    """Read `url`; what it does not say about user and password comes from `settings`."""
    parts = _split(url)
    topology, tls = _SCHEMES[parts.scheme]
    who, _, places = parts.netloc.rpartition("@")
    service, database = _path(parts, topology)
    return Address(
        topology,
        _endpoints(parts, places, topology),
        credentials=_credentials(who, settings),
        sentinel_credentials=Credentials(settings.sentinel_username, settings.sentinel_password),
        service=service,
        database=database,
        tls=tls,
    )


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Build a new one for each connection, so that rotated certificates count without a restart."""
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        context.check_hostname = settings.check_hostname
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
    except (OSError, ssl.SSLError) as error:
        named = settings.cert_file or settings.ca_file
        raise SettingError("tls", named, f"readable PEM files ({error})") from None
    return context


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise AddressError(f"server address: {error}") from None
    if parts.scheme not in _SCHEMES:
        shown = f"{parts.scheme}://" if "://" in url else "no scheme"
        raise AddressError(f"server address: {shown} is not one of {', '.join(_SCHEMES)}")
    behind = parts.query if parts.scheme == "unix" else parts.path + parts.query
    if parts.fragment or "@" in behind:  # what looks like a path or an option is of the password
        raise AddressError(
            "server address: '/', '?' and '#' in a user name or password are written %2F, %3F, %23"
        )
    return parts


def _endpoints(parts: SplitResult, places: str, topology: Topology) -> tuple[Endpoint, ...]:
    if parts.scheme == "unix":
        path = unquote(parts.path)
        if places or not path.startswith("/"):
            raise AddressError("server address: unix:// takes an absolute path, as unix:///run/…")
        return (Endpoint(path=path),)
    port = _SENTINEL_PORT if topology is Topology.SENTINEL else _REDIS_PORT
    endpoints = tuple(_endpoint(place, port) for place in places.split(","))
    if topology is Topology.SINGLE and len(endpoints) > 1:
        raise AddressError(
            "server address: several hosts need redis+cluster:// or redis+sentinel://"
        )
    return endpoints


def _endpoint(place: str, default_port: int) -> Endpoint:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0:
        name = place.rpartition(":")[0]  # without a host the rest is a password
        raise AddressError(
            f"server address: expected host:port with a port from 1 to {_HIGHEST_PORT} at {name!r}"
        )
    return Endpoint(host, port or default_port)


def _credentials(who: str, settings: Settings) -> Credentials:
    username, colon, password = who.partition(":")
    stored = _stored_password(settings)
    return Credentials(
        unquote(username) or settings.username,
        unquote(password) if colon else stored,
    )


def _stored_password(settings: Settings) -> str | None:
    if settings.password_file is None:
        return settings.password
    if settings.password is not None:
        raise SettingError("password_file", settings.password_file, "no password set beside it")
    try:
        password = Path(settings.password_file).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            "password_file", settings.password_file, f"a readable text file ({error})"
        ) from None
    if not password:
        raise SettingError("password_file", settings.password_file, "a file that is not empty")
    return password


def _path(parts: SplitResult, topology: Topology) -> tuple[str, int]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    database = options.pop("db", "")
    if options:
        raise AddressError(f"server address: unknown option {next(iter(options))!r}")
    names = [] if parts.scheme == "unix" else [unquote(name) for name in parts.path.split("/")[1:]]
    service = ""
    if topology is Topology.SENTINEL:
        service = names.pop(0) if names else ""
        if not service:
            raise AddressError(
                "server address: redis+sentinel:// names the service, as …:26379/mymaster"
            )
    if names and names[0] and not database:
        database = names.pop(0)
    if any(names) or not _DATABASE.fullmatch(database or "0"):
        raise AddressError("server address: what follows the host is a database number, as /0")
    number = int(database or 0)
    if topology is Topology.CLUSTER and number:
        raise AddressError("server address: a cluster has database 0 only")
    return service, number
