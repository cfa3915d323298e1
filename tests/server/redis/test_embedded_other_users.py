"""Other users of the machine can neither pose as the embedded server nor use its files."""

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from tests.kit.other_user import OTHER, impostor, needs_another_user
from tests.kit.shell import MODULE

from penstock.errors import StartFailed, Unreachable
from penstock.processes import home as homes
from penstock.redis.address import Endpoint
from penstock.redis.client import Client
from penstock.redis.wire import Wire
from penstock.settings import EmbeddedSettings, Settings
from penstock.testing.resp import RespClient
from penstock.testing.servers import free_port

CANARIES = {"PENSTOCK_PASSWORD": "canary-1", "OPENAI_API_KEY": "canary-2"}


@pytest.fixture
def open_folder():
    """A folder that every user may look into, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-users-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def temporary(open_folder, monkeypatch):
    """Stands for /tmp."""
    place = open_folder / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(homes, "_TEMPORARY", str(place))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return place


@needs_another_user
def test_nothing_is_sent_to_a_server_of_another_user(embed, open_folder):
    embedded = embed(open_folder / "data")
    with impostor(Path(embedded.socket)) as other:
        for act in (embedded.attach, embedded.status):
            with pytest.raises(StartFailed, match=f"runs as uid {OTHER}, not as uid 0"):
                act()
        visits, received = other.end()
    assert (visits > 0, received) == (True, b"")


@needs_another_user
async def test_no_connection_of_a_client_says_a_word_to_a_server_of_another_user(open_folder):
    home = open_folder / "data"
    settings = Settings(home=str(home), embedded=EmbeddedSettings(linger_s=0.1))
    async with Client(settings) as client:
        stock = await client.redis_py()
        socket = Path(client.embedded.socket)
        theirs = open_folder / "theirs" / "socket"
        with impostor(theirs) as other:
            theirs.replace(socket)
            with pytest.raises(Unreachable, match=f"runs as uid {OTHER}"):
                await Wire.open(Endpoint(path=str(socket), own=True), connect_s=5, command_s=5)
            with pytest.raises(RedisConnectionError, match=f"runs as uid {OTHER}"):
                await stock.ping()
            with pytest.raises(Unreachable, match=f"runs as uid {OTHER}"):
                await Client(settings, visits=True).open()
            visits, received = other.end()
    assert (visits > 1, received) == (True, b"")


@needs_another_user
def test_a_folder_of_sockets_that_another_user_made_first_is_refused(embed, open_folder, temporary):
    embedded = embed(open_folder / ("x" * 150))
    place = Path(embedded.socket)
    assert place.parent == temporary / f"penstock-{os.getuid()}"
    with impostor(place) as other:
        os.chown(place.parent, OTHER, OTHER)
        for act in (embedded.attach, embedded.status):
            with pytest.raises(StartFailed, match=f"{place.parent} belongs to uid {OTHER}"):
                act()
        assert other.end() == (0, b"")


@pytest.mark.parametrize("starter", ["with", "without"])
def test_processes_with_and_without_a_runtime_folder_share_one_server(
    embed, open_folder, temporary, monkeypatch, starter
):
    runtime = open_folder / "run"
    runtime.mkdir(mode=0o700)
    places = {"with": runtime / "penstock", "without": temporary / f"penstock-{os.getuid()}"}

    def switch(way):
        if way == "with":
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        else:
            monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)

    first, second = embed(open_folder / ("x" * 150)), embed(open_folder / ("x" * 150))
    switch(starter)
    first.attach()
    assert Path(first.socket).parent == places[starter]
    assert stat.S_IMODE(places[starter].stat().st_mode) == 0o700
    other = ({*places} - {starter}).pop()
    switch(other)
    second.attach()
    assert second.socket == first.socket
    assert first.status().keeper_pid == second.status().keeper_pid
    first.detach()
    second.detach()
    second.stop()
    second.attach()
    assert Path(second.socket).parent == places[other], "the next one follows its starter"
    second.detach()
    second.stop()


@needs_another_user
@pytest.mark.parametrize(
    ("owner", "mode", "typed"),
    [(OTHER, 0o755, "chown -R 0 {}"), (0, 0o777, "chmod go-w {}"), (0, 0o770, "chmod go-w {}")],
)
def test_a_data_directory_that_others_control_is_refused_with_what_to_type(
    embed, open_folder, owner, mode, typed
):
    home, precious = open_folder / "data", open_folder / "precious"
    home.mkdir()
    precious.write_text("precious")
    precious.chmod(0o600)
    for name in ("valkey.log", "keeper.lock", "users.lock", "pinned"):
        (home / name).symlink_to(precious)
    os.chown(home, owner, owner)
    home.chmod(mode)
    with pytest.raises(StartFailed) as refused:
        embed(home).attach()
    with pytest.raises(StartFailed, match="data directory"):
        embed(home).stop()
    assert str(refused.value).endswith(typed.format(home))
    assert precious.read_text() == "precious"
    subprocess.run(str(refused.value).rpartition("type: ")[2], shell=True, check=True)  # noqa: S602
    for link in home.iterdir():
        link.unlink()
    embed(home).attach()


@pytest.mark.parametrize(
    "name", ["valkey.log", "keeper.lock", "server.lock", "users.lock", "start.lock"]
)
def test_a_link_in_the_place_of_a_file_is_refused_and_its_target_untouched(embed, home, name):
    precious = home.parent / "precious"
    precious.write_text("precious")
    home.mkdir(mode=0o700)
    (home / name).symlink_to(precious)
    with pytest.raises(StartFailed, match=rf"{name}: it is a symbolic link: remove it"):
        embed(home).attach()
    assert precious.read_text() == "precious"
    (home / name).unlink()


PLANTED = {
    "a file of another user": (lambda path, _: path.touch() or os.chown(path, OTHER, OTHER)),
    "a file open to others": (lambda path, _: path.touch() or path.chmod(0o666)),
    "a hard link": (lambda path, precious: path.hardlink_to(precious)),
    "a FIFO": (lambda path, _: os.mkfifo(path)),
    "a directory": (lambda path, _: path.mkdir()),
}


@needs_another_user
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for name in ("valkey.log", "keeper.lock", "server.lock", "start.lock", "password")
        for kind in PLANTED
        if (kind, name) != ("a hard link", "password")  # it is only read
    ],
)
def test_what_was_planted_while_the_directory_was_open_to_others_is_refused(
    embed, home, kind, name
):
    precious = home.parent / "precious"
    precious.write_text("precious")
    home.mkdir(mode=0o700)
    PLANTED[kind](home / name, precious)
    try:
        with pytest.raises(StartFailed, match=rf"{name}: .*: remove it(, or|$)"):
            embed(home, port=free_port()).attach()
        assert precious.read_text() == "precious"
    finally:
        (home / name).rename(home.parent / "planted")


def test_a_link_of_this_user_may_stand_for_the_data_directory(embed, home):
    (home / "real").mkdir(mode=0o700, parents=True)
    (home / "link").symlink_to(home / "real")
    embedded = embed(home / "link")
    embedded.attach()
    assert embedded.status().running
    embedded.detach()
    embedded.stop()


@needs_another_user
def test_data_that_another_user_left_there_are_not_read(embed, home):
    (home / "appendonlydir").mkdir(parents=True)
    home.chmod(0o700)
    os.chown(home / "appendonlydir", OTHER, OTHER)
    with pytest.raises(StartFailed, match=f"appendonlydir belongs to uid {OTHER}"):
        embed(home).attach()


@needs_another_user
def test_a_keeper_refuses_a_directory_that_was_exchanged_since_it_was_checked(embed, open_folder):
    theirs = open_folder / "data"
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    with pytest.raises(StartFailed, match=f"{theirs} belongs to uid {OTHER}"):
        embed(theirs)._start_keeper()
    assert not [*theirs.iterdir()]


def test_keeper_and_server_know_no_secrets_of_their_starter(embed, monkeypatch):
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    embedded = embed(port=0)
    embedded.attach()
    with RespClient(embedded.socket) as client:
        server = int(client.call("INFO", "server").split("process_id:")[1].split()[0])
    keeper = embedded.status().keeper_pid
    assert "PATH=" in Path(f"/proc/{keeper}/environ").read_text()
    for pid in (keeper, server):
        assert "canary" not in Path(f"/proc/{pid}/environ").read_text()


# ---- a TCP port


def test_a_port_asks_for_a_password_that_is_made_once(embed, home):
    port = free_port()
    embedded = embed(port=port)
    embedded.attach()
    file = home / "password"
    password = file.read_text().strip()
    assert len(bytes.fromhex(password)) * 8 >= 128
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for place in (("127.0.0.1", port), embedded.socket):
        with RespClient(place) as client:
            with pytest.raises(Exception, match="NOAUTH"):
                client.call("GET", "key")
            assert client.call("AUTH", password) == "OK"
    status = embedded.status()
    assert (status.running, status.port) == (True, port)
    pids = [status.keeper_pid, *(int(p) for p in children_of(status.keeper_pid))]
    assert len(pids) == 2
    for pid in pids:
        for kind in ("cmdline", "environ"):
            assert password not in Path(f"/proc/{pid}/{kind}").read_text()
    embedded.detach()
    embedded.stop(force=True)
    embedded.attach()
    assert file.read_text().strip() == password
    assert password not in (home / "valkey.log").read_text()


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def test_our_own_clients_need_not_know_the_password(home):
    with_port = EmbeddedSettings(linger_s=0.1, port=free_port())
    async with Client(Settings(home=str(home), embedded=with_port)) as client:
        await client.call("SET", "key", "value")
        plain = Settings(home=str(home), embedded=EmbeddedSettings(linger_s=0.1))
        async with Client(plain) as other:
            assert await other.call("GET", "key") == b"value"
            assert await (await other.redis_py()).get("key") == b"value"
            async with Client(plain, visits=True) as visitor:
                assert await visitor.call("GET", "key") == b"value"


async def test_a_server_that_has_no_password_takes_those_who_send_one(home, embed):
    embedded = embed()
    embedded.attach()
    (home / "password").write_text("a" * 48 + "\n")
    (home / "password").chmod(0o600)
    settings = Settings(home=str(home), embedded=EmbeddedSettings(linger_s=0.1))
    async with Client(settings) as client:
        await client.call("SET", "key", "value")
        assert await (await client.redis_py()).get("key") == b"value"
    assert embedded.status().running


def test_without_a_port_there_is_no_password(embed, home):
    embedded = embed()
    embedded.attach()
    with RespClient(embedded.socket) as client:
        assert client.call("PING") == "PONG"
    assert not (home / "password").exists()


@pytest.mark.parametrize("text", ["", "short", 'with "quotes" and spaces in it', "x" * 200])
def test_a_password_that_cannot_be_used_is_a_clear_error(embed, home, text):
    home.mkdir(mode=0o700)
    (home / "password").write_text(text)
    (home / "password").chmod(0o600)
    with pytest.raises(StartFailed, match="password: expected one line of 22 to 128 letters"):
        embed(port=1).attach()
    (home / "password").unlink()


def test_a_password_that_others_can_read_is_refused_with_what_to_type(embed, home):
    home.mkdir(mode=0o700)
    file = home / "password"
    file.write_text("a" * 48)
    file.chmod(0o640)
    with pytest.raises(StartFailed, match="other users may read it") as refused:
        embed(port=free_port()).attach()
    subprocess.run(str(refused.value).rpartition("type: ")[2], shell=True, check=True)  # noqa: S602
    embed(port=free_port()).attach()


def run_penstock(*arguments):
    return subprocess.run([*MODULE, *arguments], capture_output=True, text=True, check=False)


def test_the_address_with_the_password_is_shown_on_request_only(embed, home):
    port = free_port()
    embedded = embed(port=port, linger_s=30)
    shown = ["--home", str(home), "server", "status"]
    assert run_penstock(*shown, "--show-url").returncode == 1
    embedded.attach()
    password = (home / "password").read_text().strip()
    plain = run_penstock(*shown)
    assert (f"{port} of 127.0.0.1" in plain.stdout, password in plain.stdout) == (True, False)
    assert password not in run_penstock(*shown, "--json").stdout
    url = f"redis://:{password}@127.0.0.1:{port}"
    assert run_penstock(*shown, "--show-url").stdout == f"{url}\n"
    assert run_penstock("--url", url, "health").returncode == 0
