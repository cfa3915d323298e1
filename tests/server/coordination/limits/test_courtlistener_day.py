"""Days on CourtListener's free tier, against the throttle of the library that it runs.

The provider is a Django REST framework application with CourtListener's rule: several rates at once
over one history per account, in which refused calls do not count. Its clock and that of the scripts
are moved by hand, so a day of waiting takes a moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from django.core.cache import cache
from django.core.handlers.asgi import ASGIHandler
from django.test import override_settings
from django.urls import path
from tests.kit.django_project import configure

from penstock.coordination.limits.limit import Limit
from penstock.coordination.limits.setting import setting_of
from penstock.interfaces.httpx import LimitedTransport
from penstock.redis.client import Client
from penstock.testing.virtual_time import VirtualTime

configure()

from rest_framework.response import Response  # noqa: E402
from rest_framework.throttling import SimpleRateThrottle  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

FREE_TIER = ["5/min", "50/hour", "125/day"]
DAY_S = 86_400
START_MS = 1_763_200_000_000  # some afternoon


class Throttle(SimpleRateThrottle):
    """DRF's throttle with several rates: a call must find room in each, or counts in none."""

    rate = "125/day"  # the longest: for so long the history is kept
    now_s: Callable[[], float]

    def timer(self) -> float:
        return Throttle.now_s()

    def get_cache_key(self, request: Any, view: Any) -> str:
        token = request.headers["Authorization"].removeprefix("Token ")
        return self.cache_format % {"scope": "api", "ident": token}

    def allow_request(self, request: Any, view: Any) -> bool:
        self.key, self.now = self.get_cache_key(request, view), self.timer()
        self.history = self.cache.get(self.key, [])
        while self.history and self.history[-1] <= self.now - self.duration:
            self.history.pop()
        for self.rate in FREE_TIER:
            most, duration = self.parse_rate(self.rate)
            recent = [moment for moment in self.history if moment > self.now - duration]
            if len(recent) >= most:
                self.wait_s = recent[most - 1] + duration - self.now
                return self.throttle_failure()
        return self.throttle_success()

    def wait(self) -> float:
        return self.wait_s


class Dockets(APIView):
    throttle_classes = (Throttle,)
    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Any) -> Response:
        return Response({"results": []})


urlpatterns = [path("dockets/", Dockets.as_view())]


class DayOver(Exception):
    """There is no permit before the end."""


class PatientLimit(Limit):
    """Waits by moving the clock, until `end_ms`."""

    time: VirtualTime
    end_ms: float

    async def acquire(self, cost: int = 1, *, key: str = "all", **_: Any) -> Any:
        while not (answer := await self.try_acquire(cost, key=key)):
            if self.time.now_ms + answer.retry_after_s * 1000 >= self.end_ms:
                raise DayOver
            await self.time.advance(answer.retry_after_s)
        return answer


class Counting(httpx.ASGITransport):
    """The way to the provider; how often it admitted and refused."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.statuses: list[int] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        self.statuses.append(response.status_code)
        return response


@pytest.fixture
async def provider():
    with override_settings(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        REST_FRAMEWORK={
            "UNAUTHENTICATED_USER": None,
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        },
    ):
        cache.clear()
        yield Counting(ASGIHandler())
        cache.clear()


@pytest.fixture
async def open_limit(valkey_server, namespace, open_client):
    """`await open_limit(["5/min"], days=1)` is the limit of another process."""
    opened: list[Client] = []
    times: list[VirtualTime] = []

    async def open_one(rates: Any, days: float = 1) -> PatientLimit:
        opened.append(await open_client(valkey_server.url, namespace=namespace))
        limit = PatientLimit(opened[-1], "courtlistener", setting_of(rates))
        if times:
            VirtualTime(opened[-1])
        else:
            times.append(VirtualTime(opened[-1]))
            await times[0].set_ms(START_MS)
            Throttle.now_s = staticmethod(lambda: times[0].now_ms / 1000)
        limit.time, limit.end_ms = times[0], START_MS + days * DAY_S * 1000
        return limit

    return open_one


def open_http(limit: Limit, provider: Counting) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=LimitedTransport(limit, provider),
        base_url="http://courtlistener",
        headers={"Authorization": "Token 1"},
    )


async def harvest(https: list[httpx.AsyncClient]) -> None:
    """Ask in turn for as much as there is, until the end."""
    turn = 0
    while True:
        try:
            response = await https[turn % len(https)].get("/dockets/")
        except DayOver:
            break
        assert response.status_code in {200, 429}
        turn += 1
    for http in https:
        await http.aclose()


async def test_the_referee_refuses_who_asks_too_much(provider, open_limit):
    limit = await open_limit("1000/min")
    async with httpx.AsyncClient(
        transport=provider, base_url="http://courtlistener", headers={"Authorization": "Token 1"}
    ) as http:
        for _ in range(5):
            assert (await http.get("/dockets/")).status_code == 200
            await limit.time.advance(1)
        refused = await http.get("/dockets/")
        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "55"
        assert "Expected available in 55 seconds" in refused.json()["detail"]
        await limit.time.advance(55)
        assert (await http.get("/dockets/")).status_code == 200


@pytest.mark.parametrize("processes", [1, 4])
async def test_a_day_of_demand_uses_every_call_and_is_never_refused(
    provider, open_limit, processes
):
    limits = [await open_limit(FREE_TIER) for _ in range(processes)]
    await harvest([open_http(limit, provider) for limit in limits])
    assert provider.statuses == [200] * 125


async def test_three_days_use_every_call_as_well(provider, open_limit):
    await harvest([open_http(await open_limit(FREE_TIER, days=3), provider)])
    assert provider.statuses == [200] * 375


async def test_calls_that_arrive_late_by_turns_need_periods_a_little_longer(provider, open_limit):
    """The provider's minute begins when a call arrives, ours when it may be sent."""
    chance = random.Random(7)  # noqa: S311
    limit = await open_limit([(5, 61), (50, 3_601), (125, DAY_S + 1)], days=2)
    Throttle.now_s = staticmethod(
        lambda: limit.time.now_ms / 1000 + chance.uniform(0.02, 0.9)  # the way there
    )
    await harvest([open_http(limit, provider)])
    assert provider.statuses == [200] * 250


async def test_a_limit_that_is_set_too_high_keeps_to_what_the_provider_says(provider, open_limit):
    limits = [await open_limit("1000/min", days=1 / 24) for _ in range(2)]
    await harvest([open_http(limit, provider) for limit in limits])
    assert provider.statuses.count(200) == 50
    # One refusal for each time that a window was full, whoever asks.
    assert provider.statuses.count(429) <= 11
