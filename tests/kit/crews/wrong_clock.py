"""A server whose wall clock a test can set."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

SHIM = Path(__file__).parent / "clock_shim.c"


class WrongClock:
    """The offset of a server's clock, in seconds."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("needs a C compiler, to preload a clock into the server")
        self._library, self._file = folder / "clock_shim.so", folder / "clock_offset"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", self._library, SHIM, "-ldl"], check=True
        )
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "CLOCK_SHIM_FILE": str(self._file)}

    def set(self, offset_s: int) -> None:
        """Let the clock jump; it goes on from there."""
        if not self._file.exists():
            self._file.write_bytes(struct.pack("=q", 0))
        with self._file.open("r+b") as file:  # the same file: the server has it mapped
            file.write(struct.pack("=q", offset_s))


def server_offset_s(server) -> float:
    """How far the server's clock is from ours."""
    seconds, _ = server.command("TIME")
    return int(seconds) - time.time()
