"""Megabytes: compressed and unpacked in threads, taken by bytes as well as by number."""

import asyncio
import secrets
import threading

import pytest
from tests.kit.workplace import claim_as, in_hand, letters, record, stored

from penstock import DecodeError, Fixed, RetryPolicy
from penstock.queues.worker.claimed_jobs import WorkerCounts
from penstock.queues.worker.reaper import Reaper
from penstock.redis.codec import Codec
from penstock.redis.codec.off_loop import LARGE
from penstock.redis.codec.zstd import Zstd
from penstock.testing.eventually import eventually

SOON = RetryPolicy(max_attempts=3, backoff=Fixed(0.01))


def large_text() -> str:
    """Half of it can be compressed away."""
    return secrets.token_hex(LARGE)


@pytest.fixture
def threads(monkeypatch):
    """Which threads have packed and unpacked large payloads, by what they did."""
    seen: dict[str, set[threading.Thread]] = {"pack": set(), "unpack": set()}
    for name, of_name in seen.items():
        wrapped = getattr(Zstd, name)

        def noted(self, data, *rest, wrapped=wrapped, of_name=of_name):
            result = wrapped(self, data, *rest)
            if max(len(data), len(result)) > LARGE:
                of_name.add(threading.current_thread())
            return result

        monkeypatch.setattr(Zstd, name, noted)
    return seen


def assert_none_here(threads, *done):
    for what in done:
        assert threads[what], f"nothing large: {what}"
    assert threading.current_thread() not in threads["pack"] | threads["unpack"]


# ---- in threads


async def test_jobs_and_results_are_packed_and_unpacked_in_threads(workplace, threads):
    app, texts = await workplace.open(), [large_text() for _ in range(3)]

    @app.task(queue="big", status=True, retry=SOON)
    async def echo(text: str, fails: bool = False) -> str:
        if fails and not attempts:
            attempts.append(1)
            raise ValueError("again")
        return text

    attempts: list[int] = []
    await workplace.start(app)
    jobs = [await echo.send(texts[0]), *await echo.send_many([(text,) for text in texts[1:]])]
    assert [await job.result(timeout_s=60) for job in jobs] == texts
    assert await (await echo.send(texts[0], fails=True)).result(timeout_s=60) == texts[0]
    assert_none_here(threads, "pack", "unpack")


async def test_raw_jobs_are_packed_and_unpacked_in_threads(workplace, threads):
    app, ran = await workplace.open(), []
    queue = app.queue("raw")

    @queue.handler()
    async def note(data: dict) -> None:
        ran.append(data["text"])

    texts = [large_text() for _ in range(3)]
    await queue.push({"text": texts[0]})
    await queue.push({"text": texts[1]}, job_id="named", expires=60)
    await queue.push_many([{"text": texts[2]}])
    await workplace.start(app)
    await eventually(lambda: len(ran) == 3)
    assert sorted(ran) == sorted(texts)
    assert_none_here(threads, "pack", "unpack")


async def test_what_dead_workers_had_is_read_and_written_in_threads(workplace, threads):
    app = await workplace.open(max_job_bytes=4 * LARGE)
    queue = app.queue("big")
    await queue.push(large_text())
    assert len(await claim_as(queue, "w1", 1)) == 1
    client = app.redis
    await client.call("ZADD", queue.keyring.workers, 1, "w1")
    reaper = Reaper(client, app.codec, queue.keyring, lambda _: SOON, WorkerCounts())
    threads["pack"].clear()
    assert await reaper.reap(1) == 1
    assert_none_here(threads, "pack", "unpack")


async def test_messages_are_packed_and_unpacked_in_threads(app, consume, threads):
    notes = app.topic("notes", type=str)
    texts, seen = [large_text() for _ in range(4)], []

    async def handle(text: str) -> None:
        seen.append(text)

    await notes.send(texts[0])
    await notes.send_batch(["small", texts[1], texts[2], "small"])
    await notes.send(texts[3], idempotency_key="k")
    await consume(notes, handle)
    await eventually(lambda: len(seen) == 6)
    assert sorted(seen) == sorted([*texts, "small", "small"])
    assert_none_here(threads, "pack", "unpack")


async def test_cached_values_are_packed_and_unpacked_in_threads(app, threads):
    cache, text = app.cache("c"), large_text()
    await cache.set("k", [text])
    assert await cache.get("k") == [text]
    assert_none_here(threads, "pack", "unpack")


