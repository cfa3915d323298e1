"""Gathering texts: fewer calls, nobody's failure is another's, nothing waits without need."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from penstock.errors import DocumentRefused, EmbedderFailed, NotOpen
from penstock.pipelines.documents.embedding.embedder import Batcher, Embedding


class Recorder:
    """An embedder that notes its calls, and ends them when told; a text is its own vector."""

    model, dimension = "recorder", 1

    def __init__(self, *, free=True):
        self.calls, self.opened, self.running, self.most_running = [], 0, 0, 0
        self.go_on = asyncio.Event()
        if free:
            self.go_on.set()
        self.began = asyncio.Semaphore(0)
        self.fail = lambda _: None

    async def open(self):
        self.opened += 1

    async def close(self):
        self.opened -= 1

    async def embed(self, texts):
        self.calls.append(list(texts))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.began.release()
        try:
            await self.go_on.wait()
            await asyncio.sleep(0)
            if (error := self.fail(texts)) is not None:
                raise error
            return Embedding([text.encode() for text in texts], 10 * len(texts), len(texts) // 2)
        finally:
            self.running -= 1


@asynccontextmanager
async def batching(embedder, most=10, wait_s=0.0, **words):
    batcher = Batcher(embedder, most, wait_s, **words)
    await batcher.open()
    try:
        yield batcher
    finally:
        await batcher.close()


async def test_who_asks_in_the_same_turn_goes_together_and_each_gets_his_own():
    embedder = Recorder()
    async with batching(embedder) as batcher:
        asked = await asyncio.gather(*(batcher.embed([f"{n}a", f"{n}b"]) for n in range(5)))
    assert embedder.calls == [[f"{n}{letter}" for n in range(5) for letter in "ab"]]
    assert [one.vectors for one in asked] == [[b"%da" % n, b"%db" % n] for n in range(5)]
    assert [one.tokens for one in asked] == [20] * 5
    assert [one.cached for one in asked] == [1] * 5


async def test_tokens_are_divided_without_losing_any():
    async with batching(Recorder(), most=100) as batcher:
        texts = [["a" * n] * n for n in range(1, 9)]
        asked = await asyncio.gather(*map(batcher.embed, texts))
    assert sum(one.tokens for one in asked) == 80
    assert sum(one.cached for one in asked) == 4


async def test_equal_texts_go_once():
    embedder = Recorder()
    async with batching(embedder) as batcher:
        asked = await asyncio.gather(batcher.embed(["x", "y", "x"]), batcher.embed(["y", "z"]))
    assert embedder.calls == [["x", "y", "z"]]
    assert [one.vectors for one in asked] == [[b"x", b"y", b"x"], [b"y", b"z"]]


async def test_more_texts_than_fit_go_in_several_calls_in_their_order():
    embedder = Recorder()
    texts = [str(number) for number in range(95)]
    async with batching(embedder, at_once=3) as batcher:
        answer = await batcher.embed(texts)
    assert answer.vectors == [text.encode() for text in texts]
    assert answer.tokens == 950
    assert [len(call) for call in embedder.calls] == [10] * 9 + [5]
    assert embedder.most_running == 3


async def test_a_call_has_so_many_characters_unless_one_text_has_more():
    embedder = Recorder()
    async with batching(embedder, most_characters=10) as batcher:
        await batcher.embed(["a" * 4, "b" * 4, "c" * 4, "d" * 30, "e"])
    assert embedder.calls == [["a" * 4, "b" * 4], ["c" * 4], ["d" * 30], ["e"]]


async def test_a_short_document_is_not_held_up_by_a_long_one():
    embedder = Recorder()
    async with batching(embedder) as batcher:
        long = asyncio.create_task(batcher.embed([f"long {number}" for number in range(1_000)]))
        await embedder.began.acquire()
        await batcher.embed(["short"])
        assert len(embedder.calls) <= 3
        long.cancel()


async def test_the_idle_embedder_is_asked_at_once_and_a_busy_one_after_the_wait():
    embedder = Recorder(free=False)
    async with batching(embedder, wait_s=3_600, at_once=2) as batcher:
        first = asyncio.create_task(batcher.embed(["first"]))
        async with asyncio.timeout(60):
            await embedder.began.acquire()
        later = [asyncio.create_task(batcher.embed([f"{n}"])) for n in range(9)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(embedder.calls) == 1, "they wait for company"
        later.append(asyncio.create_task(batcher.embed(["9"])))
        async with asyncio.timeout(60):
            await embedder.began.acquire()
        assert embedder.calls[1] == [str(n) for n in range(10)], "a full call does not wait"
        last = asyncio.create_task(batcher.embed(["last"]))
        await asyncio.sleep(0)
        embedder.go_on.set()
        async with asyncio.timeout(60):
            await asyncio.gather(first, *later, last)
        assert embedder.calls[2] == ["last"], "nothing is under way: it waits no longer"


async def test_what_waits_for_company_goes_alone_when_its_time_is_up():
    embedder = Recorder(free=False)
    async with batching(embedder, wait_s=0.02, at_once=2) as batcher:
        first = asyncio.create_task(batcher.embed(["first"]))
        await embedder.began.acquire()
        second = asyncio.create_task(batcher.embed(["second"]))
        async with asyncio.timeout(60):
            await embedder.began.acquire()
        assert embedder.calls == [["first"], ["second"]]
        embedder.go_on.set()
        await asyncio.gather(first, second)


async def test_a_failed_call_fails_those_who_have_texts_in_it_and_no_others():
    embedder = Recorder()
    embedder.fail = lambda texts: EmbedderFailed("busy") if "bad" in texts else None
    async with batching(embedder, most=2) as batcher:
        asked = await asyncio.gather(
            *map(batcher.embed, (["bad"], ["with it"], ["other"], ["another"])),
            return_exceptions=True,
        )
        assert [type(one) for one in asked] == [EmbedderFailed] * 2 + [Embedding] * 2
        calls = len(embedder.calls)
        with pytest.raises(EmbedderFailed):
            await batcher.embed(["bad", *map(str, range(100))])
        await asyncio.sleep(0)
        assert len(embedder.calls) <= calls + 2, "the rest of a document that failed is not sent"


async def test_a_bad_text_spoils_only_its_own_document():
    embedder = Recorder()
    embedder.fail = lambda texts: DocumentRefused("too long") if "bad" in texts else None
    async with batching(embedder) as batcher:
        asked = await asyncio.gather(
            *map(batcher.embed, (["a", "b"], ["c", "bad"], ["d"])), return_exceptions=True
        )
    assert asked[0].vectors == [b"a", b"b"]
    assert isinstance(asked[1], DocumentRefused)
    assert asked[2].vectors == [b"d"]
    assert embedder.calls == [["a", "b", "c", "bad", "d"], ["a", "b"], ["c", "bad"], ["d"]]


async def test_a_refusal_that_is_about_no_text_is_not_asked_for_again():
    embedder = Recorder()
    embedder.fail = lambda _: DocumentRefused("no key", "ERR_EMBEDDER_FORBIDDEN")
    async with batching(embedder) as batcher:
        asked = await asyncio.gather(*map(batcher.embed, (["a"], ["b"])), return_exceptions=True)
    assert [type(one) for one in asked] == [DocumentRefused] * 2
    assert len(embedder.calls) == 1


async def test_what_an_embedder_raises_by_mistake_reaches_its_callers():
    embedder = Recorder()
    embedder.fail = lambda _: ZeroDivisionError()
    async with batching(embedder) as batcher:
        with pytest.raises(ZeroDivisionError):
            await batcher.embed(["a"])
        embedder.fail = lambda _: None

        async def short(texts):
            return Embedding([b""] * (len(texts) - 1), 0)

        kept, embedder.embed = embedder.embed, short
        with pytest.raises(EmbedderFailed, match="1 vectors for 2"):
            await batcher.embed(["a", "b"])
        embedder.embed = kept
        assert (await batcher.embed(["a"])).vectors == [b"a"]


async def test_the_waiting_texts_of_a_caller_who_has_gone_are_not_sent():
    embedder = Recorder(free=False)
    async with batching(embedder) as batcher:
        first = asyncio.create_task(batcher.embed(["first"]))
        await embedder.began.acquire()
        gone = asyncio.create_task(batcher.embed(["gone"]))
        stays = asyncio.create_task(batcher.embed(["stays"]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        embedder.go_on.set()
        assert (await stays).vectors == [b"stays"]
        assert (await first).vectors == [b"first"]
    assert embedder.calls == [["first"], ["stays"]]


async def test_a_call_goes_on_while_anybody_waits_for_it_and_ends_when_nobody_does():
    embedder = Recorder(free=False)
    async with batching(embedder) as batcher:
        both = [asyncio.create_task(batcher.embed([name])) for name in "ab"]
        await embedder.began.acquire()
        both[0].cancel()
        await asyncio.wait([both[0]])
        assert embedder.running == 1
        both[1].cancel()
        await asyncio.wait([both[1]])
        for _ in range(5):
            await asyncio.sleep(0)
        assert embedder.running == 0
        embedder.go_on.set()
        assert (await batcher.embed(["c"])).vectors == [b"c"]


async def test_the_last_who_closes_ends_it_and_who_waits_hears_of_it():
    embedder = Recorder(free=False)
    batcher = Batcher(embedder, 1, 0.0)
    with pytest.raises(NotOpen):
        await batcher.embed(["x"])
    await batcher.close()
    await asyncio.gather(batcher.open(), batcher.open())
    assert embedder.opened == 1
    waiting = [asyncio.create_task(batcher.embed([name])) for name in "abc"]
    await embedder.began.acquire()
    await batcher.close()
    assert embedder.opened == 1
    await batcher.close()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in ended] == [EmbedderFailed] * 3
    assert (embedder.opened, embedder.running) == (0, 0)
    await batcher.open()
    embedder.go_on.set()
    assert (await batcher.embed(["again"])).vectors == [b"again"]
    await batcher.close()
    assert (batcher.model, batcher.dimension) == ("recorder", 1)


async def test_an_embedder_that_cannot_be_opened_may_be_opened_later():
    embedder, batcher = Recorder(), None

    async def refuses():
        raise EmbedderFailed("away")

    opens, embedder.open = embedder.open, refuses
    batcher = Batcher(embedder, 1, 0.0)
    with pytest.raises(EmbedderFailed):
        await batcher.open()
    embedder.open = opens
    await batcher.open()
    assert (await batcher.embed(["x"])).vectors == [b"x"]
    assert await batcher.embed([]) == ([], 0, 0)
    await batcher.close()


async def test_in_any_order_of_coming_going_and_failing_everybody_gets_his_own():
    embedder = Recorder()
    embedder.fail = lambda texts: (
        DocumentRefused("poison")
        if any("poison" in text for text in texts)
        else EmbedderFailed("busy")
        if len(embedder.calls) % 17 == 0
        else None
    )

    async def document(number):
        for _ in range(number % 5):
            await asyncio.sleep(0)
        kind = "poison" if number % 11 == 0 else "text"
        texts = [f"{kind} {number % 30} {at}" for at in range(number % 13)]
        try:
            async with asyncio.timeout(None if number % 7 else 0.001):
                answer = await batcher.embed(texts)
        except (EmbedderFailed, TimeoutError):
            return
        except DocumentRefused:
            assert kind == "poison"
            return
        assert answer.vectors == [text.encode() for text in texts]

    async with batching(embedder, most=16, wait_s=0.001, at_once=4) as batcher, asyncio.timeout(30):
        await asyncio.gather(*map(document, range(600)))
        assert embedder.most_running <= 4
