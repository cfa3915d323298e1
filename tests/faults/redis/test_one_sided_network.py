"""One side of a connection ends, or one direction falls silent: nothing is lost or out of order."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from typing import ClassVar

import pytest
from tests.kit.patience import patient
from tests.kit.scripts import scripts_of

from penstock import Penstock
from penstock.errors import OutcomeUnknown, Unreachable
from penstock.queues.worker.claimed_jobs import ClaimedJobs, WorkerCounts
from penstock.queues.worker.membership import Membership
from penstock.settings import Settings
from penstock.testing.eventually import eventually
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.message import Message
from penstock.topics.subscription import Subscription

POLL_S = 1.0
COMMAND_S = 0.4
RECOVERY_S = POLL_S + 1.0
"""From the fault, or from what is sent after it, to the end of everything that was sent."""
LOADED_S = 1.0
"""What a loaded machine may need besides."""
APART_S = 0.6
"""Between faults: a connection that breaks sooner after it was opened counts as refused."""
KEYS = 3
PATIENT = {"timeouts.connect_s": 5.0, "timeouts.command_s": 5.0}
"""The defaults."""

FAULTS = {
    "the client's side is reset": lambda proxy, **which: proxy.cut(
        reset=True, side="client", **which
    ),
    "the client's side is closed": lambda proxy, **which: proxy.cut(side="client", **which),
    "the end reaches the server late": lambda proxy, **which: proxy.cut(
        side="client", keep_s=0.7, **which
    ),
    "the server's side is reset": lambda proxy, **which: proxy.cut(
        reset=True, side="server", **which
    ),
    "replies vanish": lambda proxy, **which: proxy.drop(way="to_client", **which),
    "requests vanish": lambda proxy, **which: proxy.drop(way="to_server", **which),
}
LATE = "requests arrive after their client has given up"


async def befall(fault, proxy, **which):
    if fault in FAULTS:
        FAULTS[fault](proxy, **which)
        return
    proxy.latency(0.7, way="to_server")
    await asyncio.sleep(0.05)  # requests are on their way
    proxy.cut(reset=True, side="client", **which)
    proxy.latency(0, way="to_server")


@pytest.fixture
async def behind(namespace, fault_proxy):
    """`await behind(server)` gives an application behind a proxy, one that is not, the proxy."""
    async with AsyncExitStack() as opened:

        async def open_both(server, *, unix=False, **settings):
            proxy = fault_proxy(server, unix=unix)
            url = f"unix://{server}" if unix else server.url
            far = {
                "worker.poll_s": POLL_S,
                "timeouts.connect_s": COMMAND_S,
                "timeouts.command_s": COMMAND_S,
                "queues.silence_s": 30.0,
                "topics.balance_s": 0.1,
                "feeds.poll_s": 0.5,
                "pools.wait_s": 0.1,
                **settings,
            }
            apps = [
                Penstock(settings=Settings.load({"url": url, "namespace": namespace, **options}))
                for url, options in ((proxy.url, far), (url, {}))
            ]
            for app in apps:
                await opened.enter_async_context(app)
            return *apps, proxy

        yield open_both


@asynccontextmanager
async def running(app):
    """A worker of the application, ready."""
    worker = app.worker()
    task = asyncio.create_task(worker.run())
    try:
        await eventually(lambda: worker.readiness().ready)
        yield worker
    finally:
        await worker.stop()
        assert await task == 0


class Handled:
    """Notes the numbers that a handler gets."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def __call__(self, message: Message) -> None:
        self.seen.append(message.payload)


# ---- topics


async def blocked(server, command: str) -> None:
    """Wait until a client of the server waits in a command."""

    def is_waiting() -> bool:
        lines = server.command("CLIENT", "LIST").splitlines()
        return any(f"cmd={command}" in line and "flags=b" in line for line in lines)

    await eventually(is_waiting)


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_read_that_outlives_its_client_takes_no_message(behind, any_server, fault, pause_s):
    """Only the connection that waits for messages is affected, and messages come then."""
    app, producer, proxy = await behind(any_server)
    handled = Handled()
    topic = app.topic("orders", type=int, partitions=1)
    async with Consumer(topic, handled, Subscription(group="billing")):
        sending = producer.topic("orders", type=int)
        await sending.send(0, key="k")
        await eventually(lambda: handled.seen == [0])
        await blocked(any_server, "xreadgroup")
        await befall(fault, proxy, command="XREADGROUP")
        await asyncio.sleep(pause_s)
        for number in range(1, 6):
            await sending.send(number, key="k")
            await asyncio.sleep(0.01)
        await eventually(lambda: len(handled.seen) == 6)
        assert handled.seen == [0, 1, 2, 3, 4, 5]
        await eventually(lambda: is_settled(producer))


