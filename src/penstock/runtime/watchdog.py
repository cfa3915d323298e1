"""Notices read loops that hang: the worker is not ready, and the loop is restarted."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.runtime.event_loop_monitor import EventLoopMonitor
from penstock.runtime.progress import LoopProgress, WatchedBlock
from penstock.runtime.service import Readiness, Service
from penstock.runtime.waiting import happens_within
from penstock.runtime.watched_loop import STUCK_AFTER_POLLS, Body, WatchedLoop

__all__ = ["Watchdog"]

CHECKS_PER_POLL = 4
# An idle loop is silent for one poll and the network's delay. A silence is seen to begin up to a
# check late, so one and a half polls keep the promise of "not ready within two polls" and leave the
# network half a poll.
UNREADY_AFTER_POLLS = 1.5
RESTART_AFTER_POLLS = 2.0
MAX_DOUBLINGS = 5


@dataclass(slots=True)
class _Watch:
    """What was last seen of one loop."""

    loop: WatchedLoop | WatchedBlock
    progress: LoopProgress
    quiet_since: float
    begun_at: float
    beats: int = 0
    cut_at: float | None = None


class Watchdog(Service):
    """Watches loops, restarts the ones that hang, and answers whether all of them work.

        watchdog = Watchdog(poll_s=1.0)
        orders = watchdog.loop("orders", consume)      # a service; run it where the work runs

    A service that reads within its own task groups uses `Service.watched` instead.

    - A loop that has not beaten for two polls is not ready (`readiness()`, within those two polls)
      and is cancelled and restarted. If it is silent again (the server is stalled), the patience
      doubles each time, so that the cure does not become the illness.
    - Silence does not count while the loop is `waiting`, between two tries of a refused server,
      once it was asked to stop, nor for as long as the whole event loop was blocked.
    - A loop that ignores its cancellation is not replaced: see `WatchedLoop`. If it is a block of
      another service, which then cannot end, the watchdog fails and so ends the worker.
    - A blocked event loop is seen by a thread: see `EventLoopMonitor`, reachable as `monitor`.
    """

    def __init__(self, *, poll_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__("watchdog")
        self.poll_s = poll_s
        self.monitor = EventLoopMonitor(poll_s)
        self._clock = clock
        self._check_every_s = poll_s / CHECKS_PER_POLL
        self._checked_at: float | None = None
        self._watches: list[_Watch] = []
        self._fruitless: dict[str, int] = {}
        """Restarts in a row, by the loop's name."""

    def loop(self, name: str, body: Body) -> WatchedLoop:
        """A new loop under watch until it has ended; the caller runs it."""
        loop = WatchedLoop(name, body, poll_s=self.poll_s, clock=self._clock)
        self._watch(loop)
        return loop

    def add(self, block: WatchedBlock) -> None:
        """Watch a block until it has ended."""
        block.restarts = self._fruitless.get(block.name, 0)
        self._watch(block)

    def _watch(self, loop: WatchedLoop | WatchedBlock) -> None:
        now = self._clock.monotonic()
        self._watches.append(_Watch(loop, loop.progress, now, now))

    @property
    def stuck(self) -> tuple[str, ...]:
        """Names of the loops that did not end when cancelled; the process should not live on."""
        return tuple(watch.loop.name for watch in self._watches if watch.loop.stuck)

    def readiness(self) -> Readiness:
        """Whether every loop works and the event loop runs. Cheap; safe from any thread."""
        reasons = [trouble for watch in list(self._watches) if (trouble := watch.loop.trouble())]
        if blocked_s := self.monitor.blocked_s:
            reasons.append(f"event loop blocked for {blocked_s:.1f} s")
        return Readiness(tuple(reasons))

    async def run(self) -> None:
        async with self.monitor:
            while not self.stopping:
                self.check()
                self._fail_if_stuck()
                await happens_within(self.stop_asked, self._check_every_s, self._clock)

    def check(self) -> None:
        """Check every loop once and act on the silent ones."""
        now = self._clock.monotonic()
        expected = now if self._checked_at is None else self._checked_at + self._check_every_s
        late_s = now - expected
        self._checked_at = now
        self._watches = [w for w in self._watches if w.loop.stuck or not w.loop.ended]
        for watch in self._watches:
            if late_s > self._check_every_s:  # the event loop was blocked: no loop could beat
                watch.quiet_since = min(now, watch.quiet_since + late_s)
            self._look(watch, now)
            watch.loop.verdict = self._verdict(watch, now)
            self._act(watch, now)

    def _look(self, watch: _Watch, now: float) -> None:
        progress = watch.loop.progress
        if progress is not watch.progress:
            watch.progress, watch.beats, watch.cut_at = progress, 0, None
            watch.quiet_since = watch.begun_at = now
        if progress.beats != watch.beats:
            watch.beats, watch.quiet_since = progress.beats, now
            # Every new life beats at first: one that outlives the patience is well.
            if watch.cut_at is None and now - watch.begun_at >= self._patience_s(watch):
                self._fruitless.pop(watch.loop.name, None)
        elif progress.excuse is not None or not watch.loop.alive:
            watch.quiet_since = now

    def _verdict(self, watch: _Watch, now: float) -> str | None:
        loop, quiet_s = watch.loop, now - watch.quiet_since
        if loop.stuck:
            return loop.verdict
        if quiet_s >= UNREADY_AFTER_POLLS * self.poll_s:
            return f"loop {loop.name} silent for {quiet_s:.1f} s, restarted {loop.restarts} times"
        if watch.beats == 0 and watch.progress.excuse is None:
            return f"loop {loop.name} has not polled yet"
        return None

    def _act(self, watch: _Watch, now: float) -> None:
        if watch.cut_at is not None:
            if now - watch.cut_at >= STUCK_AFTER_POLLS * self.poll_s:
                watch.loop.give_up()
            return
        quiet_s, name = now - watch.quiet_since, watch.loop.name
        if quiet_s >= self._patience_s(watch) and watch.loop.restart(f"silent for {quiet_s:.1f} s"):
            watch.cut_at = now
            self._fruitless[name] = self._fruitless.get(name, 0) + 1

    def _patience_s(self, watch: _Watch) -> float:
        doublings = min(self._fruitless.get(watch.loop.name, 0), MAX_DOUBLINGS)
        return RESTART_AFTER_POLLS * self.poll_s * 2**doublings

    def _fail_if_stuck(self) -> None:
        for watch in self._watches:
            if watch.loop.stuck and isinstance(watch.loop, WatchedBlock):
                raise RuntimeError(f"loop {watch.loop.name!r} ignores its cancellation")
