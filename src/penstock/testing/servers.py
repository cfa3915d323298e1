"""Real servers for tests: started in milliseconds, killed, frozen and restarted at will.

    with ServerProcess("valkey", "--maxmemory", "8mb") as server:
        server.command("SET", "key", "value")
        server.kill()
        server.restart()
        assert server.command("GET", "key") == "value"

Everything here blocks, so it serves tests with and without an event loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import hiredis

from penstock.errors import StartFailed
from penstock.testing.binaries import Binary, find_binary
from penstock.testing.resp import RespClient

__all__ = [
    "BUS_OFFSET",
    "LOG_SHOWN",
    "STOP_TIMEOUT_S",
    "LocalServer",
    "ServerProcess",
    "Startable",
    "die_with_parent",
    "free_port",
    "short_folder",
    "wait_until",
]

BUS_OFFSET = 10_000
"""A cluster node talks to the others on its port plus this much."""

_POLL_S = 0.003
STOP_TIMEOUT_S = 5.0
LOG_SHOWN = 3_000
_LONGEST_FOLDER = 60  # a unix socket's path may have 103 bytes on macOS, 107 on Linux
_PR_SET_PDEATHSIG = 1
_LOWEST_PORT = 10_000
_PORT_TRIES = 1_000
_PORT_SHARES = 16

T = TypeVar("T")


class Startable(ABC):
    """Started on entry and closed on exit, and also if the start itself fails halfway."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalServer(Startable):
    """A server process with a folder and a port of its own."""

    stop_signal = signal.SIGTERM
    start_timeout_s = 20.0

    def __init__(self, port: int) -> None:
        self.port = port
        self.folder = short_folder()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return ("127.0.0.1", self.port)

    @property
    def is_running(self) -> bool:
        """Whether the process lives, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Stop it despite connected clients; kill it if it does not end. Keeps the data."""
        if self._process is not None and self.is_running:
            self.resume()
            self._process.send_signal(self.stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End it as `kill -9` does. Keeps the data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Freeze the process: its connections stay open."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server continue."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """Return the end of what the server wrote to its log."""
        return (self.folder / "log").read_text(errors="replace")[-LOG_SHOWN:]

    def _launch(
        self, command: Sequence[str | Path], cwd: Path | None = None, user: int | None = None
    ) -> None:
        with (self.folder / "log").open("ab") as log, warnings.catch_warnings():
            # Python 3.12+ warns of forking beside threads; the child only calls prctl and exec.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(),  # noqa: PLW1509  an aborted run leaves no server behind
                cwd=cwd,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )

    def _wait_for(self, is_ready: Callable[[], bool]) -> None:
        try:
            wait_until(
                lambda: not self.is_running or is_ready(),
                what=f"a ready {self}",
                timeout_s=self.start_timeout_s,
                every_s=_POLL_S,
            )
        except TimeoutError as error:
            raise StartFailed(f"{error}; its log:\n{self.log_tail()}") from None
        if not self.is_running:
            raise StartFailed(f"{self} ended at once; its log:\n{self.log_tail()}")


