"""The shortest way to the server that holds a queue, for the scripts that every job passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from penstock.errors import (
    ClusterDown,
    ReadOnlyReplica,
    Redirected,
    ScriptMissing,
    ServerError,
    Unreachable,
)
from penstock.redis.client import Client
from penstock.redis.keys import key_slot
from penstock.redis.script import Script
from penstock.redis.wire import Argument, Reply, Wire, pack

__all__ = ["Line"]

_ELSEWHERE = (Redirected, Unreachable, ReadOnlyReplica, ClusterDown)
"""Nothing was stored, and the client finds out where to go instead."""
_MOST_HEADS = 64


class Line:
    """Calls one script over the connection that all callers share; whatever is refused is raised.

    A call has `fixed` arguments, which most calls have in common, and jobs after them.
    """

    def __init__(self, client: Client, script: str, keys: tuple[str, ...]) -> None:
        self._client, self._keys = client, keys
        self._slot = key_slot(keys[0]) if client.keys.cluster else None
        self._name = script
        self._wire: Wire | None = None
        self._heads: dict[tuple[Argument, ...], tuple[int, bytes]] = {}
        self._version: tuple[int, ...] = ()

    @cached_property
    def _script(self) -> Script:
        return self._client.scripts.load(self._name)

    async def call(self, fixed: tuple[Argument, ...], jobs: Sequence[bytes]) -> list[Reply]:
        """Run the script."""
        wire = self._wire
        try:
            if wire is None or not wire.alive:
                self._wire = wire = await self._client.wire(slot=self._slot)
            if wire.behind:
                await wire.writable()
            reply: Reply = (await wire.send_packed((self._packed(fixed, jobs),)))[0]
        except _ELSEWHERE as error:
            reply = error
        if isinstance(reply, ServerError):
            return await self._again(reply, (*fixed, *jobs))
        return reply

    def _packed(self, fixed: tuple[Argument, ...], jobs: Sequence[bytes]) -> bytes:
        """The call in the protocol's form; what comes before the jobs is kept for the next one."""
        if self._version != self._client.server_version:
            self._version = self._client.server_version
            self._heads.clear()
        known = self._heads.get(fixed)
        if known is None:
            command = self._script.by_digest(self._version, self._keys, fixed)
            _, _, head = pack(command).partition(b"\r\n")
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            known = self._heads[fixed] = (len(command), head)
        count, head = known
        if len(jobs) == 1:
            return b"*%d\r\n%b$%d\r\n%b\r\n" % (count + 1, head, len(jobs[0]), jobs[0])
        parts = [b"*%d\r\n%b" % (count + len(jobs), head)]
        parts += [b"$%d\r\n%b\r\n" % (len(job), job) for job in jobs]
        return b"".join(parts)

    async def _again(self, refusal: ServerError, arguments: tuple[Argument, ...]) -> list[Reply]:
        """Ask once more if the server has done nothing, and another way may do."""
        version = self._client.server_version
        if isinstance(refusal, _ELSEWHERE):
            self._wire = None
            try:
                return await self._client.call(
                    *self._script.by_digest(version, self._keys, arguments)
                )
            except ScriptMissing as error:
                refusal = error
        if isinstance(refusal, ScriptMissing):
            return await self._client.call(*self._script.by_text(version, self._keys, arguments))
        raise refusal
