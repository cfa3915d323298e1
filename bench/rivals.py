"""The peers we are measured against: how each is installed, started, and seen to be done.

Their packages come with the first run into a folder in the user's cache, so that the product's own
environment stays clean. What cannot be installed is `Missing`, and its figures say so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from arena import FOLDER, Arena, Backlog

PEERS = FOLDER / "peers"
ROOT = FOLDER.parent


class Missing(Exception):
    """A peer cannot be run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer at its best setting that still acknowledges after the work."""

    name: str
    program: str
    about_a_second: int
    """How much to give it, so that it is busy for a while; nothing is held against this."""
    consume: tuple[str, ...]
    produce: tuple[str, ...]
    backlog: Callable[[Arena], Backlog] | None = None
    """None: it keeps its messages in streams, with groups."""
    variables: dict[str, str] = field(default_factory=dict)
    packages: str = "bench"
    """The dependency group that has it, if it is a Python peer."""

    async def sends(self, arena: Arena, count: int) -> float | None:
        """Messages a second that it takes, if it says so; they stay for `drains`."""
        told = await arena.run([*self.runtime(), *self.produce, count], **self.environment())
        return told.get("rate")

    async def drains(self, arena: Arena) -> float:
        backlog = self.backlog(arena) if self.backlog else None
        return await arena.drain([*self.runtime(), *self.consume], backlog, **self.environment())

    def runtime(self) -> list[object]:
        return [_node()] if self.program == "node" else [python_of(self.packages)]

    def environment(self) -> dict[str, str]:
        packages = {"BENCH_NODE_FOLDER": str(_node_folder())} if self.program == "node" else {}
        return {**packages, **self.variables}


DRAMATIQ = Peer(
    "Dramatiq",
    "python",
    5_000,
    ("-m", "dramatiq", "dramatiq_peer", "--processes", "1", "--threads", "4"),
    ("dramatiq_peer.py",),
    lambda arena: arena.counted(("HLEN", "dramatiq:default.msgs")),
    {"dramatiq_queue_prefetch": "200"},
)
TASKIQ = Peer(
    "taskiq", "python", 5_000, ("-m", "taskiq", "worker", "taskiq_peer:broker"), ("taskiq_peer.py",)
)
FASTSTREAM = Peer(
    "FastStream",
    "python",
    4_000,
    ("faststream_peer.py", "consume"),
    ("faststream_peer.py", "produce"),
)
FASTSTREAM_BATCH = Peer(
    "FastStream's batches",
    "python",
    60_000,
    ("faststream_peer.py", "consume-batch"),
    ("faststream_peer.py", "produce-in-bulk"),
)
BULLMQ = Peer(
    "BullMQ on Node",
    "node",
    30_000,  # more than it does, as its compiler needs a while
    ("bullmq_peer.mjs", "consume"),
    ("bullmq_peer.mjs", "produce"),
    lambda arena: arena.counted(("LLEN", "bull:orders:wait"), ("LLEN", "bull:orders:active")),
)


@cache
def python_of(group: str) -> Path:
    """The interpreter that has the Python peers of a dependency group."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted: list[str] = project["dependency-groups"][group]
    constraints = _constraints(wanted)
    folder = _folder("python", "\n".join([sys.version, *wanted, constraints]))
    pip = [folder / "bin/python", "-m", "pip", "install", "--quiet"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(constraints)
        file.flush()
        install = [*pip, "--constraint", file.name, *wanted]
        _install(folder, [[sys.executable, "-m", "venv", folder], install])
    return folder / "bin/python"


def _constraints(wanted: list[str]) -> str:
    """The project's own, without those of packages whose version the group fixes itself."""
    fixed = {name for name, pin, _ in (text.partition("==") for text in wanted) if pin}
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if line.partition("==")[0] not in fixed)


@cache
def _node() -> str:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        raise Missing("there is no node, or no npm")
    folder = _node_folder()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(PEERS / "package.json", folder)
    _install(folder, [["npm", "install", "--silent", "--prefix", folder]])
    return node


def _node_folder() -> Path:
    return _folder("node", (PEERS / "package.json").read_text())


def _folder(kind: str, contents: str) -> Path:
    """A folder for these packages: others, or other versions, have another."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (
        caches / "penstock-bench" / f"{kind}-{hashlib.sha256(contents.encode()).hexdigest()[:12]}"
    )


def _install(folder: Path, commands: list[list[object]]) -> None:
    done = folder / ".installed"
    if done.exists():
        return
    print(f"  installing peers into {folder}", file=sys.stderr, flush=True)
    for command in commands:
        ended = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False
        )
        if ended.returncode:
            reason = (ended.stderr or ended.stdout).strip().splitlines()
            raise Missing(reason[-1] if reason else f"{command[0]} failed")
    done.touch()
