"""The middleware limits requests by tier and client, and tells every caller how it stands."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from tests.kit.patience import patient

from penstock import Penstock
from penstock.coordination.limits.keys import LimitKeys
from penstock.errors import NotOpen, SettingError
from penstock.interfaces import asgi
from penstock.interfaces.asgi import TIERS, RateLimitMiddleware, Tier
from penstock.settings import Settings

SMALL = {"default": Tier(2, 1), "search": Tier(1), "websocket": Tier(1)}


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """An application that greets, on either protocol."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        return
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


def by_path(scope: Any) -> str | None:
    return {"/search": "search", "/health": None}.get(scope["path"], "default")


@pytest.fixture
async def caller() -> AsyncIterator[Callable[..., httpx.AsyncClient]]:
    """`caller(middleware, "10.0.0.1")` gives a client that has this address."""
    opened: list[httpx.AsyncClient] = []

    def open_one(app: Any, address: str = "203.0.113.7") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app, client=(address, 4711))
        opened.append(httpx.AsyncClient(transport=transport, base_url="http://api"))
        return opened[-1]

    yield open_one
    for client in opened:
        await client.aclose()


async def connect(
    app: Any, address: str = "203.0.113.7", extensions: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Open a websocket by hand; what the application sent."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "websocket",
        "path": "/",
        "headers": [],
        "client": (address, 4711),
        "extensions": extensions or {},
    }

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def test_requests_above_a_tier_are_refused_and_told_when_to_come_back(app, caller):
    api = caller(RateLimitMiddleware(hello, app, SMALL))
    for left in (2, 1, 0):
        response = await api.get("/")
        assert (response.status_code, response.text) == (200, "hello")
        assert response.headers["x-ratelimit-remaining"] == str(left)
    refused = await api.get("/")
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    wait_s = int(refused.headers["retry-after"])
    assert 50 <= wait_s <= 60
    assert refused.json() == {
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "detail": f"At most 3 requests a minute are allowed here; try again in {wait_s} s.",
        "tier": "default",
        "retry_after_seconds": wait_s,
    }


async def test_every_response_has_the_standard_headers(app, caller):
    api = caller(RateLimitMiddleware(hello, app, SMALL))
    for _ in range(4):
        headers = (await api.get("/")).headers
        assert headers["ratelimit-policy"] == '"3/min";q=3;w=60'
        assert headers["ratelimit"].startswith('"3/min";r=')
        assert headers["x-ratelimit-limit"] == "3"
        assert 0 < int(headers["x-ratelimit-reset"]) - time.time() <= 61
    assert headers["x-ratelimit-remaining"] == "0"


async def test_what_the_application_says_itself_stays(app, caller):
    async def own(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"X-RateLimit-Limit", b"9")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    response = await caller(RateLimitMiddleware(own, app, SMALL)).get("/")
    assert response.headers.get_list("x-ratelimit-limit") == ["9"]
    assert response.headers["x-ratelimit-remaining"] == "2"


async def test_each_tier_and_each_client_is_counted_apart(app, caller):
    middleware = RateLimitMiddleware(hello, app, SMALL, tier_of=by_path)
    one, other = caller(middleware, "203.0.113.7"), caller(middleware, "203.0.113.8")
    assert [(await one.get("/search")).status_code for _ in range(2)] == [200, 429]
    assert (await one.get("/")).status_code == 200
    assert (await other.get("/search")).status_code == 200
    assert [(await one.get("/health")).status_code for _ in range(9)] == [200] * 9


async def test_processes_count_together(app, open_app, place, caller):
    apps = (app, await open_app(place))
    clients = [caller(RateLimitMiddleware(hello, one, SMALL)) for one in apps]
    codes = [(await clients[turn % 2].get("/")).status_code for turn in range(5)]
    assert codes == [200, 200, 200, 429, 429]


async def test_requests_at_the_same_moment_share_what_there_is(app, caller, monkeypatch):
    monkeypatch.setattr(asgi, "_ANSWER_S", 20)  # they all wait for each other here
    api = caller(RateLimitMiddleware(hello, app))
    responses = await asyncio.gather(*(api.get("/") for _ in range(200)))
    assert [one.status_code for one in responses].count(200) == 70


async def test_refused_requests_are_not_counted(app, caller):
    api = caller(RateLimitMiddleware(hello, app, SMALL))
    for _ in range(6):
        await api.get("/")
    assert (
        await app.redis.call("ZCARD", LimitKeys.of(app.redis.keys, "default", "203.0.113.7").log)
        == 3
    )


async def test_a_forwarded_address_counts_only_from_a_trusted_proxy(app, caller):
    suspicious = RateLimitMiddleware(hello, app, {"default": Tier(1)})
    api = caller(suspicious, "203.0.113.7")
    spoofed = [{"X-Forwarded-For": f"198.51.100.{number}"} for number in range(2)]
    assert [(await api.get("/", headers=one)).status_code for one in spoofed] == [200, 429]
    trusting = RateLimitMiddleware(
        hello, app, {"default": Tier(1)}, trusted_proxies=["203.0.113.0/24"]
    )
    api = caller(trusting, "203.0.113.7")
    assert [(await api.get("/", headers=one)).status_code for one in spoofed] == [200, 200]
    forged = {"X-Forwarded-For": "1.2.3.4, 198.51.100.1"}
    assert (await api.get("/", headers=forged)).status_code == 429


