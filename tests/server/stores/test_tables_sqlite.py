"""Tables in a SQLite file: durability, full and broken disks, other processes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.kit.patience import patient
from tests.kit.stores.notes import add_note, note_names

from penstock.errors import StoreAway, StoreError, StoreFull
from penstock.settings import Settings, TableSettings
from penstock.stores.opening import open_tables
from penstock.stores.tables.port import Tables, Transaction
from penstock.testing.eventually import eventually

OpenTables = Callable[..., Awaitable[Tables]]


@pytest.fixture
async def open_in() -> AsyncIterator[OpenTables]:
    """`await open_in(home, wait_s=…)` opens tables that end with the test."""
    async with AsyncExitStack() as opened:

        async def open_one(home: Path, **settings: Any) -> Tables:
            tables = open_tables(Settings(home=str(home), tables=TableSettings(**settings)))
            opened.push_async_callback(tables.close)
            await tables.open()
            await tables.write(
                lambda t: t.execute("CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY)")
            )
            return tables

        yield open_one


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KiB, where the test may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=400k,mode=700", "tmpfs"]
    mounted = subprocess.run(["mount", *options, place], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def _start(program: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(program, stdin=subprocess.DEVNULL)


async def test_the_file_is_for_its_user_alone(tmp_path: Path, open_in: OpenTables):
    home = tmp_path / "new" / "home"
    tables = await open_in(home)
    await tables.write(add_note("secret"))

    assert home.stat().st_mode & 0o777 == 0o700
    files = {file.name: file.stat().st_mode & 0o777 for file in home.iterdir()}
    assert set(files) >= {"tables.db", "tables.db-wal", "tables.db-shm"}
    assert set(files.values()) == {0o600}

    await tables.close()
    assert not (home / "tables.db-wal").exists()


async def test_a_caller_hears_of_its_write_only_after_the_commit(
    tmp_path: Path, open_in: OpenTables
):
    tables = await open_in(tmp_path)
    with closing(sqlite3.connect(tmp_path / "tables.db")) as outside:

        async def write(name: str) -> None:
            await tables.write(add_note(name))
            found = outside.execute("SELECT COUNT(*) FROM notes WHERE name = ?", (name,))
            assert found.fetchall() == [(1,)]

        await asyncio.gather(*(write(str(number)) for number in range(200)))


async def test_works_that_wait_share_a_commit(tmp_path: Path, open_in: OpenTables):
    tables = await open_in(tmp_path)
    begun, go = threading.Event(), threading.Event()

    def hold(t: Transaction) -> None:
        begun.set()
        assert go.wait(10)

    holding = asyncio.ensure_future(tables.write(hold))
    await asyncio.to_thread(begun.wait, 10)
    writing = [asyncio.ensure_future(tables.write(add_note(str(number)))) for number in range(100)]
    await asyncio.sleep(0)  # they have asked
    go.set()
    await asyncio.gather(holding, *writing)

    with closing(sqlite3.connect(tmp_path / "tables.db")) as outside:
        log = outside.execute("PRAGMA wal_checkpoint").fetchone()[1]
    assert log < 20  # pages in the log; a hundred commits of their own write two hundred


async def test_without_room_callers_hear_what_happened_to_their_works(
    tmp_path: Path, open_in: OpenTables
):
    tables = await open_in(tmp_path)
    await tables.write(add_note("- before"))
    [(pages,)] = await tables.write(lambda t: t.execute("PRAGMA page_count"))
    await tables.write(lambda t: t.execute(f"PRAGMA max_page_count = {pages + 2}"))

    names = [f"{number:02} {'x' * (100_000 if number == 15 else 5)}" for number in range(30)]
    outcomes = await asyncio.gather(
        *(tables.write(add_note(name)) for name in names), return_exceptions=True
    )
    stored = [name for name in names if name in outcomes]
    assert isinstance(outcomes[15], StoreFull)
    assert {type(outcome) for outcome in outcomes} == {StoreFull, str}
    assert await note_names(tables) == ["- before", *stored]
    assert await tables.write(add_note("small")) == "small"


async def test_a_full_disk_refuses_loses_nothing_and_works_again_when_there_is_room(
    small_disk: Path, open_in: OpenTables
):
    tables = await open_in(small_disk, wait_s=5.0)
    await tables.write(add_note("- before"))
    rubbish = small_disk / "rubbish"
    with pytest.raises(OSError, match="No space"):
        rubbish.write_bytes(b"\0" * 500_000)

    names = [f"{number:03} {'x' * 3_000}" for number in range(50)]
    outcomes = await asyncio.gather(
        *(tables.write(add_note(name)) for name in names), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {StoreFull}
    assert await note_names(tables) == ["- before"]

    with pytest.raises(StoreFull):
        await open_in(small_disk / "other")

    rubbish.unlink()
    await asyncio.gather(*(tables.write(add_note(name)) for name in names[:10]))
    assert await note_names(tables) == ["- before", *names[:10]]
    again = await open_in(small_disk)
    assert await note_names(again) == ["- before", *names[:10]]


async def test_a_write_gives_up_when_another_program_holds_the_file(
    tmp_path: Path, open_in: OpenTables
):
    tables = await open_in(tmp_path, wait_s=0.3)
    with closing(sqlite3.connect(tmp_path / "tables.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        outcomes = await asyncio.gather(
            *(tables.write(add_note(str(number))) for number in range(50)), return_exceptions=True
        )
        took_s = time.monotonic() - begun
        assert {type(outcome) for outcome in outcomes} == {StoreAway}
        assert 0.3 <= took_s < patient(5)
        assert await note_names(tables) == []
        writing = asyncio.ensure_future(tables.write(add_note("patient")))
        other.execute("ROLLBACK")
    assert await writing == "patient"


_BUSY = """
import asyncio, sys
from penstock.settings import Settings
from penstock.stores.opening import open_tables

