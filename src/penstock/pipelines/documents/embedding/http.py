"""An embedder behind an OpenAI-compatible API."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.coordination.limits.penalty import obey
from penstock.coordination.limits.rates import MOST
from penstock.errors import (
    ConfigError,
    ConfigurationWrong,
    DocumentError,
    DocumentRefused,
    EmbedderFailed,
    NotOpen,
    ServerError,
)
from penstock.pipelines.documents.config.models import Embeddings
from penstock.pipelines.documents.embedding.answers import (
    AWAY,
    BUSY,
    FORBIDDEN,
    MISMATCH,
    REFUSED,
    TOO_LONG,
    longest_answer,
    read_answer,
    refusal_of,
    too_long,
)
from penstock.pipelines.documents.embedding.embedder import Embedding, unit_vectors, well_formed
from penstock.throttled_log import RateLimitedLog

if TYPE_CHECKING:
    import httpx
    import numpy as np
    from numpy.typing import NDArray

    from penstock.app import Penstock
    from penstock.coordination.limits.limit import Limit, Reservation
    from penstock.coordination.limits.setting import Algorithm
    from penstock.pipelines.documents.config.models import Embeddings

__all__ = ["AT_ONCE", "ApiLimits", "HttpEmbedder"]

quiet = RateLimitedLog(logging.getLogger(__name__))
_EXACT_UP_TO: Final = 1_000
"""Calls a minute that are logged one by one; above, the compact algorithm is cheaper."""
_BUSY_S: Final = 5.0
"""Pause of all processes for a busy API that sends no Retry-After."""
_SHARE: Final = 0.25
"""Of each process while Redis is away."""


class ApiLimits:
    """Permits for calls to one API and model, shared by all workers of all machines."""

    def __init__(self, app: Penstock, config: Embeddings, host: str) -> None:
        words = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{host}-{config.model}")[:64]
        about = f"{config.url}\n{config.model}".encode()
        name = f"embedding.{words}.{blake2b(about, digest_size=4).hexdigest()}"
        calls, tokens = config.calls_per_minute, config.tokens_per_minute
        # Without a configured limit there is a nominal one: it carries the penalty of a busy API
        # to all workers.
        exact = calls is not None and calls <= _EXACT_UP_TO
        self._calls = _limit(app, f"{name}.calls", calls or MOST, "exact" if exact else "compact")
        self.most_tokens = None if tokens is None else min(tokens, MOST)
        self._tokens = (
            None
            if self.most_tokens is None
            else _limit(app, f"{name}.tokens", self.most_tokens, "compact")
        )
        self._patience_s, self._host = config.timeout, host

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
        """Reserve tokens, waiting for the limit; None without one."""
        if self._tokens is None or self.most_tokens is None:
            return None
        # A text beyond the whole limit would wait forever: it takes the whole limit.
        return await self._tokens.reserve(max(1, min(tokens, self.most_tokens)), timeout_s=None)

    async def settle(self, reservation: Reservation | None, tokens: int) -> None:
        """Count what was used."""
        if reservation is not None:
            try:
                await reservation.settle(max(0, min(tokens, MOST)))
            except (ServerError, NotOpen) as error:
                quiet.warning("settle", "the tokens of a call were not settled: %s", error)

    async def leave_alone(self, seconds: float | None, status: int) -> None:
        """Let all processes wait."""
        try:
            asked_s = _BUSY_S if seconds is None else seconds
            await obey(self._calls, asked_s, host=self._host, status=status)
        except (ServerError, NotOpen) as error:
            quiet.warning("busy", "the pause for a busy embedder was not shared: %s", error)


def _limit(app: Penstock, name: str, most: int, algorithm: Algorithm) -> Limit:
    return app.limit(name, f"{most}/min", algorithm=algorithm, away="share", share=_SHARE)


AT_ONCE: Final = 4
"""Calls of one process that are under way at the same time."""
_KEEP_S: Final = 30.0
_BYTES_PER_TOKEN: Final = 4
_IN_A_THREAD: Final = 256 * 1024
"""Bytes of an answer from which reading it would hold up the event loop."""
_NOT_COUNTED: Final = frozenset({BUSY, REFUSED, FORBIDDEN})
"""Refusals that cost no tokens; others may have."""


class HttpEmbedder:
    """`POST {url}/embeddings`, as OpenAI, vLLM, Ollama and others answer it.

    The key comes from the environment variable `api_key_env`, and goes nowhere but to the API. The
    limits are shared by all processes, and so are pauses for a busy API. A call is not
    repeated here, that is the queue's task; only a connection that has ended between two calls is
    replaced at once.
    """

    def __init__(self, config: Embeddings, app: Penstock) -> None:
        if not config.url or not config.model:
            missing = [name for name in ("url", "model") if not getattr(config, name)]
            problems = tuple(f"{name}: the provider 'http' needs it" for name in missing)
            raise ConfigurationWrong("embeddings", problems)
        self._config, self._app = config, app
        self._most = config.batch or app.settings.documents.embed_batch
        self._dimension = config.dimension
        self._says_dimension = False
        self._key: str | None = None
        self._client: httpx.AsyncClient | None = None
        self._limits: ApiLimits | None = None
        self._url: httpx.URL | None = None
        self._place = ""

    @property
    def model(self) -> str:
        return self._config.model

    @property
    def dimension(self) -> int:
        """As configured; else the model's, which is known once the embedder is open."""
        if self._dimension is None:
            raise NotOpen("the dimension is known once the embedder is open")
        return self._dimension

    async def open(self) -> None:
        """Get ready; without a configured dimension the API is asked for it. May come twice."""
        if self._client is None:
            self._prepare()
        if self._dimension is None:
            try:
                rows, _ = await self._asked(["dimension"])
            except BaseException:
                await self.close()
                raise
            self._dimension = rows.shape[1]

    async def close(self) -> None:
        """End the connections. May come twice."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def embed(self, texts: Sequence[str]) -> Embedding:
        """Vectors of the texts, in as many calls as they need.

        EmbedderFailed if the API is busy, away, or answers nonsense; DocumentRefused if it refuses
        the texts, the key, or has vectors of another dimension.
        """
        vectors: list[bytes] = []
        tokens = 0
        for some in self._in_calls([well_formed(text) for text in texts]):
            rows, used = await self._fitting(some)
            vectors += unit_vectors(rows, some)
            tokens += used
        return Embedding(vectors, tokens)

    # inside

    def _prepare(self) -> None:
        try:
            import httpx  # noqa: PLC0415  an extra

            from penstock.bounded_http import BoundedTransport, guard_key  # noqa: PLC0415  too
        except ImportError:
            raise ConfigError(
                "the provider 'http' is not installed: pip install 'penstock[documents]'"
            ) from None
        config = self._config
        try:
            url = httpx.URL(config.url or "")
        except httpx.InvalidURL:
            url = httpx.URL("")
        if url.scheme not in {"http", "https"} or not url.host:
            raise ConfigurationWrong("embeddings", ("url: expected https://…/v1",))
        public = url.copy_with(username=None, password=None, query=None, fragment=None)
        self._place = str(public)
        outbound = self._app.settings.outbound
        if config.api_key_env or url.userinfo:
            guard_key(self._place, self._place, outbound)
        headers = {"Content-Type": "application/json"}
        if config.api_key_env:
            self._key = _key_from(config.api_key_env)
            headers["Authorization"] = f"Bearer {self._key}"
            url = url.copy_with(username=None, password=None)  # it would win over the key
        path = url.path.rstrip("/").removesuffix("/embeddings")
        self._url = url.copy_with(path=f"{path}/embeddings")
        self._limits = ApiLimits(self._app, config, url.host)
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=config.timeout,
            trust_env=False,
            transport=BoundedTransport(
                outbound,
                within_s=config.timeout,
                limits=httpx.Limits(max_connections=2 * AT_ONCE, keepalive_expiry=_KEEP_S),
            ),
        )

    def _in_calls(self, texts: list[str]) -> Iterator[list[str]]:
        """Texts in groups of the size of a call, each within what a minute may take."""
        most_tokens = self._limits.most_tokens if self._limits is not None else None
        some: list[str] = []
        tokens = 0
        for text in texts:
            own = _estimated([text])
            too_much = most_tokens is not None and tokens + own > most_tokens
            if some and (len(some) >= self._most or too_much):
                yield some
                some, tokens = [], 0
            some.append(text)
            tokens += own
        if some:
            yield some

    async def _fitting(self, texts: list[str]) -> tuple[NDArray[np.float64], int]:
        """Rows of the right dimension, for which the API may have to be asked."""
        try:
            return await self._checked(texts)
        except DocumentError as error:
            # An answer that is too long may be of vectors of the model's own dimension.
            if self._says_dimension or error.error_code not in {MISMATCH, TOO_LONG}:
                raise
            wrong = error
        # Some models make shorter vectors on request; those that do not refuse the very word.
        self._says_dimension = True
        try:
            return await self._checked(texts)
        except DocumentRefused as error:
            if error.error_code != MISMATCH:
                self._says_dimension = False
            if error.error_code == REFUSED:
                raise wrong from None
            raise

    async def _checked(self, texts: list[str]) -> tuple[NDArray[np.float64], int]:
        """Rows of the right dimension, or DocumentRefused."""
        rows, tokens = await self._asked(texts)
        if rows.shape[1] != self.dimension:
            raise DocumentRefused(
                f"{self._place} has vectors of dimension {rows.shape[1]} of the model "
                f"{self.model!r}, not {self.dimension}",
                MISMATCH,
                ("Set embeddings.dimension to the model's, and rebuild the RAG",),
            )
        return rows, tokens

    async def _asked(self, texts: list[str]) -> tuple[NDArray[np.float64], int]:
        """One call within the limits; two halves of it, if it is too large for the API."""
        if self._limits is None:
            raise NotOpen("the embedder is not open: call open() first")
        estimate = _estimated(texts)
        reservation = await self._limits.reserve(estimate)
        try:
            await self._limits.call(self._place)
            status, headers, body = await self._posted(texts)
            if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and len(texts) > 1:
                await self._limits.settle(reservation, 0)
                return await self._asked_in_halves(texts)
            if status != HTTPStatus.OK:
                refusal = refusal_of(status, headers, body, self._place, self._key)
                if refusal.error_code == BUSY:
                    await self._limits.leave_alone(refusal.retry_after, status)
                raise refusal
            if len(body) > _IN_A_THREAD:
                read = asyncio.to_thread(read_answer, body, len(texts), self._dimension)
                rows, counted = await read
            else:
                rows, counted = read_answer(body, len(texts), self._dimension)
        except DocumentError as error:
            if error.error_code in _NOT_COUNTED:
                await self._limits.settle(reservation, 0)
            raise
        used = estimate if counted is None else counted
        await self._limits.settle(reservation, used)
        return rows, used

    async def _asked_in_halves(self, texts: list[str]) -> tuple[NDArray[np.float64], int]:
        import numpy as np  # noqa: PLC0415  an extra

        middle = len(texts) // 2
        first, first_tokens = await self._asked(texts[:middle])
        second, second_tokens = await self._asked(texts[middle:])
        return np.concatenate((first, second)), first_tokens + second_tokens

    async def _posted(self, texts: list[str]) -> tuple[int, dict[str, str], bytes]:
        """Send a question, again if the connection was an old one that has ended."""
        question: dict[str, Any] = {
            "model": self.model,
            "input": texts,
            "encoding_format": "float",
        }
        if self._says_dimension:
            question["dimensions"] = self.dimension
        import httpx  # noqa: PLC0415  an extra

        from penstock.bounded_http import AnswerRefused, answers_up_to  # noqa: PLC0415  needs it

        content = msgspec.json.encode(question)
        longest = longest_answer(len(texts), self._dimension)
        for attempt in (1, 2):
            if self._client is None or self._url is None:
                raise NotOpen("the embedder is not open: call open() first")
            try:
                with answers_up_to(longest):
                    response = await self._client.post(self._url, content=content)
            except httpx.TimeoutException:
                raise EmbedderFailed(
                    f"{self._place} did not answer within {self._config.timeout:g} s", AWAY
                ) from None
            except AnswerRefused as error:
                raise too_long(str(error)) from None
            except httpx.HTTPError as error:
                lost = httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError
                if attempt == 1 and isinstance(error, lost):
                    continue
                raise EmbedderFailed(
                    f"{self._place} cannot be reached: {type(error).__name__}", AWAY
                ) from None
            return response.status_code, dict(response.headers), response.content
        raise AssertionError  # pragma: no cover  the second attempt has an end


def _estimated(texts: Sequence[str]) -> int:
    """How many tokens the texts may have."""
    return sum(len(text.encode()) // _BYTES_PER_TOKEN + 1 for text in texts)


def _key_from(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigurationWrong(
            "embeddings", (f"api_key_env: the variable {variable} is not set",)
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigurationWrong(
            "embeddings", (f"api_key_env: what {variable} holds cannot be a key",)
        )
    return key
