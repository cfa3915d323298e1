"""How often and how much all processes together ask an API for vectors."""

from __future__ import annotations

import asyncio
import logging
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from penstock.coordination.limits.rates import MOST
from penstock.errors import EmbedderFailed, NotOpen, ServerError
from penstock.pipelines.documents.embedding.http_answers import BUSY
from penstock.quiet import RateLimitedLog

if TYPE_CHECKING:
    from penstock.app import Penstock
    from penstock.coordination.limits.limit import Limit
    from penstock.coordination.limits.reservation import Reservation
    from penstock.coordination.limits.setting import Algorithm
    from penstock.pipelines.documents.configuration import Embeddings

__all__ = ["ApiLimits"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_EXACT_UP_TO: Final = 1_000
"""Calls a minute that are logged one by one; above, the compact algorithm is cheaper."""
_BUSY_S: Final = 5.0
"""How long all leave an API alone that is busy and does not say for how long."""
_SHARE: Final = 0.25
"""Of each process while Redis is away."""


class ApiLimits:
    """Permits for calls to one API and model, shared by all workers of all machines."""

    def __init__(self, app: Penstock, config: Embeddings, host: str) -> None:
        words = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{host}-{config.model}")[:64]
        about = f"{config.url}\n{config.model}".encode()
        name = f"embedding.{words}.{blake2b(about, digest_size=4).hexdigest()}"
        calls, tokens = config.calls_per_minute, config.tokens_per_minute
        # Without a limit of its own there is one all the same: what says "not now" to one worker
        # says so to all.
        exact = calls is not None and calls <= _EXACT_UP_TO
        self._calls = _limit(app, f"{name}.calls", calls or MOST, "exact" if exact else "compact")
        self.most_tokens = None if tokens is None else min(tokens, MOST)
        self._tokens = (
            None
            if self.most_tokens is None
            else _limit(app, f"{name}.tokens", self.most_tokens, "compact")
        )
        self._patience_s = config.timeout

    async def call(self, place: str) -> None:
        """Wait for a permit to call: for our own limit as long as it takes.

        EmbedderFailed if the API has asked to be left alone for longer than a call may take: the
        job is to wait elsewhere, not in the way of others.
        """
        while True:
            answer = await self._calls.try_acquire()
            if answer.allowed:
                return
            if answer.reason == "penalty" and answer.retry_after_s > self._patience_s:
                raise EmbedderFailed(
                    f"{place} has asked to be left alone for {answer.retry_after_s:.0f} s",
                    BUSY,
                    retry_after=answer.retry_after_s,
                )
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._calls.acquire()
                    return
            except TimeoutError:
                continue  # perhaps there is a penalty by now

    async def reserve(self, tokens: int) -> Reservation | None:
        """Wait for permits for so many tokens; None without such a limit."""
        if self._tokens is None or self.most_tokens is None:
            return None
        # A text beyond the whole limit would wait for ever: it takes all there is.
        return await self._tokens.reserve(max(1, min(tokens, self.most_tokens)), timeout=None)

    async def settle(self, reservation: Reservation | None, tokens: int) -> None:
        """Count what was used."""
        if reservation is not None:
            try:
                await reservation.settle(max(0, min(tokens, MOST)))
            except (ServerError, NotOpen) as error:
                quiet.warning("settle", "the tokens of a call were not settled: %s", error)

    async def leave_alone(self, seconds: float | None) -> None:
        """Let all processes wait."""
        try:
            await self._calls.penalise(_BUSY_S if seconds is None else seconds)
        except (ServerError, NotOpen) as error:
            quiet.warning("busy", "others were not told that the embedder is busy: %s", error)


def _limit(app: Penstock, name: str, most: int, algorithm: Algorithm) -> Limit:
    return app.limit(name, f"{most}/min", algorithm=algorithm, away="share", share=_SHARE)
