"""Which tables the settings mean."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigError, SettingError
from penstock.settings import Settings
from penstock.stores.tables.port import Tables
from penstock.stores.tables.sqlite import SqliteTables

__all__ = ["open_tables"]

_FILE = "tables.db"
_EXPECTED = "postgresql://user:password@host/database, or sqlite:///path/of/the/file"
_UNSAID = "…"  # an address may hold a password, also one that cannot be read


def open_tables(settings: Settings) -> Tables:
    """Make the tables of `settings.tables.url`; `await tables.open()` connects them.

    Without an address they are a file in the data directory. SettingError for an address of
    another kind, ConfigError if PostgreSQL is meant and its driver is not installed.
    """
    tables = settings.tables
    if tables.url is None:
        return SqliteTables(settings.home_path / _FILE, wait_s=tables.wait_s)
    scheme = tables.url.partition(":")[0].lower()
    if scheme == "sqlite":
        return SqliteTables(_path_in(tables.url), wait_s=tables.wait_s)
    if scheme not in {"postgresql", "postgres"}:
        raise _wrong_url()
    try:
        from penstock.stores.tables import postgres  # noqa: PLC0415  its driver is an extra
    except ImportError as missing:
        raise ConfigError(
            "tables.url names PostgreSQL, whose driver cannot be loaded: "
            f"pip install 'penstock[postgres]' ({missing})"
        ) from missing
    if not postgres.is_address(tables.url):
        raise _wrong_url()
    return postgres.PostgresTables(tables.url, connections=tables.connections, wait_s=tables.wait_s)


def _path_in(url: str) -> Path:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _wrong_url() from None
    path = unquote(parts.path)
    is_file = path.startswith("/") and not path.endswith("/") and "\0" not in path
    if parts.netloc or parts.query or parts.fragment or not is_file or path == "/:memory:":
        raise _wrong_url()
    return Path("/" + path.lstrip("/"))


def _wrong_url() -> SettingError:
    return SettingError("tables.url", _UNSAID, _EXPECTED)
