"""Other users of the machine can neither pose as the vector daemon nor be its clients."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.kit.other_user import OTHER, impostor, needs_another_user
from tests.kit.stores.vector_points import DIMENSION, house_gone, opened, place_of, points

from penstock.errors import StoreAway
from penstock.processes import home as homes
from penstock.stores.vectors import requests as ask

CLIENT = f"""
import os, socket, sys
os.setgroups([])
os.setresgid({OTHER}, {OTHER}, {OTHER})
os.setresuid({OTHER}, {OTHER}, {OTHER})
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    try:
        connection.sendall(bytes.fromhex(sys.argv[2]))
        print("received", connection.recv(100), flush=True)
    except (BrokenPipeError, ConnectionResetError):
        print("received", b"", flush=True)
"""


@pytest.fixture
def folder():
    """A folder that every user may look into, unlike those of pytest."""
    made = Path(tempfile.mkdtemp(prefix="penstock-users-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def home(folder):
    yield folder
    await house_gone(folder)


async def use(store):
    await store.create("books", DIMENSION)


@needs_another_user
async def test_nothing_is_sent_to_a_daemon_of_another_user(home):
    with impostor(home / "vectors" / "house.sock") as other:
        async with opened(home) as store:
            with pytest.raises(StoreAway, match=f"runs as uid {OTHER}, not as uid 0"):
                await use(store)
            health = await store.health()
            assert not health.ok
            assert "nothing was sent" in health.detail
        with pytest.raises(StoreAway, match=f"runs as uid {OTHER}"):
            place_of(home).reach()
        visits, received = other.end()
    assert (visits > 0, received) == (True, b"")


@needs_another_user
async def test_vectors_that_another_user_left_there_are_not_read(home):
    (home / "vectors").mkdir(mode=0o700)
    (home / "vectors" / "collections").mkdir()
    os.chown(home / "vectors" / "collections", OTHER, OTHER)
    async with opened(home) as store:
        with pytest.raises(StoreAway, match=f"collections belongs to uid {OTHER}"):
            await use(store)


@needs_another_user
async def test_a_daemon_refuses_a_directory_that_was_exchanged_since_it_was_checked(home):
    theirs = home / "vectors"
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    with pytest.raises(StoreAway, match=f"{theirs} belongs to uid {OTHER}"):
        place_of(home)._start_daemon(5)
    assert not [*theirs.iterdir()]


@needs_another_user
async def test_a_folder_of_sockets_that_another_user_made_first_is_refused(home, monkeypatch):
    monkeypatch.setattr(homes, "_TEMPORARY", str(home / "tmp"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    deep = home / ("x" * 150)
    place = Path(place_of(deep).socket)
    with impostor(place) as other:
        os.chown(place.parent, OTHER, OTHER)
        async with opened(deep) as store:
            for _ in range(2):
                with pytest.raises(StoreAway, match=f"{place.parent} belongs to uid {OTHER}"):
                    await use(store)
            assert not (await store.health()).ok
        assert other.end() == (0, b"")


async def test_it_is_in_the_runtime_folder_if_its_path_is_too_long(home, monkeypatch):
    runtime = home / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    deep = home / ("x" * 150)
    async with opened(deep) as store:
        await use(store)
        assert Path(place_of(deep).socket).parent == runtime / "penstock"
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        async with opened(deep) as other:
            await other.upsert("books", "a", 1, points("a", 1))
            assert (await store.describe("books")).points == 1
    await house_gone(deep)


def ping_as_other(path):
    path.chmod(0o777)
    path.parent.chmod(0o755)
    command = [sys.executable, "-I", "-c", CLIENT, str(path), ask.framed(ask.Ping(1)).hex()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@needs_another_user
async def test_the_daemon_hangs_up_on_another_user(home):
    async with opened(home) as store:
        await use(store)
        path = Path(place_of(home).socket)
        assert await asyncio.to_thread(ping_as_other, path) == "received b''\n"
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(str(path))
            ours.sendall(ask.framed(ask.Ping(1)))
            assert ours.recv(100)
        log = (path.parent / "house.log").read_text()
        assert (
            f"closed the connection of another user: the process at this socket runs as uid {OTHER}"
            in log
        )


def typed(error):
    return str(error).rpartition("type: ")[2]


@pytest.mark.parametrize("name", [".", "vectors"])
async def test_a_directory_that_others_may_write_to_is_refused_with_what_to_type(home, name):
    (home / "vectors").mkdir(mode=0o700)
    (home / name).chmod(0o777)
    async with opened(home) as store:
        with pytest.raises(StoreAway, match="type: chmod go-w") as refused:
            await use(store)
        await (await asyncio.create_subprocess_shell(typed(refused.value))).wait()
        await use(store)


@pytest.mark.parametrize("name", ["house.lock", "start.lock", "house.log"])
async def test_a_link_in_the_place_of_a_file_is_refused_and_its_target_untouched(home, name):
    precious = home / "precious"
    precious.write_text("precious")
    (home / "vectors").mkdir(mode=0o700)
    (home / "vectors" / name).symlink_to(precious)
    async with opened(home) as store:
        with pytest.raises(StoreAway, match="it is a symbolic link: remove it"):
            await use(store)
    assert precious.read_text() == "precious"
    (home / "vectors" / name).unlink()
