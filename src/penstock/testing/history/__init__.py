"""Histories of fault tests: actors record what they do, a checker finds what was broken.

with Recorder(folder, "worker-1") as recorder: …
verdict = check(read_history(folder), max_attempts=3)
assert verdict.ok, str(verdict)
"""

from penstock.testing.history.check import check
from penstock.testing.history.read import read_history
from penstock.testing.history.record import Event, HistoryBroken, Recorder, payload_hash
from penstock.testing.history.verdict import Counts, Verdict, Violation

__all__ = [
    "Counts",
    "Event",
    "HistoryBroken",
    "Recorder",
    "Verdict",
    "Violation",
    "check",
    "payload_hash",
    "read_history",
]
