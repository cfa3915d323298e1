"""What a check holds a history against, and what it found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tests.kit.history.record import Event

__all__ = ["Counts", "Findings", "Ordering", "Rules", "Verdict", "Violation"]

Ordering: TypeAlias = Literal["partition", "key", "none"]

_KEPT = 20
"""Violations of one kind that are told in full: one bug may break 100,000 messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Options of `check`; see there."""

    max_attempts: int | None = None
    ordering: Ordering = "partition"
    groups: frozenset[str] | None = None
    attempt_gaps: bool = False
    early_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, with the events that show it."""

    invariant: str
    text: str
    evidence: tuple[Event, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.invariant}: {self.text}"]
        lines += [
            f"    {event.t_mono:.6f} {event.actor} {event.op} {event.phase} {event.msg}".rstrip()
            for event in self.evidence
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Counts:
    """What a history contains: of sent messages, and of messages in a group."""

    sent_ok: int = 0
    sent_unknown: int = 0
    sent_failed: int = 0
    recovered: int = 0
    """Of the unknown sends, those that were seen."""
    started: int = 0
    finished: int = 0
    """Messages that a group has finished, however often."""
    duplicated: int = 0
    """Of these, those it has finished more than once."""
    dead: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. `assert verdict.ok, str(verdict)` tells the first violations of each kind."""

    violations: list[Violation]
    totals: Counter[str]
    """Violations by invariant; `violations` tells at most twenty of each."""
    examined: Counter[str]
    """How many things each invariant was held against: 0 means that it proved nothing."""
    counts: Counts

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def convicted(self) -> frozenset[str]:
        """The invariants that were broken."""
        return frozenset(self.totals)

    def __str__(self) -> str:
        if self.ok:
            return f"nothing broken: {self.counts}"
        broken = ", ".join(f"{name} × {count}" for name, count in sorted(self.totals.items()))
        return "\n".join([f"broken: {broken}; {self.counts}", *map(str, self.violations)])


@dataclass(slots=True)
class Findings:
    """Collects what the invariants find."""

    violations: list[Violation] = field(default_factory=list[Violation])
    totals: Counter[str] = field(default_factory=Counter[str])
    examined: Counter[str] = field(default_factory=Counter[str])

    def add(self, invariant: str, text: str, *evidence: Event | None) -> None:
        self.totals[invariant] += 1
        if self.totals[invariant] <= _KEPT:
            shown = tuple(event for event in evidence if event is not None)
            self.violations.append(Violation(invariant, text, shown))
