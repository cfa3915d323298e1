"""What tables promise, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NotOpen, StoreError
from penstock.settings import Settings, TableSettings
from penstock.stores.opening import open_tables
from penstock.stores.tables.port import Tables, Transaction
from penstock.testing.eventually import eventually
from penstock.testing.postgres import PostgresProcess

OpenTables = Callable[..., Awaitable[Tables]]
_NOTES = "CREATE TABLE notes (name TEXT PRIMARY KEY, number BIGINT, share FLOAT, body BYTEA)"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, namespace: str) -> str:
    """An address where there is nothing yet."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/data/tables.db"
    server: PostgresProcess = request.getfixturevalue("postgres_server")
    return server.create_database(namespace)


@pytest.fixture
async def open_at() -> AsyncIterator[OpenTables]:
    """`await open_at(url, wait_s=…)` opens tables that end with the test, and leave no thread."""
    async with AsyncExitStack() as opened:

        async def open_one(url: str, **settings: Any) -> Tables:
            tables = open_tables(Settings(tables=TableSettings(url=url, **settings)))
            opened.push_async_callback(tables.close)
            await tables.open()
            return tables

        yield open_one
    assert _threads() == []


def _threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("tables")]


@pytest.fixture
async def tables(url: str, open_at: OpenTables) -> Tables:
    tables = await open_at(url)
    await tables.write(lambda t: t.execute(_NOTES))
    return tables


def _add(name: str, number: int = 1) -> Callable[[Transaction], str]:
    def work(t: Transaction) -> str:
        t.execute("INSERT INTO notes (name, number) VALUES (?, ?)", name, number)
        return name

    return work


async def _names(tables: Tables) -> list[str]:
    rows = await tables.read(lambda t: t.execute("SELECT name FROM notes ORDER BY name"))
    return [row[0] for row in rows]


async def test_what_was_written_comes_back_as_it_was(tables: Tables):
    notes = [
        ("ünïcode 漢字 🎈 100 % 'quoted'", 2**63 - 1, 0.1, bytes(range(256))),
        ("", -(2**63), -math.pi, b""),
        ("nothing", None, None, None),
        ("yes", True, 1e300, b"\0"),
    ]

    def write(t: Transaction) -> list[Any]:
        assert t.execute_many("INSERT INTO notes VALUES (?, ?, ?, ?)", notes) is None
        assert t.execute("UPDATE notes SET number = 1 WHERE name = ?", "yes") == []
        return t.execute("UPDATE notes SET number = 1 WHERE name = ? RETURNING number", "yes")

    assert await tables.write(write) == [(1,)]
    for note in notes:
        found = await tables.read(
            lambda t, n=note[0]: t.execute("SELECT * FROM notes WHERE name = ?", n)
        )
        assert found == [note]
        assert [type(value) for value in found[0]] == [
            int if isinstance(value, bool) else type(value) for value in note
        ]


async def test_numbers_that_are_computed_are_of_the_same_kind_everywhere(tables: Tables):
    await tables.write(lambda t: [_add("a", 3)(t), _add("b", 4)(t)])

    found = await tables.read(
        lambda t: t.execute(
            "SELECT SUM(number), COUNT(*), AVG(number), MAX(number) = 4, SUM(share) FROM notes"
        )
    )

    assert found == [(7, 2, 3.5, 1, None)]
    assert [type(value) for value in found[0]] == [int, int, float, int, type(None)]


async def test_a_work_that_raises_is_undone_and_its_caller_learns_why(tables: Tables):
    class Reason(Exception):
        pass

    def work(t: Transaction) -> None:
        _add("half")(t)
        raise Reason

    with pytest.raises(Reason):
        await tables.write(work)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await tables.write(lambda t: [_add("stopped")(t), next(iter(()))])
    with pytest.raises(SystemExit):
        await tables.write(lambda t: [_add("ended")(t), sys.exit()])

    assert await tables.write(_add("whole")) == "whole"
    assert await _names(tables) == ["whole"]


