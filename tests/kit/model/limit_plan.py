"""How the limit of a random schedule is set, and what happens to it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

ALGORITHMS = ("exact", "compact", "gcra")
BUCKETS = 100
PERIODS = (60_000, 61_001, 100_000, 170_000, 600_000, 3_600_000, 86_400_000)
"""In ms; so long that nothing expires by the server's own clock while a schedule is played."""


@dataclass
class Plan:
    """What happens in a schedule, and so what can be asked of it."""

    algorithm: str
    leases: bool
    settles: bool
    overdraws: bool
    penalties: bool
    reconciles: bool
    edits: bool
    set_backs: bool

    @classmethod
    def drawn(cls, random: Random) -> Plan:
        draws = [random.random() < share for share in (0.3, 0.35, 0.3, 0.25, 0.25, 0.25, 0.2)]
        leases, settles, overdraws, penalties, reconciles, edits, set_backs = draws
        return cls(
            random.choice(ALGORITHMS),
            leases,
            settles,
            settles and overdraws and not leases,
            penalties,
            # What is lent out counts as ours until it comes back: who used it nobody knows. After
            # an edit or a jump of the clock, ours are counted longer than they are there.
            reconciles and not leases and not set_backs and not edits,
            edits,
            set_backs,
        )


def draw_windows(random: Random) -> tuple[dict[int, int], dict[int, int]]:
    """Limits and bursts, by periods in ms."""
    periods = sorted(random.sample(PERIODS, random.choice((1, 1, 2, 3, 4))))
    limit, windows = random.choice((1, 2, 3, 5, 10, 40)), {}
    for period in periods:
        windows[period] = limit
        limit = max(1, round(limit * random.uniform(0.8, 2.5)))
    bursts = {
        period: random.randint(1, most) if random.random() < 0.8 else most
        for period, most in windows.items()
    }
    return windows, bursts
