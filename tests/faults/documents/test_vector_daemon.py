"""Whatever happens to the process that has the vectors' engine: nothing confirmed is lost."""

import asyncio
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.kit.paths import ROOT, program_environ
from tests.kit.patience import patient
from tests.kit.stores.vector_points import (
    DIMENSION,
    house_gone,
    opened,
    place_of,
    point_id,
    points,
    unit,
)

from penstock.errors import NotOpen, StoreAway, StoreMismatch
from penstock.stores.vectors import daemon_process as place
from penstock.stores.vectors import daemon_worker
from penstock.stores.vectors import optimizing as tidying
from penstock.stores.vectors import requests as ask
from penstock.stores.vectors.edge import EdgeEngine
from penstock.stores.vectors.edge_collection import EdgeCollection
from penstock.stores.vectors.requests import Upsert
from penstock.testing.eventually import eventually
from penstock.testing.processes import frozen, is_alive, processes_in

USER = """
import asyncio, sys
from tests.kit.stores.vector_points import opened, points
async def main(home, name, count):
    async with opened(home, linger_s=1) as store:
        await store.create("books", 8)
        async def write(n):
            document = f"{name}-{n}"
            await store.upsert("books", document, 1, points(document, 3))
            await store.upsert("books", document, 2, points(document, 2))
            await store.delete_before("books", document, 2)
        for start in range(0, count, 20):
            await asyncio.gather(*(write(n) for n in range(start, min(count, start + 20))))
            print(start, flush=True)
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""

SLOW = """import time
from penstock.stores.vectors.daemon_worker import DaemonWorker
do = DaemonWorker._do
DaemonWorker._do = lambda self, run: (time.sleep(3.5), do(self, run))
from penstock"""


@pytest.fixture
async def home(tmp_path):
    yield tmp_path
    await house_gone(tmp_path)


def start_user(home, name, count):
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(home), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=program_environ(),
    )


def start_bystander():
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def kill(pid):
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def stored(store, collection="books"):
    """Every point there is: its document and its number."""
    hits = await store.search(collection, unit("any"), limit=100_000)
    return sorted((hit.document, hit.payload["n"]) for hit in hits)


async def test_killed_amid_writes_again_and_again_it_loses_nothing_and_doubles_nothing(home):
    confirmed, kills, chance = [], 0, random.Random(7)  # noqa: S311
    done = asyncio.Event()
    async with opened(home) as store:
        await store.create("books", DIMENSION)

        async def write(writer):
            n = 0
            while not done.is_set():
                document = f"{writer}-{n}"
                await store.upsert("books", document, 1, points(document, 3))
                await store.upsert("books", document, 2, points(document, 2))
                await store.delete_before("books", document, 2)
                confirmed.append(document)
                n += 1

        async with asyncio.TaskGroup() as group:
            for writer in range(8):
                group.create_task(write(writer))
            while kills < 20:
                before = len(confirmed)
                await eventually(lambda b=before: len(confirmed) > b + chance.randrange(60))
                pid = await eventually(place_of(home).pid)
                kill(pid)
                kills += 1
            done.set()
        expected = sorted((document, n) for document in confirmed for n in range(2))
        assert await stored(store) == expected
        info = await store.describe("books")
        assert info.points == len(expected)
        found = await store.vectors("books", [point_id(d, n) for d, n in expected[:500]])
        assert len(found) == min(500, len(expected))


async def test_processes_that_use_it_at_once_share_one_engine(home):
    users = [start_user(home, f"u{n}", 100) for n in range(4)]
    try:
        for user in users:
            assert await asyncio.to_thread(user.stdout.readline)
        houses = processes_in(home / "vectors")
        assert len(houses) == 1
        assert (
            await asyncio.gather(*(asyncio.to_thread(user.wait, 60) for user in users)) == [0] * 4
        )
    finally:
        for user in users:
            user.kill()
            user.communicate()
    async with opened(home) as store:
        expected = sorted((f"u{u}-{n}", k) for u in range(4) for n in range(100) for k in range(2))
        assert await stored(store) == expected


async def test_processes_go_on_when_the_house_is_killed_under_them(home):
    users = [start_user(home, f"u{n}", 200) for n in range(2)]
    try:
        for _ in range(6):
            for user in users:
                await asyncio.to_thread(user.stdout.readline)
            kill(await asyncio.to_thread(place_of(home).pid))
        assert (
            await asyncio.gather(*(asyncio.to_thread(user.wait, 60) for user in users)) == [0] * 2
        )
    finally:
        for user in users:
            user.kill()
            user.communicate()
    async with opened(home) as store:
        assert (await store.describe("books")).points == 2 * 200 * 2


async def test_one_that_stands_still_is_ended_and_its_requests_are_asked_again(home):
    async with opened(home, answer_s=0.5) as store, opened(home, answer_s=0.5) as other:
        await store.create("books", DIMENSION)
        await other.describe("books")
        first = place_of(home).pid()
        os.kill(first, signal.SIGSTOP)
        await asyncio.wait_for(
            asyncio.gather(
                *(store.upsert("books", f"a{n}", 1, points(f"a{n}", 2)) for n in range(10)),
                *(other.upsert("books", f"b{n}", 1, points(f"b{n}", 2)) for n in range(10)),
            ),
            20,
        )
        assert not is_alive(first)
        assert place_of(home).pid() not in {None, first}
        assert (await store.describe("books")).points == 40


async def test_one_that_stood_still_before_anybody_connected_is_ended_too(home):
    async with opened(home, linger_s=5) as store:
        await store.create("books", DIMENSION)
    first = place_of(home).pid()
    os.kill(first, signal.SIGSTOP)
    async with opened(home, answer_s=0.5) as store:
        assert await asyncio.wait_for(store.describe("books"), 20)
    assert not is_alive(first)


async def test_one_that_is_slow_but_answers_is_left_alone(home, monkeypatch):
    monkeypatch.setattr(place, "_PROGRAM", place._PROGRAM.replace("from penstock", SLOW, 1))
    async with opened(home, answer_s=1) as store:
        began = time.monotonic()
        await store.create("books", DIMENSION)
        assert time.monotonic() - began > 3
        assert "daemon begins" in (home / "vectors" / "house.log").read_text()
    assert (home / "vectors" / "house.log").read_text().count("daemon begins") == 1


async def test_tidying_that_never_ends_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(tidying, "_AT_LEAST_S", 0.0)
    monkeypatch.setattr(tidying, "_PROGRAM", "input()")
    process = tidying.OptimizeProcess(tmp_path, 1)
    assert await eventually(process.ended) == -signal.SIGKILL


async def test_nobody_but_the_house_is_ended_for_a_stale_process_id(home):
    async with opened(home) as store:
        await store.create("books", DIMENSION)
    await house_gone(home)
    bystander = start_bystander()
    try:
        seen = place_of(home, answer_s=0.2)
        lock = os.open(home / "vectors" / "house.lock", os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(bystander.pid).encode(), 0)
            assert seen.pid() is None
            await asyncio.to_thread(seen.end_frozen)
        finally:
            os.close(lock)
        assert bystander.poll() is None
    finally:
        bystander.communicate(b"\n")


async def test_away_is_said_when_no_house_comes(home):
    (home / "vectors").write_text("a file is where the directory should be")
    async with opened(home, start_timeout_s=0.5) as store:
        with pytest.raises(StoreAway, match="is not a directory"):
            await store.collections()
        began = time.monotonic()
        health = await store.health()
        assert not health.ok
        assert time.monotonic() - began < patient(10)
    (home / "vectors").unlink()


async def test_houses_that_are_started_at_the_same_time_agree_on_one(home):
    places = [place_of(home) for _ in range(6)]
    (home / "vectors").mkdir()
    await asyncio.gather(*(asyncio.to_thread(each._start_daemon, 30.0) for each in places))
    # On a slow machine it may have left already: nobody has been connected.
    assert len(processes_in(home / "vectors")) <= 1
    async with opened(home) as store:
        assert await store.collections() == []


async def test_its_directory_may_be_taken_away_under_it(home):
    async with opened(home) as store:
        await store.create("books", DIMENSION)
        await store.upsert("books", "a", 1, points("a", 3))
        first = place_of(home).pid()
        await asyncio.to_thread(shutil.rmtree, home / "vectors")
        await eventually(lambda: not is_alive(first))
        assert await store.describe("books") is None
        await store.create("books", DIMENSION)
        await store.upsert("books", "a", 1, points("a", 2))
        assert await store.counts("books", ["a"]) == {"a": 2}


async def test_its_socket_may_be_taken_away_under_it(home):
    async with opened(home) as store, opened(home) as late:
        await store.create("books", DIMENSION)
        first = place_of(home).pid()
        (home / "vectors" / "house.sock").unlink()
        assert await late.describe("books")
        await eventually(lambda: not is_alive(first))
        assert await store.describe("books")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        (5).to_bytes(4) + b"\xc1\xc1\xc1\xc1\xc1",
        ask.framed(["no such", 1]),
        ask.framed(["upsert", 1, "books", "a", "one", []]),
        ask.framed([]),
        ask.framed({"a": 1}),
        ask.framed(["upsert", 1, "books", "a", 1, [["x", "no bytes", {}]]]),
    ],
)
async def test_whoever_sends_garbage_is_hung_up_on_and_others_notice_nothing(home, garbage):
    async with opened(home) as store:
        await store.create("books", DIMENSION)
        pid = place_of(home).pid()
        assert await asyncio.to_thread(answer_to, home, garbage) == b""
        assert await store.describe("books")
        assert place_of(home).pid() == pid


def answer_to(home, data):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(place_of(home).socket)
        connection.sendall(data)
        with suppress(ConnectionResetError):
            return connection.recv(100)
        return b""


async def test_half_a_request_holds_up_nobody(home):
    async with opened(home) as store:
        await store.create("books", DIMENSION)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(place_of(home).socket)
            connection.sendall(ask.framed(Upsert(1, "books", "a", 1, points("a", 9)))[:50])
            await store.upsert("books", "b", 1, points("b", 1))
        assert (await store.describe("books")).points == 1


async def test_a_user_who_never_reads_gets_no_more_than_a_buffer_and_holds_up_nobody(home):
    async with opened(home) as store:
        await store.create("books", DIMENSION)
        await store.upsert("books", "a", 1, points("a", 200, text="x" * 5000))
        greedy = ask.framed(ask.Search(1, "books", unit("a/0"), 200, [], None))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(place_of(home).socket)
            connection.setblocking(False)
            sent = 0
            with suppress(BlockingIOError):
                while sent < 3_000:
                    connection.send(greedy)
                    sent += 1
            assert await asyncio.wait_for(store.describe("books"), 60)
            status = Path(f"/proc/{place_of(home).pid()}/status").read_text()  # noqa: ASYNC240
            assert int(status.split("VmRSS:")[1].split()[0]) < 1_000_000


async def test_a_forked_child_may_open_a_store_of_its_own_but_not_use_ours(home):
    async with opened(home) as store:
        await store.create("books", DIMENSION)
        child = os.fork()
        if child == 0:
            try:
                store.collections().send(None)
            except BaseException as error:  # noqa: BLE001
                os._exit(7 if type(error).__name__ == "NotOpen" else 1)
            os._exit(2)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert await store.describe("books")


def fill(engine, count, generation=1, step=500):
    for start in range(0, count, step):
        batch = points(f"d{start}-{generation}", step)
        assert engine.upsert([Upsert(1, "books", "d", generation, batch)]) == [None]


def size_of(folder):
    return sum(file.stat().st_blocks * 512 for file in Path(folder).rglob("*") if file.is_file())


def test_a_collection_that_is_written_over_and_over_does_not_grow_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.stores.vectors.edge_collection._WORTH_TIDYING", 3_000)
    engine = EdgeEngine(tmp_path)
    engine.create("books", DIMENSION)
    collection = engine.get("books")
    sizes = []
    for generation in range(1, 4):
        for round_ in range(6):
            fill(engine, 1_000, generation * 10 + round_)
            engine.delete_before("books", "d", generation * 10 + round_)
        assert collection.wants_tidying
        collection.rest()
        process = tidying.OptimizeProcess(collection.folder / "shard", 1_000)
        assert process._process.wait(60) == 0
        collection.resume(tidied=True)
        assert not collection.wants_tidying
        assert engine.describe("books").points == 1_000
        sizes.append(size_of(collection.folder / "shard" / "segments"))
    assert sizes[-1] < 2 * sizes[0]
    engine.close()


def test_others_wait_for_tidying_only_where_much_was_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.stores.vectors.edge_collection._WORTH_TIDYING", 500)
    engine = EdgeEngine(tmp_path)
    engine.create("books", DIMENSION)
    collection = engine.get("books")
    wanted = []
    for generation in range(10):
        fill(engine, 500, generation)  # nothing but new ones
        engine.flush()
        wanted.append((collection.wants_tidying, collection.wants_tidying_badly))
    assert wanted == [(False, False)] + [(True, False)] * 9
    engine.delete_before("books", "d", 9)
    for _ in range(10):
        fill(engine, 500, 9)  # the same again and again
        engine.flush()
    assert collection.wants_tidying_badly
    engine.close()
    again = EdgeEngine(tmp_path)
    assert again.describe("books").points == 500
    assert again.get("books").wants_tidying_badly  # it has not forgotten
    again.close()


def test_a_collection_survives_the_death_of_who_tidies_it(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.stores.vectors.edge_collection._EXACT_BELOW", 1_000)
    engine = EdgeEngine(tmp_path)
    engine.create("books", DIMENSION)
    fill(engine, 20_000)
    chance = random.Random(3)  # noqa: S311
    for n in range(8):
        collection = engine.get("books")
        collection.rest()
        process = tidying.OptimizeProcess(collection.folder / "shard", 1_000)
        with suppress(subprocess.TimeoutExpired):
            process._process.wait(0.05 + chance.random() * 0.6)
        process.stop()
        collection.resume(tidied=False)
        assert engine.describe("books").points == 20_000 + n * 500
        fill(engine, 500, n + 2, 500)
    engine.close()


class HeldTidying:
    """Takes until it is told to end."""

    ended_with: int | None = None

    def __init__(self, shard, points):
        type(self).shard = shard

    def ended(self):
        return self.ended_with

    def stop(self):
        type(self).ended_with = -9


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(daemon_worker, "QUIET_S", 0.0)
    monkeypatch.setattr(daemon_worker, "FLUSH_S", 0.05)
    monkeypatch.setattr(daemon_worker, "OptimizeProcess", HeldTidying)
    monkeypatch.setattr(HeldTidying, "ended_with", None)
    monkeypatch.setattr("penstock.stores.vectors.edge_collection._WORTH_TIDYING", 500)
    work = daemon_worker.DaemonWorker(tmp_path, lambda: True)
    yield work
    work.stop()


class Answers:
    """Queues requests, and collects what is answered."""

    def __init__(self, work):
        self._work = work
        self.got = {}

    def give(self, *requests):
        self._work.put([daemon_worker.QueuedRequest(r, self._take) for r in requests])

    def _take(self, data):
        answer = msgspec.msgpack.decode(data[4:], type=ask.VectorReply)
        self.got[answer.id] = (answer.error, msgspec.msgpack.decode(answer.value))


async def test_others_are_served_while_a_collection_is_tidied(work):
    answers = Answers(work)
    answers.give(ask.Create(1, "books", DIMENSION), ask.Create(2, "other", DIMENSION))
    answers.give(Upsert(3, "books", "a", 1, points("a", 600)))
    await eventually(lambda: work._tidying)
    answers.give(
        Upsert(4, "books", "b", 1, points("b", 3)),
        ask.DeleteBefore(5, "books", "b", 1),
        Upsert(6, "other", "b", 1, points("b", 3)),
        ask.Describe(7, "books"),
        ask.CountPoints(8, "books", ["b"]),
        ask.Collections(9),
    )
    await eventually(lambda: 9 in answers.got)
    assert answers.got[6] == ("", None)
    assert answers.got[7] == ("", ["books", DIMENSION, 600])
    assert {4, 5, 8}.isdisjoint(answers.got)
    HeldTidying.ended_with = 0
    await eventually(lambda: {4, 5, 8} <= answers.got.keys())
    assert answers.got[8] == ("", {"b": 3})


async def test_a_house_ends_while_a_collection_is_tidied(work):
    answers = Answers(work)
    answers.give(ask.Create(1, "books", DIMENSION), Upsert(2, "books", "a", 1, points("a", 600)))
    await eventually(lambda: work._tidying)
    answers.give(Upsert(3, "books", "b", 1, points("b", 3)))
    await asyncio.to_thread(work.stop)
    assert HeldTidying.ended_with == -9
    assert 3 not in answers.got


async def test_a_disk_without_room_for_a_second_copy_is_no_reason_to_stop(work, monkeypatch):
    monkeypatch.setattr(EdgeEngine, "can_tidy", lambda *_: False)
    answers = Answers(work)
    answers.give(ask.Create(1, "books", DIMENSION), Upsert(2, "books", "a", 1, points("a", 600)))
    await eventually(lambda: 2 in answers.got)
    await eventually(lambda: not any(work._engine.wanting_tidying()))
    assert work._tidying is None


async def test_everything_is_brought_to_the_disk_soon_after_a_write(work, monkeypatch):
    flushed = []
    flush = EdgeCollection.flush

    def spy(collection):
        flushed.append(flush(collection))
        return flushed[-1]

    monkeypatch.setattr(EdgeCollection, "flush", spy)
    answers = Answers(work)
    answers.give(ask.Create(1, "books", DIMENSION), Upsert(2, "books", "a", 1, points("a", 6)))
    await eventually(lambda: True in flushed)
    assert answers.got[2] == ("", None)


async def test_a_house_that_ends_while_somebody_asks_is_replaced(home):
    async with opened(home) as store:
        await store.create("books", DIMENSION)
        for n in range(10):
            os.kill(await asyncio.to_thread(place_of(home).pid), signal.SIGTERM)
            await store.upsert("books", f"a{n}", 1, points(f"a{n}", 2))
        assert (await store.describe("books")).points == 20


async def test_health_of_one_that_stands_still_is_told_within_two_seconds(home):
    async with opened(home, answer_s=60) as store:
        await store.create("books", DIMENSION)
        with frozen(place_of(home).pid()):
            began = time.monotonic()
            health = await store.health()
            assert time.monotonic() - began < 20
            assert (health.ok, "does not answer" in health.detail) == (False, True)
        assert (await store.health()).ok


async def test_closing_ends_what_still_waits(home):
    async with opened(home, answer_s=60) as store:
        await store.create("books", DIMENSION)
        with frozen(place_of(home).pid()):
            waiting = asyncio.create_task(store.describe("books"))
            await eventually(lambda: store._connection._requested)
            await store.close()
            with pytest.raises(NotOpen):
                await asyncio.wait_for(waiting, 60)


def test_a_shard_that_cannot_be_read_is_told_in_words(tmp_path):
    engine = EdgeEngine(tmp_path)
    engine.create("books", DIMENSION)
    engine.close()
    shutil.rmtree(tmp_path / "collections" / "books" / "shard" / "segments")
    (tmp_path / "collections" / "books" / "shard" / "edge_config.json").write_text("{")
    again = EdgeEngine(tmp_path)
    with pytest.raises(Exception, match="cannot be opened"):
        again.describe("books")
    with pytest.raises(StoreMismatch):
        EdgeCollection.make(tmp_path / "x", -1)
