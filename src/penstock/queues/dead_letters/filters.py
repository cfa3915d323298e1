"""Filters for dead letters and checks of arguments, shared with the admin API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

from penstock.errors import InvalidJob
from penstock.queues.dead_letters.letter import QueueLetter
from penstock.redis.keys.names import MAX_ID

__all__ = ["MOST_AT_ONCE", "LetterFilters", "LetterMatcher", "checked_id", "holds", "whole"]

MOST_AT_ONCE: Final = 1_000
"""Jobs or letters on one page."""

_SHOWN = 60


class LetterFilters(TypedDict, total=False):
    """Selects letters; all filters that are given must match."""

    reason: str
    """Reason of its burial: exhausted, fatal, crashed, overflow …"""
    fingerprint: str
    """Fingerprint of its last error: see `kinds`."""
    task: str
    group: str
    error: str
    """Part of the error's text or class, ignoring case."""
    before_ms: int
    """Buried before this time, in epoch ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterMatcher:
    """The filters of one call."""

    reason: str | None = None
    fingerprint: str | None = None
    task: str | None = None
    group: str | None = None
    error: str | None = None
    before_ms: int | None = None

    def __post_init__(self) -> None:
        for name in ("reason", "fingerprint", "task", "group", "error"):
            value: object = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidJob(f"{name} = {value!r}: expected text")
        if self.before_ms is not None:
            whole("before_ms", self.before_ms, 0)

    @property
    def is_everything(self) -> bool:
        return self == _EVERYTHING

    def __str__(self) -> str:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        given = [f"{name} {value}" for name, value in values.items() if value is not None]
        return ", ".join(given) or "all"

    def matches(self, letter: QueueLetter) -> bool:
        return (
            self.reason in (None, letter.reason)
            and self.fingerprint in (None, letter.fingerprint)
            and self.task in (None, letter.task)
            and self.group in (None, letter.group)
            and (self.before_ms is None or letter.buried_ms < self.before_ms)
            and holds(self.error, letter.error, letter.error_type)
        )


_EVERYTHING = LetterMatcher()


def holds(wanted: str | None, *texts: str) -> bool:
    """Whether one of the texts contains `wanted`, ignoring case."""
    return wanted is None or any(wanted.casefold() in text.casefold() for text in texts)


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return a whole number within its range; `InvalidJob` for anything else."""
    if type(value) is int and value >= least and (most is None or value <= most):
        return value
    upto = f" to {most:,}" if most is not None else " on"
    raise InvalidJob(f"{name} = {value!r}: expected a whole number from {least:,}{upto}")


def checked_id(job_id: object) -> str:
    """Return a valid job id; `InvalidJob` for anything else."""
    if isinstance(job_id, str) and 0 < len(job_id) <= MAX_ID:
        return job_id
    raise InvalidJob(f"job id {repr(job_id)[:_SHOWN]}: expected a text of 1 to {MAX_ID} characters")
