"""How much to fetch at once: enough to keep a quick handler busy, little for a slow one."""

from __future__ import annotations

__all__ = ["Pace"]

# What is fetched is about this much work: long enough to hide a round trip many times over, short
# enough that a consumer which stops, or a partition which moves, leaves little behind.
_AHEAD_S = 0.1
_FIRST = 32


class Pace:
    """Learns from how long chunks take."""

    def __init__(self, most: int, least: int = 1) -> None:
        self._most, self.least = most, least
        self.count = max(min(_FIRST, most), least)
        """Messages worth fetching at once from each partition."""
        self.each_s = 0.0
        """How long one message took of late, in its partition."""
        self.hop = 1
        """Messages worth handing to a thread at once."""

    def note(self, handled: int, took_s: float) -> None:
        """Learn from a chunk."""
        if handled:
            self.each_s = took_s / handled
            self.count = max(self.least, _fitting(self.count, handled, took_s, self._most))

    def note_hop(self, handled: int, took_s: float) -> None:
        """Learn from a visit to a thread."""
        if handled:
            self.hop = _fitting(self.hop, handled, took_s, self._most)


def _fitting(present: int, handled: int, took_s: float, most: int) -> int:
    """How many fit the time ahead; at most twice as many as now, since one chunk proves little."""
    fitting = _AHEAD_S * handled / took_s if took_s > 0 else most
    return max(1, min(int(fitting), present * 2, most))
