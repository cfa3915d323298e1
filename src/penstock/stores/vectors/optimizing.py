"""Optimizing a collection: removing replaced and deleted points, and indexing a large one.

`optimize` takes minutes for a million points, and blocks its process. So it runs in a child of the
daemon, which has the shard meanwhile and ends with the daemon. The engine replaces the old segments
at the end, so nothing is lost when it is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from penstock.processes.daemon import command_of, program_of
from penstock.processes.in_child import signal_at_parents_end

__all__ = ["OptimizeProcess", "main"]

_PROGRAM = program_of("penstock.stores.vectors.optimizing")

# About ten times what a machine with two processors takes for an index.
_AT_LEAST_S, _FOR_EACH_S = 60.0, 0.0025


class OptimizeProcess:
    """A child process that optimizes a shard."""

    def __init__(self, shard: Path, points: int) -> None:
        self._deadline = time.monotonic() + _AT_LEAST_S + points * _FOR_EACH_S
        config = {"shard": str(shard), "parent": os.getpid()}
        self._process = subprocess.Popen(  # noqa: S603
            command_of(_PROGRAM, config), stdin=subprocess.DEVNULL
        )

    def ended(self) -> int | None:
        """Its exit code once it has ended; it is killed if it takes far too long."""
        if time.monotonic() > self._deadline:
            self._process.kill()
        return self._process.poll()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def main(config: dict[str, Any]) -> int:
    """The program of the child."""
    signal_at_parents_end(config["parent"], signal.SIGTERM)
    import qdrant_edge  # noqa: PLC0415  after the watch on the parent

    shard = qdrant_edge.EdgeShard.load(config["shard"])
    shard.optimize()
    shard.flush()
    shard.close()
    return 0
