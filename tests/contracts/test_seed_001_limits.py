"""The security pipeline's request limits, letter by letter: its keys, tiers and headers."""

import time

import httpx
import pytest

from penstock.interfaces.asgi import RateLimitMiddleware

CLIENT = "192.168.1.100"
KEY = f"ratelimit:default:{CLIENT}"


@pytest.fixture
async def ask(app):
    """`await ask("/search", 3)` gives the responses to three requests of one client."""

    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    middleware = RateLimitMiddleware(
        answer, app, tier_of=lambda scope: scope["path"].strip("/") or "default"
    )
    transport = httpx.ASGITransport(middleware, client=(CLIENT, 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:

        async def several(path="/", times=1):
            return [await client.get(path) for _ in range(times)]

        yield several


async def test_admitted_requests_are_a_sorted_set_by_ms(ask, stock):
    before = time.time() * 1000
    await ask("/", 3)
    after = time.time() * 1000
    assert stock.type(KEY) == "zset"
    scores = [score for _, score in stock.zrange(KEY, 0, -1, withscores=True)]
    assert len(scores) == 3
    assert scores == sorted(scores)
    assert all(before - 1 <= score <= after + 1 for score in scores)


async def test_the_set_lives_for_its_window_and_not_much_longer(ask, stock):
    await ask()
    assert 60_000 < stock.pttl(KEY) <= 122_000


async def test_what_another_program_admitted_before_is_counted_while_it_is_in_the_window(
    ask, stock
):
    now = time.time() * 1000
    stock.zadd(KEY, {f"{now - 60_001}-{number}": now - 60_001 for number in range(70)})
    stock.zadd(KEY, {f"{now - 30_000}-{number}": now - 30_000 for number in range(69)})
    admitted, refused = await ask("/", 2)
    assert (admitted.status_code, refused.status_code) == (200, 429)
    assert 25 <= int(refused.headers["Retry-After"]) <= 30


@pytest.mark.parametrize(
    ("tier", "most"),
    [
        *(("default", 70), ("media", 130), ("websocket", 102), ("search", 40), ("export", 10)),
        *(("ai_inference", 13), ("bulk", 12)),
    ],
)
async def test_a_tier_admits_its_rate_and_its_burst_in_a_minute(ask, stock, tier, most):
    responses = await ask(f"/{tier}", most + 2)
    assert [one.status_code for one in responses] == [200] * most + [429] * 2
    assert stock.zcard(f"ratelimit:{tier}:{CLIENT}") == most
    assert responses[-1].json()["tier"] == tier


async def test_a_refusal_has_the_headers_that_callers_know(ask):
    refused = (await ask("/export", 11))[-1]
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert refused.headers["X-RateLimit-Limit"] == "10"
    assert refused.headers["X-RateLimit-Remaining"] == "0"
    assert 0 < int(refused.headers["X-RateLimit-Reset"]) - time.time() <= 61
    assert refused.json()["retry_after_seconds"] == int(refused.headers["Retry-After"])
