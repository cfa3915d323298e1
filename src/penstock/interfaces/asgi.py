"""Limits for the requests to an ASGI application (Starlette, FastAPI, Django …).

    api.add_middleware(RateLimitMiddleware, penstock=app, tier_of=tier_of)

Requests are counted over all processes, for each tier and client address apart, in the sorted sets
`ratelimit:<tier>:<client>`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from penstock.app import Penstock
from penstock.coordination.limits.headers import to_headers
from penstock.coordination.limits.rates import Rate
from penstock.coordination.limits.result import LimitResult
from penstock.errors import ServerError, SettingError
from penstock.interfaces.forwarded import Callers
from penstock.throttled_log import RateLimitedLog

__all__ = ["TIERS", "RateLimitMiddleware", "Tier"]

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
TierOf = Callable[[Scope], str | None]
Headers = list[tuple[bytes, bytes]]

_MINUTE_MS: Final = 60_000
_ANSWER_S: Final = 1.0
_AWAY_S: Final = 1.0
_POLICY_VIOLATION, _TRY_AGAIN_LATER = 1008, 1013  # why a websocket is closed
_TITLES: Final = {429: "Too Many Requests", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True)
class Tier:
    """Requests per minute, and `burst` more."""

    per_minute: int
    burst: int = 0

    @property
    def rate(self) -> Rate:
        return Rate(self.per_minute + self.burst, _MINUTE_MS)


TIERS: Final[Mapping[str, Tier]] = {
    "default": Tier(60, 10),
    "media": Tier(120, 10),
    "websocket": Tier(100, 2),
    "search": Tier(30, 10),
    "export": Tier(10, 0),
    "ai_inference": Tier(10, 3),
    "bulk": Tier(10, 2),
}
"""The default tiers."""


class RateLimitMiddleware:
    """Refuses requests above the limit of their tier, and adds the limit to every response.

    - `penstock`: an application that is open while requests are served.
    - `tiers`: by name. `tier_of` finds the name for a scope; None for requests that are not
      limited. If not given, websockets are of the tier "websocket" and all others of "default".
    - `trusted_proxies`: addresses whose `X-Forwarded-For` is used; "unix" for a unix socket.
      `Forwarded` (RFC 7239) is not read.
    - `ipv6_prefix`: bits of an IPv6 address that identify a caller.
    - `away`: without the server, let everything through ("open") or nothing ("closed"), as is right
      for logins.

    Refused requests get a 429 with `application/problem+json` and `Retry-After`; websockets are
    refused before they are accepted. They are not counted. Limits of these names can be edited like
    all others.
    """

    def __init__(
        self,
        app: AsgiApp,
        penstock: Penstock,
        tiers: Mapping[str, Tier] = TIERS,
        *,
        tier_of: TierOf | None = None,
        trusted_proxies: Iterable[str] = (),
        ipv6_prefix: int = 64,
        away: Literal["open", "closed"] = "open",
    ) -> None:
        if away not in {"open", "closed"}:
            raise SettingError("away", away, "'open' or 'closed'")
        self._app = app
        self._limits = {name: penstock.limit(name, tier.rate) for name, tier in tiers.items()}
        self._tier_of = tier_of or _tier_of
        self._callers = Callers(trusted_proxies, ipv6_prefix=ipv6_prefix)
        self._is_open = away == "open"
        self._away_until = 0.0
        self._quiet = RateLimitedLog(logger)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI has it."""
        tier = self._tier_of(scope) if scope["type"] in {"http", "websocket"} else None
        if tier is None:
            await self._app(scope, receive, send)
            return
        answer = await self._ask(tier, scope)
        if answer is not None and answer.allowed:
            await self._app(scope, receive, _with_limit(answer, send))
        elif answer is not None:
            await _refuse(scope, receive, send, _refusal(answer, tier))
        elif self._is_open:
            await self._app(scope, receive, send)
        else:
            await _refuse(scope, receive, send, _absence(tier))

    async def _ask(self, tier: str, scope: Scope) -> LimitResult | None:
        """Ask the limit; None while the server is away."""
        limit = self._limits.get(tier)
        if limit is None:
            raise SettingError("tier", tier, f"one of {', '.join(sorted(self._limits))}")
        if time.monotonic() < self._away_until:
            return None  # a moment ago it was: requests are not to wait for it one by one
        client = scope.get("client")
        key = self._callers.name(client[0] if client else None, scope["headers"])
        why: object = "no answer in time"
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await limit.try_acquire(key=key)
            if answer.reason != "away":
                return answer
            why = "it cannot be reached"
        except TimeoutError:
            pass
        except ServerError as error:
            why = error
        self._quiet.warning(
            "away",
            "requests are %s: the server that counts them is away (%s)",
            "not limited" if self._is_open else "refused",
            why,
        )
        self._away_until = time.monotonic() + _AWAY_S
        return None


@dataclass(frozen=True, slots=True)
class _Refusal:
    status: int
    close_code: int
    headers: Headers
    body: bytes


def _tier_of(scope: Scope) -> str:
    return "websocket" if scope["type"] == "websocket" else "default"


def _encoded(headers: Mapping[str, str]) -> Headers:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def _refusal(answer: LimitResult, tier: str) -> _Refusal:
    headers = to_headers(answer)
    wait_s = max(1, math.ceil(answer.retry_after_s))
    limit = answer.windows[0].limit
    detail = f"At most {limit} requests a minute are allowed here; try again in {wait_s} s."
    return _problem(429, _POLICY_VIOLATION, detail, tier, wait_s, headers)


def _absence(tier: str) -> _Refusal:
    wait_s = math.ceil(_AWAY_S)
    detail = f"Requests cannot be counted at the moment; try again in {wait_s} s."
    return _problem(503, _TRY_AGAIN_LATER, detail, tier, wait_s, {"Retry-After": str(wait_s)})


def _problem(
    status: int, close_code: int, detail: str, tier: str, wait_s: int, headers: Mapping[str, str]
) -> _Refusal:
    """Word a refusal as RFC 9457 has it."""
    body = msgspec.json.encode(
        {
            "type": "about:blank",
            "title": _TITLES[status],
            "status": status,
            "detail": detail,
            "tier": tier,
            "retry_after_seconds": wait_s,
        }
    )
    about = {"Content-Type": "application/problem+json", "Content-Length": str(len(body))}
    return _Refusal(status, close_code, _encoded({**about, **headers}), body)


def _with_limit(answer: LimitResult, send: Send) -> Send:
    """Return a `send` that adds the headers of the limit that the application does not set."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] in {"http.response.start", "websocket.accept"}:
            theirs: Headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in theirs}
            ours = [pair for pair in _encoded(to_headers(answer)) if pair[0] not in names]
            message = {**message, "headers": theirs + ours}
        await send(message)

    return send_with_headers


async def _refuse(scope: Scope, receive: Receive, send: Send, refusal: _Refusal) -> None:
    kind = "http"
    if scope["type"] == "websocket":
        await receive()  # the handshake
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            # Servers make a 403 of it.
            await send({"type": "websocket.close", "code": refusal.close_code})
            return
        kind = "websocket.http"
    start = {"status": refusal.status, "headers": refusal.headers}
    await send({"type": f"{kind}.response.start", **start})
    await send({"type": f"{kind}.response.body", "body": refusal.body})
