"""What is remembered about jobs is forgotten with them."""

from penstock.testing.eventually import eventually


async def test_that_jobs_were_cancelled_is_forgotten_when_none_waits_any_more(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail", status=True)
    async def note(number: int) -> None:
        ran.append(number)

    queue = note.queue
    purged = await note.send(1)
    assert await purged.cancel()
    await app.queues.purge("mail")
    assert await app.redis.call("SCARD", queue.keyring.cancelled) == 1

    await workplace.start(app)
    await note.send(2)
    await eventually(lambda: ran == [2])

    async def forgotten():
        return await app.redis.call("EXISTS", queue.keyring.cancelled) == 0

    await eventually(forgotten)
