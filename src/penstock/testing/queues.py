"""Test code that queues work: run it, inspect what was queued, and inject faults.

    async def test_a_crash_after_the_charge_charges_once(app):
        await charge.send(7)
        await kill_worker(app, "shop:app", charge)                # done, but not acknowledged
        await clock.advance(app, app.settings.queues.silence_s)   # the worker counts as dead
        await run_until_idle(app)
        assert charges() == [7]

Everything runs on a real server: see docs/how-to/test-your-code.md.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.app import Penstock
from penstock.errors import ServerError
from penstock.queues.queue import Queue
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.stored_job import read_item
from penstock.queues.task import Task
from penstock.queues.worker.consumer import QueueConsumer
from penstock.redis.keys.names import decode_id
from penstock.testing.dying_worker import kill_worker
from penstock.testing.lost_acks import lose_ack
from penstock.testing.queue_contents import Standing, standing_of, stored_in
from penstock.testing.server_clock import ServerClock

__all__ = [
    "Enqueued",
    "Ran",
    "ServerClock",
    "assert_enqueued",
    "clock",
    "enqueued",
    "kill_worker",
    "lose_ack",
    "run_until_idle",
]

clock = ServerClock()
"""Moves server-side deadlines: `await clock.advance(app, 60)`."""

_EVERY_S = 0.005


@dataclass(frozen=True, slots=True)
class Ran:
    """What a worker did until it had nothing left to do."""

    done: int = 0
    retried: int = 0
    """Attempts that failed and are to be repeated."""
    dead: int = 0
    """Jobs that went to the dead letters."""


async def run_until_idle(app: Penstock, timeout_s: float = 10.0, *, window_s: float = 0.0) -> Ran:
    """Run a worker in this process until nothing is left to do, then stop it.

    That is when no job of a queue that `app` works on is waiting, running or due, neither here nor
    in other processes. Jobs that become due within `window_s` seconds are waited for; later ones,
    such as most retries, are left: `clock.advance` brings them nearer. Subscriptions to topics do
    not run.

    AssertionError after `timeout_s`, saying what is left; if the worker fails, its error.
    """
    queues = [name for name, queue in app.registry.queues.items() if queue.has_handlers]
    before = [await standing_of(app, queue) for queue in queues]
    worker = app.worker(queues=queues)
    running = asyncio.create_task(worker.run(), name="worker of the test")
    try:
        consumers = [one for one in worker.work if isinstance(one, QueueConsumer)]
        after = await _idle(app, queues, consumers, running, timeout_s, window_s)
    finally:
        await worker.stop()
        await asyncio.wait([running])
    for failure in worker.failures:
        raise failure
    running.result()
    return Ran(
        *(
            sum(one.counters.get(name, 0) for one in after)
            - sum(one.counters.get(name, 0) for one in before)
            for name in ("done", "retried", "dead")
        )
    )


async def _idle(
    app: Penstock,
    queues: Sequence[str],
    consumers: Sequence[QueueConsumer],
    running: asyncio.Task[int],
    timeout_s: float,
    window_s: float,
) -> list[Standing]:
    deadline, last = time.monotonic() + timeout_s, list[Standing]()
    while True:
        now = await _look(app, queues, window_s, deadline)
        # Twice the same: a job may send another to a queue that was read before.
        # What is over the limits of tasks is not due at the moment, and yet to be run.
        aside = any(consumer.has_aside for consumer in consumers)
        if all(one.idle for one in now) and now == last and not aside:
            return now
        if running.done():
            return now
        if time.monotonic() > deadline:
            left = "; ".join(str(one) for one in now if not one.idle)
            raise AssertionError(f"not idle within {timeout_s:g} s: {left}")
        last = now
        await asyncio.sleep(_EVERY_S)


async def _look(
    app: Penstock, queues: Sequence[str], window_s: float, deadline: float
) -> list[Standing]:
    """Ask until there is an answer: the way to the server may be disturbed on purpose."""
    while True:
        try:
            return [await standing_of(app, queue, window_s) for queue in queues]
        except ServerError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_EVERY_S)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that waits in a queue."""

    queue: str
    id: str
    task: str
    """Empty for a raw job."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    payload: Any
    """Of a raw job: JSON if it can be read as such, else text or bytes."""
    priority: str | None
    group: str | None
    due_ms: int | None
    """The server's time at which it is to be queued; None if it is queued already."""
    attempts: int
    """How often it was tried."""
    headers: Mapping[str, str]


async def enqueued(app: Penstock, what: Task[..., Any] | Queue | str) -> list[Enqueued]:
    """List the jobs that wait: those of a task, or all of a queue, which may be named.

    Lane by lane from the front, then those not yet due. Arguments are as JSON has them: a model is
    a dict, a tuple a list. Claimed jobs are not listed.
    """
    queue = (
        what if isinstance(what, str) else what.queue.name if isinstance(what, Task) else what.name
    )
    keys = QueueKeyring.of(app.redis.keys, queue)
    found: list[Enqueued] = []
    for stored in await stored_in(app.redis, keys):
        item = read_item(stored.data, app.codec)
        if isinstance(what, Task) and item.task != what.name:
            continue
        priority = stored.lane if stored.lane in {"high", "normal", "low"} else None
        found.append(
            Enqueued(
                queue=queue,
                id=item.id,
                task=item.task,
                args=tuple(msgspec.json.decode(item.args)) if item.task else (),
                kwargs=msgspec.json.decode(item.kwargs) if item.task else {},
                payload=None if item.task else _payload(item.body),
                priority=priority,
                group=decode_id(stored.lane) if stored.lane and not priority else None,
                due_ms=stored.due_ms,
                attempts=item.meta.attempts,
                headers=item.meta.headers,
            )
        )
    return found


async def assert_enqueued(
    app: Penstock,
    what: Task[..., Any] | Queue | str,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    payload: Any = None,
    count: int | None = None,
) -> list[Enqueued]:
    """Assert that such a job waits, or exactly `count` of them; returns them.

        await assert_enqueued(app, welcome, args=(42,), kwargs={"lang": "de"})
        await assert_enqueued(app, "mail", count=0)

    How arguments of a task were passed, in their places or by name, makes no difference.
    """
    there = await enqueued(app, what)
    wanted = [
        one
        for one in there
        if (args is None and kwargs is None)
        or _called(what, one.args, one.kwargs) == _called(what, args or (), kwargs or {})
    ]
    if payload is not None:
        expected = _plain(payload)
        wanted = [one for one in wanted if one.payload == expected]
    if len(wanted) == count or (count is None and wanted):
        return wanted
    number = "no" if not wanted else str(len(wanted))
    expected_number = "at least one" if count is None else str(count)
    listed = "".join(f"\n  {one}" for one in there) or " nothing"
    raise AssertionError(f"{number} such job, expected {expected_number}; there is:{listed}")


def _called(what: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Arguments by the names of their parameters, as JSON has them."""
    args, kwargs = _plain(list(args)), _plain(dict(kwargs))
    if not isinstance(what, Task):
        return args, kwargs
    try:
        return inspect.signature(what.function).bind_partial(*args, **kwargs).arguments
    except TypeError:
        return args, kwargs


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_dumped))


def _dumped(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise NotImplementedError(f"{type(value).__name__} is nothing that a job could carry")
    return dump(mode="json")


def _payload(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body
