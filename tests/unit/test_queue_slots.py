"""Jobs that run alone, and what waits for them."""

import asyncio
from types import SimpleNamespace

import pytest

from penstock.queues.pulse import Pulse
from penstock.queues.slots import Slots
from penstock.queues.task_limits import TaskLimits


@pytest.fixture
async def slots():
    work = SimpleNamespace(threads=SimpleNamespace(lost=0, when_changed=None))
    return Slots(
        work,
        places=8,
        ahead=0,
        ahead_bytes=0,
        limits=TaskLimits(keep=0, keep_bytes=0, most_aside=0, only_task=False),
        when_news=lambda: None,
        pulse=Pulse(silence_s=5, beat_s=1),
    )


async def test_one_job_alone_after_the_other_keeps_nobody_from_reading_in_between(slots):
    first, second, told = SimpleNamespace(), SimpleNamespace(), []

    async def read():
        await slots.shared()
        slots.begin_reading()
        told.append("reads")
        await asyncio.sleep(0.01)
        told.append("has read")
        slots.end_reading()

    async with slots.alone(first):
        reading = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        assert told == []
    async with slots.alone(second):  # at once: nothing else had its turn
        assert told == ["reads", "has read"]
        assert slots.is_alone
    await reading
    async with slots.alone(first):
        assert slots.is_alone
