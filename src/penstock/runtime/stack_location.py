"""The code location of a thread or task, for log lines about what hangs."""

from __future__ import annotations

import asyncio
import inspect
import sys
from pathlib import PurePath
from types import FrameType

__all__ = ["place_of_task", "place_of_thread"]

SHOWN_FRAMES = 3


def place_of_thread(thread_id: int) -> str:
    """The innermost frames: `app/mail.py:12 render, called from app/mail.py:40 send`."""
    # Documented, despite the underscore.
    frame = sys._current_frames().get(thread_id)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    places: list[str] = []
    while frame is not None and len(places) < SHOWN_FRAMES and _module(frame) != "asyncio.events":
        places.append(_place(frame))
        frame = frame.f_back
    return ", called from ".join(places) or "an unknown place"


def place_of_task(task: asyncio.Task[None]) -> str:
    """Where the innermost coroutine of a suspended task waits, asyncio's own left out."""
    waiting: object = task.get_coro()
    place = "an unknown place"
    while inspect.iscoroutine(waiting) and (frame := waiting.cr_frame) is not None:
        if not _module(frame).startswith("asyncio."):
            place = _place(frame)
        waiting = waiting.cr_await
    return place


def _place(frame: FrameType) -> str:
    file = "/".join(PurePath(frame.f_code.co_filename).parts[-2:])
    return f"{file}:{frame.f_lineno} {frame.f_code.co_qualname}"


def _module(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "")
