"""What is to happen once, while processes die, stand still and answers get lost."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import AsyncExitStack

import pytest
from tests.faults.queues.test_queue_network import OfScript
from tests.kit.once import once_of
from tests.kit.paths import PROGRAMS
from tests.kit.patience import patient
from tests.kit.workplace import stored

from penstock.coordination.once.keys import DedupeKeys
from penstock.coordination.once.once import Once
from penstock.errors import OutcomeUnknown, ReservationLost
from penstock.settings import OnceSettings, Settings, TimeoutSettings
from penstock.testing.eventually import eventually
from penstock.testing.link import RuleKind
from penstock.testing.processes import frozen

WORKER = PROGRAMS / "once_worker.py"
HOLD_S = 0.6
KEY = "c0ffee" * 8


class Failed(Exception):
    pass


@pytest.fixture
async def open_once(namespace):
    async with AsyncExitStack() as opened:

        async def open_one(url, **once) -> Once:
            settings = Settings(
                url=url,
                namespace=namespace,
                once=OnceSettings(**once),
                timeouts=TimeoutSettings(connect_s=0.5, command_s=0.5),
            )
            return await opened.enter_async_context(once_of(settings))

        yield open_one


class Child:
    """A process of `once/worker.py`."""

    def __init__(self, process):
        self.process = process

    async def heard(self):
        line = await asyncio.wait_for(self.process.stdout.readline(), 20)
        return json.loads(line)

    async def everything(self):
        told, _ = await asyncio.wait_for(self.process.communicate(b"\n"), 60)
        return [json.loads(line) for line in told.splitlines()]

    def go_on(self):
        self.process.stdin.write(b"\n")

    def kill(self):
        self.process.kill()


@pytest.fixture
async def start(valkey_server, namespace):
    """`await start(kind=…)` is a process that begins at once."""
    started = []

    async def start_one(**told) -> Child:
        told = {"url": valkey_server.url, "namespace": namespace, "key": KEY, **told}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(WORKER), json.dumps(told), stdin=pipe, stdout=pipe
        )
        started.append(process)
        return Child(process)

    yield start_one
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def at_work(start, **told):
    child = await start(kind="reserve", wait=True, hold_s=HOLD_S, value="/a.jpg", **told)
    assert await child.heard() == {"first": True, "value": "/a.jpg"}
    return child


async def is_free(once):
    return await once.peek(KEY) is None


# ---- processes


async def test_what_a_killed_process_has_reserved_is_free_after_its_hold(
    start, valkey_server, open_once
):
    once = await open_once(valkey_server.url)
    child = await at_work(start)
    killed = time.monotonic()
    child.kill()
    async with once.reserve(KEY) as mark:
        assert (mark.first, mark.value) == (False, "/a.jpg")
    await eventually(lambda: is_free(once))
    assert time.monotonic() - killed < patient(HOLD_S + 5)
    async with once.reserve(KEY, value="/b.jpg") as mark:
        assert mark.first
    assert await once.peek(KEY) == "/b.jpg"


async def test_a_living_process_holds_it_for_as_long_as_it_works(start, valkey_server, open_once):
    once = await open_once(valkey_server.url)
    child = await at_work(start)
    until = time.monotonic() + 3 * HOLD_S
    while time.monotonic() < until:
        async with once.reserve(KEY) as mark:
            assert not mark.first
    child.go_on()
    assert await child.heard() == {"ended": ""}
    assert await once.peek(KEY) == "/a.jpg"


@pytest.mark.parametrize("successor", ["has done it", "is at work"])
async def test_one_that_stood_still_for_too_long_is_told_and_sets_no_mark(
    start, valkey_server, open_once, successor
):
    once = await open_once(valkey_server.url)
    child = await at_work(start)
    async with AsyncExitStack() as work:
        with frozen(child.process.pid):
            await eventually(lambda: is_free(once))
            mark = await work.enter_async_context(once.reserve(KEY, value="/b.jpg"))
            assert mark.first
            if successor == "has done it":
                await work.aclose()
        child.go_on()
        assert await child.heard() == {"ended": "ReservationLost"}
        assert await once.peek(KEY) == "/b.jpg"
    assert await once.peek(KEY) == "/b.jpg"


async def test_one_that_stood_still_and_was_not_overtaken_marks_it(start, valkey_server, open_once):
    once = await open_once(valkey_server.url)
    child = await at_work(start)
    with frozen(child.process.pid):
        await eventually(lambda: is_free(once))
    child.go_on()
    assert await child.heard() == {"ended": ""}
    assert await once.peek(KEY) == "/a.jpg"


async def test_a_terminated_process_leaves_nothing_for_longer_than_its_hold(
    start, valkey_server, open_once
):
    once = await open_once(valkey_server.url)
    child = await at_work(start)
    child.process.send_signal(signal.SIGINT)  # asyncio.run cancels the block
    await eventually(lambda: is_free(once))


@pytest.mark.parametrize("kind", ["reserve", "seen", "enqueue"])
async def test_of_fifty_processes_exactly_one_is_first(start, valkey_server, open_once, kind):
    once = await open_once(valkey_server.url)
    crowd = await start(kind=kind, crowd=50)
    assert sorted([(await crowd.heard())["ready"] for _ in range(50)]) == list(range(50))
    told = await crowd.everything()
    firsts = [one for one in told if one.get("first")]
    assert len([one for one in told if "first" in one]) == 50
    assert len(firsts) == 1
    assert await once.peek(KEY) == firsts[0]["value"]
    jobs = await stored(once.app.queue("work"))
    assert len(jobs) == (kind == "enqueue")


# ---- the network


async def through(proxy, server, open_once, **options):
    """One whose answers may get lost, and one that talks to the server; both know the scripts."""
    troubled, calm = await open_once(proxy.url, **options), await open_once(server.url)
    queue = calm.app.queue("work")
    for one in (troubled, calm):
        async with one.reserve("warm"):
            pass
        with pytest.raises(Failed):
            async with one.reserve("warm", replay=True), one.reserve("warm up"):
                raise Failed
        await one.forget("warm", queue=queue)
        await one.enqueue("warm", one.app.queue("work"), 0)
        await one.forget("warm", queue=queue)
    await calm.app.redis.call("DEL", queue.keyring.waiting)
    return troubled, calm


FAULTS = [RuleKind.SWALLOW, RuleKind.CUT]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("script", ["reserve_once", "commit_once"])
async def test_a_lost_word_is_said_again_and_one_is_first(
    valkey_server, fault_proxy, open_once, script, times, fault
):
    proxy = fault_proxy(valkey_server)
    troubled, calm = await through(proxy, valkey_server, open_once)
    rule = proxy.add(OfScript(script, fault, times))
    async with troubled.reserve(KEY, value="/a.jpg") as mark:
        assert (mark.first, mark.value) == (True, "/a.jpg")
        async with calm.reserve(KEY) as second:
            assert not second.first
    assert rule.hits == times
    async with calm.reserve(KEY) as third:
        assert (third.first, third.value) == (False, "/a.jpg")
    assert await calm.app.redis.call("PTTL", DedupeKeys.of(calm.app.redis.keys, KEY).mark) > 100_000


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_lost_release_is_said_again(valkey_server, fault_proxy, open_once, fault):
    proxy = fault_proxy(valkey_server)
    troubled, calm = await through(proxy, valkey_server, open_once)
    rule = proxy.add(OfScript("release_once", fault))
    with pytest.raises(Failed):
        async with troubled.reserve(KEY):
            raise Failed
    assert rule.hits == 1
    assert await is_free(calm)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_lost_renewal_is_made_up_for(valkey_server, fault_proxy, open_once, fault):
    proxy = fault_proxy(valkey_server)
    troubled, calm = await through(proxy, valkey_server, open_once, hold_s=3.0)
    rule = proxy.add(OfScript("renew_once", fault))
    until = time.monotonic() + 4.0
    async with troubled.reserve(KEY, value="/a.jpg") as mark:
        while time.monotonic() < until:
            async with calm.reserve(KEY) as second:
                assert not second.first
            await asyncio.sleep(0.02)
        assert not mark.lost
    assert rule.hits == 1
    assert await calm.peek(KEY) == "/a.jpg"


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_job_whose_answer_is_lost_is_added_once(
    valkey_server, fault_proxy, open_once, fault, replay
):
    proxy = fault_proxy(valkey_server)
    troubled, calm = await through(proxy, valkey_server, open_once)
    rule = proxy.add(OfScript("submit_jobs", fault, 2))
    queue = troubled.app.queue("work")
    added = await troubled.enqueue(KEY, queue, 1, value="/a.jpg", replay=replay)
    assert (added.first, added.value) == (True, "/a.jpg")
    assert rule.hits == 2
    assert not (await calm.enqueue(KEY, calm.app.queue("work"), 2)).first
    assert len(await stored(queue)) == 1


async def test_a_second_one_with_the_same_job_id_is_not_taken_for_the_first(
    valkey_server, fault_proxy, open_once
):
    proxy = fault_proxy(valkey_server)
    troubled, calm = await through(proxy, valkey_server, open_once)
    assert (await calm.enqueue(KEY, calm.app.queue("work"), 1, job_id="one")).first
    proxy.add(OfScript("submit_jobs", RuleKind.SWALLOW))
    second = await troubled.enqueue(KEY, troubled.app.queue("work"), 1, job_id="one")
    assert not second.first


async def test_many_behind_a_bad_line_and_exactly_one_is_first(
    valkey_server, fault_proxy, open_once
):
    proxy = fault_proxy(valkey_server)
    troubled, calm = await through(proxy, valkey_server, open_once)
    proxy.add(OfScript("reserve_once", RuleKind.SWALLOW, 2))
    proxy.add(OfScript("reserve_once", RuleKind.CUT))
    proxy.add(OfScript("commit_once", RuleKind.SWALLOW))

    async def one(number):
        async with (troubled, calm)[number % 2].reserve(KEY, value=str(number)) as mark:
            return mark.first

    for _ in range(3):
        assert sum(await asyncio.gather(*map(one, range(50)))) == 1
        await calm.forget(KEY)


async def test_who_hears_nothing_when_it_asks_whether_it_was_seen_does_not_guess(
    valkey_server, fault_proxy, open_once
):
    proxy = fault_proxy(valkey_server)
    troubled, calm = await through(proxy, valkey_server, open_once)
    proxy.swallow("SET")
    with pytest.raises(OutcomeUnknown):
        await troubled.seen(KEY, "/a.jpg")
    assert await calm.peek(KEY) == "/a.jpg"


async def test_work_whose_server_is_away_for_a_moment_is_marked_when_it_is_back(
    valkey_server, fault_proxy, open_once
):
    proxy = fault_proxy(valkey_server)
    troubled, calm = await through(proxy, valkey_server, open_once)
    async with troubled.reserve(KEY, value="/a.jpg"):
        proxy.stop_listening()
        proxy.cut()
        asyncio.get_running_loop().call_later(0.5, proxy.heal)
    assert await calm.peek(KEY) == "/a.jpg"


async def test_who_cannot_renew_learns_that_it_may_be_overtaken(
    valkey_server, fault_proxy, open_once
):
    proxy = fault_proxy(valkey_server)
    troubled, calm = await through(proxy, valkey_server, open_once, hold_s=HOLD_S)
    with pytest.raises(ReservationLost):  # noqa: PT012
        async with troubled.reserve(KEY, value="/a.jpg") as mark:
            proxy.blackhole()
            await eventually(lambda: is_free(calm))
            assert mark.lost, "it knows before the server lets others in"
            assert not await calm.seen(KEY, "/b.jpg")
            proxy.heal()
    assert await calm.peek(KEY) == "/b.jpg"


async def test_a_full_server_takes_the_end_of_what_was_begun(start_server, open_once):
    for binary in ("valkey", "redis62"):
        server = start_server(binary)
        once = await open_once(server.url, hold_s=HOLD_S)
        async with once.reserve(KEY, value="/a.jpg"):
            server.command("CONFIG", "SET", "maxmemory", "1")
            until = time.monotonic() + 2 * HOLD_S
            while time.monotonic() < until:
                assert await once.peek(KEY) == "/a.jpg"
                await asyncio.sleep(0)
        assert await once.peek(KEY) == "/a.jpg"
        assert (
            await once.app.redis.call("PTTL", DedupeKeys.of(once.app.redis.keys, KEY).mark)
            > 100_000
        )