async def is_settled(app):
    """Whether nothing is pending, in whichever partition."""
    view = await app.topics.lag("orders", "billing")
    return view.pending == view.lag == 0


# ---- everything that keeps its promise over a connection


class Subject:
    """Something that takes numbers near the server and shows them behind the proxy, or back."""

    in_order = False

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def put(self, number: int) -> None:
        raise NotImplementedError

    async def is_over(self) -> bool:
        """Whether nothing is left on the server."""
        return True


class TopicSubject(Subject):
    """A consumer of three partitions behind the proxy."""

    in_order = True
    options: ClassVar = {"ordering": "partition"}

    @asynccontextmanager
    async def running(self, app, near):
        @app.topic("orders", type=int, partitions=3).subscribe("billing", **self.options)
        async def handle(message: Message) -> None:
            self.seen.append(message.payload)

        self._near, self._topic = near, near.topic("orders", type=int)
        async with running(app) as worker:
            yield worker

    async def put(self, number):
        await self._topic.send(number, key=str(number % KEYS))

    async def is_over(self):
        return await is_settled(self._near)


class KeyedSubject(TopicSubject):
    options: ClassVar = {"ordering": "key"}


class PollingSubject(TopicSubject):
    """A consumer that gets no connection of its own, and asks over the shared one."""

    @asynccontextmanager
    async def running(self, app, near):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 60, before[1]))  # fewer than are spared
        try:
            async with super().running(app, near) as worker:
                assert "poll" in worker.readiness().notes[0]
                yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


class QueueSubject(Subject):
    """A worker of a queue behind the proxy."""

    options: ClassVar = {}

    @asynccontextmanager
    async def running(self, app, near):
        @app.queue("work", type=int, **self.options).handler
        async def handle(number: int) -> None:
            self.seen.append(number)

        self._near, self._queue = near, near.queue("work", type=int, **self.options)
        async with running(app):
            yield

    async def put(self, number):
        await self._queue.push(number)

    async def is_over(self):
        return await self._near.queues.drain("work", timeout_s=0.1)


class StatusSubject(QueueSubject):
    options: ClassVar = {"status": True}


class WindowSubject(Subject):
    """Items are added, and batches closed, behind the proxy; they come out near the server."""

    @asynccontextmanager
    async def running(self, app, near):
        batches = near.queue("batches")

        @batches.handler
        async def gather(job: dict) -> None:
            self.seen += job["detection_ids"]

        options = {"max_age": 0.3, "idle": 0.1}
        self._window = app.window("batch", to=app.queue("batches"), **options)
        async with running(near), running(app):
            yield

    async def put(self, number):
        await self._window.add(str(number % KEYS), number, id=str(number))


class FeedSubject(Subject):
    """A reader behind the proxy."""

    in_order = True

    @asynccontextmanager
    async def running(self, app, near):
        self._feed = near.feed("news")
        await self._feed.publish("begin")
        reading = asyncio.create_task(self._read(app.feed("news")))
        try:
            yield
        finally:
            reading.cancel()

    async def _read(self, feed):
        async for event in feed.read(after=1):
            self.seen.append(event.number - 2)

    async def put(self, number):
        assert await self._feed.publish("tick") == number + 2


class SlotSubject(Subject):
    """One slot, taken and given back behind the proxy."""

    @asynccontextmanager
    async def running(self, app, near):
        self._slots, self._near = app.slots("gpu", 1, lease=0.5), near.slots("gpu", 1)
        self._inside = 0
        yield

    async def put(self, number):
        async with self._slots.hold():
            self._inside += 1
            assert self._inside == 1
            await asyncio.sleep(0)
            self._inside -= 1
        self.seen.append(number)

    async def is_over(self):
        return await self._near.holders() == []


