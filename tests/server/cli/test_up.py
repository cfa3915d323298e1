"""`penstock up`: one command, and nothing of it is left when it ends."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.kit.ingest_shell import HURRIED, processes_of

from penstock.redis.embedded.server import Embedded
from penstock.settings import EmbeddedSettings
from penstock.testing.processes import is_alive, processes_in
from penstock.testing.servers import wait_until

PENSTOCK = [sys.executable, "-m", "penstock"]
# Makes standard input the terminal that controls the process, as a shell does.
ON_TERMINAL = [
    sys.executable,
    "-c",
    (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.executable, [sys.executable, '-m', 'penstock', *sys.argv[1:]])"
    ),
]
LINGER_S = 0.2


@pytest.fixture
def environ(home):
    return os.environ | {
        "PENSTOCK_HOME": str(home),
        "PENSTOCK_EMBEDDED_LINGER_S": str(LINGER_S),
        "PENSTOCK_WORKER_HEARTBEAT_S": "0.1",
        "PENSTOCK_WORKER_HEARTBEAT_TTL_S": "1",
        "PENSTOCK_HEALTH_TIMEOUT_S": "5",
        **HURRIED,
    }


class Up:
    """A running `penstock up`; what it prints is collected."""

    def __init__(self, environ, *arguments, program=PENSTOCK, **options):
        self.environ = environ
        self.process = subprocess.Popen(
            [*program, *arguments],
            env=environ,
            text=True,
            cwd=Path(environ["PENSTOCK_HOME"]).parent,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        self.said, self.logged = [], []
        self._readers = [
            threading.Thread(target=lines.extend, args=(stream,))
            for lines, stream in (
                (self.said, self.process.stdout),
                (self.logged, self.process.stderr),
            )
            if stream
        ]
        for reader in self._readers:
            reader.start()

    def ask(self, *arguments):
        done = subprocess.run(
            [*PENSTOCK, *arguments, "--json"], env=self.environ, capture_output=True, check=False
        )
        return json.loads(done.stdout)

    def wait_ready(self):
        wait_until(lambda: any("stops it" in line for line in self.said), what="the greeting")
        return self.wait_worker()

    def wait_worker(self, other_than=None, queues=()):
        """The pid of the worker for these queues that is listed as ready."""

        def ready():
            found = {
                view["about"]["pid"]
                for view in self.ask("workers")
                if view["alive"]
                and view["about"]["ready"]
                and view["about"]["load"]["queues"] == list(queues)
            }
            return next(iter(found - {other_than}), None)

        return wait_until(ready, what="a worker", timeout_s=60)

    def wait_documents(self, other_than=None):
        """The pid of the worker for documents."""
        return self.wait_worker(other_than, ["rag:ingest:queue"])

    def wait_end(self, within_s=60.0):
        code = self.process.wait(within_s)
        for reader in self._readers:
            reader.join()
        if self.process.stdout:
            self.process.stdout.close()
        if self.process.stderr:
            self.process.stderr.close()
        return code


@pytest.fixture
def up(environ):
    started = []

    def start(*arguments, **options):
        started.append(Up(environ, *(arguments or ["up"]), **options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.wait_end()


def incoming(home):
    return home / "documents" / "sources" / "default" / "incoming"


def nothing_left(home, within_s=60.0):
    wait_until(lambda: not processes_in(home), what="the end of the server", timeout_s=within_s)
    return True


def test_it_says_where_to_look_and_others_see_the_same_server(up, home):
    running = up()
    worker = running.wait_ready()
    assert running.said[0] == f"Penstock is up on unix://{home}/valkey.sock (healthy)\n"
    assert any("health" in line for line in running.said)
    health = running.ask("health")
    assert health["status"] == "healthy"
    assert health["address"] == f"unix://{home}/valkey.sock"
    assert is_alive(worker)
    assert len(processes_in(home, "valkey-server")) == 1
    running.process.send_signal(signal.SIGINT)
    assert running.wait_end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_all_of_it(up, home, number):
    running = up()
    worker = running.wait_ready()
    running.process.send_signal(number)
    assert running.wait_end() == 0
    assert not is_alive(worker)
    assert not processes_in(home), "the server did not wait to be forgotten"
    assert running.said[-1] == "Penstock is down.\n"
    assert not any("Traceback" in line for line in running.logged)


def test_ctrl_c_in_a_terminal_stops_it_cleanly_and_only_once(up, home):
    """The terminal signals the whole process group: the worker must not hear it from there, too."""
    ours, theirs = pty.openpty()
    running = up(program=ON_TERMINAL, stdin=theirs, start_new_session=True)
    os.close(theirs)
    worker = running.wait_ready()
    os.write(ours, b"\x03")
    assert running.wait_end() == 0
    os.close(ours)
    assert not is_alive(worker)
    assert nothing_left(home)
    assert sum("SIGINT received" in line for line in running.logged) == 1
    assert not any("again" in line for line in running.logged)


@pytest.mark.faults
def test_a_killed_worker_is_replaced(up):
    running = up()
    worker = running.wait_ready()
    os.kill(worker, signal.SIGKILL)
    second = running.wait_worker(other_than=worker)
    assert is_alive(second)
    running.process.terminate()
    assert running.wait_end() == 0
    assert not is_alive(second)


@pytest.mark.faults
def test_a_killed_server_comes_back_under_it(up, home):
    running = up()
    worker = running.wait_ready()
    [server] = processes_in(home, "valkey-server")
    os.kill(server, signal.SIGKILL)
    wait_until(
        lambda: processes_in(home, "valkey-server") - {server}, what="the next server", timeout_s=60
    )
    assert running.wait_worker() == worker
    assert is_alive(worker)
    running.process.terminate()
    assert running.wait_end() == 0


@pytest.mark.faults
def test_when_it_is_killed_itself_all_goes_away(up, home):
    running = up()
    worker = running.wait_ready()
    running.process.kill()
    assert running.wait_end() == -signal.SIGKILL
    wait_until(lambda: not is_alive(worker), what="the worker's end")
    assert nothing_left(home)


@pytest.mark.faults
def test_two_of_them_share_one_server(up, home):
    first, second = up(), up()
    first.wait_ready()
    second.wait_ready()
    wait_until(lambda: len(first.ask("workers")) == 4, what="all workers", timeout_s=60)
    assert len(processes_in(home, "valkey-server")) == 1
    first.process.terminate()
    assert first.wait_end() == 0
    assert second.ask("health")["status"] == "healthy"
    assert len(processes_in(home, "valkey-server")) == 1, "the other one still uses it"
    second.process.terminate()
    assert second.wait_end() == 0
    assert nothing_left(home)


@pytest.mark.faults
def test_a_pinned_server_outlives_it(up, home):
    embedded = Embedded(home, EmbeddedSettings(linger_s=LINGER_S))
    embedded.attach()
    embedded.pin()
    embedded.detach()
    running = up()
    running.wait_ready()
    running.process.terminate()
    assert running.wait_end() == 0
    assert embedded.status().running


@pytest.mark.faults
def test_the_second_signal_ends_it_at_once(up, home):
    """The worker is frozen, so it cannot drain; the first signal alone would wait for it."""
    running = up()
    worker = running.wait_ready()
    os.kill(worker, signal.SIGSTOP)
    running.process.send_signal(signal.SIGINT)
    wait_until(lambda: any("stopping" in line for line in running.logged), what="the first signal")
    began = time.monotonic()
    running.process.send_signal(signal.SIGINT)
    assert running.wait_end() == 130
    assert time.monotonic() - began < 30
    assert not is_alive(worker)
    assert nothing_left(home)


def test_in_json_every_line_is_an_object(up, home):
    running = up("up", "--json")
    wait_until(lambda: running.said, what="the greeting")
    running.wait_worker()
    running.process.terminate()
    assert running.wait_end() == 0
    [greeting] = map(json.loads, running.said)
    assert greeting == {
        "address": f"unix://{home}/valkey.sock",
        "status": "healthy",
        "incoming": str(incoming(home)),
    }
    assert all(json.loads(line)["level"] for line in running.logged)


def test_it_runs_on_another_server_and_leaves_that_alone(up, home, start_server):
    server = start_server(password="s3cr3t")
    running = up("--url", server.url, "up")
    wait_until(lambda: any("stops it" in line for line in running.said), what="the greeting")
    running.environ = running.environ | {"PENSTOCK_URL": server.url}
    worker = running.wait_worker()
    assert b"s3cr3t" not in Path(f"/proc/{worker}/cmdline").read_bytes()
    running.process.terminate()
    assert running.wait_end() == 0
    assert not is_alive(worker)
    assert server.is_running
    assert not (home / "valkey.sock").exists()
    assert "s3cr3t" not in "".join(running.said + running.logged)


def test_a_server_that_cannot_be_reached_is_one_line(up):
    running = up("--url", "redis://127.0.0.1:1", "up")
    assert running.wait_end() == 4
    assert running.logged[-1].startswith("penstock: 127.0.0.1:1")
    assert not running.said


def test_a_file_that_is_dropped_is_found_seconds_later_and_ctrl_c_leaves_no_process(up, home):
    running = up()
    running.wait_ready()
    assert f"Drop a file into {incoming(home)}/ and ask:\n" in running.said
    assert any("ingest search --rag default 'your question'" in line for line in running.said)
    incoming(home).joinpath("pets.md").write_text("# Pets\n\nDogs may come on Fridays.\n")

    def search():
        return running.ask("ingest", "search", "--rag", "default", "when may dogs come?")

    [found] = wait_until(search, what="the document", timeout_s=60)
    assert found["document"] == "pets.md"
    assert len(processes_of(home)) >= 4, "server, keeper, engine of the vectors, workers, parser"
    running.process.send_signal(signal.SIGINT)
    assert running.wait_end() == 0
    wait_until(lambda: not processes_of(home), what="the end of all", timeout_s=LINGER_S + 5)
    assert not any("Traceback" in line for line in running.logged)


@pytest.mark.faults
def test_a_killed_worker_for_documents_is_replaced(up, home):
    running = up("--home", str(home), "up")
    running.wait_ready()
    first = running.wait_documents()
    os.kill(first, signal.SIGKILL)
    second = running.wait_documents(other_than=first)
    running.process.terminate()
    assert running.wait_end() == 0
    assert not is_alive(second)
    wait_until(lambda: not processes_of(home), what="the end of all", timeout_s=LINGER_S + 5)


@pytest.mark.faults
def test_when_it_is_killed_itself_the_worker_for_documents_goes_too(up, home):
    running = up()
    running.wait_ready()
    worker = running.wait_documents()
    running.process.kill()
    assert running.wait_end() == -signal.SIGKILL
    wait_until(lambda: not is_alive(worker), what="the worker's end")
    wait_until(lambda: not processes_of(home), what="the end of all", timeout_s=LINGER_S + 5)


def test_configuration_that_is_wrong_is_told_and_the_rest_goes_on(up, home):
    home.joinpath("documents").mkdir(parents=True)
    home.joinpath("documents", "client.yaml").write_text("qdrant: {urll: x}\n")
    running = up()
    running.wait_ready()
    assert any("Documents are not taken in" in line and "urll" in line for line in running.said)
    running.process.terminate()
    assert running.wait_end() == 0


def test_without_the_extra_it_says_how_to_get_it(up):
    program = [
        sys.executable,
        "-c",
        (
            "import sys; sys.modules['yaml'] = None; "
            "from penstock.interfaces.cli.main import main; main()"
        ),
    ]
    running = up(program=program)
    running.wait_ready()
    assert "For documents: pip install 'penstock[documents]'\n" in running.said
    assert len(running.ask("workers")) == 1
    running.process.terminate()
    assert running.wait_end() == 0
