"""When batches are closed: to the millisecond on a virtual clock, within a second on a real one."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime

import pytest
from tests.kit.patience import patient

from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.window import Window
from penstock.testing.eventually import eventually
from penstock.testing.virtual_time import VirtualTime

pytestmark = pytest.mark.one_server

BEGIN_MS = 1_769_250_600_123
"""2026-01-24T10:30:00.123Z"""


class Desk:
    """A window of 90 and 30 seconds, its closer, and the clock by which they go."""

    def __init__(self, app, **options):
        self.app = app
        self.time = VirtualTime(app.redis)
        told = {"max_age": 90, "idle": 30, **options}
        self.window = Window(app.redis, app.codec, "batch", to=app.queue("analysis_queue"), **told)
        self.closer = WindowCloser(app.redis, app.codec, [self.window])

    async def at(self, seconds):
        """Let it be so long after the beginning."""
        await self.time.set_ms(BEGIN_MS + round(seconds * 1000))

    async def add(self, item, key="front_door", **options):
        return await self.window.add(key, item, **options)

    async def jobs(self):
        key = self.app.queue("analysis_queue").keyring.waiting
        return [json.loads(job) for job in await self.app.redis.call("LRANGE", key, 0, -1)]


@pytest.fixture
async def desk(app):
    desk = Desk(app)
    await desk.at(0)
    return desk


@pytest.mark.parametrize(("seconds", "closed"), [(89, 0), (89.999, 0), (90, 1), (91, 1)])
async def test_a_batch_is_closed_90_seconds_after_its_first_item_despite_activity(
    desk, seconds, closed
):
    for number in range(0, 90, 20):
        await desk.at(number)
        await desk.add(number)
    await desk.at(seconds)
    assert await desk.closer.look() == closed
    for job in await desk.jobs():
        assert job["reason"] == "max_age"
        assert job["detection_ids"] == [0, 20, 40, 60, 80]
        assert job["ended_ms"] - job["started_ms"] == round(seconds * 1000)


@pytest.mark.parametrize(("seconds", "closed"), [(29, 0), (29.999, 0), (30, 1), (31, 1)])
async def test_a_batch_is_closed_30_seconds_after_its_latest_item(desk, seconds, closed):
    await desk.add(1)
    await desk.at(20)
    await desk.add(2)
    await desk.at(20 + seconds)
    assert await desk.closer.look() == closed
    for job in await desk.jobs():
        assert (job["reason"], job["detection_ids"]) == ("idle", [1, 2])


@pytest.mark.parametrize(("seconds", "joins"), [(29, True), (30, False), (31, False)])
async def test_an_item_that_comes_when_the_batch_is_due_opens_another_though_no_closer_came(
    desk, seconds, joins
):
    first = await desk.add(1)
    await desk.at(seconds)
    second = await desk.add(2)
    assert (second.batch_id == first.batch_id) is joins
    assert second.closed == (None if joins else first.batch_id)
    assert [job["detection_ids"] for job in await desk.jobs()] == ([] if joins else [[1]])


async def test_the_age_counts_for_an_item_that_comes_late_as_well(desk):
    for number in range(0, 100, 10):
        await desk.at(number)
        added = await desk.add(number)
    assert added.closed
    [job] = await desk.jobs()
    assert job["detection_ids"] == list(range(0, 90, 10))
    assert job["reason"] == "max_age"


async def test_windows_are_due_one_by_one(desk):
    await desk.add(1, "front")
    await desk.at(10)
    await desk.add(2, "back")
    assert [one.key for one in await desk.window.open_batches()] == ["front", "back"]
    await desk.at(30)
    assert await desk.closer.look() == 1
    assert [one.key for one in await desk.window.open_batches()] == ["back"]
    await desk.at(40)
    assert await desk.closer.look() == 1
    assert [job["camera_id"] for job in await desk.jobs()] == ["front", "back"]


async def test_a_batch_tells_when_it_began_ended_and_got_its_latest_item(desk):
    await desk.add(1)
    await desk.at(12.5)
    await desk.add(2)
    await desk.at(43)
    await desk.closer.look()
    [job] = await desk.jobs()
    assert job["started_at"] == "2026-01-24T10:30:00.123Z"
    assert job["last_activity"] == "2026-01-24T10:30:12.623Z"
    assert job["ended_at"] == "2026-01-24T10:30:43.123Z"
    assert (job["started_ms"], job["ended_ms"]) == (BEGIN_MS, BEGIN_MS + 43_000)


async def test_after_an_outage_of_days_every_batch_is_closed_at_the_first_look(desk):
    for number in range(50):
        await desk.add(number, f"camera-{number}")
    await desk.at(10 * 86_400)
    assert await desk.closer.look() == 50
    assert sorted(job["detection_ids"][0] for job in await desk.jobs()) == list(range(50))


async def test_updates_are_told_once_a_second(desk):
    for tenth in range(25):
        await desk.at(tenth / 10)
        await desk.add(tenth)
    place = (await desk.window.target.stores())[0]
    entries = await desk.app.redis.call("XRANGE", place.index.events, "-", "+")
    told = [(fields[1].decode(), json.loads(fields[3])["count"]) for _, fields in entries]
    # The clock of the test begins 0.123 seconds after a full second.
    assert told == [("open", 1), ("update", 10), ("update", 20)]


async def test_an_id_is_forgotten_after_its_time(desk):
    await desk.add(1, id="one")
    await desk.at(3599)
    assert not (await desk.add(1, id="one")).is_new
    await desk.at(3600)
    assert (await desk.add(1, id="one")).is_new
    assert not (await desk.add(1, id="one")).is_new


async def test_ids_that_are_forgotten_leave_the_server_a_few_at_a_time(desk):
    for number in range(50):
        await desk.add(number, id=str(number))
    place = (await desk.window.target.stores())[0]
    await desk.at(4000)
    left = []
    for number in range(41):
        await desk.add(number, id=f"new {number}", fast=number == 40)
        left.append(await desk.app.redis.call("ZCARD", place.seen("front_door")))
    # Twenty of them with every tenth item.
    assert left[:10] == [31, *range(32, 41)]
    assert left[10] == 40 + 1 - 20
    assert left[20] == left[19] + 1 - 10
    assert left[-1] == 41
    assert await desk.app.redis.call("PTTL", place.seen("front_door")) > 3_500_000


async def test_a_clock_that_is_set_back_keeps_no_batch_open_for_long(desk):
    await desk.at(3600)
    await desk.add(1)
    await desk.at(0)
    await desk.add(2)
    for second in range(20, 90, 20):
        await desk.at(second)
        assert await desk.closer.look() == 0
        await desk.add(second)
    await desk.at(90)
    assert await desk.closer.look() == 1
    [job] = await desk.jobs()
    assert job["detection_ids"] == [1, 2, 20, 40, 60, 80]


async def test_a_running_closer_closes_when_the_time_has_come_and_not_before(desk):
    await desk.add(1)
    await desk.at(29.999)
    async with desk.closer:
        await eventually(lambda: desk.closer.looks >= 3)
        assert await desk.jobs() == []
        await desk.at(30)
        [job] = await eventually(desk.jobs)
    assert job["ended_ms"] == BEGIN_MS + 30_000


async def test_on_a_real_clock_batches_are_closed_within_a_second_of_their_time(app):
    queue = app.queue("analysis_queue")
    window = Window(app.redis, app.codec, "batch", to=queue, max_age=1.2, idle=0.4)

    async def none_is_open():
        return await window.open_batches() == []

    async with WindowCloser(app.redis, app.codec, [window]):
        for turn in range(12):
            await asyncio.gather(
                *(window.add(f"camera-{n}", turn) for n in range(20) if turn < 4 or n % 2)
            )
            await asyncio.sleep(0.13)
        await eventually(none_is_open)
    late = []
    for text in await app.redis.call("LRANGE", queue.keyring.waiting, 0, -1):
        job = json.loads(text)
        last_ms = job["started_ms"] if job["count"] == 1 else _ms(job["last_activity"])
        late.append(job["ended_ms"] - min(job["started_ms"] + 1200, last_ms + 400))
    assert len(late) >= 30
    assert min(late) >= 0
    assert max(late) <= patient(1000)


def _ms(text):
    return round(datetime.fromisoformat(text).timestamp() * 1000)
