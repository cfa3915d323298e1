"""Errors of the coordination primitives."""

from __future__ import annotations

from penstock.errors.base import PenstockError

__all__ = [
    "CoordinationError",
    "InvalidItem",
    "LimitReached",
    "ReaderTooSlow",
    "ReservationLost",
    "RunConflict",
    "RunMissing",
    "SlotLost",
    "SlotsTaken",
]


class CoordinationError(PenstockError):
    """The call does not fit the state of a coordination primitive."""


class ReservationLost(CoordinationError):
    """Another process has taken over the reservation; no mark was set."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"the reservation of {self.key!r} has passed to another process"


class LimitReached(CoordinationError):
    """There was no permit in time; none was used."""

    def __init__(self, limit: str, client: str, retry_after_s: float) -> None:
        super().__init__(limit, client, retry_after_s)
        self.limit, self.client, self.retry_after_s = limit, client, retry_after_s

    def __str__(self) -> str:
        return (
            f"limit {self.limit!r} of {self.client!r} is reached; "
            f"the next permit comes in {self.retry_after_s:.3f} s"
        )


class InvalidItem(CoordinationError):
    """An invalid item, id or time of a window, feed or run; nothing was stored."""


class RunMissing(CoordinationError):
    """The run does not exist: it never did, or its time to live has ended."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run

    def __str__(self) -> str:
        return f"there is no run {self.run!r}: final ones are kept for a time"


class RunConflict(CoordinationError):
    """The run has another status or version than expected; nothing was written."""

    def __init__(self, run: str, status: str, version: int) -> None:
        super().__init__(run, status, version)
        self.run, self.status, self.version = run, status, version

    def __str__(self) -> str:
        return f"run {self.run!r} is {self.status!r} by now, in version {self.version}"


class SlotsTaken(CoordinationError):
    """No slot became free in time."""

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(name, limit)
        self.name, self.limit = name, limit

    def __str__(self) -> str:
        return f"all {self.limit} slots of {self.name!r} are taken"


class SlotLost(CoordinationError):
    """The lease of a slot has expired: it may have another holder."""

    def __init__(self, name: str, fence: int) -> None:
        super().__init__(name, fence)
        self.name, self.fence = name, fence

    def __str__(self) -> str:
        return f"the slot of {self.name!r} with fence {self.fence} is not ours any more"


class ReaderTooSlow(CoordinationError):
    """More events came than wait for one reader. It may resume after `last`."""

    def __init__(self, feed: str, last: int) -> None:
        super().__init__(feed, last)
        self.feed, self.last = feed, last

    def __str__(self) -> str:
        return f"a reader of feed {self.feed!r} fell behind; resume after event {self.last}"
