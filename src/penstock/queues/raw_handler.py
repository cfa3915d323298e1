"""The function that performs the raw jobs of a queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.delivery.retries import RetryPolicy
from penstock.errors import ConfigError, DecodeError
from penstock.queues.isolation.pool import Isolation
from penstock.queues.signature import Signature
from penstock.queues.storage.stored_job import Item
from penstock.queues.worker.performer import Call, Performer
from penstock.redis.codec import json_rules

__all__ = ["RawHandler", "as_isolation", "payload_reader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawHandler:
    """A function for raw jobs, with the options of its decorator."""

    function: Callable[..., Any]
    signature: Signature
    retry: RetryPolicy | None = None
    timeout_s: float | None = None
    concurrency: int | None = None
    isolation: Isolation | None = None

    @classmethod
    def of(cls, function: Callable[..., Any], name: str, **options: Any) -> RawHandler:
        """Check that a function takes a payload, and optionally a JobContext; else ConfigError."""
        signature = Signature(function, name)
        try:
            signature.sent.bind(None)
        except TypeError:
            raise ConfigError(
                f"handler {name} takes {signature.sent}: expected (payload), or (payload, job) "
                "with job annotated as JobContext"
            ) from None
        return cls(function=function, signature=signature, **options)

    def performer(self, *, default_type: Any, retry: RetryPolicy, timeout_s: float | None,
                  tracked: bool) -> Performer:  # fmt: skip
        """What a worker needs; the arguments are the queue's own options."""
        read = payload_reader(self.signature.first_type(default_type), self.signature.name)

        def decode(item: Item) -> Call:
            # Arguments of a task that this program does not have were not checked yet.
            if item.task and json_rules.repeats_a_member(item.body):
                raise DecodeError("an object in it has two members of one name", item.body)
            return (read(item.body),), {}

        return Performer(
            name=self.signature.name,
            function=self.function,
            is_async=self.signature.is_async,
            decode=decode,
            policy=self.retry or retry,
            timeout_s=timeout_s if self.timeout_s is None else self.timeout_s,
            concurrency=self.concurrency,
            isolation=self.isolation,
            injects=bool(self.signature.injected),
            context_parameter=self.signature.context,
            tracked=tracked,
        )


def payload_reader(type_: Any, name: str) -> Callable[[bytes], Any]:
    """Return what reads a raw job, which is there without compression, as a type.

    `str` is the text itself and `bytes` the bytes. Without a type it is JSON if it can be, else
    the text, else the bytes.
    """
    if type_ is str:
        return lambda body: _text(body, name)
    if type_ is bytes:
        return lambda body: body
    try:
        decode = json_rules.json_decoder(type_).decode
    except TypeError as error:
        raise ConfigError(f"handler {name}: {error}") from None
    if type_ is Any:
        return lambda body: _anything(body, decode)

    def read(body: bytes) -> Any:
        if json_rules.nests_too_deep(body):
            raise DecodeError(f"JSON nests deeper than {json_rules.MAX_NESTING}", body)
        try:
            return decode(body)
        except Exception as error:  # noqa: BLE001  a type's own checks may run
            reason = json_rules.decode_reason(error)
            raise DecodeError(f"cannot read a job of {name}: {reason}", body) from None

    return read


def _text(body: bytes, name: str) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise DecodeError(f"cannot read a job of {name}: not UTF-8", body) from None


def _anything(body: bytes, decode: Callable[[bytes], Any]) -> Any:
    if not json_rules.nests_too_deep(body):
        try:
            return decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def as_isolation(isolate: object) -> Isolation | None:
    """Read `isolate=`: True, False or an Isolation."""
    if isolate is False or isolate is None:
        return None
    if isolate is True:
        return Isolation()
    if isinstance(isolate, Isolation):
        return isolate
    raise ConfigError(f"isolate = {isolate!r}: expected True, False or Isolation(…)")
