"""Another user of the machine: a listener at a socket that should be ours, and what it got."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

OTHER = 65_534

needs_another_user = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start a process as another user"
)

_BECOME = f"""
import os, selectors, socket, stat, sys
os.setgroups([])
os.setresgid({OTHER}, {OTHER}, {OTHER})
os.setresuid({OTHER}, {OTHER}, {OTHER})
"""
_LISTENER = f"""{_BECOME}
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
listener.listen()
print("listening", flush=True)
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
selector.register(sys.stdin, selectors.EVENT_READ)
visits, received = 0, b""
while True:
    ready = selector.select()
    for key, _ in ready:
        if key.fileobj is sys.stdin:
            if len(ready) > 1:
                continue  # the rest first
            print(visits, received.hex(), flush=True)
            sys.exit()
        if key.fileobj is listener:
            visits += 1
            selector.register(listener.accept()[0], selectors.EVENT_READ)
        elif data := key.fileobj.recv(65536):
            received += data
        else:
            selector.unregister(key.fileobj)
"""

_REACH = f"""{_BECOME}
try:
    if os.path.isdir(sys.argv[1]):
        os.listdir(sys.argv[1])
    elif stat.S_ISSOCK(os.stat(sys.argv[1]).st_mode):
        socket.socket(socket.AF_UNIX).connect(sys.argv[1])
    else:
        open(sys.argv[1], "rb").close()
except OSError as error:
    print(type(error).__name__, end="")
"""


def end_of_reaching(path: Path) -> str:
    """How another user's attempt to list, open or connect to it ends: an error's name, or ""."""
    command = [sys.executable, "-I", "-c", _REACH, str(path)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


class Impostor:
    """A process of another user that listens at a path."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _LISTENER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n"

    def end(self) -> tuple[int, bytes]:
        """End it: how many connections it had, and all that was sent to it."""
        visits, _, received = self._process.communicate()[0].partition(" ")
        return int(visits), bytes.fromhex(received.strip())

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def impostor(path: Path) -> Iterator[Impostor]:
    """Another user listens at `path`, in a folder that was open to all before."""
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = folder.stat().st_mode
    folder.chmod(0o777)
    listening = Impostor(str(path))
    folder.chmod(mode)
    try:
        yield listening
    finally:
        listening.kill()
        path.unlink(missing_ok=True)
