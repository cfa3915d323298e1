"""Options of queues and sends, validated on construction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol, TypedDict, cast, get_args

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.retries import MOST_ATTEMPTS, RetryPolicy
from penstock.delivery.times import due_ms, wait_s
from penstock.errors import ConfigError, InvalidJob, SettingError
from penstock.queues.storage.keys import PRIORITIES, Priority
from penstock.queues.storage.stored_job import LONGEST_ID
from penstock.redis.keys.names import check_name

__all__ = [
    "Gate",
    "GateDecision",
    "Overflow",
    "QueueOptions",
    "SendKeywords",
    "SendOptions",
    "Side",
    "WaitForRoom",
    "as_overflow",
    "block",
    "check_task_name",
]

Side = Literal["right", "left"]
Policy = Literal["reject", "dlq", "drop_oldest"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

_LARGEST_COUNT: Final = 1_000_000_000
_MOST_CONCURRENT: Final = 10_000
_LARGEST_WEIGHT: Final = 1_000
_LEVELS: Final = 3
_LONGEST_S: Final = 3_652 * 86_400
_MOST_FIELDS: Final = 100
_MOST_HEADERS: Final = 100
_LONGEST_HEADER: Final = 8_192
# This process's clock and the server's may differ by this much.
_CLOCKS_APART_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class WaitForRoom:
    """Overflow policy that waits until a full queue has room: see `block`."""

    timeout_s: float

    def __post_init__(self) -> None:
        _check_seconds("block.timeout_s", self.timeout_s, at_least=0)

    def __str__(self) -> str:
        return f"block({self.timeout_s:g})"


Overflow = Policy | WaitForRoom
"""What a full queue does with a new job."""


def block(timeout_s: float) -> WaitForRoom:
    """Overflow policy: wait up to `timeout_s` for room, then raise `QueueFull`."""
    return WaitForRoom(timeout_s)


def as_overflow(overflow: object) -> Overflow:
    """Return a policy unchanged; ConfigError for anything else."""
    if isinstance(overflow, WaitForRoom) or overflow in POLICIES:
        return overflow
    names = ", ".join(map(repr, POLICIES))
    raise ConfigError(f"overflow = {str(overflow)[:60]!r}: expected {names} or block(timeout_s)")


@dataclass(frozen=True, slots=True)
class GateDecision:
    """How many jobs a gate admits now, and when to ask again."""

    granted: int
    retry_after_s: float = 0.0


class Gate(Protocol):
    """A limit that workers ask before they claim jobs; while it admits none, jobs stay queued."""

    async def admit(self, queue: str, wanted: int) -> GateDecision:
        """Admit up to `wanted` jobs of `queue`."""
        ...

    async def give_back(self, queue: str, count: int) -> None:
        """Return permits that were granted and not used: the queue had fewer jobs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Options of a queue: see `app.queue`."""

    push: Side | None = None
    type: Any = Any
    status: bool = False
    max_size: int | None = None
    max_bytes: int = 0
    overflow: Overflow | None = None
    levels: tuple[int, int, int] | Literal["strict"] | None = None
    limit: int | None = None
    lane_limit: int | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_s: float | None = None
    concurrency: int | None = None
    status_fields: tuple[str, ...] = ()
    gate: Gate | None = None

    def __post_init__(self) -> None:
        if self.push is not None and self.push not in get_args(Side):
            raise SettingError("queue.push", self.push, "'right', 'left' or None")
        check_flag("queue.status", self.status)
        _check_count("queue.max_size", self.max_size)
        _check_count("queue.max_bytes", self.max_bytes, optional=False)
        if self.overflow is not None:
            as_overflow(self.overflow)
        _check_levels(self.levels)
        _check_count("queue.limit", self.limit)
        _check_count("queue.lane_limit", self.lane_limit)
        check_work("queue", self.retry, self.timeout_s, self.concurrency)
        _check_fields(self.status_fields)

    @property
    def levels_text(self) -> str:
        """As `declare_queue` takes them."""
        if isinstance(self.levels, tuple):
            return ",".join(map(str, self.levels))
        return self.levels or ""


class SendKeywords(TypedDict, total=False):
    """Keyword arguments of a send: see `SendOptions`."""

    delay: float | timedelta | None
    at: datetime | float | None
    priority: Priority | None
    group: str | None
    unique: str | None
    unique_for: float | timedelta | None
    expires: float | timedelta | datetime | None
    idempotency_key: str | None
    job_id: str | None
    max_attempts: int | None
    headers: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """Options of one job; InvalidJob for invalid ones.

    - `delay`: seconds or a timedelta; `at`: an aware datetime or epoch seconds.
    - `priority`: "high", "normal" or "low"; `group`: the fair lane, a tenant or a camera.
    - `unique`: a text that only one job of the queue holds until it ends; with `unique_for`, for
      that many seconds, whenever it ends.
    - `expires`: do not start it any later: seconds or a timedelta from now, or an aware datetime.
    - `idempotency_key`: becomes the id of the job, which gets a record: sending it again returns
      the same job, whether it waits, runs or has ended.
    - `job_id`: an id of your own. `max_attempts`: instead of the task's. `headers`: texts that
      travel with it.
    """

    delay: float | timedelta | None = None
    at: datetime | float | None = None
    priority: Priority | None = None
    group: str | None = None
    unique: str | None = None
    unique_for: float | timedelta | None = None
    expires: float | timedelta | datetime | None = None
    idempotency_key: str | None = None
    job_id: str | None = None
    max_attempts: int | None = None
    headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        self.wait()
        self.unique_ms()
        self.expires_ms(0)
        if self.priority is not None and self.priority not in PRIORITIES:
            raise InvalidJob(f"priority {str(self.priority)[:60]!r}: expected {_or(PRIORITIES)}")
        if self.priority is not None and self.group is not None:
            raise InvalidJob("priority and group exclude each other: a job is in one lane")
        if self.unique is None and self.unique_for is not None:
            raise InvalidJob("unique_for without unique: give the key as unique=")
        if self.idempotency_key is not None and self.job_id is not None:
            raise InvalidJob("idempotency_key and job_id exclude each other: both are the job's id")
        for name in ("group", "unique", "idempotency_key", "job_id"):
            _check_text(name, getattr(self, name))
        if self.max_attempts is not None and not (
            type(self.max_attempts) is int and 1 <= self.max_attempts <= MOST_ATTEMPTS
        ):
            raise InvalidJob(
                f"max_attempts = {self.max_attempts!r}: expected 1 to {MOST_ATTEMPTS:,}, as an int"
            )
        _check_headers(self.headers)

    def wait(self) -> int | None:
        """Ms to wait; or, negated, the due time in epoch ms; None if it is due at once.

        The server decides whether a time has passed: this process's clock may be wrong.
        """
        if self.delay is None and self.at is None:
            return None
        try:
            if self.at is None:
                return due_ms(self.delay, None, 0) or None
            moment = due_ms(self.delay, self.at, SYSTEM_CLOCK.wall_ms() - _CLOCKS_APART_MS)
        except (TypeError, ValueError) as error:
            raise InvalidJob(str(error)) from None
        return None if moment is None else -moment

    def unique_ms(self) -> int:
        """How long the unique key is held; 0 if the job's end frees it."""
        if self.unique_for is None:
            return 0
        try:
            window_ms = int(wait_s(self.unique_for, "unique_for") * 1000)
        except (TypeError, ValueError) as error:
            raise InvalidJob(str(error)) from None
        if window_ms <= 0:
            raise InvalidJob(f"unique_for = {self.unique_for!r}: expected at least a millisecond")
        return window_ms

    def expires_ms(self, now_ms: int) -> int:
        """Latest start in server ms; 0 without one. `now_ms` is the server's time."""
        if self.expires is None:
            return 0
        try:
            if isinstance(self.expires, datetime):
                moment = due_ms(None, self.expires, now_ms or SYSTEM_CLOCK.wall_ms())
                return moment or 0
            wait = wait_s(self.expires, "expires")
        except (TypeError, ValueError) as error:
            raise InvalidJob(str(error)) from None
        if wait <= 0:
            raise InvalidJob(f"expires = {self.expires!r}: it would never run")
        return now_ms + math.ceil(wait * 1000)

    @property
    def id(self) -> str | None:
        """The id that the sender chose, if any."""
        return self.idempotency_key if self.idempotency_key is not None else self.job_id

    @property
    def needs_submit(self) -> bool:
        """Whether it takes `submit_jobs`, not `push_jobs`, to add it."""
        return (
            self.delay is not None
            or self.at is not None
            or self.unique is not None
            or self.idempotency_key is not None
        )


