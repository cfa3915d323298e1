"""A job has one id: of its handle, at every attempt, in its letter, and after a requeue."""

from penstock import Fixed, RetryPolicy, current_job
from penstock.queues.storage.keys import QueueKeys
from penstock.testing.eventually import eventually

AT_ONCE = RetryPolicy(max_attempts=2, backoff=Fixed(0.01))


async def test_a_task_keeps_the_id_of_its_handle_through_retries_letters_and_requeues(workplace):
    app = await workplace.open()
    seen: list[str] = []

    @app.task(queue="mail", retry=AT_ONCE)
    async def send(_: int) -> None:
        seen.append(current_job().id)
        raise ValueError("no")

    await workplace.start(app)
    handle = await send.send(1)
    letters = app.queues.dead_letters("mail")
    for runs in (2, 4):
        await eventually(lambda runs=runs: len(seen) == runs)
        [letter] = (await eventually(lambda: letters_of(letters))).letters
        assert letter.job_id == handle.id
        assert (await letters.replay()).replayed == 1
    await eventually(lambda: len(seen) == 6)
    assert set(seen) == {handle.id}
    assert type(handle.id) is str


async def letters_of(letters):
    page = await letters.list()
    return page if page.letters else None


async def test_a_raw_job_without_an_id_gets_one_and_keeps_it(workplace):
    app = await workplace.open()
    seen: list[str] = []

    @app.queue("raw").handler(retry=AT_ONCE)
    async def handle(_: dict[str, int]) -> None:
        seen.append(current_job().id)
        raise ValueError("no")

    await workplace.start(app)
    await app.redis.call("RPUSH", QueueKeys.of(app.redis.keys, "raw").waiting, '{"a":1}')
    [letter] = (await eventually(lambda: letters_of(app.queues.dead_letters("raw")))).letters
    assert seen == [letter.job_id] * 2
    assert letter.job_id