class LimitSubject(Subject):
    """Permits, waited for behind the proxy."""

    @asynccontextmanager
    async def running(self, app, near):
        self._limit = app.limit("calls", "1000/s")
        yield

    async def put(self, number):
        await self._limit.acquire()
        self.seen.append(number)


SUBJECTS = {
    "topic": TopicSubject,
    "topic by key": KeyedSubject,
    "topic over shared connections": PollingSubject,
    "queue": QueueSubject,
    "queue with records": StatusSubject,
    "window": WindowSubject,
    "feed": FeedSubject,
    "slot": SlotSubject,
    "limit": LimitSubject,
}


async def put_surely(subject, number):
    """Repeat what the caller of a refused or unanswered call would repeat."""
    while True:
        try:
            return await subject.put(number)
        except (OutcomeUnknown, Unreachable):
            await asyncio.sleep(0.05)


async def go_through(subject, proxy, fault, *, rounds, each=6):
    """Befall all connections again and again while numbers are put; the longest recovery."""
    number, longest_s = 0, 0.0
    for _ in range(rounds):
        await asyncio.sleep(APART_S)
        for _ in range(each):
            if number % each == each // 2:
                await befall(fault, proxy)
                began = time.monotonic()
            await put_surely(subject, number)
            number += 1
            await asyncio.sleep(0.005)
        await eventually(lambda put=number: len(subject.seen) >= put)
        longest_s = max(longest_s, time.monotonic() - began)
    await eventually(subject.is_over)
    assert sorted(subject.seen) == list(range(number))
    if subject.in_order:
        for key in range(KEYS):
            of_key = [one for one in subject.seen if one % KEYS == key]
            assert of_key == sorted(of_key)
    return longest_s


@pytest.mark.parametrize("fault", [*FAULTS, LATE])
@pytest.mark.parametrize("name", SUBJECTS)
async def test_nothing_is_lost_repeated_or_stuck(behind, valkey_server, name, fault):
    app, near, proxy = await behind(valkey_server)
    subject = SUBJECTS[name]()
    async with subject.running(app, near):
        longest_s = await go_through(subject, proxy, fault, rounds=2)
    assert longest_s <= patient(RECOVERY_S + LOADED_S)


@pytest.mark.parametrize("fault", ["replies vanish", "requests vanish"])
@pytest.mark.parametrize("name", ["topic", "topic by key", "queue", "queue with records"])
async def test_half_open_connections_are_replaced_long_before_commands_time_out(
    behind, valkey_server, name, fault
):
    app, near, proxy = await behind(valkey_server, **PATIENT)
    subject = SUBJECTS[name]()
    async with subject.running(app, near):
        longest_s = await go_through(subject, proxy, fault, rounds=2)
    assert longest_s <= patient(RECOVERY_S + LOADED_S)


@pytest.mark.parametrize("fault", ["the client's side is reset", "replies vanish"])
@pytest.mark.parametrize("name", ["topic", "queue"])
async def test_clients_of_an_embedded_server_recover_as_well(behind, embed, name, fault):
    embedded = embed()
    await asyncio.to_thread(embedded.attach)
    app, near, proxy = await behind(embedded.socket, unix=True)
    subject = SUBJECTS[name]()
    async with subject.running(app, near):
        assert await go_through(subject, proxy, fault, rounds=1) <= patient(RECOVERY_S + LOADED_S)


@pytest.mark.parametrize("fault", ["the client's side is reset", "replies vanish"])
async def test_a_worker_that_cannot_read_does_not_say_that_it_is_ready(
    behind, valkey_server, fault
):
    app, near, proxy = await behind(valkey_server)
    subject = TopicSubject()
    async with subject.running(app, near) as worker:
        await put_surely(subject, 0)
        await eventually(lambda: subject.seen == [0])
        proxy.refuse()
        await befall(fault, proxy)
        await eventually(lambda: not worker.readiness().ready)
        await put_surely(subject, 1)
        view = await near.topics.lag("orders", "billing")
        assert view.lag + view.pending == 1
        proxy.heal()
        await eventually(lambda: subject.seen == [0, 1])
        await eventually(lambda: worker.readiness().ready)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["topic", "queue"])
