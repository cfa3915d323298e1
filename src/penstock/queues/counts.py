"""What a consumer of a queue has done."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counts"]


@dataclass(slots=True)
class Counts:
    """What a consumer has done since it began."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    stale: int = 0
    """Outcomes that the server refused, because the job had passed to another worker."""
    reaped: int = 0
    """Jobs of dead workers that this one returned."""
    strays: int = 0
    """Jobs whose claim was lost on its way here, found again and run."""
