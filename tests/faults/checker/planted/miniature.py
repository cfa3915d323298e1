"""A topic in miniature, on plain Redis commands, that keeps its promises.

One partition, one group, one message at a time. The planted bugs are subclasses that do one thing
in the wrong way, as people do. A crash is an exception at a failpoint: the actor stops there.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.kit.history import Recorder, Verdict, check, payload_hash, read_history

from penstock.errors import ServerError
from penstock.redis.client import Client
from penstock.testing.eventually import eventually

GROUP = "billing"
MAX_ATTEMPTS = 3
ABOUT = {"group": GROUP, "partition": 0}

ACQUIRE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local epoch = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], epoch, 'PX', ARGV[1])
return epoch
"""
RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
ACK = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('XACK', KEYS[2], ARGV[2], ARGV[3])
redis.call('SET', KEYS[3], ARGV[3])
return 1
"""
BURY = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('XADD', KEYS[3], '*', 'id', ARGV[3], 'key', ARGV[4], 'payload', ARGV[5],
           'attempts', ARGV[6], 'reason', ARGV[7])
redis.call('XACK', KEYS[2], ARGV[2], ARGV[3])
return 1
"""
SEND_ONCE = """
local known = redis.call('GET', KEYS[2])
if known then return known end
local id = redis.call('XADD', KEYS[1], '*', 'key', ARGV[1], 'payload', ARGV[2])
redis.call('SET', KEYS[2], id)
return id
"""
MOVE = """
for _, payload in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])) do
  redis.call('ZREM', KEYS[1], payload)
  redis.call('XADD', KEYS[2], '*', 'key', '', 'payload', payload)
end
"""


class Crash(Exception):
    """The actor is gone."""


class WorkFailed(Exception):
    """The handler raised."""


class Message:
    """An entry as a worker got it."""

    def __init__(self, entry, attempt):
        id_, fields = entry
        self.id = id_.decode()
        values = [value.decode() for value in fields]
        self.fields = dict(zip(values[::2], values[1::2], strict=True))
        self.key, self.payload = self.fields["key"], self.fields["payload"]
        self.attempt = attempt

    @property
    def told(self):
        return {
            **ABOUT,
            "msg": self.id,
            "key": self.key,
            "payload_hash": payload_hash(self.payload.encode()),
        }


