"""What other users of the machine can see of a data directory and of the processes it has."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.kit.library import Library, new_home, paragraphs
from tests.kit.other_user import end_of_reaching, needs_another_user
from tests.kit.signing import NEW, signing

from penstock.testing.processes import processes_in
from penstock.testing.servers import free_port

SECRETS = {
    "PENSTOCK_PASSWORD": "C4naryPassword",
    "PENSTOCK_SENTINEL_PASSWORD": "C4narySentinel",
    "PENSTOCK_SIGNING_KEYS": NEW,
    "PENSTOCK_VECTORS_API_KEY": "C4naryVectors",
    "OPENAI_API_KEY": "C4naryEmbedder",
    "AWS_SECRET_ACCESS_KEY": "C4naryCloud",
}


@pytest.fixture(params=[0o022, 0o000], ids=["umask 022", "umask 000"])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
async def library(umask, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    with new_home() as folder:
        folder.chmod(0o755)
        made = Library(folder / "deeper" / "data", signing=signing(), port=free_port())
        async with made as opened:
            rag = opened.rag()
            told = await rag.take("a.txt", paragraphs("the lighthouse"))
            assert told["status"] == "done"
            yield opened


def processes_of(library: Library) -> dict[str, set[int]]:
    """Of keeper and server, of the vector daemon, and the parsers of this process."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {
        "server": processes_in(library.home),
        "vectors": processes_in(library.home / "vectors"),
        "parsers": {int(pid) for file in children for pid in file.read_text().split()},
    }


async def test_no_other_user_has_a_right_to_it_whatever_the_umask(library):
    home, own = library.home, library.home / "outside"  # those are the test's
    modes = {
        path: stat.S_IMODE(path.lstat().st_mode)
        for path in (home, *home.rglob("*"))
        if own not in (path, *path.parents)
    }
    # Folders and rules that programs and people write to, as the umask says, behind a closed door.
    shared = {home / "documents", *(home / "documents").rglob("*.yaml")}
    shared |= {path for path in (home / "documents").rglob("*") if path.is_dir()}
    open_to_others = {path: oct(mode) for path, mode in modes.items() if mode & 0o077}
    assert {path: open_to_others[path] for path in open_to_others.keys() - shared} == {}
    names = {path.name for path in modes}
    assert names >= {"valkey.sock", "valkey.log", "keeper.lock", "password", "tables.db"}
    assert names >= {
        "a.txt",
        "a.txt.meta.json",
        "tables.db-wal",
        "house.sock",
        "house.log",
        "house.lock",
        "appendonlydir",
    }


@needs_another_user
async def test_another_user_can_neither_enter_it_nor_connect(library):
    home = library.home
    for path in (home, home / "tables.db", home / "valkey.sock", home / "vectors" / "house.sock"):
        assert end_of_reaching(path) == "PermissionError"


def leaks(pid: int, secrets: list[str]) -> set[str]:
    """What shows a secret of what another user, or a debugger, can see of a process."""
    seen = {kind: Path(f"/proc/{pid}/{kind}").read_text() for kind in ("cmdline", "environ")}
    assert seen["cmdline"]
    return {kind for kind, text in seen.items() if any(one in text for one in secrets)}


async def test_processes_have_no_secret_in_arguments_or_environment(library):
    password = (library.home / "password").read_text().strip()
    secrets = [*SECRETS.values(), NEW.partition("=")[2], password]
    found = processes_of(library)
    assert [len(found[name]) for name in ("server", "vectors")] == [2, 1]
    assert found["parsers"]
    leaking = {name: [leaks(pid, secrets) for pid in pids] for name, pids in found.items()}
    assert not {name: kinds for name, kinds in leaking.items() if any(kinds)}
