"""Clears a collection of what was replaced and deleted, and indexes a large one: `optimize`.

The engine does nothing of that by itself, and takes its time when it is told to: minutes for a
million points, during which the process that calls it can do nothing else. So it is another
process, a child of the house, which has the shard meanwhile. It ends with the house; the engine
puts the new segments in the place of the old ones at the end, so nothing is lost with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from penstock.redis.keeper import die_with

__all__ = ["Tidying", "main"]

_PROGRAM = """\
import json, sys
config = json.loads(sys.argv[1])
sys.path[:] = config["path"]
from penstock.stores.vectors.tidying import main
sys.exit(main(config))
"""

# About ten times what a machine with two processors takes for an index.
_AT_LEAST_S, _FOR_EACH_S = 60.0, 0.0025


class Tidying:
    """A process that tidies the shard in a folder."""

    def __init__(self, shard: Path, points: int) -> None:
        self._deadline = time.monotonic() + _AT_LEAST_S + points * _FOR_EACH_S
        config = {"shard": str(shard), "parent": os.getpid(), "path": sys.path}
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-c", _PROGRAM, json.dumps(config)], stdin=subprocess.DEVNULL
        )

    def ended(self) -> int | None:
        """Its exit code, once it has ended. It is killed if it takes far too long."""
        if time.monotonic() > self._deadline:
            self._process.kill()
        return self._process.poll()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def main(config: dict[str, Any]) -> int:
    """The program of the child."""
    if sys.platform == "linux":
        die_with(config["parent"])
    import qdrant_edge  # noqa: PLC0415  only now: until here it could be left alone

    shard = qdrant_edge.EdgeShard.load(config["shard"])
    shard.optimize()
    shard.flush()
    shard.close()
    return 0
