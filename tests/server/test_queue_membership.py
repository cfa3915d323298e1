"""A worker is a member of its queues for as long as it lives, and leaves them in good order."""

from tests.workplace import in_hand

from penstock.testing.eventually import eventually


async def members(queue):
    return await queue.client.call("ZRANGE", queue.keyring.workers, 0, -1, "WITHSCORES")


async def test_a_worker_says_that_it_lives_to_every_queue_it_serves(workplace):
    app = await workplace.open()
    queues = [app.queue(name) for name in ("mail", "reports", "images")]

    for queue in queues:

        @queue.handler
        async def handle(job: dict) -> None: ...

    await workplace.start(app)
    for queue in queues:

        async def is_member(queue=queue):
            return await members(queue)

        (worker, joined) = await eventually(is_member)

        async def has_beaten(queue=queue, worker=worker, joined=joined):
            name, beat = await members(queue)
            return name == worker and int(beat) > int(joined)

        await eventually(has_beaten)


async def test_a_worker_that_stops_is_a_member_no_more_and_has_nothing_in_hand(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)

    worker = await workplace.start(app)
    await note.send_many([(number,) for number in range(100)])
    await eventually(lambda: len(ran) == 100)
    await worker.stop()
    assert await members(note.queue) == []
    assert not await in_hand(note.queue)
