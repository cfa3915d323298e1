"""What a check holds a history against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Ordering", "Rules"]

Ordering: TypeAlias = Literal["partition", "key", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Options of `check`; see there."""

    max_attempts: int | None = None
    ordering: Ordering = "partition"
    groups: frozenset[str] | None = None
    attempt_gaps: bool = False
    early_s: float = 0.0
