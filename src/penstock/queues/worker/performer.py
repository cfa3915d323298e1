"""A user's function, seen as something that performs jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.delivery.retries import RetryPolicy
from penstock.queues.isolation.pool import Isolation
from penstock.queues.storage.stored_job import Item

__all__ = ["Performer"]

Call = tuple[tuple[Any, ...], dict[str, Any]]


def _fits_always(_: Item) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Performer:
    """What a worker needs to know of a task, or of the handler of raw jobs."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    decode: Callable[[Item], Call]
    """The arguments in a job; `DecodeError` if they do not fit the function."""
    policy: RetryPolicy
    misfit: Callable[[Item], str] = _fits_always
    """Why the function does not take such arguments, whatever their types; '' if it does."""
    timeout_s: float | None = None
    concurrency: int | None = None
    """How many jobs may run at once in one worker, if fewer than its queue allows."""
    isolation: Isolation | None = None
    injects: bool = False
    """Whether it has parameters that are made for it."""
    context_parameter: str | None = None
    """Which parameter wants the `JobContext`."""
    tracked: bool = False
    """Whether its jobs have records."""

    quick: bool = field(init=False)
    """Whether nothing has to be around a first attempt: it may be awaited where it was taken."""

    def __post_init__(self) -> None:
        around = (self.isolation, self.injects, self.context_parameter)
        # A single attempt is noted when it begins: see `attempts`.
        retried = self.policy.max_attempts > 1
        quick = self.is_async and self.timeout_s is None and retried and not any(around)
        object.__setattr__(self, "quick", quick)
