"""What both versions of the program share: their application, and where they note what they did."""

from __future__ import annotations

import json
import os
from pathlib import Path

from penstock import Fixed, Penstock, RetryPolicy, current_job

QUICK = RetryPolicy(max_attempts=3, backoff=Fixed(0.05))
VERSION = os.environ["PROGRAM_VERSION"]

app = Penstock()
_notes = os.open(
    Path(os.environ["PROGRAM_NOTES"]) / f"{os.getpid()}.notes",
    os.O_WRONLY | os.O_CREAT | os.O_APPEND,
)


def note(*what: object) -> None:
    """Write down what was done."""
    os.write(_notes, json.dumps([VERSION, *what]).encode() + b"\n")


def note_tick(name: str) -> None:
    """Write down for which tick a scheduled job was queued."""
    note(name, int(current_job().headers["scheduled_ms"]))