class Stage:
    """A server, the keys of the topic, and the history of those who act on it."""

    def __init__(self, client: Client, namespace: str, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.call = client.call
        for name in ("stream", "lease", "epoch", "position", "retry", "dlq", "delayed"):
            setattr(self, name, f"{{{namespace}}}:{name}")
        self.recorders: dict[str, Recorder] = {}
        self.names = itertools.count(1)

    async def begin(self):
        await self.call("XGROUP", "CREATE", self.stream, GROUP, "0", "MKSTREAM")

    def recorder(self, actor):
        if actor not in self.recorders:
            self.recorders[actor] = Recorder(self.folder, actor)
        return self.recorders[actor]

    def close(self):
        for recorder in self.recorders.values():
            recorder.close()

    async def script(self, text, keys, *arguments):
        return await self.call("EVAL", text, len(keys), *keys, *arguments)

    async def send(self, *payloads, key="k"):
        recorder = self.recorder("producer")
        for payload in payloads:
            told = {"key": key, "payload_hash": payload_hash(payload.encode())}
            call = recorder.write("send", "invoke", **told)
            id_ = await self.call("XADD", self.stream, "*", "key", key, "payload", payload)
            recorder.write("send", "ok", call=call, partition=0, msg=id_.decode())

    async def crashed(self, worker):
        """The worker is gone; its lease runs out."""
        self.recorder("nemesis").write("lose", victim=worker.name)
        await self.call("DEL", self.lease)

    async def work(self, make, *, crash_at=None, workers=1, fails=()):
        """Let workers, one after the other, work until nothing is left or they crash."""
        for _ in range(workers):
            worker = make(self, crash_at=crash_at, fails=fails)
            assert await worker.acquire()
            try:
                while await worker.run_one():
                    pass
                await worker.release()
            except Crash:
                await self.crashed(worker)

    async def verdict(self) -> Verdict:
        """Read all that is stored, and check."""
        recorder = self.recorder("reader")
        log = [Message(entry, 0) for entry in await self.call("XRANGE", self.stream, "-", "+")]
        for message in log:
            recorder.write("final", place="log", **(message.told | {"group": ""}))
        for message in await self.undelivered():
            recorder.write("final", place="stream", **message.told)
        pending = await self.call("XPENDING", self.stream, GROUP, "-", "+", 1000)
        ids = {id_.decode() for id_, *_ in pending}
        for message in log:
            if message.id in ids:
                recorder.write("final", place="pending", **message.told)
        for letter in await self.call("XRANGE", self.dlq, "-", "+"):
            self.write_letter(Message(letter, 0))
        for payload in await self.call("ZRANGE", self.delayed, 0, -1):
            recorder.write("final", place="delayed", payload_hash=payload_hash(payload))
        # The server's time is cut to whole milliseconds.
        return check(
            read_history(self.folder), max_attempts=MAX_ATTEMPTS, groups={GROUP}, early_s=0.001
        )

    async def undelivered(self):
        (group,) = await self.call("XINFO", "GROUPS", self.stream)
        facts = dict(zip(group[::2], group[1::2], strict=True))
        after = b"(" + facts[b"last-delivered-id"]
        return [Message(entry, 0) for entry in await self.call("XRANGE", self.stream, after, "+")]

    def write_letter(self, letter):
        self.recorder("reader").write(
            "final",
            place="dlq",
            **(letter.told | {"msg": letter.fields["id"]}),
            attempt=int(letter.fields["attempts"]),
            detail=letter.fields["reason"],
        )


class Worker:
    """Reads, works, settles; and does it right."""

    lease_ms = 60_000

    def __init__(self, stage: Stage, *, crash_at=None, fails=()):
        self.stage, self.crash_at, self.fails = stage, crash_at, fails
        self.name = f"worker-{next(stage.names)}"
        self.recorder = stage.recorder(self.name)
        self.epoch = 0

    def point(self, name):
        """Where a crash may be planted."""
        if name == self.crash_at:
            raise Crash(name)

    # the lease

    async def acquire(self):
        """Whether it is the owner now."""
        keys = (self.stage.lease, self.stage.epoch)
        self.epoch = await self.stage.script(ACQUIRE, keys, self.lease_ms)
        if self.epoch:
            self.recorder.write("grant", fence=self.epoch, **ABOUT)
        return bool(self.epoch)

    async def renew(self):
        held = await self.stage.script(RENEW, (self.stage.lease,), self.epoch, self.lease_ms)
        if not held:
            self.recorder.write("lose", victim=self.name, **ABOUT)

    async def release(self):
        await self.stage.call("DEL", self.stage.lease)

    async def lease_ran_out(self):
        async def gone():
            return not await self.stage.call("EXISTS", self.stage.lease)

        await eventually(gone)
        self.stage.recorder("nemesis").write("lose", victim=self.name)

    # a message

    async def run_one(self):
        """Work on one message; false if there is none."""
        message = await self.read()
        if message is None:
            return False
        if message.attempt > MAX_ATTEMPTS:
            message.attempt = MAX_ATTEMPTS
            await self.bury(message, "crashed too often")
            return True
        await self.run(message)
        return True

    async def run(self, message):
        try:
            self.handle(message)
        except WorkFailed as error:
            await self.failed(message, str(error))
        else:
            self.point("before_ack")
            await self.ack(message)

    def handle(self, message):
        self.start(message)
        self.finish(message)

    def start(self, message):
        self.recorder.write("start", attempt=message.attempt, **message.told)
        self.point("in_handler")

    def finish(self, message):
        failed = message.payload in self.fails
        phase = "fail" if failed else "ok"
        self.recorder.write("finish", phase, attempt=message.attempt, **message.told)
        if failed:
            raise WorkFailed("it never works")

    async def read(self):
        """What was left pending comes first; counted before it is begun."""
        stage = self.stage
        for id_, _, _, count in await stage.call("XPENDING", stage.stream, GROUP, "-", "+", 1):
            claimed = await stage.call("XCLAIM", stage.stream, GROUP, "one", 0, id_)
            if claimed:
                return Message(claimed[0], count + 1)
        return await self.read_new()

    async def read_new(self):
        where = ("COUNT", 1, "STREAMS", self.stage.stream, ">")
        reply = await self.stage.call("XREADGROUP", "GROUP", GROUP, "one", *where)
        return Message(reply[0][1][0], 1) if reply else None

    # how it ends

    async def ack(self, message):
        stage = self.stage
        call = self.recorder.write("ack", "invoke", attempt=message.attempt, **message.told)
        keys = (stage.lease, stage.stream, stage.position)
        taken = await stage.script(ACK, keys, self.epoch, GROUP, message.id)
        self.recorder.write("ack", "accepted" if taken else "refused", call=call)

    async def failed(self, message, reason):
        if message.attempt >= MAX_ATTEMPTS:
            await self.bury(message, reason)
        else:  # it stays pending, and pending messages come first
            self.recorder.write("retry", "accepted", attempt=message.attempt, **message.told)

    async def bury(self, message, reason):
        stage = self.stage
        call = self.recorder.write("dead", "invoke", attempt=message.attempt, **message.told)
        keys = (stage.lease, stage.stream, stage.dlq)
        letter = (message.id, message.key, message.payload, message.attempt, reason)
        taken = await stage.script(BURY, keys, self.epoch, GROUP, *letter)
        self.recorder.write("dead", "accepted" if taken else "refused", call=call)


class LosesNoGroup(Worker):
    """Keeps the group's position beside it, and so can make the group anew."""

    async def read(self):
        try:
            return await super().read()
        except ServerError as error:
            if "NOGROUP" not in str(error):
                raise
        await self.make_group()
        return await super().read()

    async def make_group(self):
        position = await self.stage.call("GET", self.stage.position) or "0"
        await self.stage.call("XGROUP", "CREATE", self.stage.stream, GROUP, position)


class Producer:
    """Sends again when the reply was lost; one message all the same."""

    def __init__(self, stage: Stage):
        self.stage = stage
        self.recorder = stage.recorder("producer")

    async def send(self, payload):
        hashed = payload_hash(payload.encode())
        call = self.recorder.write("send", "invoke", idem=payload, key="k", payload_hash=hashed)
        await self.store(payload)  # the reply is lost
        id_ = await self.store(payload)
        self.recorder.write("send", "ok", call=call, partition=0, msg=id_.decode())

    async def store(self, payload):
        stage = self.stage
        keys = (stage.stream, f"{stage.stream}:once:{payload}")
        return await stage.script(SEND_ONCE, keys, "k", payload)


class Mover:
    """Moves what is due into the stream, in one step."""

    def __init__(self, stage: Stage):
        self.stage = stage

    async def delay(self, payload, delay_s):
        recorder = self.stage.recorder("producer")
        told = {"payload_hash": payload_hash(payload.encode()), "delay_s": delay_s}
        call = recorder.write("send", "invoke", **told)
        due = await self.now() + self.ms(delay_s)
        await self.stage.call("ZADD", self.stage.delayed, due, payload)
        recorder.write("send", "ok", call=call, partition=0, msg=f"delayed-{payload}")

    def ms(self, delay_s):
        return int(delay_s * 1000)

    async def now(self):
        seconds, microseconds = await self.stage.call("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def let_pass(self, time_s):
        end = await self.now() + int(time_s * 1000)

        async def passed():
            return await self.now() > end

        await eventually(passed)

    async def move_with_a_rival(self):
        await self.move()
        await self.move()

    async def move(self):
        await self.stage.script(MOVE, (self.stage.delayed, self.stage.stream), await self.now())


class Janitor:
    """Removes what is not needed any more, and nothing else."""

    def __init__(self, stage: Stage):
        self.stage = stage

    async def trim(self):
        """Drop what is older than anything pending."""
        pending = await self.stage.call("XPENDING", self.stage.stream, GROUP, "-", "+", 1)
        await self.stage.call("XTRIM", self.stage.stream, "MINID", pending[0][0])

    async def remove_idle_consumer(self, consumer):
        """Hand over what the consumer holds, then remove it."""
        held = await self.stage.call("XPENDING", self.stage.stream, GROUP, "-", "+", 1000, consumer)
        for id_, *_ in held:
            await self.stage.call("XCLAIM", self.stage.stream, GROUP, "heir", 0, id_, "JUSTID")
        await self.stage.call("XGROUP", "DELCONSUMER", self.stage.stream, GROUP, consumer)
