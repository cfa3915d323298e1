"""The scripts of health probes and workers."""

from __future__ import annotations

from penstock.redis.script import ScriptCaller

__all__ = ["WorkerScripts"]


class WorkerScripts(ScriptCaller):
    """Scripts of health probes and workers, as calls."""

    async def probe(self, *, probe: str, token: str, ttl_ms: int) -> int:
        """Write the probe and return the server's time in ms."""
        return await self.run("probe", (probe,), (token, ttl_ms))

    async def beat(
        self,
        *,
        workers: str,
        worker: str,
        worker_id: str,
        about: bytes,
        ttl_ms: int,
        forget_ms: int,
    ) -> int:
        """Record a worker's heartbeat and return the server's time in ms."""
        return await self.run("beat", (workers, worker), (worker_id, about, ttl_ms, forget_ms))

    async def leave(self, *, workers: str, worker: str, worker_id: str) -> bool:
        """Take a worker off the list; False if it was not on it."""
        return bool(await self.run("leave", (workers, worker), (worker_id,)))
