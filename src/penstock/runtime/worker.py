"""The worker process's main object."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import NotOpen
from penstock.redaction import redacted
from penstock.runtime.process import CLEAN_UP_S, LastResort, run_process, the_last_resort
from penstock.runtime.service import Readiness, Service
from penstock.runtime.signals import StopSignals, exit_code_of
from penstock.runtime.waiting import happens_within
from penstock.runtime.watchdog import Watchdog
from penstock.settings import WorkerSettings

__all__ = ["Worker"]

logger = logging.getLogger(__name__)


class Worker:
    """Runs services until it is asked to stop, or until all its work has ended.

        watchdog = Watchdog(poll_s=1.0)
        worker = Worker(
            work=[watchdog.loop("orders", consume)],
            support=[Duty("heartbeat", beat, every_s=5)],
            watchdog=watchdog,
        )
        sys.exit(worker.run_forever())

    - **Work** is asked to stop and drains. **Support** (heartbeats, lease renewal, the watchdog) is
      begun before the work and ended after the last of it, so leases stay fresh while it drains.
    - A worker that owns its process (`run_forever`, `run(handle_signals=True)`) stops on SIGTERM or
      SIGINT: the work may finish what it has begun for `grace_s`; what is left then is cancelled. A
      second signal cancels at once. Signals are left alone outside the main thread.
    - A service that restarts (consumers of queues and topics, schedules, closing of windows) and
      fails is started again with back-off. Until then the worker is not ready; others continue.
    - Any other work service that fails lets the others drain, then the worker fails. Such a support
      service cuts the work: without it nothing may rely on its leases any more.
    - Without any work (nothing is registered yet) it waits to be stopped.

    Exit codes: 0 after an orderly end, also if the grace period was too short; 1 if a service
    failed (one that restarts: if it had not recovered) or a loop was stuck; 130 after a second
    SIGINT, 143 after a second SIGTERM.
    """

    def __init__(
        self,
        *,
        work: Sequence[Service] = (),
        support: Sequence[Service] = (),
        watchdog: Watchdog | None = None,
        settings: WorkerSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        settings = settings or WorkerSettings()
        self.watchdog = watchdog or Watchdog(poll_s=settings.poll_s, clock=clock)
        self.failures: list[Exception] = []
        """What services failed with; each is in the log as well."""
        self._work, self._support = tuple(work), (self.watchdog, *support)
        for service in self._work:
            service.watchdog = self.watchdog
        self._grace_s, self._clock = settings.grace_s, clock
        self._stop_asked = asyncio.Event()
        self._work_ended = asyncio.Event()
        self._ended = asyncio.Event()
        self._begun = False
        self._tasks: dict[asyncio.Task[None], Service] = {}
        self._cut_by: int | None = None
        self._last_resort: LastResort | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def work(self) -> tuple[Service, ...]:
        """The services that drain when it stops."""
        return self._work

    def run_forever(self) -> int:
        """Run as the purpose of this process, on an event loop of its own; the exit code.

        SIGTERM and SIGINT stop the worker.
        """
        return run_process(partial(self.run, handle_signals=True))

    async def run(self, *, handle_signals: bool = False) -> int:
        """Run until the end; the exit code. Once only. If stopped before, it does nothing.

        SIGTERM and SIGINT are left to the program around it: Ctrl-C ends `asyncio.run` by
        cancelling this call, and a cancelled worker gives back what it has not finished. With
        `handle_signals` the worker is the program: they stop it, as in `penstock worker`.
        """
        if self._begun:
            raise NotOpen("this worker has already been run; make a new one")
        self._begun = True
        self._loop, self._last_resort = asyncio.get_running_loop(), the_last_resort()
        try:
            if not self._stop_asked.is_set():
                with StopSignals(self._on_signal) if handle_signals else nullcontext():
                    await self._run_all()
        finally:
            self._ended.set()
            if self._last_resort is not None:
                self._last_resort.call_off()
        return self._exit_code()

    def ask_to_stop(self) -> None:
        """Ask for the end without waiting for it. To be called in the event loop's thread."""
        running = self._begun and not self._ended.is_set()
        if running and not self._stop_asked.is_set():
            logger.info("stopping, up to %g s for what is under way", self._grace_s)
            self._hurry(self._grace_s + CLEAN_UP_S, exit_code=1)
        self._stop_asked.set()

    async def stop(self) -> None:
        """Ask for the end and wait for it. May come twice, at the same time, or before `run`."""
        self.ask_to_stop()
        if self._begun:
            await self._ended.wait()

    async def cut(self) -> None:
        """Cancel what runs and wait for the end, for `CLEAN_UP_S` at most; jobs are given back.

        Nothing happens unless it runs, in this event loop.
        """
        if not self._begun or self._ended.is_set() or self._loop is not asyncio.get_running_loop():
            return
        self._stop_asked.set()
        self._cancel_work()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_UP_S):
                await self._ended.wait()

    def readiness(self) -> Readiness:
        """Whether the worker does its work now, and if not, why. Cheap; safe from any thread."""
        if not self._begun or self._ended.is_set():
            return Readiness(("stopped" if self._begun else "not started",))
        reasons = ["stopping"] if self._stop_asked.is_set() else []
        reasons += self.watchdog.readiness().reasons
        notes: list[str] = []
        for service in (*self._work, *self._support):
            reasons += filter(None, (service.failing, service.trouble()))
            notes += filter(None, (service.limitation(),))
        # The watchdog's loops are services as well, so reasons may come twice.
        return Readiness(
            tuple(dict.fromkeys(map(redacted, reasons))), tuple(dict.fromkeys(map(redacted, notes)))
        )

    def details(self) -> dict[str, str]:
        """Facts about its services, for its record. As `readiness`."""
        services = (*self._work, *self._support)
        return {name: fact for one in services for name, fact in one.details().items()}

    async def _run_all(self) -> None:
        names = ", ".join(service.name for service in self._work)
        logger.info("started: %s", names or "nothing is registered yet, waiting to be stopped")
        try:
            async with asyncio.TaskGroup() as support:
                helpers = [
                    support.create_task(service.serve(), name=service.name)
                    for service in self._support
                ]
                try:
                    await self._do_work()
                finally:
                    self._hurry(CLEAN_UP_S, exit_code=1)
                    # Only now: leases stay fresh until the work has ended. A second cancellation
                    # would cut a helper's clean-up; but a first one may be a timeout of its own,
                    # which ends nothing, so it is asked to stop as well.
                    for service, helper in zip(self._support, helpers, strict=True):
                        service.ask_to_stop()
                        if not helper.cancelling():
                            helper.cancel()
        except* Exception as failed:  # noqa: BLE001  it becomes the exit code
            for error in failed.exceptions:
                self._note_failure("support", error)
        logger.info("stopped")

    async def _do_work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for service in self._work:
                task = group.create_task(self._serve(service), name=service.name)
                self._tasks[task] = service
                task.add_done_callback(self._one_ended)
            await self._stop_asked.wait()
            for service in self._work:
                service.ask_to_stop()
            if not self._tasks or await happens_within(
                self._work_ended, self._grace_s, self._clock
            ):
                return
            logger.warning(
                "grace period over, cancelling what is left: %s",
                ", ".join(service.name for service in self._tasks.values()),
            )
            self._cancel_work()

    async def _serve(self, service: Service) -> None:
        try:
            await service.serve()
        except Exception as error:  # noqa: BLE001  the others may drain before the worker fails
            self._note_failure(service.name, error)
            self.ask_to_stop()

    def _one_ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not self._tasks:
            self._work_ended.set()
            self._stop_asked.set()

    def _cancel_work(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _on_signal(self, number: int, count: int) -> None:
        """Called within a signal handler, perhaps while the event loop is blocked."""
        if self._loop is None:
            return
        if count == 1:
            self._hurry(self._grace_s + CLEAN_UP_S, exit_code=1)
            self._loop.call_soon_threadsafe(self._first_signal, number)
        else:
            self._hurry(CLEAN_UP_S, exit_code_of(number))
            self._loop.call_soon_threadsafe(self._second_signal, number)

    def _first_signal(self, number: int) -> None:
        logger.info("%s received", signal.Signals(number).name)
        self.ask_to_stop()

    def _second_signal(self, number: int) -> None:
        if self._cut_by is None:
            self._cut_by = number
            logger.warning("%s received again, cancelling at once", signal.Signals(number).name)
        self._stop_asked.set()
        self._cancel_work()

    def _hurry(self, delay_s: float, exit_code: int) -> None:
        if self._last_resort is not None:
            self._last_resort.within(delay_s, exit_code)

    def _note_failure(self, name: str, error: Exception) -> None:
        self.failures.append(error)
        logger.error("%s failed, the worker ends", name, exc_info=error)

    def _exit_code(self) -> int:
        if self._cut_by is not None:
            return exit_code_of(self._cut_by)
        failing = any(service.failing for service in (*self._work, *self._support))
        return 1 if self.failures or failing or self.watchdog.stuck else 0