def check_task_name(name: object) -> str:
    """Return a valid task name unchanged; InvalidJob for any other."""
    if (
        isinstance(name, str)
        and 0 < len(name) <= LONGEST_ID
        and name.isprintable()
        and not any(map(str.isspace, name))
    ):
        return name
    raise InvalidJob(
        f"task {str(name)[:60]!r}: expected 1 to {LONGEST_ID} printable characters without blanks"
    )


def check_work(what: str, retry: object, timeout_s: float | None, concurrency: int | None) -> None:
    """Validate options that queues, tasks and handlers have in common."""
    if not isinstance(retry, RetryPolicy):
        raise SettingError(f"{what}.retry", retry, "RetryPolicy(…)")
    if timeout_s is not None:
        _check_seconds(f"{what}.timeout_s", timeout_s, at_least=0.001)
    if concurrency is not None and not (
        type(concurrency) is int and 1 <= concurrency <= _MOST_CONCURRENT
    ):
        expected = f"a whole number from 1 to {_MOST_CONCURRENT}"
        raise SettingError(f"{what}.concurrency", concurrency, expected)


def check_flag(name: str, value: object) -> None:
    if type(value) is not bool:
        raise SettingError(name, value, "True or False")


def check_max_size(value: object) -> None:
    """Validate the `max_size` of one push."""
    _check_count("max_size", value)


