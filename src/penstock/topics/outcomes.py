"""How a handler ended: what it raised or returned, seen as a failure or as none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from penstock.errors import ConfigError
from penstock.topics.message import Message

__all__ = ["failures_in", "handler_error"]


def handler_error(error: BaseException) -> Exception:
    """Return what a handler raised as its failure; raise it again if it is not the handler's own.

    A handler that awaits something cancelled ends as cancelled, although nobody cancelled it.
    Taken for a cancellation of ours that would end the loop which runs handlers. Libraries have
    errors of their own beside `Exception`, too; only what is to end the process or closes a
    coroutine passes.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit) or _is_being_cancelled():
        raise error
    told = "ended as cancelled, but nobody cancelled it"
    if not isinstance(error, asyncio.CancelledError):
        told = f"raised {type(error).__qualname__}, which is no Exception"
    return RuntimeError(f"the handler {told}").with_traceback(error.__traceback__)


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


def _is_being_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread, which nobody can cancel
        return False
    return task is not None and task.cancelling() > 0
