"""Histories of fault tests: actors record what they do, a checker finds what was broken.

with Recorder(folder, "worker-1") as recorder: …
verdict = check(read_history(folder), max_attempts=3)
assert verdict.ok, str(verdict)
"""

from tests.kit.history.check import check
from tests.kit.history.record import Event, HistoryBroken, Recorder, payload_hash, read_history
from tests.kit.history.verdict import Counts, Verdict, Violation

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
