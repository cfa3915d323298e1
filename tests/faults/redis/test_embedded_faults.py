"""Whatever dies, freezes or lies about in the data directory: the next one gets a server."""

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.kit.patience import patient

from penstock.errors import EmbeddedError, OutcomeUnknown, Rejected, StartFailed, StorageFailing
from penstock.redis.client import Client
from penstock.redis.embedded import server as embedded_module
from penstock.redis.embedded.server import Embedded
from penstock.settings import EmbeddedSettings, Settings
from penstock.testing.eventually import eventually
from penstock.testing.processes import all_gone, frozen, is_alive, processes_in
from penstock.testing.resp import RespClient
from penstock.testing.servers import ServerProcess, free_port, wait_until

LINGER_S = 0.1

STARTER = """
import sys
from penstock.sync import Penstock
app = Penstock()
app.open()
print("started", flush=True)
sys.stdin.read()
"""


def ask(embedded, *command):
    with RespClient(embedded.socket) as client:
        return client.call(*command)


def server_pid(embedded):
    return int(ask(embedded, "INFO", "server").split("process_id:")[1].split()[0])


def kill(*pids):
    """Kill at once and wait for all to be dead: until then the kernel keeps their locks."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)), what=f"the end of {pids}", every_s=0.002)


@pytest.fixture
def start_process(home):
    """Another process that starts the server and stays."""
    environ = {"PENSTOCK_HOME": str(home), "PENSTOCK_EMBEDDED_LINGER_S": str(LINGER_S)}
    started = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", STARTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environ,
        )
        started.append(process)
        assert process.stdout.readline() == "started\n"
        return process

    yield start
    for process in started:
        process.communicate()


@pytest.fixture
def small_disk():
    """A file system of a few MiB of its own."""
    if os.getuid() != 0 or sys.platform != "linux":
        pytest.skip("mounting a file system needs root on Linux")
    with tempfile.TemporaryDirectory(prefix="penstock-disk-") as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", folder], check=False
        )
        if mounted.returncode != 0:
            pytest.skip("this machine lets nobody mount a file system")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


# Death


@pytest.mark.parametrize(
    "victims",
    [["server"], ["keeper"], ["starter"], ["server", "keeper", "starter"]],
    ids="+".join,
)
def test_whoever_is_killed_the_next_one_finds_all_confirmed_data(embed, start_process, victims):
    starter, embedded = start_process(), embed()
    pids = {
        "starter": starter.pid,
        "server": server_pid(embedded),
        "keeper": embedded.status().keeper_pid,
    }
    for number in range(100):
        ask(embedded, "SET", f"key:{number}", number)
    kill(*(pids[victim] for victim in victims))
    embedded.attach()
    assert ask(embedded, "DBSIZE") == 100
    assert len(processes_in(embedded.home, "valkey-server")) == 1
    later = start_process()
    assert ask(embedded, "GET", "key:99") == "99"
    later.communicate()


def test_a_server_dies_with_its_keeper_even_if_nobody_comes_any_more(embed, start_process):
    starter, embedded = start_process(), embed()
    server, kept_by = server_pid(embedded), embedded.status().keeper_pid
    kill(kept_by, starter.pid)
    wait_until(lambda: not is_alive(server), what="the server's end")


def test_a_server_that_lost_its_keeper_does_not_pass_for_the_next_one(embed, home):
    home.mkdir(parents=True)
    stubborn = ("--user", "default", "on", "nopass", "~*", "&*", "+@all", "-shutdown")
    orphan = ServerProcess("valkey", *stubborn, tcp=False)
    orphan.socket_path = str(home / "valkey.sock")
    with orphan, (home / "server.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as the orphan itself would hold it
        with pytest.raises(StartFailed):
            embed(start_timeout_s=1).attach()
    embedded = embed()
    embedded.attach()
    assert ask(embedded, "SET", "key", "value") == "OK"


def test_a_server_that_was_told_to_end_takes_its_keeper_along(embed):
    embedded = embed()
    embedded.attach()
    os.kill(server_pid(embedded), signal.SIGTERM)
    assert all_gone(embedded.home)
    embedded.ensure_running()


# What lies about


def test_what_a_crash_left_behind_wedges_nobody(embed, home):
    embedded = embed()
    embedded.attach()
    ask(embedded, "SET", "key", "value")
    kill(embedded.status().keeper_pid, server_pid(embedded))
    embedded.detach()
    assert all_gone(home)
    assert Path(embedded.socket).exists(), "nobody was left to remove it"
    embedded.attach()
    assert ask(embedded, "GET", "key") == "value"


@pytest.mark.parametrize("content", [b"", b"\xff\x00 not a number", b"1", b"9" * 5000])
def test_the_content_of_lock_files_does_not_matter(embed, home, content):
    home.mkdir()
    for name in ("keeper.lock", "server.lock", "users.lock", "start.lock", "valkey.log"):
        (home / name).write_bytes(content)
    embedded = embed()
    assert not embedded.status().running
    assert not embedded.stop()
    embedded.attach()
    (home / "keeper.lock").write_bytes(content)
    assert embedded.status().running
    embedded.detach()
    assert embedded.stop()


def test_a_stop_signals_no_process_that_a_file_names(embed, home):
    embedded = embed()
    embedded.attach()
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (home / "keeper.lock").write_text(str(bystander.pid))
    embedded.detach()
    assert embedded.stop()
    bystander.communicate(b"\n")
    assert bystander.returncode == 0


def test_anything_in_the_place_of_the_socket_is_replaced(embed, home):
    home.mkdir()
    embedded = embed()
    Path(embedded.socket).write_text("not a socket")
    embedded.attach()
    embedded.detach()
    assert embedded.stop()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(embedded.socket)
    embedded.attach()
    assert ask(embedded, "PING") == "PONG"


def test_a_socket_that_somebody_removed_comes_back(embed):
    embedded = embed()
    embedded.attach()
    ask(embedded, "SET", "key", "value")
    Path(embedded.socket).unlink()
    embedded.ensure_running()
    assert ask(embedded, "GET", "key") == "value"


def test_a_data_directory_that_somebody_removed_begins_anew(embed, home):
    old, new = embed(), embed()
    old.attach()
    ask(old, "SET", "key", "value")
    server = server_pid(old)
    shutil.rmtree(home)
    new.attach()
    assert ask(new, "GET", "key") is None
    wait_until(lambda: not is_alive(server), what="the end of the server without data")
    assert ask(new, "PING") == "PONG"


# What freezes


def test_a_frozen_server_costs_a_bounded_wait_and_gives_a_clear_error(embed):
    embedded, late = embed(), embed(start_timeout_s=0.7)
    embedded.attach()
    with frozen(server_pid(embedded)):
        began = time.monotonic()
        with pytest.raises(StartFailed, match="did not answer in time: is it frozen"):
            late.attach()
        assert time.monotonic() - began < patient(4)
    late.attach()
    assert ask(late, "PING") == "PONG"


def test_a_frozen_server_cannot_be_stopped_in_time(embed):
    embedded = embed()
    embedded.attach()
    with frozen(server_pid(embedded)):
        embedded.detach()
        with pytest.raises(TimeoutError, match=r"did not end within 0\.5 s; its keeper is process"):
            embedded.stop(timeout_s=0.5)


def test_a_frozen_keeper_without_server_costs_a_bounded_wait(embed):
    embedded, late = embed(), embed(start_timeout_s=0.7)
    embedded.attach()
    server = server_pid(embedded)
    with frozen(embedded.status().keeper_pid):
        kill(server)
        with pytest.raises(StartFailed, match="did not answer in time"):
            late.attach()
    late.attach()
    assert ask(late, "PING") == "PONG"


def test_a_frozen_starter_delays_the_others_but_does_not_stop_them(embed, home, monkeypatch):
    monkeypatch.setattr(embedded_module, "_COURTESY_S", 0.3)
    home.mkdir()
    with (home / "start.lock").open("w") as starter:
        fcntl.flock(starter, fcntl.LOCK_EX)
        embedded = embed()
        embedded.attach()
        assert ask(embedded, "PING") == "PONG"


def test_who_waits_for_a_starter_goes_on_when_the_server_answers(embed, home, monkeypatch):
    """The starter was frozen after its keeper had begun."""
    monkeypatch.setattr(embedded_module, "_COURTESY_S", 60)
    home.mkdir()
    embedded, starter = embed(start_timeout_s=5), embed()
    with (home / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=embedded.attach)
        waiting.start()
        wait_until(lambda: embedded.status().in_use, what="the attach")
        assert starter._start_keeper()
        waiting.join(4)
        assert not waiting.is_alive()
    assert ask(embedded, "PING") == "PONG"


def test_a_frozen_shutdown_costs_a_bounded_wait(embed, home):
    home.mkdir()
    with (home / "users.lock").open("w") as stopper:
        fcntl.flock(stopper, fcntl.LOCK_EX)
        with pytest.raises(StartFailed, match="is still shutting down"):
            embed(start_timeout_s=0.3).attach()


# What the keeper may come to


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit(0)", "its keeper does not stay"),
        ("raise SystemExit('no luck today')", "no luck today"),
        ("import os; os.kill(os.getpid(), 9)", "-9"),
        ("while True: pass", "timed out"),
    ],
    ids=["vanishes", "refuses", "is killed", "hangs"],
)
def test_a_keeper_that_never_keeps_is_a_clear_error(embed, home, monkeypatch, program, message):
    monkeypatch.setattr(embedded_module, "_PROGRAM", program)
    with pytest.raises(StartFailed, match=message):
        embed(start_timeout_s=0.5).attach()


def test_a_second_keeper_leaves_the_first_alone(embed):
    embedded = embed()
    embedded.attach()
    server = server_pid(embedded)
    assert not embedded._start_keeper()
    assert server_pid(embedded) == server


# What the disk may come to


def one_line(raised):
    return "\n" not in str(raised.value)


def test_a_file_in_the_place_of_the_directory_is_a_clear_error(embed, home):
    home.write_text("a file")
    for place in (home, home / "below"):
        with pytest.raises(
            StartFailed, match=r"data directory .* (no|[Nn]ot a) directory"
        ) as raised:
            embed(place).attach()
        assert one_line(raised)
        assert not embed(place).status().running


def test_a_directory_that_others_own_is_a_clear_error(home):
    """Tried in a child that has given up its rights, since root may write everywhere."""
    place = home.parent
    place.chmod(0o500)
    said, says = os.pipe()
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
        try:
            Embedded(home, EmbeddedSettings()).attach()
        except StartFailed as error:
            os.write(says, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    place.chmod(0o700)
    assert os.read(said, 1000).decode() == f"data directory {home}: Permission denied"
    os.close(said)
    os.close(says)


def test_a_directory_in_the_place_of_a_lock_is_a_clear_error(embed, home):
    (home / "users.lock").mkdir(parents=True)
    with pytest.raises(StartFailed, match=r"users\.lock: it is not a regular file") as raised:
        embed().attach()
    assert one_line(raised)
    (home / "users.lock").rmdir()


def test_a_read_only_file_system_is_a_clear_error(embed, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for place in (small_disk, small_disk / "data"):
        with pytest.raises(StartFailed, match="Read-only file system") as raised:
            embed(place).attach()
        assert one_line(raised)


def test_a_full_disk_is_a_clear_error_at_the_start(embed, small_disk):
    with suppress(OSError):
        (small_disk / "filler").write_bytes(b"x" * 10_000_000)
    with pytest.raises(StartFailed, match=r"the disk is full|No space left") as raised:
        embed(small_disk).attach()
    assert one_line(raised)
    (small_disk / "filler").unlink()
    embedded = embed(small_disk)
    embedded.attach()
    embedded.detach()
    assert all_gone(small_disk)


async def test_a_disk_that_fills_up_refuses_writes_and_later_takes_them_again(small_disk):
    settings = Settings(
        home=str(small_disk), embedded=EmbeddedSettings(linger_s=LINGER_S, start_timeout_s=3)
    )
    confirmed = set()
    async with Client(settings) as client:
        await client.call("SET", "before", "1")
        filler = small_disk / "filler"
        with suppress(OSError):
            filler.write_bytes(b"x" * 10_000_000)

        async def refused():
            key = f"key:{len(confirmed)}"
            try:
                await client.call("SET", key, "x" * 10_000)
            except StorageFailing:
                return True
            confirmed.add(key)
            return False

        await eventually(refused)
        async with Client(settings) as late:
            assert await late.call("GET", "before") == b"1", "attached, although PING is refused"
        filler.unlink()

        async def taken():
            try:
                await client.call("SET", "after", "1")
            except StorageFailing:
                return False
            return True

        await eventually(taken)
        assert await client.call("EXISTS", "before", "after", *confirmed) == len(confirmed) + 2
    assert all_gone(small_disk)


def newest_log(home):
    return max((home / "appendonlydir").glob("*.incr.aof"))


def filled(embed):
    embedded = embed()
    embedded.attach()
    for number in range(50):
        ask(embedded, "SET", f"key:{number}", "x" * 50)
    embedded.detach()
    assert embedded.stop()
    return embedded


def test_a_torn_tail_costs_only_what_was_never_confirmed(embed, home):
    embedded = filled(embed)
    with newest_log(home).open("ab") as log:
        log.write(b"*3\r\n$3\r\nSET\r\n$7\r\ngarbl")
    embedded.attach()
    assert ask(embedded, "DBSIZE") == 50


def test_damaged_data_is_a_clear_error_and_stays_as_it_is(embed, home):
    embedded = filled(embed)
    log = newest_log(home)
    damaged = bytearray(log.read_bytes())
    damaged[len(damaged) // 2 : len(damaged) // 2 + 200] = b"!" * 200
    log.write_bytes(damaged)
    with pytest.raises(StartFailed, match="ended right after its start: Bad file format") as raised:
        embedded.attach()
    assert one_line(raised)
    assert log.read_bytes() == damaged


def test_a_taken_port_is_a_clear_error(embed):
    with socket.socket() as taken:
        port = free_port()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(StartFailed, match=f"Failed listening on port {port}") as raised:
            embed(port=port).attach()
    assert one_line(raised)


# All at once


def test_an_attach_that_meets_a_shutdown_gets_a_server(embed):
    """Without any linger the keeper shuts down whenever it looks at the wrong moment."""
    answers = []

    def come_and_go():
        embedded = embed(linger_s=0)
        while time.monotonic() < deadline:
            embedded.attach()
            answers.append(ask(embedded, "INCR", "visits"))
            embedded.detach()
            visited.set()

    visited, deadline = threading.Event(), time.monotonic() + 1.5
    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(1, len(answers) + 1))


def test_a_stop_that_meets_an_attach_wrongs_neither(embed, home):
    """What was confirmed to somebody attached is never stopped away under them."""
    visitor, failures = embed(linger_s=30), []

    def stop_again_and_again():
        stopper = embed()
        while not done.is_set():
            try:
                stopper.stop()
            except EmbeddedError as error:
                if "in use" not in str(error):
                    failures.append(error)

    done = threading.Event()
    thread = threading.Thread(target=stop_again_and_again)
    thread.start()
    try:
        for visit in range(1, 16):
            visitor.attach()
            server = server_pid(visitor)
            assert ask(visitor, "INCR", "visits") == visit
            assert server_pid(visitor) == server
            visitor.detach()
    finally:
        done.set()
        thread.join()
    assert not failures
    visitor.stop()


async def write_under_kills(settings, kills, kill_one):
    """Several writers, and a hand that kills; return what was confirmed and what was rejected."""
    confirmed, rejected, unknown = set(), set(), set()
    done = asyncio.Event()

    async def write(writer):
        number = 0
        while not done.is_set():
            number += 1
            key = f"{writer}:{number}"
            try:
                await client.call("SET", key, "1")
            except OutcomeUnknown:
                unknown.add(key)
            except Rejected:
                rejected.add(key)
                await asyncio.sleep(0)
            else:
                confirmed.add(key)

    async with Client(settings) as client:
        async with asyncio.TaskGroup() as writers:
            for writer in range(4):
                writers.create_task(write(writer))
            for _ in range(kills):
                goal = len(confirmed) + 200
                await eventually(lambda goal=goal: len(confirmed) > goal)
                await asyncio.to_thread(kill_one)
            goal = len(confirmed) + 200
            await eventually(lambda: len(confirmed) > goal)
            done.set()
        keys = {key.decode() for key in await client.call("KEYS", "*")}
    return confirmed, rejected, unknown, keys


async def test_writers_survive_kills_of_the_server_and_nothing_confirmed_is_lost(home):
    settings = Settings(home=str(home), embedded=EmbeddedSettings(linger_s=LINGER_S))
    embedded = Embedded(home, settings.embedded)
    confirmed, rejected, unknown, keys = await write_under_kills(
        settings, 4, lambda: kill(server_pid(embedded))
    )
    assert confirmed <= keys
    assert not rejected & keys
    assert keys <= confirmed | unknown


class Visitors:
    """Threads that attach, write and leave at random, each as a process of its own would."""

    def __init__(self, home, dice):
        self.settings = EmbeddedSettings(linger_s=LINGER_S)
        self.confirmed, self.failures = [], []
        self._enough = threading.Event()
        self._users = [Embedded(home, self.settings) for _ in range(4)]
        self._threads = [
            threading.Thread(
                target=self._visit,
                args=(user, Random(dice.random())),  # noqa: S311
            )
            for user in self._users
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._enough.set()
        for thread in self._threads:
            thread.join()
        for user in self._users:
            user.detach()

    def _visit(self, user, dice):
        try:
            while not self._enough.is_set():
                user.attach()
                for _ in range(dice.randrange(20)):
                    self._write(user, str(dice.random()))
                if dice.random() < 0.5:
                    user.detach()
        except BaseException as error:
            self.failures.append(error)
            raise

    def _write(self, user, value):
        with suppress(OSError):
            ask(user, "SADD", "written", value)
            self.confirmed.append(value)


def do_harm(home, dice):
    """Kill server, keeper or both, and sometimes take the socket away."""
    for kind in dice.choice([["valkey-server"], ["python"], ["valkey-server", "python"]]):
        kill(*processes_in(home, kind))
    if dice.random() < 0.1:
        (home / "valkey.sock").unlink(missing_ok=True)


def stress(home, seed, seconds):
    """Start, attach, write, kill and leave at random; then check that all is as it must be."""
    dice, pause = Random(seed), threading.Event()  # noqa: S311
    with Visitors(home, dice) as visitors:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not visitors.failures:
            pause.wait(dice.uniform(0.05, 0.5))
            do_harm(home, dice)
    assert not visitors.failures
    assert visitors.confirmed
    embedded = Embedded(home, visitors.settings)
    embedded.attach()
    try:
        lost = set(visitors.confirmed) - set(ask(embedded, "SMEMBERS", "written"))
        servers, keepers = processes_in(home, "valkey-server"), processes_in(home, "python")
        assert servers == {server_pid(embedded)}
        assert keepers == {embedded.status().keeper_pid}
    finally:
        embedded.detach()
    return len(visitors.confirmed), len(lost)


@pytest.mark.parametrize("seed", [1, 2])
def test_coming_going_and_killing_at_random_loses_nothing(home, seed):
    _, lost = stress(home, seed, seconds=2)
    assert lost == 0


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1000, 1010))
def test_coming_going_and_killing_at_random_for_long_loses_nothing(home, seed, figure):
    confirmed, lost = stress(home, seed, seconds=30)
    figure("torture-core", f"random kills, seed {seed}: confirmed", confirmed, "writes", ">=", 1)
    figure(
        "torture-core", f"random kills, seed {seed}: confirmed and lost", lost, "writes", "<=", 0
    )


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_writers_survive_many_kills(home, figure):
    settings = Settings(home=str(home), embedded=EmbeddedSettings(linger_s=LINGER_S))
    embedded = Embedded(home, settings.embedded)
    dice = Random(7)  # noqa: S311

    def kill_one():
        kill(*processes_in(home, dice.choice(["valkey-server", "python"])))
        embedded.ensure_running()

    confirmed, rejected, unknown, keys = await write_under_kills(settings, 60, kill_one)
    for name, found in (
        ("confirmed and lost", confirmed - keys),
        ("rejected and stored", rejected & keys),
        ("stored by nobody", keys - confirmed - unknown),
    ):
        figure("torture-core", f"60 kills under load: {name}", len(found), "writes", "<=", 0)
