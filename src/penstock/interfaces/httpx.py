"""Calls with httpx that keep to a limit.

    limit = app.limit("courtlistener", ["5/min", "50/hour", "125/day"])
    async with httpx.AsyncClient(transport=LimitedTransport(limit)) as client:
        await client.get("https://www.courtlistener.com/api/rest/v4/dockets/")

Every attempt is counted before it is made, in every process that uses the limit. What the provider
answers holds for all of them at once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Final

from penstock.coordination.limits.headers import read_retry_after, read_usages
from penstock.coordination.limits.limit import EVERYONE, Limit
from penstock.coordination.limits.penalty import obey
from penstock.coordination.limits.result import Usage
from penstock.errors import ServerError, SettingError
from penstock.hosts import HostPatterns

try:
    import httpx
except ImportError as missing:
    raise ImportError(
        "penstock.interfaces.httpx needs httpx: pip install 'penstock[httpx]'"
    ) from missing

__all__ = ["LimitedTransport"]

logger = logging.getLogger(__name__)

# Methods whose request may have been executed despite an error status are not repeated.
_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})


class LimitedTransport(httpx.AsyncBaseTransport):
    """A transport that waits for a permit before each attempt, and obeys the provider's limits.

    - `limit`: an `app.limit(…)`.
    - `wrapped`: the transport that sends (default: that of httpx).
    - `cost`: of a request, a number or a function of the request.
    - `key`: counted separately, such as an account; a text or a function of the request.
    - `retries`: how often a request is repeated that was refused with a time to wait.
    - `timeout_s`: maximum wait for permits, over all attempts of a request; then `LimitReached`.
      None waits without a limit.
    - `learn`: adopt the counts of `RateLimit` and `X-RateLimit-*` headers.
    - `hosts`: whose answers count, names or patterns such as `*.example.com` (default: the host of
      the first request). Answers of others, to which a redirect may lead, change no limit.

    A 429, or a 503 with `Retry-After`, stops all users of the limit for that time, but no longer
    than `limits.longest_penalty_s`, and then the request is repeated. A 429 without a time may mean
    that the account is blocked: all users stop for `limits.blocked_s`, and the response is
    returned. It is returned as well if the request cannot be repeated: its body can be read only
    once, or it is a `POST` that got a 503.
    """

    def __init__(
        self,
        limit: Limit,
        wrapped: httpx.AsyncBaseTransport | None = None,
        *,
        cost: int | Callable[[httpx.Request], int] = 1,
        key: str | Callable[[httpx.Request], str] = EVERYONE,
        retries: int = 3,
        timeout_s: float | None = None,
        learn: bool = True,
        hosts: Iterable[str] = (),
    ) -> None:
        if type(retries) is not int or retries < 0:
            raise SettingError("retries", retries, "a whole number from 0 on")
        self._limit = limit
        self._wrapped = httpx.AsyncHTTPTransport() if wrapped is None else wrapped
        self._cost, self._key = cost, key
        self._retries, self._timeout_s, self._learn = retries, timeout_s, learn
        given = (hosts,) if isinstance(hosts, str) else tuple(hosts)
        self._hosts = HostPatterns(given, setting="hosts") if given else None
        self._first_host: str | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, as often as it takes within `retries`."""
        cost = self._cost(request) if callable(self._cost) else self._cost
        key = self._key(request) if callable(self._key) else self._key
        deadline = math.inf if self._timeout_s is None else time.monotonic() + self._timeout_s
        host, retries = request.url.host, self._retries
        if self._first_host is None:
            self._first_host = host
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            timeout = left_s if math.isfinite(left_s) else None
            await self._limit.acquire(cost, timeout_s=timeout, key=key)
            response = await self._wrapped.handle_async_request(request)
            try:
                again_s = await self._heed(response, host, key) if self._is_asked(host) else None
            except BaseException:
                await response.aclose()
                raise
            if (
                not retries
                or again_s is None
                or time.monotonic() + again_s > deadline
                or not _may_repeat(request, response)
            ):
                return response
            retries -= 1
            await response.aclose()

    async def aclose(self) -> None:
        """Close what sends. The limit stays."""
        await self._wrapped.aclose()

    def _is_asked(self, host: str) -> bool:
        """Whether the limit is about this host."""
        return host == self._first_host if self._hosts is None else self._hosts.allows(host)

    async def _heed(self, response: httpx.Response, host: str, key: str) -> float | None:
        """Share the limits of a response with all processes; seconds until a retry makes sense."""
        usages = read_usages(response.headers, self._limit.setting.rates)
        if self._learn and usages and not await _shared(self._limit.reconcile(usages, key=key)):
            return None
        status, asked_s = response.status_code, _asked_wait_s(response, usages)
        if asked_s is None and status != HTTPStatus.TOO_MANY_REQUESTS:
            return None
        obeyed = obey(self._limit, asked_s, host=host, status=status, key=key)
        if not await _shared(obeyed) or asked_s is None:
            return None
        return min(asked_s, self._limit.client.settings.limits.longest_penalty_s)


def _asked_wait_s(response: httpx.Response, usages: list[Usage]) -> float | None:
    """Seconds that a refusal asks to wait; None without a time, or if it is not a refusal."""
    status = response.status_code
    if status not in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        return None
    wait_s = read_retry_after(response.headers)
    if wait_s is None and status == HTTPStatus.TOO_MANY_REQUESTS:
        resets = [usage.reset_s for usage in usages if usage.remaining == 0 and usage.reset_s]
        wait_s = max(resets, default=None)
    return wait_s


def _may_repeat(request: httpx.Request, response: httpx.Response) -> bool:
    # Other streams are read as they are sent, and cannot be read again.
    if not isinstance(request.stream, httpx.ByteStream):
        return False
    refused = response.status_code == HTTPStatus.TOO_MANY_REQUESTS
    return refused or request.method in _REPEATABLE


async def _shared(call: Awaitable[object]) -> bool:
    """Whether the call succeeded; its failure does not fail the request."""
    try:
        await call
    except ServerError as error:
        logger.warning("the limits of a provider could not be shared: %s", error)
        return False
    return True
