"""Jobs of tasks whose code the sender does not have."""

from penstock.testing.eventually import eventually


async def test_a_job_sent_by_name_gets_its_record_when_it_begins(workplace):
    there, here = await workplace.open(), await workplace.open()

    @there.task(queue="mail", name="shop.welcome", status=True)
    async def welcome(user_id: int) -> str:
        return f"greeted {user_id}"

    job = await here.send("shop.welcome", [42], queue="mail")
    await workplace.start(there)

    async def found():
        page = await here.queues.jobs("mail", state="done", name="shop.welcome")
        return [one.job_id for one in page.jobs] == [job.id]

    await eventually(found)
    assert await job.result(timeout_s=60) == "greeted 42"
