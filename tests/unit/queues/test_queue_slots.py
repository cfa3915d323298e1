"""Jobs that run alone, and what waits for them."""

import asyncio
from types import SimpleNamespace

from penstock.queues.worker.concurrency import ExclusiveRun


async def test_one_job_alone_after_the_other_keeps_no_reader_waiting():
    exclusive = ExclusiveRun(set(), lambda: None)
    first, second, seen = SimpleNamespace(), SimpleNamespace(), []

    async def read():
        await exclusive.until_over()
        exclusive.begin_reading()
        seen.append("reads")
        await asyncio.sleep(0.01)
        seen.append("has read")
        exclusive.end_reading()

    async with exclusive.alone(first):
        reading = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        assert seen == []
    async with exclusive.alone(second):  # at once: nothing else had its turn
        assert seen == ["reads", "has read"]
        assert exclusive.is_alone
    await reading
    async with exclusive.alone(first):
        assert exclusive.is_alone
