"""Penstock: the object a user holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.doctor import Diagnosis, diagnose
from penstock.redis.health import Health, check_health
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.runtime.worker import Worker

__all__ = ["Penstock"]


class Penstock:
    """One system on one server.

        app = Penstock()                       # the embedded server
        app = Penstock("redis://localhost")    # or yours

        async with app:
            print(await app.health())

    Settings come from `penstock.toml` and the environment; `url` wins over both. Whoever passes
    `settings` decides all of them.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.load({"url": url})
        self.redis = Client(self.settings)
        self.codec = Codec(self.settings.codec)

    def __repr__(self) -> str:
        return f"Penstock({str(self.redis.address)!r})"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect; without an address, start the embedded server unless it runs."""
        await self.redis.open()

    async def close(self) -> None:
        """End every connection. May come twice, or before any open."""
        await self.redis.close()

    async def health(self) -> Health:
        """Probe the server with a real write; never raises, never hangs. Needs no open."""
        return await check_health(self.redis)

    async def doctor(self) -> Diagnosis:
        """Judge how the server is set up."""
        return await diagnose(self.redis)

    def worker(self) -> Worker:
        """A worker for this process; `await worker.run()` returns its exit code."""
        # Most programs that import penstock only send work.
        from penstock.runtime.heartbeat import Heartbeat  # noqa: PLC0415
        from penstock.runtime.worker import Worker  # noqa: PLC0415

        heartbeat = Heartbeat(self.redis, lambda: worker.readiness())  # noqa: PLW0108
        worker = Worker(support=[heartbeat], settings=self.settings.worker)
        return worker