async def test_five_hundred_one_sided_resets_under_load(behind, valkey_server, name, figure):
    app, near, proxy = await behind(valkey_server)
    subject, resets, sent = SUBJECTS[name](), 500, 0
    recoveries_s = []

    async def send_for_ever():
        nonlocal sent
        while True:
            await subject.put(sent)
            sent += 1
            await asyncio.sleep(0.005)

    async with subject.running(app, near):
        sending = asyncio.create_task(send_for_ever())
        for number in range(resets):
            await asyncio.sleep(APART_S)
            began, which = time.monotonic(), {"command": "XREADGROUP"} if number % 4 == 3 else {}
            proxy.cut(reset=number % 2 == 0, side="client", **which)
            await eventually(lambda until=sent + 20: len(subject.seen) >= until)
            recoveries_s.append(time.monotonic() - began)
        sending.cancel()
        await asyncio.wait([sending])
        await eventually(lambda: len(subject.seen) >= sent)
        await eventually(subject.is_over)
    lost = set(range(sent)) - set(subject.seen)
    disorder = sum(
        one > other
        for key in range(KEYS)
        for one, other in pairwise([n for n in subject.seen if n % KEYS == key])
    )
    title = f"{resets} one-sided resets, {sent} sent to a {name}"
    figure("one-sided network", f"{title}: lost", len(lost), "", "<=", 0)
    figure("one-sided network", f"{title}: repeated", len(subject.seen) - sent, "", "<=", 0)
    if subject.in_order:
        figure("one-sided network", f"{title}: out of order", disorder, "", "<=", 0)
    figure("one-sided network", f"{title}: slowest", max(recoveries_s), "s", "<=", RECOVERY_S)


async def test_claims_that_are_lost_together_cost_one_pause(behind, valkey_server):
    app, near, proxy = await behind(valkey_server, **{"queues.prefetch": 1})
    subject = QueueSubject()
    async with subject.running(app, near):
        proxy.blackhole(way="to_client")
        for number in range(100):
            await subject.put(number)
        await asyncio.sleep(COMMAND_S / 2)  # as many claims as may be are under way
        proxy.cut(reset=True)
        proxy.heal()
        await eventually(lambda: len(subject.seen) >= 100)
        await eventually(subject.is_over)
    assert sorted(subject.seen) == list(range(100))


async def test_a_claim_that_arrives_after_the_look_for_it_is_found(behind, valkey_server):
    """The call was given up, and nothing found; then the server gets it all the same."""
    app, near, proxy = await behind(valkey_server)
    queue = app.queue("work", type=int)
    counts = WorkerCounts()
    claims = ClaimedJobs(Membership(app.redis, queue.keyring, "w"), app.codec, counts)
    await claims.membership.join()
    await near.queue("work", type=int).push(1)
    proxy.latency(2 * COMMAND_S, way="to_server")
    with pytest.raises(OutcomeUnknown):
        await claims.claim(5)
    proxy.heal()
    found = []

    async def is_found() -> bool:
        with suppress(Unreachable):  # it is not tried more often than twice a second
            found.extend(await claims.claim(0))
        return bool(found)

    await eventually(is_found)
    assert [job.item.data for job in found] == [b"1"]
    assert len(claims.jobs) == 1
    assert counts.strays == 1


async def test_a_job_in_hand_that_the_worker_does_not_know_is_found(behind, valkey_server):
    """Whatever the cause: here another program has claimed it in the worker's name."""
    app, near, _ = await behind(valkey_server)
    keys, counts = app.queue("work", type=int).keyring, WorkerCounts()
    claims = ClaimedJobs(Membership(app.redis, keys, "w"), app.codec, counts)
    await claims.membership.join()
    assert await claims.claim(5) == []
    await near.queue("work", type=int).push(1)
    await scripts_of(near.redis).claim_jobs(keys=keys, worker="w", first=1, most=1, done=[])
    found = []

    async def is_found() -> bool:
        found.extend(await claims.claim(0))
        return bool(found)

    await eventually(is_found)
    assert counts.strays == len(found) == 1
