"""The consumer process of the fault tests of topics; see `serving.py` for how it is started."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from tests.kit.history import Recorder, payload_hash
from tests.kit.programs.serving import MANY, compute, die, run_counted, serve, shift_clock
from tests.kit.scripts import scripts_of
from tests.kit.settings import settings_of

from penstock import Penstock
from penstock.delivery.retries import DeadLetter, Fixed, RetryPolicy
from penstock.errors import ServerError
from penstock.redis.keys.space import KeySpace
from penstock.topics.consumer.owned_partition import OwnedPartition, PartitionState
from penstock.topics.message import Message
from penstock.topics.storage.keys import PartitionKeys

MOST_PARTITIONS = 32


class Diary:
    """Writes down what a consumer does: its scripts are recorded where they are called."""

    def __init__(self, recorder: Recorder, keys: KeySpace, told: dict) -> None:
        self._recorder, self._group = recorder, told["group"]
        places = [PartitionKeys.of(keys, told["topic"], index) for index in range(MOST_PARTITIONS)]
        self._by_stream = {place.stream: index for index, place in enumerate(places)}
        self._by_lease = {place.lease(self._group): index for index, place in enumerate(places)}
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
        acquire, settle = scripts.acquire_partition, scripts.ack_messages
        retry_later, bury, uncharge = (
            scripts.retry_later,
            scripts.bury_message,
            scripts.uncharge_messages,
        )
        write = self._recorder.write

        async def acquire_(**options):
            partition = self._by_lease[options["lease"]]
            call = write("grant", "invoke", group=self._group, partition=partition)
            epoch = await acquire(**options)
            if epoch > 0:
                write("grant", "ok", call=call, fence=epoch, group=self._group, partition=partition)
            return epoch

        async def settle_(owner, *, failed_before, ids):
            partition = self._by_stream[owner.stream]
            calls = [self._ended("ack", partition, id_, owner.epoch) for id_ in ids]
            return await self._outcome(calls, settle(owner, failed_before=failed_before, ids=ids))

        async def retry_later_(owner, *, failed):
            call = self._ended("retry", self._by_stream[owner.stream], failed[0], owner.epoch)
            return await self._outcome([call], retry_later(owner, failed=failed))

        async def bury_(**options):
            _, partition, id_ = options["letter"].rsplit("/", 2)
            place = (int(partition), id_)
            about = {"group": self._group, "partition": place[0], "msg": id_}
            if place not in self._buried:
                self._buried[place] = write("dead", "invoke", **about)
            return await bury(**options)

        async def uncharge_(owner, *, ids):
            partition = self._by_stream[owner.stream]
            for id_ in ids:
                write("uncharge", group=self._group, partition=partition, msg=id_.decode())
            return await uncharge(owner, ids=ids)

        scripts.acquire_partition, scripts.ack_messages, scripts.uncharge_messages = (
            acquire_,
            settle_,
            uncharge_,
        )
        scripts.retry_later, scripts.bury_message = retry_later_, bury_

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

    def losing(self, held: OwnedPartition) -> None:
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

    async def crash(*args, **options):
        if when == "after":
            await run(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(scripts, name, crash)


def record_losses(diary: Diary) -> None:
    lose = OwnedPartition.lose

    def lose_(held: OwnedPartition) -> None:
        if held.state < PartitionState.RELEASED:
            diary.losing(held)
        lose(held)

    OwnedPartition.lose = lose_


class Handlers:
    """Handlers that do what the message asks for, and write down that they did."""

    def __init__(self, diary: Diary, recorder: Recorder, work_s: float) -> None:
        self._diary, self._write, self._work_s = diary, recorder.write, work_s

    async def handle(self, message: Message) -> Exception | None:
        orders = self._begin(message)
        compute(orders.get("busy", 0.0))
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
        die(orders)
        return orders

    def _end(self, message: Message, orders: dict) -> Exception | None:
        if orders.get("fail"):
            self._write("finish", "fail", **self._diary.about(message))
            raise RuntimeError("as ordered")
        outcome = DeadLetter("as ordered") if orders.get("dead") else None
        self._write("finish", "fail" if outcome else "ok", **self._diary.about(message))
        return outcome


async def work(told: dict) -> int:
    with Recorder(Path(told["folder"]), told["actor"]) as recorder:
        app = Penstock(settings=settings_of(told))
        diary = Diary(recorder, app.redis.keys, told)
        diary.record(scripts_of(app.redis))
        plant_crash(scripts_of(app.redis), told["crash"])
        record_losses(diary)
        shift_clock(told["clock_s"])
        topic = app.topic(told["topic"])
        topic.subscribe(
            told["group"],
            retry=RetryPolicy(max_attempts=told["max_attempts"], backoff=Fixed(told["backoff_s"])),
            **told["subscription"],
        )(getattr(Handlers(diary, recorder, told["work_s"]), told["handler"]))
        async with app:
            if told.get("grow"):
                await app.topics.grow(told["topic"], told["grow"])
            return await run_counted(
                app,
                told,
                lambda consumer: {
                    "partitions": consumer.partitions,
                    "trouble": consumer.trouble(),
                },
            )


if __name__ == "__main__":
    serve(work)
