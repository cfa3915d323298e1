"""Calls with httpx keep to the limit, and one process hears what another one was told."""

from __future__ import annotations

import asyncio
import email.utils
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.kit.fakes.provider import Provider

from penstock.coordination.limits.limit import Limit
from penstock.coordination.limits.setting import setting_of
from penstock.errors import LimitReached, SettingError
from penstock.interfaces.httpx import LimitedTransport

pytestmark = pytest.mark.settings(limits={"blocked_s": 30, "recheck_s": 0.05})

OTHER_PROCESS = """
import asyncio, sys
import httpx
from penstock.coordination.limits.limit import Limit
from penstock.coordination.limits.setting import setting_of
from penstock.errors import LimitReached
from penstock.interfaces.httpx import LimitedTransport
from penstock.redis.client import Client
from penstock.settings import Settings

async def main(url, namespace, provider):
    async with Client(Settings(url=url, namespace=namespace)) as client:
        limit = Limit(client, "provider", setting_of("1000/min"))
        transport = LimitedTransport(limit, timeout_s=0)
        async with httpx.AsyncClient(transport=transport) as http:
            for line in sys.stdin:
                try:
                    print((await http.get(provider)).status_code, flush=True)
                except LimitReached:
                    print("stopped", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with Provider() as running:
        yield running


@pytest.fixture
def limit(client) -> Limit:
    return Limit(client, "provider", setting_of("100/min"))


@pytest.fixture
async def http(limit) -> AsyncIterator[httpx.AsyncClient]:
    async with open_http(limit) as opened:
        yield opened


def open_http(limit: Limit, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=LimitedTransport(limit, **options))


async def used(limit: Limit, key: str = "all") -> int:
    window = (await limit.peek(key=key)).windows[0]
    return window.limit - window.remaining


async def test_every_call_is_counted_before_it_is_made(http, limit, provider):
    for _ in range(3):
        assert (await http.get(provider.url)).status_code == 200
    assert await used(limit) == len(provider.asked) == 3


async def test_a_call_that_never_arrives_is_counted_too(limit):
    async with Provider() as gone:
        url = gone.url
    async with open_http(limit) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(url)
    assert await used(limit) == 1


async def test_calls_wait_for_their_permits(client, provider):
    limit = Limit(client, "provider", setting_of("2/500ms"))
    async with open_http(limit) as http:
        await asyncio.gather(*(http.get(provider.url) for _ in range(4)))
    times = [one.at for one in provider.asked]
    assert times[2] - times[0] >= 0.45
    assert times[3] - times[1] >= 0.45


async def test_a_wait_that_would_be_too_long_is_an_error_at_once(client, provider):
    limit = Limit(client, "provider", setting_of("1/min"))
    async with open_http(limit, timeout_s=30) as http:
        await http.get(provider.url)
        began = time.monotonic()
        with pytest.raises(LimitReached) as caught:
            await http.get(provider.url)
    assert time.monotonic() - began < 25
    assert 50 < caught.value.retry_after_s <= 60
    assert len(provider.asked) == 1


async def test_a_refused_call_is_repeated_when_the_provider_says(http, limit, provider):
    provider.answer(429, {"Retry-After": "1"})
    response = await http.post(provider.url, json={"id": 7})
    assert response.status_code == 200
    first, second = provider.asked
    assert second.at - first.at >= 0.95
    assert first.body == second.body == b'{"id":7}'
    assert await used(limit) == 2


async def test_a_date_is_obeyed_as_well(http, provider):
    now = 1_700_000_000
    date = {"Date": email.utils.formatdate(now, usegmt=True)}
    provider.answer(429, {"Retry-After": email.utils.formatdate(now + 1, usegmt=True), **date})
    assert (await http.get(provider.url)).status_code == 200
    first, second = provider.asked
    assert 0.95 <= second.at - first.at < 5


async def test_repeats_are_bounded_and_each_is_counted(limit, provider):
    provider.usual = (429, {"Retry-After": "0.02"})
    async with open_http(limit, retries=2) as http:
        assert (await http.get(provider.url)).status_code == 429
    assert await used(limit) == len(provider.asked) == 3


async def test_a_time_to_come_back_beyond_the_timeout_is_handed_back(limit, provider):
    provider.answer(429, {"Retry-After": "3600"})
    async with open_http(limit, timeout_s=5) as http:
        response = await http.get(provider.url)
        assert (response.status_code, response.json()) == (429, {})
        with pytest.raises(LimitReached):
            await http.get(provider.url)
    assert len(provider.asked) == 1


async def test_a_refusal_without_a_time_stops_everybody_and_is_handed_back(
    client, namespace, provider, caplog
):
    limit = Limit(client, namespace, setting_of("100/min"))
    provider.answer(429)
    async with open_http(limit) as http:
        assert (await http.get(provider.url)).status_code == 429
    assert len(provider.asked) == 1
    answer = await limit.try_acquire()
    assert answer.reason == "penalty"
    assert 25 < answer.retry_after_s <= 30
    assert f"limit {namespace!r} stops for 30 s: 127.0.0.1 answered 429 without" in caplog.text


async def test_a_refusal_may_say_the_time_in_its_other_headers(http, limit, provider):
    headers = {"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "20"}
    provider.answer(429, headers)
    async with open_http(limit, retries=0) as once:
        assert (await once.get(provider.url)).status_code == 429
    answer = await limit.try_acquire()
    assert not answer
    assert 15 < answer.retry_after_s <= 20


# ---- answers that ask for too much, and of those who are not asked


async def test_no_answer_stops_a_limit_for_longer_than_the_settings_allow(
    client, namespace, provider, caplog
):
    limit = Limit(client, namespace, setting_of("100/min"))
    provider.answer(429, {"Retry-After": "31536000"})
    async with open_http(limit, retries=0) as http:
        assert (await http.get(provider.url)).status_code == 429
    answer = await limit.try_acquire()
    assert answer.reason == "penalty"
    assert 3_500 < answer.retry_after_s <= 3_600
    [record] = [one for one in caplog.records if "stops for" in one.message]
    assert record.levelname == "WARNING"
    assert record.message == (
        f"limit {namespace!r} stops for 3600 s: 127.0.0.1 answered 429, and asked for 3.1536e+07 s "
        "(limits.longest_penalty_s)"
    )


@pytest.mark.parametrize("name", ["X-RateLimit", "X-Rate-Limit"])
async def test_no_reset_of_a_window_is_later_than_its_period(http, limit, provider, name):
    counts = {f"{name}-Limit": "100", f"{name}-Remaining": "0", f"{name}-Reset": "31000000"}
    provider.answer(200, counts)
    await http.get(provider.url)
    assert (await limit.peek()).remaining == 0
    assert (await limit.peek()).windows[0].reset_s <= 60


async def test_code_may_penalise_for_longer(limit):
    assert await limit.penalise(100_000) > 99_000
    assert (await limit.try_acquire()).retry_after_s > 99_000


@pytest.mark.parametrize("hosts", [(), ["127.0.0.1"], ["127.0.0.0/8"]])
async def test_answers_of_other_hosts_change_no_limit(limit, provider, hosts):
    """A redirect of the provider leads to another host, which is `localhost` here."""
    async with Provider() as other:
        place = other.url.replace("127.0.0.1", "localhost")
        counts = {"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "0"}
        other.answer(429, {"Retry-After": "31536000", **counts})
        other.answer(429)
        async with open_http(limit, hosts=hosts) as http:
            for _ in range(2):
                provider.answer(302, {"Location": place})
                response = await http.get(provider.url, follow_redirects=True)
                assert response.status_code == 429
        assert len(other.asked) == 2, "they are not repeated either"
    assert await used(limit) == 4, "each attempt is counted"
    assert (await limit.try_acquire()).allowed


async def test_answers_of_all_hosts_that_are_named_count(limit, provider):
    async with Provider() as other:
        other.answer(429, {"Retry-After": "60"})
        async with open_http(limit, hosts=["127.0.0.1", "localhost"], retries=0) as http:
            await http.get(provider.url)
            await http.get(other.url.replace("127.0.0.1", "localhost"))
    assert (await limit.try_acquire()).reason == "penalty"


@pytest.mark.parametrize("hosts", ["http://api.example", ["*"], [""]])
async def test_hosts_that_are_none_are_refused(limit, hosts):
    with pytest.raises(SettingError, match="hosts"):
        LimitedTransport(limit, hosts=hosts)


async def test_a_note_that_cannot_be_stored_does_not_cost_the_penalty(limit, provider):
    place = limit.keys("all").penalty
    await limit.client.call("HSET", place, "of", "another program")
    provider.answer(429, {"Retry-After": "60"})
    async with open_http(limit, retries=0) as http:
        assert (await http.get(provider.url)).status_code == 429
    assert (await limit.try_acquire()).reason == "penalty"
    await limit.reset()
    assert (await limit.try_acquire()).allowed
    assert not await limit.client.call("EXISTS", place)


async def test_a_503_is_obeyed_if_it_says_when(http, limit, provider):
    provider.answer(503, {"Retry-After": "0.05"})
    assert (await http.get(provider.url)).status_code == 200
    assert len(provider.asked) == 2
    provider.answer(503)
    assert (await http.get(provider.url)).status_code == 503
    assert (await limit.try_acquire()).allowed
    assert len(provider.asked) == 3


async def test_what_a_503_may_have_done_is_not_asked_for_again(http, provider):
    provider.answer(503, {"Retry-After": "0.05"})
    assert (await http.post(provider.url, json={})).status_code == 503
    assert len(provider.asked) == 1


async def test_a_body_that_is_read_only_once_is_not_sent_again(http, provider):
    async def body() -> AsyncIterator[bytes]:
        yield b"once"

    provider.answer(429, {"Retry-After": "0.05"})
    assert (await http.post(provider.url, content=body())).status_code == 429
    assert [one.body for one in provider.asked] == [b"once"]


async def test_other_errors_are_the_caller_s(http, provider):
    for status in (400, 404, 500, 502):
        provider.answer(status, {"Retry-After": "3600"})
        assert (await http.get(provider.url)).status_code == status
    assert (await http.get(provider.url)).status_code == 200


async def test_retry_after_0_is_no_amnesty(limit, provider):
    class Meanwhile(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await limit.penalise(60)  # another process was told so
            return await super().handle_async_request(request)

    provider.answer(429, {"Retry-After": "0"})
    async with open_http(limit, wrapped=Meanwhile(), retries=0) as http:
        await http.get(provider.url)
    assert (await limit.try_acquire()).reason == "penalty"


@pytest.mark.parametrize(
    "headers",
    [
        {"RateLimit-Policy": '"m";q=100;w=60', "RateLimit": '"m";r=3;t=50'},
        {"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "50"},
    ],
)
async def test_what_the_provider_has_counted_holds(http, limit, provider, headers):
    provider.answer(200, headers)
    await http.get(provider.url)
    assert (await limit.peek()).remaining == 3


async def test_what_the_provider_has_counted_may_be_ignored(limit, provider):
    provider.answer(200, {"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "3"})
    async with open_http(limit, learn=False) as http:
        await http.get(provider.url)
    assert (await limit.peek()).remaining == 99


@pytest.mark.parametrize("value", ["", "soon", "-1", '"', "9" * 30])
async def test_nonsense_in_headers_does_no_harm(http, limit, provider, value):
    names = ("RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "Date")
    provider.answer(200, {**dict.fromkeys(names, value), "Retry-After": value})
    assert (await http.get(provider.url)).status_code == 200
    assert (await limit.peek()).remaining == 99


async def test_costs_and_keys_may_hang_on_the_request(limit, provider):
    async with open_http(
        limit,
        cost=lambda request: int(request.url.params["n"]),
        key=lambda request: request.headers["account"],
    ) as http:
        await http.get(provider.url, params={"n": 7}, headers={"account": "a"})
        await http.get(provider.url, params={"n": 2}, headers={"account": "b"})
    assert [await used(limit, key) for key in ("a", "b", "all")] == [7, 2, 0]


async def test_one_process_s_429_stops_another_at_once(limit, place, namespace, provider):
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OTHER_PROCESS, place.url, namespace, provider.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    limit = Limit(limit.client, "provider", setting_of("1000/min"))

    async def ask_other() -> str:
        other.stdin.write(b"go\n")
        return (await asyncio.wait_for(other.stdout.readline(), 20)).decode().strip()

    try:
        assert await ask_other() == "200"
        provider.answer(429, {"Retry-After": "60"})
        async with open_http(limit, retries=0) as http:
            assert (await http.get(provider.url)).status_code == 429
        assert await ask_other() == "stopped"
        assert len(provider.asked) == 2
    finally:
        other.stdin.close()
        await asyncio.wait_for(other.wait(), 20)
        other._transport.close()


async def test_a_server_that_went_away_does_not_cost_the_response(
    start_server, open_client, provider, namespace, caplog
):
    server = start_server("valkey")
    client = await open_client(server.url, namespace=namespace)
    limit = Limit(client, "provider", setting_of("100/min"))

    class Stopping(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response = await super().handle_async_request(request)
            server.kill()
            return response

    provider.answer(429, {"Retry-After": "1"})
    async with open_http(limit, wrapped=Stopping(), timeout_s=1) as http:
        assert (await http.get(provider.url)).status_code == 429
        assert "could not be shared" in caplog.text
        with pytest.raises(LimitReached):  # nobody can know what is left
            await http.get(provider.url)
    assert len(provider.asked) == 1


async def test_closing_the_client_closes_what_it_wraps(limit):
    closed = []

    class Wrapped(httpx.AsyncBaseTransport):
        async def aclose(self) -> None:
            closed.append(True)

    async with open_http(limit, wrapped=Wrapped()):
        pass
    assert closed == [True]


def test_a_number_of_repeats_below_0_is_refused(limit):
    with pytest.raises(SettingError, match="retries"):
        LimitedTransport(limit, retries=-1)
