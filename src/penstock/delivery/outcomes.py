"""How a handler ended: what it raised, seen as its failure."""

from __future__ import annotations

import asyncio

__all__ = ["handler_error"]


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


def _is_being_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread, which nobody can cancel
        return False
    return task is not None and task.cancelling() > 0
