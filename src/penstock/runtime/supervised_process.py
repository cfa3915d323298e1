"""A child process as a service: started again when it dies, stopped when we stop."""

from __future__ import annotations

import asyncio
import logging
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress

from penstock.clock import SYSTEM_CLOCK
from penstock.redis.retry import backoff_s
from penstock.runtime.service import Service
from penstock.runtime.waiting import happens_within

__all__ = ["SupervisedProcess"]

logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0
_SETTLED_S = 10.0


class SupervisedProcess(Service):
    """Keeps one command running.

    The child has a session of its own, so that Ctrl-C in the terminal reaches only us and the child
    is stopped in an orderly way. It holds the far end of a pipe as its standard input: should we be
    killed, the pipe closes, and a child that watches it ends as well.
    """

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
        super().__init__(name)
        self._command, self._environ = command, environ
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    def trouble(self) -> str | None:
        return None if self.pid else f"process {self.name} is not running"

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):  # it has ended, but was not waited for yet
                self._process.terminate()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        quick_ends = 0
        while not self.stopping:
            began = loop.time()
            try:
                end = f"ended with code {await self._run_once()}"
            except OSError as error:  # no memory, too many processes: that passes
                end = f"could not be started ({error})"
            if self.stopping:
                return
            quick_ends = quick_ends + 1 if loop.time() - began < _SETTLED_S else 1
            wait_s = backoff_s(quick_ends, base_s=_FIRST_WAIT_S, max_s=_LONGEST_WAIT_S)
            logger.warning("%s %s, again in %.1f s", self.name, end, wait_s)
            await happens_within(self.stop_asked, wait_s, SYSTEM_CLOCK)

    async def _run_once(self) -> int:
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=DEVNULL, env=self._environ, start_new_session=True
        )
        logger.info("%s started, pid %d", self.name, process.pid)
        try:
            if self.stopping:
                self.ask_to_stop()
            return await process.wait()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
