"""Dead letters stay as long as their own retention says."""

from penstock import DeadLetter, Penstock, Retention
from penstock.settings import Settings, TopicSettings, WorkerSettings
from penstock.testing.eventually import eventually


async def test_dead_letters_are_trimmed_by_a_retention_of_their_own(valkey_server, namespace):
    settings = Settings(
        url=valkey_server.url,
        namespace=namespace,
        topics=TopicSettings(janitor_s=0.1),
        worker=WorkerSettings(poll_s=0.2),
    )
    async with Penstock(settings=settings) as app:
        orders = app.topic("orders", type=int, dead_letter_retention=Retention(max_length=3))

        @orders.subscribe(group="billing")
        async def refuse(order: int) -> None:
            raise DeadLetter(f"{order} is not for us")

        await orders.send_batch(range(10))
        [consumer] = orders.consumers()
        async with consumer:
            await eventually(lambda: consumer.counts.dead == 10)

            async def three_are_left():
                return await orders.dead_letters.count() == 3

            await eventually(three_are_left)
        page = await orders.dead_letters.list()
        assert sorted(int(letter.payload.text) for letter in page.letters) == [7, 8, 9]
        assert (await app.topics.describe("orders")).length == 10  # the messages have theirs
