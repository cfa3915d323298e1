"""The planted bugs: each does one thing as it is often done, and breaks a promise by it."""

from __future__ import annotations

from contextlib import suppress

from tests.kit.history import payload_hash

from .miniature import ABOUT, GROUP, Janitor, LosesNoGroup, Mover, Producer, Worker, WorkFailed


class AcksBeforeWork(Worker):
    async def run(self, message):
        await self.ack(message)
        with suppress(WorkFailed):  # too late
            self.handle(message)


class AcksThenStoresRetry(Worker):
    async def failed(self, message, reason):
        await self.ack(message)
        self.point("between_ack_and_retry")
        await self.stage.call("ZADD", self.stage.retry, 0, message.payload)


class RenewsAnybodysLease(Worker):
    """Believes in its lease as long as there is one, so it needs no fence."""

    async def renew(self):
        await self.stage.call("PEXPIRE", self.stage.lease, self.lease_ms)

    async def ack(self, message):
        call = self.recorder.write("ack", "invoke", attempt=message.attempt, **message.told)
        await self.stage.call("XACK", self.stage.stream, GROUP, message.id)
        self.recorder.write("ack", "accepted", call=call)


class CountsExceptionsOnly(Worker):
    async def read(self):
        message = await super().read()
        if message is not None:
            failures = await self.stage.call("HGET", f"{self.stage.retry}:failures", message.id)
            message.attempt = int(failures or 0) + 1
        return message

    async def failed(self, message, reason):
        await self.stage.call("HINCRBY", f"{self.stage.retry}:failures", message.id, 1)
        await super().failed(message, reason)


class RecreatesGroupAtTheEnd(LosesNoGroup):
    async def make_group(self):
        await self.stage.call("XGROUP", "CREATE", self.stage.stream, GROUP, "$")


class BuriesAfterAck(Worker):
    async def bury(self, message, reason):
        await self.ack(message)
        self.point("between_ack_and_bury")
        letter = ("id", message.id, "key", message.key, "payload", message.payload)
        facts = ("attempts", message.attempt, "reason", reason)
        await self.stage.call("XADD", self.stage.dlq, "*", *letter, *facts)


class SharesThePartition(Worker):
    """A consumer group alone, as the textbook has it: whoever asks gets the next message."""

    async def acquire(self):
        epoch = await self.stage.call("INCR", self.stage.epoch)
        self.recorder.write("grant", fence=epoch, **ABOUT)
        return True

    async def read(self):
        return await self.read_new()

    async def ack(self, message):
        call = self.recorder.write("ack", "invoke", attempt=message.attempt, **message.told)
        await self.stage.call("XACK", self.stage.stream, GROUP, message.id)
        self.recorder.write("ack", "accepted", call=call)


class RetriesRawAdd(Producer):
    async def store(self, payload):
        return await self.stage.call("XADD", self.stage.stream, "*", "key", "k", "payload", payload)


class CallsALostReplyARejection(RetriesRawAdd):
    async def send(self, payload):
        hashed = payload_hash(payload.encode())
        call = self.recorder.write("send", "invoke", key="k", payload_hash=hashed)
        await self.store(payload)  # the reply is lost
        self.recorder.write("send", "fail", call=call, detail="TimeoutError")


class RangesThenRemoves(Mover):
    async def move_with_a_rival(self):
        mine, rivals = await self.look(), await self.look()
        await self.take(mine)
        await self.take(rivals)

    async def look(self):
        return await self.stage.call("ZRANGEBYSCORE", self.stage.delayed, "-inf", await self.now())

    async def take(self, due):
        for payload in due:
            await self.stage.call("XADD", self.stage.stream, "*", "key", "", "payload", payload)
            await self.stage.call("ZREM", self.stage.delayed, payload)


class TakesSecondsForMilliseconds(Mover):
    def ms(self, delay_s):
        return int(delay_s)


class TrimsByLength(Janitor):
    async def trim(self):
        await self.stage.call("XTRIM", self.stage.stream, "MAXLEN", 0)


class ForgetsWhatConsumersHold(Janitor):
    async def remove_idle_consumer(self, consumer):
        await self.stage.call("XGROUP", "DELCONSUMER", self.stage.stream, GROUP, consumer)