async def test_works_that_wait_together_are_undone_alone(tables: Tables):
    await tables.write(_add("000-taken"))
    async with _held(tables):

        def work(number: int) -> Callable[[Transaction], int]:
            def run(t: Transaction) -> int:
                _add(f"{number:03}")(t)
                if number % 3 == 0:
                    raise KeyError(number)
                if number % 3 == 1:
                    _add("000-taken")(t)
                return number

            return run

        pending = [asyncio.ensure_future(tables.write(work(number))) for number in range(90)]
        await asyncio.sleep(0)  # they have asked
    outcomes = await asyncio.gather(*pending, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [KeyError, StoreError, int] * 30
    assert await _names(tables) == ["000-taken", *(f"{n:03}" for n in range(2, 90, 3)), "held"]


async def test_a_statement_that_failed_dooms_its_work_whatever_the_work_makes_of_it(tables: Tables):
    await tables.write(_add("there"))

    def go_on(t: Transaction) -> str:
        _add("before")(t)
        with pytest.raises(StoreError):
            _add("there")(t)
        with pytest.raises(StoreError):
            t.execute("SELECT 1")
        return "as if nothing had happened"

    def look_on(t: Transaction) -> None:
        with pytest.raises(StoreError):
            t.execute("SELECT nonsense")

    with pytest.raises(StoreError, match=r"(?i)unique"):
        await tables.write(go_on)
    with pytest.raises(StoreError):
        await tables.read(look_on)

    assert await _names(tables) == ["there"]


@pytest.mark.parametrize("value", [2**200, "\ud800"])
async def test_a_value_that_cannot_be_stored_is_refused_by_name(tables: Tables, value: Any):
    with pytest.raises(StoreError):
        await tables.write(lambda t: t.execute("INSERT INTO notes (number) VALUES (?)", value))

    assert await tables.write(_add("next")) == "next"


async def test_a_reader_sees_one_state_and_changes_nothing(tables: Tables):
    looked, changed = threading.Event(), threading.Event()

    def look(t: Transaction) -> list[Any]:
        before = t.execute("SELECT COUNT(*) FROM notes")
        looked.set()
        assert changed.wait(10)
        return [before, t.execute("SELECT COUNT(*) FROM notes")]

    looking = asyncio.ensure_future(tables.read(look))
    await asyncio.to_thread(looked.wait, 10)
    await tables.write(_add("new"))
    changed.set()

    assert await looking == [[(0,)], [(0,)]]
    assert await _names(tables) == ["new"]
    with pytest.raises(StoreError, match=r"(?i)read-?only"):
        await tables.read(_add("by a reader"))
    assert await _names(tables) == ["new"]


async def test_readers_wait_for_no_writer(tables: Tables):
    async with _held(tables):
        waiting = [asyncio.ensure_future(tables.write(_add("held"))) for _ in range(10)]
        await asyncio.sleep(0)  # they have asked
        assert await asyncio.wait_for(_names(tables), 60) == []
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await _names(tables) == ["held"]


async def test_tables_that_are_not_open_refuse(url: str, open_at: OpenTables):
    tables = open_tables(Settings(tables=TableSettings(url=url)))
    await tables.close()
    with pytest.raises(NotOpen):
        await tables.read(lambda t: t.execute("SELECT 1"))

    await asyncio.gather(tables.open(), tables.open())
    await tables.open()
    assert await tables.write(lambda t: t.execute("SELECT 1")) == [(1,)]
    await asyncio.gather(tables.close(), tables.close())
    with pytest.raises(NotOpen):
        await tables.write(lambda t: t.execute("SELECT 1"))

    await tables.open()
    assert await tables.read(lambda t: t.execute("SELECT 1")) == [(1,)]
    await tables.close()


async def test_closing_does_what_was_asked_for_before(
    tables: Tables, url: str, open_at: OpenTables
):
    async with _held(tables):
        pending = [asyncio.ensure_future(tables.write(_add(f"{n:03}"))) for n in range(40)]
        await asyncio.sleep(0)  # they have asked
        closing = asyncio.ensure_future(tables.close())
        await eventually(lambda: _refuses(tables))
        assert not closing.done()
    await closing

    assert await asyncio.gather(*pending) == [f"{n:03}" for n in range(40)]
    assert _threads() == []
    assert len(await _names(await open_at(url))) == 41


async def test_the_thread_goes_on_when_a_caller_is_cancelled(tables: Tables):
    async with _held(tables):
        cancelled = [asyncio.ensure_future(tables.write(_add(f"c{n}"))) for n in range(20)]
        kept = [asyncio.ensure_future(tables.write(_add(f"k{n}"))) for n in range(20)]
        await asyncio.sleep(0)
        for task in cancelled:
            task.cancel()
    await asyncio.gather(*kept)
    outcomes = await asyncio.gather(*cancelled, return_exceptions=True)

    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert {f"k{n}" for n in range(20)} <= set(await _names(tables))


async def test_callers_in_several_loops_share_the_tables(tables: Tables):
    async def many(prefix: str) -> None:
        await asyncio.gather(*(tables.write(_add(f"{prefix}{n}")) for n in range(50)))

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, many(prefix)) for prefix in "abc"))

    assert len(await _names(tables)) == 150


_PROGRAM = """
import asyncio, os, sys
from penstock.errors import NotOpen
from penstock.settings import Settings, TableSettings
from penstock.stores.opening import open_tables

tables = open_tables(Settings(tables=TableSettings(url=sys.argv[1])))

async def main():
    await tables.open()
    await act()
    await tables.close()
"""

