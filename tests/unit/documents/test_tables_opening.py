"""Which tables an address means, and the words for one that means none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError, SettingError
from penstock.settings import Settings, TableSettings
from penstock.stores.opening import open_tables
from penstock.stores.tables.sqlite import SqliteTables


def _open(url: str | None, home: str = "/somewhere") -> object:
    return open_tables(Settings(home=home, tables=TableSettings(url=url)))


def test_without_an_address_the_tables_are_a_file_in_the_data_directory(tmp_path: Path):
    tables = _open(None, str(tmp_path))

    assert isinstance(tables, SqliteTables)
    assert tables.path == tmp_path / "tables.db"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///var/lib/tables.db", "/var/lib/tables.db"),
        ("SQLite:////var/lib/tables.db", "/var/lib/tables.db"),
        ("sqlite:///with%20space/über.db", "/with space/über.db"),
    ],
)
def test_an_address_of_sqlite_is_the_path_of_a_file(url: str, path: str):
    tables = _open(url)

    assert isinstance(tables, SqliteTables)
    assert tables.path == Path(path)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_an_address_of_postgresql_is_not_shown_once_it_is_taken(scheme: str):
    tables = _open(f"{scheme}://me:secret@host/base")

    assert "secret" not in repr(tables)
    assert "Postgres" in type(tables).__name__


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:secret@host/base",
        "me:secret@host/base",
        "",
        "secret",
        "sqlite://secret",
        "sqlite://host/secret",
        "sqlite:///",
        "sqlite:///folder/secret/",
        "sqlite:///:memory:",
        "sqlite:///file?password=secret",
        "sqlite://[secret",
        "postgresql://me:secret@[host/base",
        "postgresql://me:secret@host/base?no_such_option=1",
        "postgresql+asyncpg://me:secret@host/base",
    ],
)
def test_another_address_is_refused_with_words_that_help_and_hold_no_secret(url: str):
    with pytest.raises(SettingError) as refused:
        _open(url)

    assert refused.value.name == "tables.url"
    assert "postgresql://" in str(refused.value)
    assert "sqlite:///" in str(refused.value)
    chain = [refused.value, refused.value.__cause__]
    assert "secret" not in "".join(map(repr, chain))


def test_without_its_driver_postgresql_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in [
        name for name in sys.modules if name.startswith("penstock.stores.tables.postgres")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("penstock.stores.tables.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(ConfigError, match=r"pip install 'penstock\[postgres\]'"):
        _open("postgresql://me:secret@host/base")
