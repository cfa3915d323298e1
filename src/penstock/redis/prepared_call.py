"""Scripts that every message or job passes, called in the fewest steps.

A typed method spells the keys and arguments of a script once, as a `Prepared`; callers of a hot
path keep it and pack only what differs from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Generic, TypeVar

from penstock.errors import (
    ClusterDown,
    ReadOnlyReplica,
    Redirected,
    ScriptMissing,
    ServerError,
    Unreachable,
)
from penstock.redis.client import Client
from penstock.redis.node import Role
from penstock.redis.script import Script
from penstock.redis.wire import Argument, Command, Reply, Wire, pack

__all__ = ["ELSEWHERE", "Prepared", "ScriptCall", "SharedLink", "run_together"]

T_co = TypeVar("T_co", covariant=True)

ELSEWHERE: Final = (Redirected, Unreachable, ReadOnlyReplica, ClusterDown)
"""Nothing was stored, and the client knows by now, or finds out, which node to use instead."""


class SharedLink:
    """The shared connection of one role to the node that owns a hash slot, kept while it lives."""

    __slots__ = ("client", "role", "slot", "wire")

    def __init__(
        self, client: Client, *, role: Role = Role.DEFAULT, slot: int | None = None
    ) -> None:
        self.client, self.role, self.slot = client, role, slot
        self.wire: Wire | None = None

    async def open(self) -> Wire:
        """Return the connection, open; raises if there is none to be had."""
        wire = self.wire
        if wire is None or not wire.alive:
            self.wire = wire = await self.client.wire(self.role, slot=self.slot)
        return wire


class Prepared:
    """A script with its keys and first arguments in the protocol's form.

        call = Prepared(link, script, keys, (limit, policy))
        reply = await call.send(job)

    `send` adds the last arguments. A refusal is raised; a server that did nothing because the
    script or the slot is elsewhere is asked once more.
    """

    __slots__ = (
        *("_arguments", "_count", "_head", "_keys", "_link", "_script", "_substituted", "_whole"),
        "_wire",
    )

    def __init__(
        self,
        link: SharedLink,
        script: Script,
        keys: tuple[str, ...],
        arguments: tuple[Argument, ...] = (),
    ) -> None:
        self._link, self._script = link, script
        self._keys, self._arguments = keys, arguments
        self._wire: Wire | None = None
        self._substituted: object = None
        self._count, self._head, self._whole = 0, b"", b""

    async def send(self, *tail: bytes) -> Reply:
        """Call the script with these last arguments."""
        link = self._link
        try:
            wire = link.wire
            if wire is None or not wire.alive:
                wire = await link.open()
            if wire.behind:
                await wire.writable()
            reply: Reply = (await wire.send_packed((self.packed(tail),)))[0]
        except ELSEWHERE as error:
            reply = error
        if isinstance(reply, ServerError):
            return await self._send_again(reply, tail)
        return reply

    def packed(self, tail: Sequence[bytes] = ()) -> bytes:
        """The whole call by digest, for a wire."""
        link = self._link
        # A new connection may lead to a server of another version.
        if self._wire is not link.wire or self._substituted is not link.client.substituted:
            self._pack()
        if len(tail) == 1:
            (last,) = tail
            return b"*%d\r\n%b$%d\r\n%b\r\n" % (self._count + 1, self._head, len(last), last)
        if not tail:
            return self._whole
        if len(tail) == 4:  # noqa: PLR2004  as those of `add_to_window`
            a, b, c, d = tail
            return b"*%d\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
                *(self._count + 4, self._head),
                *(len(a), a, len(b), b, len(c), c, len(d), d),
            )
        parts = [b"*%d\r\n%b" % (self._count + len(tail), self._head)]
        parts += [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in tail]
        return b"".join(parts)

    def _pack(self) -> None:
        client, self._wire = self._link.client, self._link.wire
        self._substituted = client.substituted
        script = client.substituted(self._script)
        command = script.by_digest(client.server_version, self._keys, self._arguments)
        self._count, self._whole = len(command), pack(command)
        _, _, self._head = self._whole.partition(b"\r\n")

    async def _send_again(self, refusal: ServerError, tail: tuple[bytes, ...]) -> Reply:
        if not isinstance(refusal, (*ELSEWHERE, ScriptMissing)):
            raise refusal
        if not isinstance(refusal, ScriptMissing):
            self._link.wire = None
        arguments = (*self._arguments, *tail)
        return await self._link.client.run_script(
            self._script, self._keys, arguments, self._link.role
        )


class ScriptCall(Generic[T_co]):
    """One call of a script: awaited it goes through the client, packed it goes over any wire.

        reply = await scripts.publish_message(stream=…, …)
        wire.send_packed((scripts.publish_message(stream=…, …).packed(),))

    So a typed method spells keys and arguments once for both. `read` types the reply.
    """

    __slots__ = ("_arguments", "_client", "_keys", "_script", "read")

    def __init__(
        self,
        client: Client,
        script: Script,
        keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
        read: Callable[[Reply], T_co],
    ) -> None:
        self._client, self._script = client, script
        self._keys, self._arguments = keys, arguments
        self.read = read

    def __await__(self) -> Generator[Any, Any, T_co]:
        reply = yield from self._client.run_script(
            self._script, self._keys, self._arguments
        ).__await__()
        return self.read(reply)

    def prepared(self, link: SharedLink) -> Prepared:
        """The call for many times, each with further arguments."""
        return Prepared(link, self._script, self._keys, self._arguments)

    def command(self, *, by_text: bool = False) -> Command:
        """The call by digest, or with the text for a server that has not got the script."""
        script = self._client.substituted(self._script)
        call = script.by_text if by_text else script.by_digest
        return call(self._client.server_version, self._keys, self._arguments)

    def packed(self, *, by_text: bool = False) -> bytes:
        """The same in the protocol's form."""
        if by_text:
            return pack(self.command(by_text=True))
        client = self._client
        script = client.substituted(self._script)
        return pack(script.by_digest(client.server_version, self._keys, self._arguments))


async def run_together(
    client: Client, calls: Sequence[ScriptCall[T_co]]
) -> list[T_co | ServerError]:
    """Make calls in one round trip; each has its own end in the list."""
    replies = await client.pipeline([call.command() for call in calls])
    missing = [at for at, reply in enumerate(replies) if isinstance(reply, ScriptMissing)]
    if missing:
        again = await client.pipeline([calls[at].command(by_text=True) for at in missing])
        for at, reply in zip(missing, again, strict=True):
            replies[at] = reply
    return [
        reply if isinstance(reply, ServerError) else call.read(reply)
        for call, reply in zip(calls, replies, strict=True)
    ]
