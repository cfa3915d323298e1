"""Connections to stores on which others could read, or answer in the store's place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from penstock.hosts import is_loopback, is_sent_openly, public_url
from penstock.settings import Settings

__all__ = ["Exposure", "exposed_key", "exposed_stores"]

_VERIFIED: Final = "verify-full"
_LIBPQ_DEFAULT: Final = "prefer"


class Exposure(NamedTuple):
    """A connection that is not protected as it could be."""

    message: str
    fix: str


def exposed_stores(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[Exposure]:
    """Those of the tables and the vectors; connects to neither."""
    vectors = settings.vectors
    found = list(_exposed_tables(settings.tables.url or "", environ))
    if vectors.url and (vectors.api_key or "@" in vectors.url):
        found += exposed_key("vectors.url", vectors.url, settings)
    return found


def exposed_key(name: str, url: str, settings: Settings) -> Iterator[Exposure]:
    """A key that goes over plain HTTP to another machine, unless the settings allow it."""
    if settings.outbound.plain_http != "allow" and is_sent_openly(url):
        yield Exposure(
            f"{name}: the key for {public_url(url)} leaves this machine unencrypted",
            "write https://, or set outbound.plain_http to 'allow' if the network is your own",
        )


def _exposed_tables(url: str, environ: Mapping[str, str]) -> Iterator[Exposure]:
    if url.partition(":")[0].lower() not in {"postgresql", "postgres"}:
        return
    try:
        import psycopg  # noqa: PLC0415  an extra
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415
    except ImportError:
        return  # it cannot be opened either
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except psycopg.Error:
        return
    # As libpq has it: the variables count for what the address leaves out.
    hosts = given.get("hostaddr") or given.get("host")
    hosts = hosts or environ.get("PGHOSTADDR") or environ.get("PGHOST") or ""
    mode = given.get("sslmode") or environ.get("PGSSLMODE") or _LIBPQ_DEFAULT
    far = [host for host in hosts.split(",") if host[:1] not in {"", "/", "@"}]
    far = [host for host in far if not is_loopback(host)]
    if far and mode != _VERIFIED:
        yield Exposure(
            f"tables.url: with sslmode={mode} the certificate of PostgreSQL at {', '.join(far)} is "
            "not compared with its name: others on the way could read and answer",
            f"add sslmode={_VERIFIED} and sslrootcert=/path/of/ca.pem to tables.url",
        )
