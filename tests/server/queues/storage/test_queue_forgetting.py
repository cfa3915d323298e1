"""What is remembered about jobs is forgotten with them."""

from tests.kit.scripts import scripts_of

from penstock.testing.eventually import eventually


async def test_that_jobs_were_cancelled_is_forgotten_by_a_claim_that_finds_no_jobs(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def note() -> None: ...

    queue = note.queue
    lost = await note.send()
    assert await lost.cancel()
    await app.redis.call("DEL", queue.keyring.waiting)  # as another program may do
    assert await app.redis.call("SCARD", queue.keyring.cancelled) == 1

    await workplace.start(app)

    async def forgotten():
        return await app.redis.call("EXISTS", queue.keyring.cancelled) == 0

    await eventually(forgotten)


async def test_an_idle_worker_forgets_jobs_whose_records_have_gone(workplace):
    app = await workplace.open()
    queue, client = app.queue("mail"), app.redis
    states = ("done", "failed", "cancelled", "expired")
    for state in states:
        old = [word for number in range(1_000) for word in (number, f"j{number}")]
        await client.call("ZADD", queue.keyring.jobs(state), *old, 4e12, "new")

    @queue.handler()
    async def handle(job: dict) -> None: ...

    await workplace.start(app)

    async def swept():
        left = [await client.call("ZRANGE", queue.keyring.jobs(state), 0, -1) for state in states]
        return left == [[b"new"]] * len(states)

    await eventually(swept)


async def test_one_call_forgets_a_bounded_number_and_more_than_it_can_add(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def note() -> None: ...

    keys, client = note.queue.keyring, app.redis
    old = [word for number in range(1_000) for word in (number, f"j{number}")]
    await client.call("ZADD", keys.jobs("cancelled"), *old)
    await (await note.send()).cancel()
    assert await client.call("ZCARD", keys.jobs("cancelled")) == 801
    while await scripts_of(client).sweep_records(keys=keys):
        pass
    assert await client.call("ZCARD", keys.jobs("cancelled")) == 1
