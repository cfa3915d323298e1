"""The models of the suite `documents`, as our worker uses them, and notes of what they did.

Each process notes its calls in a file of its own: how many texts, and how long it took.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from texts import Stub

NOTES = "BENCH_NOTES"
"""The variable that names the folder of the notes."""
SLEEP, BURN = "BENCH_SLEEP_MS", "BENCH_BURN_MS"
_BLOCK = bytes(1 << 18)


def stub() -> Callable[[list[str]], Any]:
    """A model that sleeps for each call, or computes for each text, as long as it is told."""
    model = Stub(float(os.environ.get(SLEEP, "0")) / 1000)
    burn_s = float(os.environ.get(BURN, "0")) / 1000
    return noted(lambda texts: _burnt(model, texts, burn_s))


def note_builtin() -> None:
    """Let the built-in model note its calls, too."""
    from penstock.pipelines.documents.embedding import builtin  # noqa: PLC0415

    builtin._embedded = noted(builtin._embedded)  # noqa: SLF001


def noted(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose last argument is the texts; its calls are noted."""
    file = (Path(os.environ[NOTES]) / f"{os.getpid()}.notes").open("a", buffering=1)

    def call(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return compute(*arguments)
        finally:
            file.write(f"{json.dumps([len(arguments[-1]), time.perf_counter() - began])}\n")

    return call


def read_notes() -> tuple[int, float]:
    """How many texts went through models so far, and how many seconds that took."""
    files = Path(os.environ[NOTES]).glob("*.notes")
    calls = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sum(texts for texts, _ in calls), sum(seconds for _, seconds in calls)


def _burnt(model: Stub, texts: list[str], burn_s: float) -> Any:
    # Hashing large blocks lets other threads run meanwhile, as real models do.
    until = time.thread_time() + burn_s * len(texts)
    while time.thread_time() < until:
        hashlib.sha256(_BLOCK).digest()
    return model(texts)
