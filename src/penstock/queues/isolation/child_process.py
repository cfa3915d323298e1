"""The parent's view of a child process that runs functions."""

from __future__ import annotations

import asyncio
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.processes.child import Child, Ending, all_gone, program_of
from penstock.processes.frames import FrameBuffer
from penstock.queues.isolation import child_program as wire

__all__ = ["CallReply", "FunctionProcess"]

LOAD_S = 120.0
"""How long a child may take to start and to import the function's module."""

_PROGRAM: Final = program_of("penstock.queues.isolation.child_program")


class CallReply(NamedTuple):
    """What a call ended with: DONE or FAILED, and the pickled result or failure."""

    kind: bytes
    body: memoryview


class FunctionProcess(Child):
    """A child that runs one function at a time."""

    def __init__(self, *, memory_mb: int | None, grace_s: float) -> None:
        super().__init__(_PROGRAM)
        self.calls = 0
        self.at_work = self.began = self.leaving = False
        self._grace_s = grace_s
        self._frames = FrameBuffer()
        self._begun = asyncio.Event()
        self._reply: asyncio.Future[CallReply | None] = self._loop.create_future()
        self._on_report: Callable[[object], None] | None = None
        self._escalation: asyncio.TimerHandle | None = None
        self.send(wire.message(wire.SETUP, pickle.dumps(wire.ChildSetup(sys.argv, memory_mb))))

    async def call(
        self,
        request: bytes,
        timeout_s: float | None,
        on_report: Callable[[object], None] | None = None,
    ) -> CallReply | Ending:
        """Send a call and wait for its reply. `began` is whether its function was reached.

        When this raises, TimeoutError or for a cancellation, the process has ended.
        """
        self.calls += 1
        self.at_work, self.began, self._on_report = True, False, on_report
        self._begun = asyncio.Event()
        self._reply = self._loop.create_future()
        late = f"the function was not loaded within {LOAD_S:g} s"
        try:
            if not self.ended.done():
                self.send(request)
                async with asyncio.timeout(LOAD_S):
                    await self._begun.wait()
                late = f"the call took longer than {timeout_s} s"
                async with asyncio.timeout(timeout_s):
                    if (reply := await self._reply) is not None:
                        return reply
        except TimeoutError:
            await self._cut_short()
            raise TimeoutError(f"{late}, so its process was ended") from None
        except asyncio.CancelledError:
            await self._cut_short()
            raise
        return self.ended.result()

    def leave(self) -> None:
        """Let it end by itself, if that does not take too long."""
        if not self.leaving and not self.ended.done():
            self._ask_to_end()
            self._unless_ended(self.terminate)

    def terminate(self) -> None:
        """End it, with time for its `finally` blocks."""
        if not self.ended.done():
            self._ask_to_end()  # first: a child heeds the signal only then
            self.signal_group(signal.SIGTERM)
            self._unless_ended(self.kill)

    def on_data(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            kind, peak_kb = wire.HEADER.unpack_from(message)
            self.reported_peak_kb = max(self.reported_peak_kb, peak_kb)
            self._on_message(kind, memoryview(message)[wire.HEADER.size :])

    def on_hang_up(self) -> None:
        # It is dying, or a function has closed what it should not.
        if self._escalation is None:
            self._unless_ended(self.terminate)

    def on_end(self) -> None:
        if self.at_work:
            self.signal_group(signal.SIGKILL)  # what it has started, and left behind
        if self._escalation is not None:
            self._escalation.cancel()
        self._begun.set()
        if not self._reply.done():
            self._reply.set_result(None)

    def _on_message(self, kind: bytes, body: memoryview) -> None:
        if kind == wire.READY:
            self.inherited_kb = pickle.loads(body)  # noqa: S301  from our own child
            return
        self._begun.set()
        if kind == wire.BEGUN:
            self.began = True
        elif kind == wire.REPORT:
            if self._on_report is not None:
                self._on_report(pickle.loads(body))  # noqa: S301  as above
        elif not self._reply.done():
            self.at_work = False
            self._reply.set_result(CallReply(kind, body))

    async def _cut_short(self) -> None:
        self.terminate()
        await all_gone([self])

    def _ask_to_end(self) -> None:
        self.leaving = True
        self.hang_up()

    def _unless_ended(self, step: Callable[[], None]) -> None:
        if self._escalation is not None:
            self._escalation.cancel()
        self._escalation = self._loop.call_later(self._grace_s, step)
        self.expect_end()
