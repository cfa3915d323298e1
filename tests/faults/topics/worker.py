"""The consumer process of the fault tests. One process forks many, so that a start costs little.

It is a program: a line of JSON on its standard input starts a worker, lines on its standard output
tell which process that is, and how each of them has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path

from penstock import Penstock
from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.retries import DeadLetter, Fixed, RetryPolicy
from penstock.errors import ServerError
from penstock.redis.keys import Keys
from penstock.runtime.process import run_process
from penstock.settings import Settings, TimeoutSettings, TopicSettings, WorkerSettings
from penstock.testing.history import Recorder, payload_hash
from penstock.topics.consumer import Consumer
from penstock.topics.held import Held
from penstock.topics.message import Message

PR_SET_PDEATHSIG = 1
MOST_PARTITIONS = 32
MANY = 1_000_000

Work = Callable[[dict], Coroutine[None, None, int]]


class Diary:
    """Writes down what a consumer does: its scripts are recorded where they are called."""

    def __init__(self, recorder: Recorder, keys: Keys, told: dict) -> None:
        self._recorder, self._group = recorder, told["group"]
        places = [keys.partition(told["topic"], index) for index in range(MOST_PARTITIONS)]
        self._by_stream = {place.stream: index for index, place in enumerate(places)}
        self._by_lease = {place.lease(self._group): index for index, place in enumerate(places)}
        self._by_retry = {place.retry(self._group): index for index, place in enumerate(places)}
        self._buried: dict[tuple[int, str], int] = {}

    def about(self, message: Message) -> dict:
        return {
            "group": self._group,
            "partition": message.partition,
            "msg": message.entry_id.decode(),
            "key": message.key or "",
            "attempt": message.attempt,
            "payload_hash": payload_hash(message.raw_payload),
        }

    def record(self, scripts) -> None:
        """Stand before the scripts that change something."""
        acquire, settle = scripts.acquire, scripts.settle
        retry_later, bury, uncharge = scripts.retry_later, scripts.bury, scripts.uncharge
        write = self._recorder.write

        async def acquire_(**options):
            partition = self._by_lease[options["lease"]]
            call = write("grant", "invoke", group=self._group, partition=partition)
            epoch = await acquire(**options)
            if epoch > 0:
                write("grant", "ok", call=call, fence=epoch, group=self._group, partition=partition)
            return epoch

        async def settle_(**options):
            partition = self._by_stream[options["stream"]]
            fence = options["epoch"]
            calls = [self._ended("ack", partition, id_, fence) for id_ in options["ids"]]
            return await self._outcome(calls, settle(**options))

        async def retry_later_(**options):
            id_, fence = options["failed"][0], options["epoch"]
            partition = self._by_retry[options["retry"]]
            call = self._ended("retry", partition, id_, fence)
            return await self._outcome([call], retry_later(**options))

        async def bury_(**options):
            _, partition, id_ = options["letter"].rsplit("/", 2)
            place = (int(partition), id_)
            about = {"group": self._group, "partition": place[0], "msg": id_}
            if place not in self._buried:
                self._buried[place] = write("dead", "invoke", **about)
            return await bury(**options)

        async def uncharge_(**options):
            partition = self._by_stream[options["stream"]]
            for id_ in options["ids"]:
                write("uncharge", group=self._group, partition=partition, msg=id_.decode())
            return await uncharge(**options)

        scripts.acquire, scripts.settle, scripts.uncharge = acquire_, settle_, uncharge_
        scripts.retry_later, scripts.bury = retry_later_, bury_

    def _ended(self, op, partition, id_, fence):
        """Begin to record an end; a dead letter ends with its acknowledgement."""
        place = (partition, id_.decode())
        if op == "ack" and place in self._buried:
            return "dead", self._buried[place], fence
        about = {"group": self._group, "partition": partition, "msg": place[1], "fence": fence}
        return op, self._recorder.write(op, "invoke", **about), fence

    async def _outcome(self, calls, asked):
        try:
            reply = await asked
        except ServerError:
            phase = "unknown"
            raise
        except BaseException:
            phase = ""
            raise
        else:
            phase = "refused" if reply == -1 else "accepted"
            return reply
        finally:
            for op, call, fence in calls if phase else ():
                if not (op == "dead" and phase == "unknown"):  # it is asked again
                    self._recorder.write(op, phase, call=call, fence=fence)

    def losing(self, held: Held) -> None:
        source = held.source
        self._recorder.write(
            "lose",
            victim=self._recorder.actor,
            group=source.group,
            partition=source.partition,
            fence=held.epoch,
        )


def plant_crash(scripts, point: str) -> None:
    """End the process right before a script is sent, or right after its answer has come."""
    when, _, name = point.partition(" ")
    if not name:
        return
    run = getattr(scripts, name)

    async def crash(**options):
        if when == "after":
            await run(**options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(scripts, name, crash)


def record_losses(diary: Diary) -> None:
    lose = Held.lose

    def lose_(held: Held) -> None:
        if not held.lost:
            diary.losing(held)
        lose(held)

    Held.lose = lose_


class Handlers:
    """Handlers that do what the message asks for, and write down that they did."""

    def __init__(self, diary: Diary, recorder: Recorder, work_s: float) -> None:
        self._diary, self._write, self._work_s = diary, recorder.write, work_s

    async def handle(self, message: Message) -> Exception | None:
        orders = self._begin(message)
        _compute(orders.get("busy", 0.0))
        try:
            if pause := orders.get("pause", self._work_s):
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            self._write("finish", "cancelled", **self._diary.about(message))
            raise
        return self._end(message, orders)

    def handle_in_thread(self, message: Message) -> Exception | None:
        orders = self._begin(message)
        if pause := orders.get("pause", self._work_s):
            time.sleep(pause)
        return self._end(message, orders)

    async def handle_batch(self, messages: list[Message]) -> dict[Message, Exception]:
        ordered = [(message, self._begin(message)) for message in messages]
        await asyncio.sleep(self._work_s)
        failed: dict[Message, Exception] = {}
        for message, orders in ordered:
            try:
                outcome = self._end(message, orders)
            except RuntimeError as error:
                outcome = error
            if outcome is not None:
                failed[message] = outcome
        return failed

    def _begin(self, message: Message) -> dict:
        self._write("start", **self._diary.about(message))
        payload = message.payload
        orders = payload if message.attempt <= payload.get("attempts", MANY) else {}
        if orders.get("exit"):
            os._exit(3)
        if orders.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if orders.get("segfault"):
            ctypes.string_at(0)
        if orders.get("stop"):  # stands still in the middle of its work until it is continued
            os.kill(os.getpid(), signal.SIGSTOP)
        return orders

    def _end(self, message: Message, orders: dict) -> Exception | None:
        if orders.get("fail"):
            self._write("finish", "fail", **self._diary.about(message))
            raise RuntimeError("as ordered")
        outcome = DeadLetter("as ordered") if orders.get("dead") else None
        self._write("finish", "fail" if outcome else "ok", **self._diary.about(message))
        return outcome


def _compute(seconds: float) -> None:
    """Keep the event loop busy without a pause, as a long computation does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1_000))


