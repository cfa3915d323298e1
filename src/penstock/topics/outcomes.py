"""What a batch handler returned, seen as failures or as none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from penstock.errors import ConfigError
from penstock.topics.message import Message

__all__ = ["failures_in"]


def failures_in(outcome: object, messages: Sequence[Message]) -> Mapping[Message, Exception]:
    """Return the messages of a batch that failed, by what its handler returned.

    What cannot be understood fails the whole batch: to acknowledge it could lose messages.
    """
    if outcome is None:
        return {}
    if isinstance(outcome, Exception):
        return dict.fromkeys(messages, outcome)
    told: Any = outcome
    if isinstance(told, Mapping):
        failed = {
            message: error
            for message, error in cast("Mapping[Any, Any]", told).items()
            if error is not None
        }
        if failed.keys() <= set(messages) and all(
            isinstance(error, Exception) for error in failed.values()
        ):
            return failed
    wrong = ConfigError(
        f"a batch handler returned {_shortened(outcome)}: expected None, Retry, DeadLetter, or a "
        "mapping from messages of the batch to how they failed"
    )
    return dict.fromkeys(messages, wrong)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"  # noqa: PLR2004  enough to know it again
