"""Options of a subscription, validated on construction."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, cast

from penstock.delivery.retries import RetryPolicy
from penstock.errors import ConfigError
from penstock.redis.keys.names import check_name
from penstock.topics.storage.message_id import position_in

__all__ = ["Ordering", "Subscription", "SubscriptionOptions"]

Ordering = Literal["partition", "key", "none"]

_ORDERINGS = ("partition", "key", "none")
_START = re.compile(r"earliest|latest|\d+(-\d+){0,2}", re.ASCII)
_PAIR = 2


class SubscriptionOptions(TypedDict, total=False):
    """Everything in a `Subscription` but the group, for signatures."""

    ordering: Ordering
    concurrency: int | None
    batch: int | None
    retry: RetryPolicy
    ordered_retries: bool | None
    start: str
    timeout_s: float | None
    max_inflight: int | None
    pin: tuple[int, int] | None
    max_partitions: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Options of one consumer.

    - `ordering`: "partition" handles the messages of a partition one after the other; "key" those
      of a key, other keys meanwhile; "none" any number of any.
    - `concurrency`: handlers at the same time. Without it one per partition, or 32.
    - `batch`: pass lists of up to so many messages; needs ordering "partition".
    - `retry`: when a failed message is tried again.
    - `ordered_retries`: what follows a failed message (in its partition, or of its key) waits for
      it. Without saying: yes for "key", no otherwise.
    - `start`: where a new group begins: "earliest", "latest" or an id.
    - `timeout_s`: longest run of one call of the handler.
    - `max_inflight`: messages fetched but not settled, above which nothing is read.
    - `pin`: (modulo, remainder): take exactly the partitions with this remainder.
    - `max_partitions`: own at most so many.
    """

    group: str
    ordering: Ordering = "partition"
    concurrency: int | None = None
    batch: int | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    ordered_retries: bool | None = None
    start: str = "earliest"
    timeout_s: float | None = None
    max_inflight: int | None = None
    pin: tuple[int, int] | None = None
    max_partitions: int | None = None

    def __post_init__(self) -> None:
        check_name("group", self.group)
        if self.ordering not in _ORDERINGS:
            raise ConfigError(f"ordering = {self.ordering!r}: expected one of {_ORDERINGS}")
        for name in ("concurrency", "batch", "max_inflight", "max_partitions"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"{name} = {value!r}: expected a whole number from 1")
        if self.batch and self.ordering != "partition":
            raise ConfigError('batch handlers need ordering="partition"')
        if self.ordered_retries and self.ordering == "none":
            raise ConfigError('ordered_retries = True: ordering="none" has no order to keep')
        self._check_the_rest()

    def _check_the_rest(self) -> None:
        # Callers without a type checker pass whatever they have.
        given: Any = self
        if given.timeout_s is not None and not (
            type(given.timeout_s) in {int, float} and given.timeout_s > 0
        ):
            raise ConfigError(f"timeout_s = {self.timeout_s!r}: expected more than 0 seconds")
        if not isinstance(given.start, str) or not _START.fullmatch(given.start):
            raise ConfigError(f'start = {self.start!r}: expected "earliest", "latest" or an id')
        if given.pin is not None and not _is_pin(given.pin):
            raise ConfigError(f"pin = {self.pin!r}: expected (modulo, remainder < modulo)")
        if not isinstance(given.retry, RetryPolicy):
            raise ConfigError(f"retry = {self.retry!r}: expected a RetryPolicy")

    @property
    def keeps_retries_in_order(self) -> bool:
        if self.ordered_retries is None:
            return self.ordering == "key"
        return self.ordered_retries and self.ordering != "none"

    @property
    def counts_starts(self) -> bool:
        """Whether even a first attempt is counted before it begins, at the price of a round trip.

        Elsewhere what was merely fetched loses an attempt when its process dies; with a single
        attempt it would be given up for that.
        """
        return self.retry.max_attempts == 1

    @property
    def start_id(self) -> str:
        return {"earliest": "0", "latest": "$"}.get(self.start, position_in(self.start))


def _is_pin(pin: object) -> bool:
    if not isinstance(pin, tuple) or len(cast("tuple[object, ...]", pin)) != _PAIR:
        return False
    modulo, remainder = cast("tuple[object, object]", pin)
    return type(modulo) is int and type(remainder) is int and 0 <= remainder < modulo
