"""Tasks that run beside the body of a service and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["ServiceTasks"]


class ServiceTasks:
    """Starts tasks in a group, which cancels them when the block that opened it ends.

    A task that fails ends the block, with an ExceptionGroup.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        async with asyncio.TaskGroup() as group:
            self._group, self.is_open = group, True
            try:
                yield
            finally:
                self._group, self.is_open = None, False
                for task in self._tasks:
                    task.cancel()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
        """Run something in the group; None, and not at all, unless that is open."""
        if self._group is None:
            work.close()
            return None
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