_COUNT = """
def count(t):
    number = t.execute("SELECT number FROM notes WHERE name = 'counter'")[0][0]
    t.execute("UPDATE notes SET number = ? WHERE name = 'counter'", number + 1)
    t.execute("UPDATE notes SET number = number + 1 WHERE name = 'other'")

async def some():
    for _ in range(25):
        await tables.write(count)

async def act():
    await asyncio.gather(*(some() for _ in range(6)))

asyncio.run(main())
"""


@pytest.mark.faults
async def test_processes_that_write_at_the_same_time_lose_nothing(tables: Tables, url: str):
    await tables.write(lambda t: [_add("counter", 0)(t), _add("other", 0)(t)])

    writers = [_start(_COUNT, url) for _ in range(3)]
    for writer in writers:
        assert (await asyncio.to_thread(writer.communicate, timeout=90))[1] == ""
        assert writer.returncode == 0

    found = await tables.read(lambda t: t.execute("SELECT name, number FROM notes ORDER BY name"))
    assert found == [("counter", 450), ("other", 450)]


_PAIRS = """
async def pairs(who):
    for number in range(1_000_000):
        def pair(t):
            for half in "ab":
                t.execute("INSERT INTO notes (name) VALUES (?)", f"{who} {number} {half}")
        await tables.write(pair)
        print(f"{who} {number}", flush=True)

async def act():
    await asyncio.gather(*(pairs(f"{os.getpid()}-{n}") for n in range(4)))

asyncio.run(main())
"""


@pytest.mark.faults
async def test_a_killed_writer_leaves_what_was_committed_and_nothing_half(tables: Tables, url: str):
    told: set[str] = set()
    for kill_after in (1, 40, 150):
        with _start(_PAIRS, url) as writer:
            assert writer.stdout is not None
            for _ in range(kill_after):
                told.add(await asyncio.to_thread(writer.stdout.readline))
            writer.send_signal(signal.SIGKILL)
            told |= set(writer.stdout.readlines())

    stored = await _names(tables)
    first = {name.removesuffix(" a") for name in stored if name.endswith(" a")}
    second = {name.removesuffix(" b") for name in stored if name.endswith(" b")}
    assert first == second
    assert {line.strip() for line in told} - {""} <= first
    assert await tables.write(_add("next")) == "next"


_FORK = """
async def after_fork(reopens):
    try:
        await tables.write(lambda t: t.execute("SELECT 1"))
    except NotOpen:
        pass
    else:
        return 1
    await tables.close()
    await tables.open()
    await tables.write(lambda t: t.execute("INSERT INTO notes (name) VALUES ('child')"))
    await tables.close()
    return 0

async def act():
    await tables.read(lambda t: t.execute("SELECT 1"))
    if os.fork() == 0:
        import threading
        code = []
        thread = threading.Thread(target=lambda: code.append(asyncio.run(after_fork(True))))
        thread.start()
        thread.join()
        os._exit(code[0] if code else 2)
    _, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == 0
    await tables.write(lambda t: t.execute("INSERT INTO notes (name) VALUES ('parent')"))

asyncio.run(main())
"""


async def test_a_forked_child_leaves_the_tables_to_its_parent(tables: Tables, url: str):
    program = _start(_FORK, url, "-W", "ignore::DeprecationWarning")

    assert (await asyncio.to_thread(program.communicate, timeout=60))[1] == ""
    assert program.returncode == 0
    assert await _names(tables) == ["child", "parent"]


async def test_many_create_what_is_missing_at_the_same_time(url: str, open_at: OpenTables):
    several = [await open_at(url, connections=1) for _ in range(6)]

    def create(number: int) -> Callable[[Transaction], None]:
        def work(t: Transaction) -> None:
            t.execute(f"CREATE TABLE IF NOT EXISTS made{number} (name TEXT PRIMARY KEY, n BIGINT)")
            t.execute(f"CREATE INDEX IF NOT EXISTS made{number}_n ON made{number} (n)")

        return work

    for number in range(10):
        await asyncio.gather(*(tables.write(create(number)) for tables in several))


# parts


class _held:  # noqa: N801  read as a word: `async with _held(tables)`
    """Within the block a work that writes stands still."""

    def __init__(self, tables: Tables) -> None:
        self._tables, self._begun, self._go = tables, threading.Event(), threading.Event()

    async def __aenter__(self) -> None:
        def hold(t: Transaction) -> None:
            _add("held")(t)
            self._begun.set()
            assert self._go.wait(30)

        self._holding = asyncio.ensure_future(self._tables.write(hold))
        await asyncio.to_thread(self._begun.wait, 10)

    async def __aexit__(self, *_: object) -> None:
        self._go.set()
        await self._holding


async def _refuses(tables: Tables) -> bool:
    try:
        await asyncio.wait_for(tables.read(lambda t: t.execute("SELECT 1")), 60)
    except NotOpen:
        return True
    return False


def _start(program: str, url: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", *options, "-c", _PROGRAM + program, url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