async def test_small_payloads_never_leave_the_event_loop(workplace, monkeypatch):
    async def refuse(*_):
        raise AssertionError("a thread for a small payload")

    monkeypatch.setattr(Codec, "finish", refuse)
    monkeypatch.setattr(Codec, "decode_large", refuse)
    app, ran = await workplace.open(), []

    @app.task(queue="small", status=True)
    async def note(text: str) -> str:
        ran.append(text)
        return text

    await workplace.start(app)
    text = "x" * (LARGE // 2)
    assert await (await note.send(text)).result(timeout_s=60) == text


@pytest.mark.parametrize("ends", ["packed", "cut short"])
async def test_messages_of_a_key_stay_in_order_behind_a_large_one(app, ends):
    notes = app.topic("notes", type=str)
    await notes.send("first", key="k")
    sends = [
        asyncio.create_task(notes.send(text, key="k"))
        for text in (large_text(), large_text(), "small", "smaller")
    ]
    other = asyncio.create_task(notes.send("of another key", key="j"))
    await asyncio.sleep(0)
    if ends == "cut short":
        sends[1].cancel()
    ids = [
        one for one in await asyncio.gather(*sends, return_exceptions=True) if isinstance(one, str)
    ]
    await other
    assert len(ids) == (3 if ends == "cut short" else 4)
    assert ids == sorted(ids, key=_place)


def _place(id_):
    _, ms, number = id_.split("-")
    return int(ms), int(number)


# ---- results


async def test_a_result_that_is_too_large_is_told_and_the_work_is_not_done_again(workplace):
    app, ran = await workplace.open(max_result_bytes=1_000), []

    @app.task(queue="big", status=True, retry=SOON)
    async def make(size: int) -> str:
        ran.append(size)
        return secrets.token_hex(size)

    await workplace.start(app)
    fits, too_large = await make.send(100), await make.send(1_000)
    assert len(await fits.result(timeout_s=60)) == 200
    assert await too_large.wait(timeout_s=60) == "done"
    with pytest.raises(DecodeError, match=r"queues\.max_result_bytes allows 1000"):
        await too_large.result()
    told = await record(make.queue, too_large.id)
    assert "result" not in told
    assert told["status"] == "done"
    assert told["error_type"] == "ResultNotStored"
    assert sorted(ran) == [100, 1_000]
    assert not await letters(make.queue)


async def test_a_result_that_is_no_json_is_told_in_the_record(workplace):
    app = await workplace.open()

    @app.task(queue="odd", status=True)
    async def make() -> object:
        return object()

    await workplace.start(app)
    job = await make.send()
    assert await job.wait(timeout_s=60) == "done"
    with pytest.raises(DecodeError, match="object"):
        await job.result()


# ---- claims


async def test_a_claim_is_bounded_by_bytes_but_never_empty(workplace):
    app = await workplace.open(prefetch_bytes=10_000, max_size=0)
    queue = app.queue("big")
    texts = [f"{number:03d}" + secrets.token_hex(1_500)[:2_997] for number in range(20)]
    for text in texts:
        await queue.client.call("RPUSH", queue.keyring.waiting, text)
    assert [text.decode() for text in await claim_as(queue, "w1", 250)] == texts[:3]
    assert [text.decode() for text in await stored(queue)] == texts[3:]
    await queue.client.call("LPUSH", queue.keyring.waiting, "x" * 50_000)
    assert [len(text) for text in await claim_as(queue, "w2", 250)] == [50_000]


async def test_jobs_that_do_not_fit_stay_in_their_places_whatever_came_before(workplace):
    app = await workplace.open(prefetch_bytes=10_000, max_size=0)
    queue = app.queue("mixed")
    jobs = [*("small" for _ in range(30)), *("x" * 4_000 for _ in range(9))]
    for side, pop in (("right", "RPUSH"), ("left", "LPUSH")):
        await queue.client.call("DEL", queue.keyring.waiting)
        await queue.client.call("HSET", queue.keyring.state, "side", side)
        await queue.client.call(pop, queue.keyring.waiting, *jobs)
        taken = await claim_as(queue, f"w-{side}", 250)
        assert [item.decode() for item in taken] == jobs[:32]
        left = await stored(queue)
        assert [item.decode() for item in (left if side == "right" else left[::-1])] == jobs[32:]


@pytest.mark.parametrize("lanes", [False, True])
async def test_a_worker_takes_all_large_jobs_although_no_claim_has_room_for_them(workplace, lanes):
    app, ran = await workplace.open(prefetch_bytes=10_000, max_size=0), []
    options = {"group": "g"} if lanes else {}

    @app.task(queue="big")
    async def note(number: int, text: str) -> None:
        ran.append(number)

    text = secrets.token_hex(2_000)
    for number in range(60):
        await note.with_options(**options).send(number, text)
    await workplace.start(app)
    await eventually(lambda: len(ran) == 60)
    assert sorted(ran) == list(range(60))


async def test_no_more_is_claimed_ahead_while_large_jobs_wait(workplace):
    app = await workplace.open(prefetch_bytes=10_000, max_size=0)
    queue, gate, running = app.queue("big", concurrency=2), asyncio.Event(), []

    @queue.handler()
    async def wait(text: str) -> None:
        running.append(text)
        if len(running) > 10:
            await gate.wait()

    for _ in range(200):
        await queue.client.call("RPUSH", queue.keyring.waiting, "x" * 4_000)
    await workplace.start(app)
    await eventually(lambda: len(running) > 11)
    assert await in_hand(queue) < 12
    gate.set()


async def test_claims_of_small_jobs_take_one_call_more_however_many_they_are(workplace):
    app = await workplace.open(max_size=0)
    queue = app.queue("small")
    await queue.push_many([{"n": number} for number in range(250)])
    await queue.client.call("CONFIG", "RESETSTAT")
    assert len(await claim_as(queue, "w1", 250)) == 250
    told = await queue.client.call("INFO", "commandstats")
    assert b"cmdstat_lpop:calls=2," in told


async def test_claims_of_dead_workers_are_read_back_by_bytes(workplace, monkeypatch):
    app = await workplace.open(prefetch_bytes=400_000_000, max_size=0)
    queue, client = app.queue("big"), app.redis
    jobs = [f"{number:02d}" + "x" * 1_000_000 for number in range(10)]
    for job in jobs:
        await client.call("RPUSH", queue.keyring.waiting, job)
    assert len(await claim_as(queue, "w1", 10)) == 10
    await client.call("ZADD", queue.keyring.workers, 1, "w1")
    largest, call = [0], client.call

    async def noted(*command, **more):
        reply = await call(*command, **more)
        if command[0] == "HMGET":
            largest[0] = max(largest[0], sum(map(len, reply)))
        return reply

    monkeypatch.setattr(client, "call", noted)
    reaper = Reaper(client, app.codec, queue.keyring, lambda _: SOON, WorkerCounts())
    assert await reaper.reap(1) == 10
    assert largest[0] <= 4 * 1024 * 1024
    assert len(await stored(queue)) == 10
