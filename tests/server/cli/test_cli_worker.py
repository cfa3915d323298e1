"""`penstock worker --reload`: the worker follows its code, and nothing of it is left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.interfaces.cli.worker.reload import places_of
from penstock.testing.processes import is_alive
from penstock.testing.servers import wait_until

MODULE = [sys.executable, "-m", "penstock"]
APP = """
import os, signal
from pathlib import Path
from penstock import Penstock
app = Penstock()
with Path("started").open("a") as file:
    file.write(f"{os.getpid()} {VERSION}\\n")
"""


class Reloaded:
    """A worker under `--reload`, in a folder with its code."""

    def __init__(self, folder, environ, *arguments, **options):
        self.folder, self.environ = folder, environ
        self.process = subprocess.Popen(
            [*MODULE, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            cwd=folder,
            text=True,
            **options,
        )
        self.logged = []
        self._reader = threading.Thread(target=self.logged.extend, args=(self.process.stderr,))
        self._reader.start()

    def started(self, version):
        """The pid of the worker that has begun with this version of the code."""

        def look():
            path = self.folder / "started"
            lines = path.read_text().split() if path.exists() else []
            found = dict(zip(lines[1::2], lines[::2], strict=False))
            return int(found.get(str(version), 0))

        return wait_until(look, what=f"version {version}", timeout_s=60)

    def wait_starts(self, count):
        started = self.folder / "started"
        wait_until(
            lambda: len(started.read_text().splitlines()) == count,
            what=f"start {count}",
            timeout_s=60,
        )

    def wait_log(self, words):
        wait_until(lambda: words in "".join(self.logged), what=words, timeout_s=60)
        return True

    def end(self):
        code = self.process.wait(15)
        self._reader.join()
        return code


@pytest.fixture
def reloaded(tmp_path, valkey_server, namespace):
    environ = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name} | {
        "PENSTOCK_URL": valkey_server.url,
        "PENSTOCK_NAMESPACE": namespace,
        "PENSTOCK_WORKER_GRACE_S": "5",
    }

    @contextmanager
    def start(*arguments, environ=environ, **options):
        worker = Reloaded(tmp_path, environ, *arguments, **options)
        with worker.process:
            try:
                yield worker
            finally:
                worker.process.kill()

    return start


def write(folder, version, name="shop.py", text=APP):
    (folder / name).write_text(f"VERSION = {version}\n{text}")


RELOAD = ["worker", "shop:app", "--reload"]


def test_a_change_starts_the_worker_anew_and_ctrl_c_ends_both(reloaded, tmp_path):
    write(tmp_path, 1)
    with reloaded(*RELOAD) as worker:
        first = worker.started(1)
        write(tmp_path, 22)
        second = worker.started(22)
        assert worker.wait_log("shop.py changed, restarting the worker")
        assert second != first
        assert not is_alive(first)
        worker.process.send_signal(signal.SIGINT)
        assert worker.end() == 0
        assert not is_alive(second)


@pytest.mark.faults
def test_code_that_cannot_be_imported_is_waited_out(reloaded, tmp_path):
    write(tmp_path, 1, text="def app(:\n")
    with reloaded(*RELOAD) as worker:
        assert worker.wait_log("SyntaxError")
        assert worker.wait_log("ended with code 3; the next change starts it again")
        write(tmp_path, 2)
        pid = worker.started(2)
        worker.process.terminate()
        assert worker.end() == 0
        assert not is_alive(pid)
        assert "importlib" not in "".join(worker.logged)


def test_new_and_deleted_files_count_but_not_those_of_others(reloaded, tmp_path):
    write(tmp_path, 1)
    for folder in (".venv", "env", "node_modules", "__pycache__", "shelf"):
        (tmp_path / folder).mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    with reloaded(*RELOAD) as worker:
        first = worker.started(1)
        for folder in (".venv", "env", "node_modules", "__pycache__"):
            (tmp_path / folder / "other.py").touch()
        (tmp_path / "shelf" / "notes.txt").touch()
        (tmp_path / "shelf" / "books.py").touch()
        assert worker.wait_log("shelf/books.py changed, restarting the worker")
        worker.wait_starts(2)
        (tmp_path / "shelf" / "books.py").unlink()
        worker.wait_starts(3)
        worker.process.terminate()
        assert worker.end() == 0
        assert not is_alive(first)
        assert "other" not in "".join(worker.logged)


WORKING = (
    APP
    + """
