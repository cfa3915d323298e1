"""How a handler ended: what it raised, seen as its failure."""

from __future__ import annotations

import asyncio

from penstock.runtime.signals import StopSignals

__all__ = ["forget_cancellation", "handler_error"]


def handler_error(error: BaseException) -> Exception:
    """Return what a handler raised as its failure; raise it again if it is not the handler's own.

    A handler that awaits something cancelled ends as cancelled, although nobody cancelled it.
    Taken for a cancellation of ours that would end the loop which runs handlers. Libraries have
    errors of their own beside `Exception`, and `sys.exit()` is an ordinary call to some: none of
    them ends a worker, which has jobs of others. What passes: a cancellation of ours, and Ctrl-C,
    where Python itself turns it into an exception.
    """
    if isinstance(error, Exception):
        return error
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread, which nobody can cancel or interrupt
        return _own(error)
    if task is not None and task.cancelling():
        if isinstance(error, SystemExit):
            raise asyncio.CancelledError from error  # it ends what it is in, not the process
        raise error
    if isinstance(error, KeyboardInterrupt) and not StopSignals.installed():
        raise error
    return _own(error)


def forget_cancellation() -> None:
    """Let the current task go on, which was cancelled by the handler that it ran."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _own(error: BaseException) -> RuntimeError:
    told = "ended as cancelled, but nobody cancelled it"
    if isinstance(error, SystemExit):
        told = f"called sys.exit({'' if error.code is None else repr(error.code)[:100]})"
    elif not isinstance(error, asyncio.CancelledError):
        told = f"raised {type(error).__qualname__}, which is no Exception"
    return RuntimeError(f"the handler {told}").with_traceback(error.__traceback__)
