"""Calls that come at the same time are one call; a lone one waits for nobody."""

import asyncio

import pytest

from penstock.errors import QueueError
from penstock.queues.producer.call_batching import CallBatcher


class Server:
    """Answers with what it was sent, when it is let."""

    def __init__(self):
        self.calls, self.open = [], asyncio.Event()

    async def send(self, place, jobs):
        self.calls.append((place, list(jobs)))
        await self.open.wait()
        if place == "broken":
            raise QueueError("no")
        return [job * 10 for job in jobs]


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_lone_call_leaves_at_once():
    server = Server()
    server.open.set()
    batcher = CallBatcher(server.send, 3)
    assert await batcher.add("a", 1) == 10
    assert await batcher.add("a", 2) == 20
    assert server.calls == [("a", [1]), ("a", [2])]


async def test_what_comes_while_others_are_under_way_leaves_together_by_place():
    server = Server()
    batcher = CallBatcher(server.send, 3)
    places = ["a", "a", "b", "a", "a", "a", "b"]
    tasks = [asyncio.create_task(batcher.add(place, n)) for n, place in enumerate(places)]
    await turns()
    assert server.calls[0] == ("a", [0])
    assert sorted(server.calls[1:]) == [("a", [1, 3, 4]), ("a", [5]), ("b", [2, 6])]
    server.open.set()
    assert await asyncio.gather(*tasks) == [n * 10 for n in range(7)]


async def test_who_gives_up_takes_nobody_along_and_a_failure_reaches_all():
    server = Server()
    batcher = CallBatcher(server.send, 10)
    first = asyncio.create_task(batcher.add("a", 1))
    await turns()
    others = [asyncio.create_task(batcher.add("a", n)) for n in (2, 3)]
    failing = [asyncio.create_task(batcher.add("broken", n)) for n in (4, 5)]
    await turns()
    others[0].cancel()
    server.open.set()
    assert await first == 10
    assert await others[1] == 30
    for task in failing:
        with pytest.raises(QueueError):
            await task


async def test_closing_waits_for_the_calls_in_flight():
    server = Server()
    batcher = CallBatcher(server.send, 10)
    first = asyncio.create_task(batcher.add("a", 1))
    await turns()
    others = [asyncio.create_task(batcher.add("a", n)) for n in (2, 3)]
    await turns()
    closing = asyncio.create_task(batcher.close())
    await turns()
    assert not closing.done()
    server.open.set()
    await closing
    assert await asyncio.gather(first, *others) == [10, 20, 30]