import asyncio

@app.task(queue="mail", name="wait")
async def wait():
    Path("begun").write_text("begun" * (1 + Path("begun").exists()))
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    Path("ended").touch()
"""
)


@pytest.mark.faults
def test_a_job_under_way_may_end_before_the_new_worker_begins(reloaded, tmp_path):
    write(tmp_path, 1, text=WORKING)
    with reloaded(*RELOAD, "--queues", "mail", "--concurrency", "3") as worker:
        first = worker.started(1)
        command = Path(f"/proc/{first}/cmdline").read_text().split("\0")
        assert {"--queues=mail", "--concurrency=3"} <= set(command)
        sent = [*MODULE, "job", "send", "wait", "--queue=mail"]
        subprocess.run(sent, env=worker.environ, check=True, stdout=subprocess.DEVNULL)
        wait_until((tmp_path / "begun").exists, what="the job's beginning", timeout_s=60)
        write(tmp_path, 22, text=WORKING)
        assert worker.wait_log("restarting the worker")
        assert is_alive(first)
        (tmp_path / "go").touch()
        worker.started(22)
        assert (tmp_path / "ended").exists()
        assert (tmp_path / "begun").read_text() == "begun"
        worker.process.terminate()
        assert worker.end() == 0


@pytest.mark.faults
def test_a_worker_whose_watcher_is_killed_ends_as_well(reloaded, tmp_path):
    write(tmp_path, 1)
    with reloaded(*RELOAD) as worker:
        pid = worker.started(1)
        assert worker.wait_log("started: ")
        worker.process.kill()
        worker.process.wait()
        wait_until(lambda: not is_alive(pid), what="the end of the worker", timeout_s=60)


@pytest.mark.faults
def test_a_worker_that_does_not_end_is_killed_after_its_grace(reloaded, tmp_path):
    write(tmp_path, 1, text=f"{APP}\nsignal.signal(15, signal.SIG_IGN)\nsignal.pause()\n")
    with reloaded(*RELOAD) as worker:
        first = worker.started(1)
        write(tmp_path, 22)
        assert worker.wait_log("did not end within 7 s and is killed")
        worker.started(22)
        assert not is_alive(first)
        worker.process.terminate()
        assert worker.end() == 0


def test_the_watcher_stops_at_the_end_of_its_input_and_logs_json(reloaded, tmp_path):
    write(tmp_path, 1)
    with reloaded(*RELOAD, "--stop-on-eof", "--json", stdin=subprocess.PIPE) as worker:
        pid = worker.started(1)
        worker.process.stdin.close()
        assert worker.end() == 0
        assert not is_alive(pid)
        assert all(json.loads(line)["message"] for line in worker.logged)


def test_an_address_with_a_password_is_not_on_the_workers_command_line(
    reloaded, tmp_path, valkey_server
):
    write(tmp_path, 1)
    with reloaded("--url", valkey_server.url, *RELOAD) as worker:
        pid = worker.started(1)
        assert valkey_server.url not in Path(f"/proc/{pid}/cmdline").read_text()
        worker.process.terminate()
        assert worker.end() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["worker", "--reload"], 2, "--reload needs MODULE:NAME"),
        (["worker", "shop", "--reload"], 3, "expected MODULE:NAME"),
        (["worker", "shop:app", "--queues", "a,,b"], 2, "names with commas between them"),
        (["worker", "shop:app", "--concurrency", "0"], 2, "--concurrency"),
    ],
)
def test_wrong_usage(reloaded, arguments, code, words):
    with reloaded(*arguments) as worker:
        assert worker.end() == code
        [line] = worker.logged
        assert line.startswith("penstock: ")
        assert words in line


def test_a_package_elsewhere_is_watched_too(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here / "near", there / "far"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('it is found, not imported')")
    (there / "alone.py").touch()
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(there))
    monkeypatch.syspath_prepend(str(here))
    assert places_of("near.app") == [here]
    assert places_of("far.app") == [here, there / "far"]
    assert places_of("alone") == [here, there / "alone.py"]
    for other in ("nowhere", "sys", "..", "__main__"):
        assert places_of(other)[0] == here
