"""What callers of a limit wrote down, and how much of it was in any window."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from penstock.testing.servers import ServerProcess


@dataclass
class Journal:
    """Uses as pairs of the server's ms and a weight."""

    uses: list[tuple[int, int]] = field(default_factory=list)
    late_ms: list[int] = field(default_factory=list)
    """By how much permits in hand were used after their time."""
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Permits that were in the hands of callers when they were killed."""
    kills: int = 0
    refusals: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, text: str, ahead_ns: int) -> Journal:
        """Read lines; `ahead_ns` is how far the server's clock is ahead of the monotonic one."""
        journal = cls()
        hands: dict[str, list[int]] = {}
        for line in text.splitlines():
            what, pid, *words = line.split()
            if what == "granted":
                weight, size, logged, hold = map(int, words)
                # It was granted at this ms; what is left of it may be used until the logged one.
                journal.uses.append((logged - hold, weight))
                hands[pid] = [logged - hold, logged, size - weight]
            elif what == "used":
                granted, logged, _ = hand = hands[pid]
                hand[2] -= 1
                used = (int(words[1]) + ahead_ns) // 1_000_000
                journal.late_ms.append(used - logged)
                # Between the two it counts all the time; the clocks are not known to the last ms.
                journal.uses.append((min(max(used, granted), logged), 1))
            elif what == "killed":
                journal.kills += 1
                killed = (int(words[0]) + ahead_ns) // 1_000_000
                if pid in hands and hands[pid][2] and killed <= hands[pid][1]:
                    journal.lost.append((hands[pid][1], hands[pid][2]))
            else:
                journal.refusals[words[0]] += 1
        journal.uses.sort()
        return journal

    def most_in(self, period_ms: int) -> int:
        """The largest sum in any window (t - period, t]."""
        most = inside = first = 0
        for at, weight in self.uses:
            inside += weight
            while self.uses[first][0] <= at - period_ms:
                inside -= self.uses[first][1]
                first += 1
            most = max(most, inside)
        return most

    def utilisation(self, limit: int, period_ms: int) -> float:
        """Which part of the quota of all whole periods was used, or died in somebody's hand."""
        begin, end = self.uses[0][0], self.uses[-1][0]
        periods = (end - begin) // period_ms
        until = begin + periods * period_ms
        spent = sum(weight for at, weight in (*self.uses, *self.lost) if at < until)
        return spent / (periods * limit)


def server_ahead_ns(server: ServerProcess) -> int:
    """How far the server's wall clock is ahead of our monotonic one: not more than that."""
    found: list[int] = []
    for _ in range(50):
        seconds, micros = server.command("TIME")
        found.append(int(seconds) * 10**9 + int(micros) * 1000 - time.monotonic_ns())
    return max(found)
