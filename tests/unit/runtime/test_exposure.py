"""Connections to stores that others on the way could read. Nothing here connects to any."""

from __future__ import annotations

import pytest

from penstock.settings import OutboundSettings, Settings, TableSettings, VectorSettings
from penstock.stores.exposure import exposed_stores


def found(environ=None, **settings):
    return exposed_stores(Settings(**settings), environ or {})


def of_tables(url, **environ):
    return found(environ, tables=TableSettings(url=url))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:secret@db.example/x",
        "postgres://ann:secret@10.0.0.5:5433/x?sslmode=require",
        "postgresql://db.example/x?sslmode=verify-ca",
        "postgresql://127.0.0.1,db.example/x",
        "postgresql://localhost/x?hostaddr=10.0.0.5",
        "postgresql:///x?host=db.example&password=secret",
    ],
)
def test_a_database_whose_certificate_is_not_verified_is_found(url):
    [exposure] = of_tables(url)
    assert "tables.url" in exposure.message
    assert "sslmode=verify-full" in exposure.fix
    assert "secret" not in str(exposure)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db.example/x?sslmode=verify-full",
        "postgresql://localhost/x",
        "postgresql://[::1]:5433/x",
        "postgresql:///x",
        "postgresql:///x?host=/run/postgresql",
        "sqlite:////somewhere/tables.db",
        "postgresql://db.example/x?nosuch=1",
    ],
)
def test_a_database_that_is_verified_or_on_this_machine_is_not(url):
    assert of_tables(url) == []


def test_the_variables_of_libpq_count_for_what_the_address_leaves_out():
    assert of_tables("postgresql:///x", PGHOST="db.example")
    assert not of_tables("postgresql://db.example/x", PGSSLMODE="verify-full")
    assert of_tables("postgresql://db.example/x?sslmode=allow", PGSSLMODE="verify-full")
    assert not of_tables("postgresql://127.0.0.1/x", PGHOST="db.example")


def test_a_key_over_plain_http_to_another_machine_is_found():
    plain = VectorSettings(url="http://user:secret@qdrant:6333", api_key="secret")
    [exposure] = found(vectors=plain)
    assert "vectors.url: the key for http://qdrant:6333 leaves this machine" in exposure.message
    assert "secret" not in str(exposure)
    assert found(vectors=plain, outbound=OutboundSettings(plain_http="allow")) == []
    for url in ("https://qdrant:6333", "http://127.0.0.1:6333"):
        assert found(vectors=VectorSettings(url=url, api_key="secret")) == []
    assert found(vectors=VectorSettings(url="http://qdrant:6333")) == []
