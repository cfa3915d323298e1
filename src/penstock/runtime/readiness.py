"""Whether a worker can do its work now, and if not, why."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["READY", "Readiness"]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Ready, or not for the `reasons` given. True in a condition if ready."""

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What makes the worker slower than it could be, although it does its work."""

    @property
    def ready(self) -> bool:
        return not self.reasons

    def __bool__(self) -> bool:
        return self.ready

    def __str__(self) -> str:
        if self.reasons:
            return "not ready: " + "; ".join(self.reasons)
        return f"ready ({'; '.join(self.notes)})" if self.notes else "ready"


READY = Readiness()
