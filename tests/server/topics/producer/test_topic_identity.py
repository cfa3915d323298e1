"""A message has one id: unique in its topic, the same wherever and however often it appears."""

import asyncio

from penstock import Fixed, Message, Outgoing, RetryPolicy
from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import PartitionKeys

ONCE = RetryPolicy(max_attempts=1)
AT_ONCE = RetryPolicy(max_attempts=3, backoff=Fixed(0.01))


async def take(consume, topic, group="group", **options):
    """Start a consumer that notes the id of each payload; how often each came."""
    got: dict[object, list[str]] = {}

    async def note(payload: object, message: Message) -> None:
        got.setdefault(payload, []).append(message.id)

    await consume(topic, note, group, **options)
    return got


async def test_ids_are_texts_that_differ_in_the_topic_and_equal_what_send_returned(app, consume):
    orders = app.topic("orders", partitions=8, type=int)
    sent = await orders.send_batch(range(900), key=lambda number: str(number % 50))
    sent += [await orders.send(number) for number in range(900, 1000)]
    got = await take(consume, orders)
    await eventually(lambda: len(got) == 1000)
    assert [got[number] for number in range(1000)] == [[id_] for id_ in sent]
    assert len(set(sent)) == 1000
    assert {type(id_) for id_ in sent} == {str}
    page = await app.topics.browse("orders", limit=1000)
    assert {one.id for one in page.messages} == set(sent)


async def test_a_handler_recognises_a_repeat_by_the_id(app, consume):
    orders = app.topic("orders", partitions=4, type=int)
    bills, starts = list[int](), list[int]()

    async def bill(number: int, message: Message) -> None:
        starts.append(number)
        async with app.once(message.id, scope="billing") as mark:
            if mark.first:
                bills.append(number)
        if starts.count(number) == 1:
            raise ConnectionError("the answer was lost, though the bill was written")

    await consume(orders, bill, "billing", retry=AT_ONCE, ordering="key")
    await orders.send_batch([Outgoing(number, key=f"k{number % 9}") for number in range(200)])
    await eventually(lambda: len(starts) == 400)
    assert sorted(bills) == list(range(200))


async def test_the_same_id_comes_with_redelivery_growth_and_replay(app, consume):
    """An owner that is cut short, a topic that grows, letters that are replayed, twice."""
    orders = app.topic("orders", partitions=2, type=int)
    sent = await orders.send_batch(range(100), key=lambda number: f"k{number}")
    ids = dict(enumerate(sent))
    cut: dict[int, str] = {}

    async def hang(number: int, message: Message) -> None:
        cut[number] = message.id
        await asyncio.sleep(60)

    first = await consume(orders, hang, ordering="key")
    await eventually(lambda: len(cut) >= 20)
    first._task.cancel()  # as if its process had ended: nothing it holds is settled
    await asyncio.wait([first._task])
    failing, fine = True, set[int]()
    tries: dict[int, list[str]] = {}

    async def fail(number: int, message: Message) -> None:
        tries.setdefault(number, []).append(message.id)
        if failing:
            raise ValueError("not yet")
        fine.add(number)

    await consume(orders, fail, retry=AT_ONCE, ordering="key")
    letters = orders.dead_letters
    await eventually(lambda: len(tries) == 100)

    async def all_dead() -> bool:
        return await letters.count() == 100

    await eventually(all_dead)
    await app.topics.grow("orders", 5)
    found = (await letters.list(200)).letters
    assert {letter.message_id for letter in found} == set(sent)
    assert (await letters.replay()).replayed == 100
    await eventually(all_dead)
    failing = False
    assert (await letters.replay(to="all")).replayed == 100
    await eventually(lambda: len(fine) == 100)
    for number, id_ in ids.items():
        assert set(tries[number]) == {id_}
        assert cut.get(number, id_) == id_
    more = await orders.send_batch(range(100))
    assert not set(more) & set(sent)


async def test_a_delayed_message_is_handled_under_the_id_that_send_returned(app, consume):
    orders = app.topic("orders", partitions=3, type=int)
    got = await take(consume, orders, "fine")
    sent = [await orders.send(number, key="k", delay=0.05) for number in range(20)]
    again = [
        await orders.send(number, idempotency_key=f"i{number}", delay=0.05, headers={"a": "b"})
        for number in (20, 20)
    ]
    assert again[0] == again[1]
    await eventually(lambda: len(got) == 21)
    assert [got[number] for number in range(21)] == [[id_] for id_ in (*sent, again[0])]
    assert len({*sent, *again}) == 21
    assert {one.id for one in (await app.topics.browse("orders")).messages} == {*sent, *again}


async def test_a_repeat_under_an_idempotency_key_returns_the_first_id(app, consume):
    orders = app.topic("orders", partitions=8, type=int)
    first = [await orders.send(n, idempotency_key=f"i{n}") for n in range(30)]
    assert [await orders.send(n, idempotency_key=f"i{n}") for n in range(30)] == first
    large = await orders.send(1 << 4000, idempotency_key="large")
    got = await take(consume, orders)
    await eventually(lambda: len(got) == 31)
    assert [got[n] for n in range(30)] == [[id_] for id_ in first]
    assert got[1 << 4000] == [large]


async def test_letters_and_pending_views_name_the_message_by_its_id(app, consume):
    orders = app.topic("orders", partitions=4, type=int)
    later = await orders.send(1, delay=0.01)
    now = await orders.send(2, key="x")
    held = asyncio.Event()

    async def wait(_: int) -> None:
        await held.wait()

    slow = await consume(orders, wait, "slow")
    await eventually(lambda: len(slow.partitions) == 4)

    async def pending() -> bool:
        page = await app.topics.pending("orders", "slow")
        return {one.id for one in page.pending} == {later, now}

    await eventually(pending)
    paged = await app.topics.pending("orders", "slow", limit=1)
    rest = await app.topics.pending("orders", "slow", cursor=paged.cursor)
    assert {one.id for one in (*paged.pending, *rest.pending)} == {later, now}
    held.set()

    async def fail(_: int) -> None:
        raise ValueError("no")

    await consume(orders, fail, "failing", retry=ONCE)

    async def buried() -> bool:
        return {one.message_id for one in (await orders.dead_letters.list()).letters} == {
            later,
            now,
        }

    await eventually(buried)


async def test_an_entry_of_a_foreign_producer_is_identified_by_its_place(app, consume):
    orders = app.topic("orders", partitions=2, type=int)
    await orders.metadata()
    stream = PartitionKeys.of(app.redis.keys, "orders", 1).stream
    entry = await app.redis.call("XADD", stream, "*", "payload", "7")
    odd = await app.redis.call("XADD", stream, "*", "payload", "8", "messageId", "\xff x")
    got = await take(consume, orders)
    await eventually(lambda: len(got) == 2)
    assert got == {7: [f"1-{entry.decode()}"], 8: [f"1-{odd.decode()}"]}


async def test_a_message_id_is_a_position_from_which_groups_and_readers_go_on(app, consume):
    orders = app.topic("orders", partitions=1, type=int)
    sent = [await orders.send(number) for number in range(5)]
    got = await take(consume, orders, start=sent[2])
    await eventually(lambda: len(got) == 2)
    assert sorted(got) == [3, 4]
    page = await app.topics.browse("orders", start=sent[1], end=sent[3])
    assert [one.id for one in page.messages] == sent[1:4]
