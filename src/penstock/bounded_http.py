"""Answers over HTTP, read within bounds of size and time. Needs httpx, an extra.

What strangers answer is taken into memory: an answer without end, or one that unpacks to a thousand
times its size, would end the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar, Final

import httpx

from penstock.errors import ConfigError, SettingError
from penstock.hosts import is_sent_openly
from penstock.settings import OutboundSettings
from penstock.throttled_log import RateLimitedLog

__all__ = ["AnswerRefused", "BoundedTransport", "answers_up_to", "guard_key"]

quiet = RateLimitedLog(logging.getLogger(__name__))

# A piece of two bytes costs as much time as one of thousands.
_MOST_PIECES: Final = 10_000
_SMALL_PIECE: Final = 64
_longest: ContextVar[int] = ContextVar("longest_answer", default=1024 * 1024)


class AnswerRefused(httpx.TransportError):
    """An answer is longer than it may be, or compressed though that was not asked for."""

    is_unread: ClassVar[bool] = True


@contextmanager
def answers_up_to(most_bytes: int) -> Generator[None]:
    """Allow answers of so many bytes to requests within the block; else it is one MiB."""
    before = _longest.set(most_bytes)
    try:
        yield
    finally:
        _longest.reset(before)


class BoundedTransport(httpx.AsyncBaseTransport):
    """A transport that reads each answer whole, and ends those that take too much room or time.

    - `within_s`: for a request from the wait for a connection to the last byte of its answer;
      httpx.ReadTimeout when it is over. httpx itself counts from one byte to the next.
    - `settings`: the proxy. Those of the environment are not used.

    Answers longer than `answers_up_to` allows, and compressed ones, are AnswerRefused. Cookies are
    dropped: a client would keep each of them.
    """

    def __init__(
        self,
        settings: OutboundSettings,
        *,
        within_s: float,
        limits: httpx.Limits,
    ) -> None:
        try:
            self._wrapped = httpx.AsyncHTTPTransport(limits=limits, proxy=settings.proxy)
        except (ValueError, ImportError, httpx.InvalidURL):
            raise SettingError("outbound.proxy", "…", "http://host:port") from None
        self._within_s = within_s

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and read its answer."""
        request.headers["Accept-Encoding"] = "identity"
        try:
            async with asyncio.timeout(self._within_s):
                response = await self._wrapped.handle_async_request(request)
                try:
                    body = await _read(response, _longest.get())
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx.ReadTimeout(f"no whole answer in time ({self._within_s:g} s)") from None
        headers = response.headers.copy()
        headers.pop("Set-Cookie", None)
        return httpx.Response(response.status_code, headers=headers, content=body)

    async def aclose(self) -> None:
        """End the connections."""
        await self._wrapped.aclose()


async def _read(response: httpx.Response, most_bytes: int) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() not in {"", "identity"}:
        raise AnswerRefused(f"a compressed answer ({encoding[:20]!r}), which was not asked for")
    body, pieces = bytearray(), 0  # a list of small pieces would take many times their size
    async for piece in response.aiter_raw():
        body += piece
        pieces += 1
        if len(body) > most_bytes:
            raise AnswerRefused(f"an answer of more than {most_bytes:,} bytes")
        if pieces > _MOST_PIECES + len(body) // _SMALL_PIECE:
            raise AnswerRefused("an answer in too many small pieces")
    return bytes(body)


def guard_key(place: str, url: str, settings: OutboundSettings) -> None:
    """Log or refuse, as `outbound.plain_http` says, a key that would go unencrypted to a URL.

    `place` is the URL as it may be shown.
    """
    if not is_sent_openly(url) or settings.plain_http == "allow":
        return
    if settings.plain_http == "refuse":
        raise ConfigError(
            f"the key for {place} would leave this machine unencrypted: write https://, or set "
            "outbound.plain_http"
        )
    quiet.warning(
        f"plain {place}",
        "the key for %s leaves this machine unencrypted: write https://, or set "
        "outbound.plain_http to 'allow' if the network is your own",
        place,
    )