class ServerProcess(LocalServer):
    """One server with a folder, a unix socket and (unless `tcp` is off) a port of its own.

    It writes an append-only file, so a restart finds the data (after a power cut it would not,
    unless `--appendfsync always` is given); DEBUG is allowed. `arguments` are options of the server
    and win over the kit's. `password` is demanded from everybody.
    On Linux it dies with the thread that started it: start it from one that lasts.
    """

    def __init__(
        self,
        binary: str | Binary = "valkey",
        *arguments: str,
        tcp: bool = True,
        port: int | None = None,
        password: str | None = None,
    ) -> None:
        super().__init__((port or free_port()) if tcp else 0)
        self.binary = find_binary(binary) if isinstance(binary, str) else binary
        self.arguments = arguments
        self.password = password
        self.socket_path = str(self.folder / "s")
        self.is_paused = False

    def __repr__(self) -> str:
        version = ".".join(map(str, self.binary.version))
        return f"<{self.binary.path.name} {version} at {self.socket_path}, port {self.port}>"

    @property
    def url(self) -> str:
        who = f":{self.password}@" if self.password else ""
        return f"redis://{who}127.0.0.1:{self.port}"

    @property
    def unix_url(self) -> str:
        who = f":{self.password}@" if self.password else ""
        return f"unix://{who}{self.socket_path}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self} was never started")
        return self._process.pid

    @property
    def is_in_step(self) -> bool:
        """Whether its link to a primary, if it has one, is up and every replica gets its writes."""
        facts = self.info("replication")
        replicas = (
            facts.get(f"slave{number}", "") for number in range(int(facts["connected_slaves"]))
        )
        return facts.get("master_link_status", "up") == "up" and all(
            "state=online" in replica for replica in replicas
        )

    def start(self, *, wait_loaded: bool = True) -> None:
        """Start and wait for the first answer; without `wait_loaded`, LOADING is an answer too."""
        self.launch()
        self.wait_ready(wait_loaded=wait_loaded)

    def launch(self) -> None:
        """Start without waiting, for those who start several; `wait_ready` comes after."""
        self._launch(self._command_line())

    def wait_ready(self, *, wait_loaded: bool = True) -> None:
        """Return once it answers; StartFailed shows the end of the log."""
        answers = {"PONG", "NOAUTH"} if wait_loaded else {"PONG", "NOAUTH", "LOADING"}
        self._wait_for(lambda: self._first_word() in answers)

    def kill(self) -> None:
        super().kill()
        self.is_paused = False

    def restart(self, *, wait_loaded: bool = True) -> None:
        """Start again on the same data and addresses; stops it first if it still runs."""
        self.stop()
        self.start(wait_loaded=wait_loaded)

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        super().pause()
        self.is_paused = True

    def resume(self) -> None:
        super().resume()
        self.is_paused = False

    def close(self) -> None:
        """End it and remove its folder with all data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self, *, timeout_s: float = 5.0) -> RespClient:
        """Open a connection of the kit's own, authenticated if the server has a password."""
        return RespClient(self.socket_path, password=self.password, timeout_s=timeout_s)

    def command(self, *arguments: str | bytes | float) -> Any:
        """Run one command on a fresh connection: `server.command("CONFIG", "SET", …)`."""
        with self.connect() as client:
            return client.call(*arguments)

    def info(self, section: str) -> dict[str, str]:
        """Return one section of INFO as names and values."""
        lines = str(self.command("INFO", section)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _command_line(self) -> list[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": self.socket_path,
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "no",  # outlives a kill all the same; a busy disk cannot stall it
            "save": "",
            "repl-diskless-sync-delay": "0",
        }
        if self.binary.version >= (7, 0, 0):  # before, DEBUG was always allowed
            options["enable-debug-command"] = "yes"
        if self.password is not None:
            options["requirepass"] = self.password
        given = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [str(self.binary.path), *given, *self.arguments]

    def _first_word(self) -> str:
        """Reply to a PING with its password: unauthenticated clients do not see LOADING."""
        try:
            with self.connect(timeout_s=1) as client:
                return str(client.call("PING"))
        except hiredis.ReplyError as refusal:
            return str(refusal).partition(" ")[0]
        except OSError:
            return ""


_ports_handed_out: set[int] = set()


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, as is its neighbour BUS_OFFSET above.

    Both lie below the range from which systems serve outgoing connections, so none of those takes
    them before the server does. Processes that test side by side mostly choose from other ports.
    """
    for _ in range(_PORT_TRIES):
        step = secrets.randbelow(BUS_OFFSET // _PORT_SHARES)
        port = _LOWEST_PORT + step * _PORT_SHARES + os.getpid() % _PORT_SHARES
        if port not in _ports_handed_out and _is_free(port) and _is_free(port + BUS_OFFSET):
            _ports_handed_out.add(port)
            return port
    raise OSError(f"no free port on 127.0.0.1 in {_PORT_TRIES} tries")


def wait_until(
    condition: Callable[[], T | None], *, what: str, timeout_s: float = 10.0, every_s: float = 0.02
) -> T:
    """Return the first true answer of `condition`; TimeoutError names `what` was waited for."""
    deadline = time.monotonic() + timeout_s
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        time.sleep(every_s)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def short_folder() -> Path:
    """Make a temporary folder with a path short enough for a unix socket inside it."""
    usual = tempfile.gettempdir()
    short = usual if len(usual) <= _LONGEST_FOLDER else "/tmp"  # noqa: S108
    return Path(tempfile.mkdtemp(prefix="penstock-test-", dir=short))


def die_with_parent() -> Callable[[], object] | None:
    """Make the `preexec_fn` of a process that is not to outlive the thread that starts it."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
