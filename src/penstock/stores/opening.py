"""Opening the stores of the settings."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigError, SettingError
from penstock.settings import Settings
from penstock.stores.tables.port import Tables
from penstock.stores.tables.sqlite import SqliteTables
from penstock.stores.vectors.port import VectorStore

__all__ = ["open_tables", "open_vectors"]

_FILE = "tables.db"
_EXPECTED = "postgresql://user:password@host/database, or sqlite:///path/of/the/file"
_HIDDEN = "…"  # even an invalid address may contain a password


def open_tables(settings: Settings) -> Tables:
    """Make the tables of `settings.tables.url`; `await tables.open()` connects them.

    Without an address they are a file in the data directory. SettingError for another kind of
    address, ConfigError if PostgreSQL's driver is not installed.
    """
    tables = settings.tables
    if tables.url is None:
        return SqliteTables(settings.home_path / _FILE, wait_s=tables.wait_s, in_home=True)
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


def open_vectors(settings: Settings) -> VectorStore:
    """The store that `vectors.url` names; without one, Qdrant's engine in `home`.

    It is not open yet: `await store.open()`. ConfigError if a package that it needs is missing.
    """
    # Each needs packages of its own, which need not be installed.
    if settings.vectors.url is not None:
        from penstock.stores.vectors.server import QdrantServer  # noqa: PLC0415

        return QdrantServer(settings.vectors, settings.outbound)
    if find_spec("qdrant_edge") is None:
        raise ConfigError("vectors without an address need: pip install 'penstock[documents]'")
    from penstock.stores.vectors.daemon_client import EmbeddedVectors  # noqa: PLC0415

    return EmbeddedVectors(settings.home_path / "vectors", settings.vectors)


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
    return SettingError("tables.url", _HIDDEN, _EXPECTED)
