"""Tables in PostgreSQL: servers that end, refuse, stand still or are full."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import psycopg
import pytest
from tests.kit.patience import patient
from tests.kit.stores.notes import add_note, note_names

from penstock.errors import SettingError, StoreAway, StoreError, StoreFull
from penstock.settings import Settings, TableSettings
from penstock.stores.opening import open_tables
from penstock.stores.tables.port import Tables, Transaction
from penstock.testing.eventually import eventually
from penstock.testing.postgres import PostgresProcess
from penstock.testing.servers import free_port

OpenTables = Callable[..., Awaitable[Tables]]


@pytest.fixture
def url(postgres_server: PostgresProcess, namespace: str) -> str:
    """The address of an empty database."""
    return postgres_server.create_database(namespace)


@pytest.fixture
async def open_at() -> AsyncIterator[OpenTables]:
    """`await open_at(url, wait_s=…)` opens tables that end with the test."""
    async with AsyncExitStack() as opened:

        async def open_one(url: str, **settings: Any) -> Tables:
            tables = open_tables(Settings(tables=TableSettings(url=url, **settings)))
            opened.push_async_callback(tables.close)
            await tables.open()
            await tables.write(
                lambda t: t.execute("CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY)")
            )
            return tables

        yield open_one


def _tell(url: str, sql: str, *values: Any) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql.encode(), values).fetchall()


async def test_a_work_whose_connection_is_lost_before_the_commit_is_run_again(
    url: str, open_at: OpenTables
):
    tables = await open_at(url)
    tries: list[int] = []

    def work(t: Transaction) -> str:
        [(pid,)] = t.execute("SELECT pg_backend_pid()")
        add_note(f"try {len(tries)}")(t)
        tries.append(pid)
        if len(tries) == 1:
            _tell(url, "SELECT pg_terminate_backend(%s, 5000)", pid)
        return add_note("done")(t)

    assert await tables.write(work) == "done"
    assert len(set(tries)) == 2
    assert await note_names(tables) == ["done", "try 1"]


async def test_a_work_that_ends_every_connection_is_given_up(url: str, open_at: OpenTables):
    tables = await open_at(url)
    tries: list[int] = []

    def work(t: Transaction) -> None:
        [(pid,)] = t.execute("SELECT pg_backend_pid()")
        tries.append(pid)
        t.execute("SELECT pg_terminate_backend(?)", pid)

    with pytest.raises(StoreAway, match="hung up"):
        await tables.write(work)
    assert len(tries) == 3
    assert await tables.write(add_note("next")) == "next"


async def test_a_connection_lost_during_the_commit_leaves_the_outcome_open(
    url: str, open_at: OpenTables
):
    tables = await open_at(url)
    slow_commit = """
        CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(20); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION stall()
    """
    await tables.write(lambda t: t.execute(slow_commit))
    tries: list[int] = []

    def work(t: Transaction) -> None:
        tries.append(t.execute("SELECT pg_backend_pid()")[0][0])
        add_note("perhaps")(t)

    writing = asyncio.ensure_future(tables.write(work))
    committing = (
        "SELECT pid FROM pg_stat_activity WHERE query ILIKE 'commit%%' AND state = 'active'"
    )
    where = " AND datname = current_database()"
    await eventually(lambda: asyncio.to_thread(_tell, url, committing + where))
    await asyncio.to_thread(_tell, url, "SELECT pg_terminate_backend(%s)", tries[0])

    with pytest.raises(StoreAway, match="may or may not have happened"):
        await writing
    assert len(tries) == 1  # it is the caller who knows whether it may be repeated


async def test_conflicting_works_are_run_again_until_each_has_seen_the_other(
    url: str, open_at: OpenTables
):
    tables = await open_at(url)
    met = threading.Barrier(2)
    tries: list[str] = []

    def work(name: str) -> Callable[[Transaction], int]:
        def run(t: Transaction) -> int:
            [(count,)] = t.execute("SELECT COUNT(*) FROM notes")
            tries.append(name)
            if len(tries) <= 2:
                met.wait(10)
            add_note(f"{name} {count}")(t)
            return count

        return run

    counts = await asyncio.gather(tables.write(work("a")), tables.write(work("b")))

    assert sorted(counts) == [0, 1]
    assert len(tries) > 2
    assert len(await note_names(tables)) == 2


async def test_a_server_that_was_restarted_is_found_again(open_at: OpenTables):
    with PostgresProcess() as server:
        tables = await open_at(server.url)
        await asyncio.gather(*(tables.write(add_note(str(n))) for n in range(8)))
        await asyncio.to_thread(server.kill)
        with pytest.raises(StoreAway, match="cannot be reached"):
            await tables.write(add_note("away"))
        await asyncio.to_thread(server.restart)

        assert await note_names(tables) == [str(n) for n in range(8)]
        await asyncio.gather(*(tables.write(add_note(str(n))) for n in range(8, 16)))
        await asyncio.to_thread(server.restart)  # every connection is stale now
        await asyncio.gather(*(tables.write(add_note(str(n))) for n in range(16, 24)))
        assert len(await note_names(tables)) == 24


async def test_a_server_without_free_connections_is_away(open_at: OpenTables):
    with (
        PostgresProcess(max_connections=4, superuser_reserved_connections=0) as server,
        ExitStack() as held,
    ):
        tables = await open_at(server.url, connections=2)
        await note_names(tables)
        for _ in range(2):
            held.enter_context(psycopg.connect(server.url))
        assert await tables.write(add_note("there is one")) == "there is one"
        with pytest.raises(StoreAway, match="too many clients"):
            await open_tables(Settings(tables=TableSettings(url=server.url))).open()


async def test_addresses_that_lead_nowhere_say_so_without_the_password(
    postgres_server: PostgresProcess,
):
    async def attempt(url: str) -> StoreError:
        tables = open_tables(Settings(tables=TableSettings(url=url, wait_s=5.0)))
        with pytest.raises(StoreError) as refused:
            await tables.open()
        assert "secret" not in str(refused.value)
        return refused.value

    user = postgres_server.url.replace("postgres@", "postgres:secret@")
    assert isinstance(await attempt(f"postgresql://me:secret@127.0.0.1:{free_port()}/x"), StoreAway)
    assert type(await attempt(f"{user}-missing")) is StoreError
    stranger = postgres_server.url.replace("postgres@", "stranger:secret@")
    assert type(await attempt(stranger)) is StoreError


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:p@secret@127.0.0.1:1/x",
        "postgresql://me@127.0.0.1:p@secret@127.0.0.1:1/x",
        "postgresql://me:p/secret@127.0.0.1:1/x",
        "postgresql://127.0.0.1:1/secret@127.0.0.1:1/x",
    ],
)
def test_an_address_whose_password_libpq_takes_for_a_host_is_refused(url: str):
    with pytest.raises(SettingError) as refused:
        open_tables(Settings(tables=TableSettings(url=url)))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["postgresql://me:p%40x@h1,h2:5432/d@b", "postgresql:///x?host=@abstract", "postgres://"]
)
def test_an_address_that_libpq_understands_is_taken(url: str):
    open_tables(Settings(tables=TableSettings(url=url)))


async def test_a_write_gives_up_when_another_holds_the_row(url: str, open_at: OpenTables):
    tables = await open_at(url, wait_s=0.3)
    await tables.write(add_note("row"))
    with psycopg.connect(url) as other:
        other.execute("UPDATE notes SET name = 'theirs'")
        begun = time.monotonic()
        with pytest.raises(StoreAway):
            await tables.write(lambda t: t.execute("UPDATE notes SET name = 'mine'"))
        assert time.monotonic() - begun < patient(5)
        other.rollback()
    await tables.write(lambda t: t.execute("UPDATE notes SET name = 'mine'"))
    assert await note_names(tables) == ["mine"]


async def test_a_server_that_stands_still_is_left(url: str, open_at: OpenTables):
    tables = await open_at(url, wait_s=0.5, connections=1)
    [(pid,)] = await tables.read(lambda t: t.execute("SELECT pg_backend_pid()"))
    os.kill(pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(StoreAway):
            await tables.write(add_note("unheard"))
        assert time.monotonic() - begun < patient(10)
        assert await tables.write(add_note("heard")) == "heard"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert await note_names(tables) == ["heard"]


async def test_works_that_wait_too_long_for_a_connection_are_told(url: str, open_at: OpenTables):
    tables = await open_at(url, wait_s=0.3, connections=1)
    begun, go = threading.Event(), threading.Event()

    def hold(t: Transaction) -> None:
        begun.set()
        assert go.wait(10)

    holding = asyncio.ensure_future(tables.write(hold))
    await asyncio.to_thread(begun.wait, 10)
    asked_at = time.monotonic()
    waiting = asyncio.ensure_future(tables.write(add_note("late")))
    await eventually(lambda: time.monotonic() - asked_at > 0.4)
    go.set()
    await holding

    with pytest.raises(StoreAway, match="all connections are in use"):
        await waiting


@pytest.mark.parametrize(
    ("code", "kind"),
    [("53100", StoreFull), ("53200", StoreAway), ("58030", StoreAway), ("XX001", StoreError)],
)
async def test_what_the_server_reports_has_a_type(
    url: str, open_at: OpenTables, code: str, kind: type[StoreError]
):
    tables = await open_at(url)
    sql = f"DO $$ BEGIN RAISE EXCEPTION 'what it says' USING ERRCODE = '{code}'; END $$"

    with pytest.raises(StoreError, match="what it says") as told:
        await tables.write(lambda t: [add_note("half")(t), t.execute(sql)])

    assert type(told.value) is kind
    assert await note_names(tables) == []