def _check_count(name: str, value: object, *, optional: bool = True) -> None:
    if value is None and optional:
        return
    if type(value) is not int or not 0 <= value <= _LARGEST_COUNT:
        raise SettingError(name, value, f"a whole number from 0 (no limit) to {_LARGEST_COUNT}")


def _check_seconds(name: str, value: object, *, at_least: float) -> None:
    is_number = type(value) is int or (isinstance(value, float) and math.isfinite(value))
    if not is_number or not at_least <= cast("float", value) <= _LONGEST_S:
        raise SettingError(name, value, f"a number of seconds from {at_least:g} to ten years")


def _check_levels(levels: object) -> None:
    if levels is None or levels == "strict":
        return
    weights = cast("tuple[object, ...]", levels if isinstance(levels, tuple) else ())
    if len(weights) != _LEVELS or not all(
        type(weight) is int and 1 <= weight <= _LARGEST_WEIGHT for weight in weights
    ):
        expected = "'strict' or three weights for high, normal and low, such as (6, 3, 1)"
        raise SettingError("queue.levels", cast("object", levels), expected)


def _check_fields(names: object) -> None:
    if not isinstance(names, tuple):
        raise SettingError("queue.status_fields", names, "a tuple of names")
    each = cast("tuple[Any, ...]", names)
    if len(each) > _MOST_FIELDS:
        raise SettingError("queue.status_fields", len(each), f"{_MOST_FIELDS} names at most")
    for name in each:
        check_name("status field", name)


def _check_text(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_ID:
        raise InvalidJob(
            f"{name} = {str(value)[:60]!r}: expected a text of 1 to {LONGEST_ID} characters"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidJob(f"{name} = {value[:60]!a}: not Unicode text") from None


def _check_headers(headers: object) -> None:
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise InvalidJob(f"headers: expected a mapping of texts, not {type(headers).__name__}")
    each = cast("Mapping[object, object]", headers)
    if len(each) > _MOST_HEADERS:
        raise InvalidJob(f"{len(each)} headers: at most {_MOST_HEADERS} are allowed")
    for name, value in each.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise InvalidJob(f"header {str(name)[:60]!r}: expected a text under a name")
        if len(name) + len(value) > _LONGEST_HEADER:
            raise InvalidJob(f"header {name[:60]!r}: longer than {_LONGEST_HEADER} characters")
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise InvalidJob(f"header {name[:60]!a}: not Unicode text") from None


def _or(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