async def work(told: dict) -> int:
    settings = Settings(
        url=told["url"],
        namespace=told["namespace"],
        topics=TopicSettings(**told["topics"]),
        worker=WorkerSettings(**told["worker"]),
        timeouts=TimeoutSettings(**told["timeouts"]),
    )
    folder = Path(told["folder"])
    with Recorder(folder, told["actor"]) as recorder:
        app = Penstock(settings=settings)
        diary = Diary(recorder, app.redis.keys, told)
        diary.record(app.redis.scripts)
        plant_crash(app.redis.scripts, told["crash"])
        record_losses(diary)
        shift_clock(told["clock_s"])
        topic = app.topic(told["topic"])
        topic.subscribe(
            told["group"],
            retry=RetryPolicy(max_attempts=told["max_attempts"], backoff=Fixed(told["backoff_s"])),
            **told["subscription"],
        )(getattr(Handlers(diary, recorder, told["work_s"]), told["handler"]))
        counts = keep_counts(folder / f"{told['actor']}.counts")
        async with app:
            worker = app.worker()
            counts.follow(worker._work)
            # After the first steps of the worker, which takes over the signals then.
            asyncio.get_running_loop().call_soon((folder / f"{told['actor']}.up").touch)
            if told.get("grow"):
                await app.topics.grow(told["topic"], told["grow"])
            try:
                return await worker.run(handle_signals=True)
            finally:
                counts.write()


class keep_counts:  # noqa: N801  reads as what it does
    """Leaves what the consumer has counted, and what troubles it, where the test can read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._consumers: list[Consumer] = []

    def follow(self, consumers) -> None:
        self._consumers = list(consumers)
        signal.signal(signal.SIGUSR1, lambda *_: self.write())

    def write(self) -> None:
        (consumer,) = self._consumers
        told = {
            **asdict(consumer.counts),
            "partitions": consumer.partitions,
            "trouble": consumer.trouble(),
            "cpu_s": time.process_time(),
        }
        scratch = self._path.with_suffix(".new")
        scratch.write_text(json.dumps(told))
        scratch.rename(self._path)


def shift_clock(offset_s: float) -> None:
    """Let this process's wall clock be wrong; nothing may depend on it."""
    if offset_s:
        right, right_ms = time.time, type(SYSTEM_CLOCK).wall_ms
        time.time = lambda: right() + offset_s
        type(SYSTEM_CLOCK).wall_ms = lambda clock: right_ms(clock) + round(offset_s * 1000)


def run_worker(work: Work, told: dict) -> None:
    log = os.open(f"{told['folder']}/{told['actor']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    os._exit(run_process(lambda: work(told)))


def serve(work: Work) -> None:
    """Start workers as they are asked for, until standard input ends."""
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()
    orders = os.fdopen(0, "rb", buffering=0)  # what select sees is all there is
    while True:
        readable, _, _ = select.select([0], [], [], 0.02)
        if readable:
            line = orders.readline()
            if not line:
                return
            pid = os.fork()
            if not pid:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)
                run_worker(work, json.loads(line))
            tell(started=pid)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                tell(ended=ended[0], code=os.waitstatus_to_exitcode(ended[1]))


def tell(**facts: int) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve(work)