async def main():
    tables = open_tables(Settings(home=sys.argv[1]))
    await tables.open()
    async def write(me):
        for number in range(10**9):
            await tables.write(lambda t: t.execute("REPLACE INTO notes VALUES (?)", f"busy {me}"))
    await asyncio.gather(*(write(me) for me in range(64)))

asyncio.run(main())
"""


async def test_a_busy_process_does_not_starve_the_others(tmp_path: Path, open_in: OpenTables):
    tables = await open_in(tmp_path, wait_s=5.0)
    program = [sys.executable, "-c", _BUSY, str(tmp_path)]
    busy = [_start(program) for _ in range(2)]

    async def are_busy() -> bool:
        return len(await note_names(tables)) == 64

    try:
        await eventually(are_busy)
        begun = time.monotonic()
        for number in range(50):
            await tables.write(add_note(f"mine {number:02}"))
        took_s = time.monotonic() - begun
    finally:
        for process in busy:
            process.kill()
            process.wait()

    # A turn is two commits of the others away, each of which is held for a twentieth of a second.
    assert took_s < patient(15)
    assert len(await note_names(tables)) == 64 + 50


async def test_a_file_that_is_no_database_is_named(tmp_path: Path):
    (tmp_path / "tables.db").write_bytes(b"something else entirely " * 1_000)

    with pytest.raises(StoreError, match=r"tables\.db is not a database: move it away"):
        await open_tables(Settings(home=str(tmp_path))).open()


async def test_a_damaged_file_is_named(tmp_path: Path, open_in: OpenTables):
    tables = await open_in(tmp_path)
    await asyncio.gather(*(tables.write(add_note(f"{n} {'x' * 500}")) for n in range(200)))
    await tables.close()
    with (tmp_path / "tables.db").open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(4096 * 20))

    tables = open_tables(Settings(home=str(tmp_path)))
    await tables.open()
    with pytest.raises(StoreError, match=r"tables\.db is damaged"):
        await note_names(tables)
    with pytest.raises(StoreError, match=r"tables\.db is damaged"):
        await tables.write(lambda t: t.execute("DELETE FROM notes"))
    await tables.close()


async def test_a_place_where_no_file_can_be_is_named(tmp_path: Path):
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match=r"file/tables\.db cannot be opened"):
        await open_tables(Settings(home=str(tmp_path / "file"))).open()
    (tmp_path / "tables.db").mkdir()
    with pytest.raises(StoreError, match=r"tables\.db cannot be opened"):
        await open_tables(Settings(home=str(tmp_path))).open()


async def test_a_file_that_was_removed_takes_no_writes_into_the_void(
    tmp_path: Path, open_in: OpenTables
):
    tables = await open_in(tmp_path / "home")
    (tmp_path / "home").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="was moved or removed"):
        await tables.write(add_note("lost"))

    await tables.close()
    again = await open_in(tmp_path / "home")
    assert await again.write(add_note("kept")) == "kept"


async def test_many_open_the_same_new_file_at_once(tmp_path: Path, open_in: OpenTables):
    opened = await asyncio.gather(*(open_in(tmp_path / "new") for _ in range(8)))

    await asyncio.gather(*(tables.write(add_note(str(n))) for n, tables in enumerate(opened)))
    assert await note_names(opened[0]) == [str(n) for n in range(8)]