async def test_the_addresses_of_one_ipv6_network_are_one_caller(app, caller):
    middleware = RateLimitMiddleware(hello, app, {"default": Tier(1)})
    addresses = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"]
    codes = [(await caller(middleware, one).get("/")).status_code for one in addresses]
    assert codes == [200, 429, 200]
    log = LimitKeys.of(app.redis.keys, "default", "2001:db8::/64").log
    assert await app.redis.call("ZCARD", log) == 1


async def test_a_websocket_is_refused_before_it_is_accepted(app):
    middleware = RateLimitMiddleware(hello, app, SMALL)
    (accepted,) = await connect(middleware)
    assert accepted["type"] == "websocket.accept"
    assert dict(accepted["headers"])[b"x-ratelimit-remaining"] == b"0"
    assert await connect(middleware) == [{"type": "websocket.close", "code": 1008}]


async def test_a_websocket_is_told_why_where_the_server_can_say_it(app):
    middleware = RateLimitMiddleware(hello, app, SMALL)
    await connect(middleware)
    start, body = await connect(middleware, extensions={"websocket.http.response": {}})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert b"retry-after" in dict(start["headers"])
    assert body["type"] == "websocket.http.response.body"
    assert json.loads(body["body"])["tier"] == "websocket"


async def test_what_is_no_request_passes(app):
    seen = []

    async def living(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await RateLimitMiddleware(living, app)({"type": "lifespan"}, None, None)
    assert seen == ["lifespan"]


async def test_it_fits_into_fastapi(app, caller):
    api = FastAPI()
    api.add_middleware(RateLimitMiddleware, penstock=app, tiers=SMALL)

    @api.get("/")
    async def greet() -> str:
        return "hello"

    client = caller(api)
    assert [(await client.get("/")).status_code for _ in range(4)] == [200, 200, 200, 429]


async def test_a_tier_that_nobody_knows_is_an_error(app, caller):
    middleware = RateLimitMiddleware(hello, app, SMALL, tier_of=lambda _: "export")
    with pytest.raises(SettingError, match="one of default, search, websocket"):
        await caller(middleware).get("/")


async def test_an_application_that_is_not_open_does_not_mean_no_limits(valkey_server, caller):
    closed = Penstock(settings=Settings(url=valkey_server.url))
    with pytest.raises(NotOpen):
        await caller(RateLimitMiddleware(hello, closed)).get("/")


def test_the_usual_tiers_are_those_of_the_documentation():
    assert {name: (tier.per_minute, tier.burst) for name, tier in TIERS.items()} == {
        "default": (60, 10),
        "media": (120, 10),
        "websocket": (100, 2),
        "search": (30, 10),
        "export": (10, 0),
        "ai_inference": (10, 3),
        "bulk": (10, 2),
    }


def test_there_is_no_third_way_to_be_without_the_server():
    with pytest.raises(SettingError, match="'open' or 'closed'"):
        RateLimitMiddleware(hello, Penstock("redis://nowhere"), away="ajar")


class TestWithoutTheServer:
    @pytest.fixture
    async def proxy(self, valkey_server, fault_proxy):
        return fault_proxy(valkey_server)

    @pytest.fixture
    async def app(self, proxy, open_app: Callable[..., Awaitable[Penstock]]) -> Penstock:
        return await open_app(proxy.url)

    async def test_open_lets_requests_through(self, app, proxy, caller, caplog):
        api = caller(RateLimitMiddleware(hello, app, {"default": Tier(1)}))
        proxy.stop_listening()
        proxy.cut()
        responses = await asyncio.gather(*(api.get("/") for _ in range(20)))
        assert [one.status_code for one in responses] == [200] * 20
        assert caplog.text.count("requests are not limited") == 1

    async def test_closed_refuses_them_as_unavailable(self, app, proxy, caller):
        middleware = RateLimitMiddleware(hello, app, {"default": Tier(9)}, away="closed")
        proxy.stop_listening()
        proxy.cut()
        response = await caller(middleware).get("/")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["title"] == "Service Unavailable"
        refusing = RateLimitMiddleware(hello, app, {"websocket": Tier(9)}, away="closed")
        assert await connect(refusing) == [{"type": "websocket.close", "code": 1013}]

    async def test_a_silent_server_delays_requests_once_and_not_for_long(self, app, proxy, caller):
        api = caller(RateLimitMiddleware(hello, app, {"default": Tier(1)}))
        assert (await api.get("/")).status_code == 200
        proxy.blackhole()
        began = time.monotonic()
        assert [(await api.get("/")).status_code for _ in range(20)] == [200] * 20
        assert time.monotonic() - began < patient(3)

    async def test_limits_hold_again_when_it_is_back(self, app, proxy, caller):
        middleware = RateLimitMiddleware(hello, app, {"default": Tier(1)})
        api = caller(middleware)
        assert (await api.get("/")).status_code == 200
        proxy.blackhole()
        assert (await api.get("/")).status_code == 200
        proxy.heal()
        middleware._away_until = 0.0
        assert (await api.get("/")).status_code == 429
