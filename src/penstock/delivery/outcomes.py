"""Errors raised by handlers, as failures of their attempts."""

from __future__ import annotations

import asyncio

from penstock.runtime.signals import StopSignals

__all__ = ["forget_cancellation", "handler_error"]


def handler_error(error: BaseException) -> Exception:
    """Return what a handler raised as its failure; raise it again if it is not the handler's own.

    A handler that awaits something cancelled raises CancelledError although it was not cancelled
    itself; passed on, that would end the loop which runs handlers. Some libraries raise errors
    that are no `Exception`, or call `sys.exit()`: these are failures too and do not end a worker.
    Raised again: a cancellation of ours, and Ctrl-C where Python turns it into an exception.
    """
    if isinstance(error, Exception):
        return error
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread: it cannot be cancelled or interrupted
        return _own(error)
    if task is not None and task.cancelling():
        if isinstance(error, SystemExit):
            raise asyncio.CancelledError from error  # it ends what it is in, not the process
        raise error
    if isinstance(error, KeyboardInterrupt) and not StopSignals.installed():
        raise error
    return _own(error)


def forget_cancellation() -> None:
    """Undo cancellations of the current task by the handler that it ran."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _own(error: BaseException) -> RuntimeError:
    end = "ended as cancelled, but was not cancelled"
    if isinstance(error, SystemExit):
        end = f"called sys.exit({'' if error.code is None else repr(error.code)[:100]})"
    elif not isinstance(error, asyncio.CancelledError):
        end = f"raised {type(error).__qualname__}, which is no Exception"
    return RuntimeError(f"the handler {end}").with_traceback(error.__traceback__)
