"""`Client`: connections to a server, a sentinel-guarded primary or a cluster, and every call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self, TypeVar

from penstock.errors import (
    ClusterDown,
    CommandRefused,
    HostNotAllowed,
    NotOpen,
    OutcomeUnknown,
    ReadOnlyReplica,
    Redirected,
    ScriptMissing,
    ServerError,
    TlsFailed,
    Unreachable,
)
from penstock.redis.address import Address, Endpoint, Topology, parse_address
from penstock.redis.connector import Connector
from penstock.redis.keys.space import KeySpace
from penstock.redis.node import Counters, Node, Role
from penstock.redis.redis_py import redis_py_client
from penstock.redis.retry import with_retry
from penstock.redis.routing import command_slot
from penstock.redis.script import Script, ScriptCaller
from penstock.redis.topology import AllowedHosts, ClusterMap, NodeMap, OneServer, SentinelMap
from penstock.redis.wire import Argument, Command, Reply, Wire
from penstock.settings import Settings

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.redis.embedded.server import Embedded

__all__ = ["Client"]

T = TypeVar("T")

# A reshard moves a slot once; more hops than this mean that the nodes disagree.
_MOST_REDIRECTS = 8
_TRY_AGAIN_S = 0.02

# What may mean that another node is the right one by now.
_DOUBTS = frozenset({ClusterDown, OutcomeUnknown, ReadOnlyReplica, TlsFailed, Unreachable})

# They change a connection for all who share it, or answer more or less often than once.
_NOT_SHARED = frozenset(
    spelling
    for name in (
        *("AUTH", "HELLO", "MONITOR", "MULTI", "PSUBSCRIBE", "PSYNC", "QUIT", "RESET", "SELECT"),
        *("SSUBSCRIBE", "SUBSCRIBE", "SYNC", "WATCH"),
    )
    for spelling in (name, name.lower(), name.encode(), name.lower().encode())
)


class Client:
    """Connections by role to one server, to a sentinel-guarded primary, or to a cluster.

        async with Client(Settings.load({"url": "redis://localhost"})) as client:
            await client.call("SET", "greeting", "hello", role=Role.CACHE)

    A call that returns is confirmed. It is never repeated behind the caller's back, except where
    the server said that it did nothing (a moved slot, a forgotten script).
    """

    def __init__(self, settings: Settings, *, visits: bool = False) -> None:
        """With `visits` an embedded server is neither started nor counted as used."""
        self.settings = settings
        self.embedded: Embedded | None = None
        self._visits = visits
        if settings.url is None:
            # What starts processes takes a while to import, and most programs have an address.
            from penstock.redis.embedded.server import Embedded  # noqa: PLC0415

            self.embedded = Embedded(settings.home_path, settings.embedded)
            self.address = Address(Topology.SINGLE, (self.embedded.endpoint,))
        else:
            self.address = parse_address(settings.url, settings)
        self.keys = KeySpace(settings.namespace, cluster=self.address.topology is Topology.CLUSTER)
        self.script_calls: dict[type[ScriptCaller], ScriptCaller] = {}
        """The scripts of each engine as calls: see `ScriptCaller.of`."""
        self.substituted: Callable[[Script], Script] = _unchanged
        """The script to run in place of another; tests set it."""
        self.counters = Counters()
        self._connector = Connector(self.address, settings, self.embedded, visits=visits)
        self._map: NodeMap | None = None
        self._cluster: ClusterMap | None = None
        self._made: list[Node] = []
        self._redis_py: tuple[Endpoint, Redis] | None = None
        self._inherited: object = None
        self._pid = 0

    def __repr__(self) -> str:
        return f"Client({str(self.address)!r})"

    @property
    def server_version(self) -> tuple[int, ...]:
        """Version of the server that was connected to last."""
        return self._connector.server_version

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect once, so that a wrong address or password shows now. May come twice.

        Without an address the embedded server is started first, unless it runs.
        """
        if self._map is not None and self._pid == os.getpid():
            return
        self._pid = os.getpid()
        # After a fork these are the parent's: kept, so that nothing closes them here, never used.
        self._inherited = (self._made, self._redis_py)
        self._made, self._redis_py = [], None
        self._map = self._make_map()
        try:
            self._connector.check_files()
            if self.embedded is not None and not self._visits:
                await asyncio.to_thread(self.embedded.attach)
            await (await self._map.node(None)).wire(Role.DEFAULT)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End every connection. May come twice, or before any open."""
        was_open, self._map, self._cluster = self._map is not None, None, None
        if not was_open or self._pid != os.getpid():
            return  # after a fork the sockets are the parent's
        made, self._made = self._made, []
        opened, self._redis_py = self._redis_py, None
        try:
            try:
                await asyncio.gather(*(node.close() for node in made))
            except asyncio.CancelledError:
                for node in made:
                    node.abort()
                raise
            if opened is not None:
                await opened[1].aclose()
        finally:
            if self.embedded is not None:
                self.embedded.detach()

    async def call(
        self, *command: Argument, role: Role = Role.DEFAULT, timeout_s: float | None = None
    ) -> Reply:
        """Send one command and return its reply as the server sends it.

        A command that blocks goes by `Role.QUEUE` and says with `timeout_s` how long it may take,
        its own limit and a margin for the way.
        """
        if not command or command[0] in _NOT_SHARED:
            raise _unfit(command)
        nodes = self._nodes()
        if self._cluster is not None:
            reply = (await self._routed(self._cluster, (command,), role, timeout_s))[0]
        else:
            node = await nodes.node(None)
            reply = (await self._ask(node, role, (command,), timeout_s))[0]
        if isinstance(reply, ServerError):
            raise reply
        return reply

    async def run_script(
        self,
        script: Script,
        keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
        role: Role = Role.DEFAULT,
    ) -> Reply:
        """Run a script by its digest; a server that has forgotten it gets the text."""
        script, version = self.substituted(script), self.server_version
        try:
            return await self.call(*script.by_digest(version, keys, arguments), role=role)
        except ScriptMissing:
            return await self.call(*script.by_text(version, keys, arguments), role=role)

    async def pipeline(
        self,
        commands: Sequence[Command],
        *,
        role: Role = Role.DEFAULT,
        timeout_s: float | None = None,
    ) -> list[Reply]:
        """Send `commands` in one go to each node concerned; each has its own end in the list."""
        nodes = self._nodes()
        for command in commands:
            if not command or command[0] in _NOT_SHARED:
                raise _unfit(command)
        if self._cluster is not None:
            return await self._routed(self._cluster, commands, role, timeout_s)
        try:
            node = await nodes.node(None)
        except ServerError as error:
            return [error] * len(commands)
        return await self._ask(node, role, commands, timeout_s)

    @asynccontextmanager
    async def lease(
        self, role: Role = Role.QUEUE, *, slot: int | None = None
    ) -> AsyncGenerator[Wire]:
        """Lend a connection to one caller alone (to the owner of `slot` on a cluster).

        An error that leaves the block may mean that another node has to be found.
        """
        node = await self._nodes().node(slot)
        try:
            async with node.lease(role) as wire:
                yield wire
        except ServerError as error:
            self._learn_from(error, node)
            raise

    @asynccontextmanager
    async def dedicated(self, *, slot: int | None = None) -> AsyncGenerator[Wire]:
        """Open a connection for one caller, as `lease`, but outside of every pool.

        For reads that wait on the server for as long as the process runs. It is closed at the end
        of the block. Raises `PoolExhausted` if there are too few file descriptors, here or there.
        """
        node = await self._nodes().node(slot)
        try:
            async with node.dedicated() as wire:
                yield wire
        except ServerError as error:
            self._learn_from(error, node)
            raise

    async def wire(self, role: Role = Role.DEFAULT, *, slot: int | None = None) -> Wire:
        """Return the role's shared connection, for loops that pipeline by hand.

        It may end at any moment; then ask again.
        """
        node = await self._nodes().node(slot)
        return node.shared(role) or await node.wire(role)

    def owes(self, since: float) -> bool:
        """Whether a call that was made by then, by the loop's time, may still wait for a server.

        Each such wait has a time limit, which is extended while bytes arrive.
        """
        return any(node.owes(since) for node in self._made)

    async def primaries(self) -> list[Node]:
        """Return every node that takes writes, as the server reports it now."""
        return await self._nodes().primaries()

    def tag_on(self, node: Node) -> str:
        """Return a hash tag for keys that must live on `node`; any will do without a cluster."""
        return self._cluster.tag_on(node) if self._cluster else "server"

    async def with_retry(
        self,
        operation: Callable[[], Awaitable[T]],
        operation_name: str,
        max_retries: int | None = None,
        *,
        idempotent: bool = False,
    ) -> T:
        """`penstock.redis.with_retry` with this client's settings."""
        return await with_retry(
            operation,
            operation_name,
            max_retries,
            settings=self.settings.retry,
            idempotent=idempotent,
        )

    async def redis_py(self) -> Redis:
        """Return redis-py's own client on this address, for pub/sub and what is not wrapped here.

        Its repeats are off: it, too, sends a write once. Its errors are redis-py's.
        """
        places = [node.endpoint for node in await self._nodes().primaries()]
        if self._redis_py is not None and self._redis_py[0] not in places:
            opened, self._redis_py = self._redis_py, None
            await opened[1].aclose()  # its server is no primary any more
        if self._redis_py is None:
            made = redis_py_client(
                self.address,
                places[0],
                self.settings,
                self._connector.credentials,
                self.embedded,
            )
            self._redis_py = (places[0], made)
        return self._redis_py[1]

    # inside

    def _nodes(self) -> NodeMap:
        if self._map is None:
            raise NotOpen("the client is not open: use `async with`, or call open() first")
        if self._pid != os.getpid():
            raise NotOpen("the client was opened before a fork: open one in this process")
        return self._map

    async def _ask(
        self, node: Node, role: Role, commands: Sequence[Command], timeout_s: float | None
    ) -> list[Reply]:
        """Send to one node. Whatever goes wrong stands in the list: nothing is raised."""
        try:
            if role is Role.QUEUE:
                async with node.lease(role) as lent:
                    replies = await lent.call_many(commands, timeout_s=timeout_s)
            else:
                wire = node.shared(role) or await node.wire(role)
                replies = await wire.call_many(commands, timeout_s=timeout_s)
        except ServerError as error:
            self._learn_from(error, node)
            return [error] * len(commands)
        for reply in replies:
            if type(reply) in _DOUBTS:
                self._learn_from(reply, node)
                break
        return replies

    def _learn_from(self, error: ServerError, node: Node) -> None:
        """Have the map refreshed if an error may mean that the node is no longer the right one."""
        if self._map is not None and (type(error) in _DOUBTS or isinstance(error, Redirected)):
            self._map.doubt(node)
        if isinstance(error, ReadOnlyReplica):
            node.renew()

    async def _routed(
        self,
        cluster: ClusterMap,
        commands: Sequence[Command],
        role: Role,
        timeout_s: float | None,
    ) -> list[Reply]:
        """Send each command to the owner of its slot and follow the slots that move meanwhile.

        Commands of one slot keep their order: a slot that has moved refuses all that follow.
        """
        replies: list[Reply] = [None] * len(commands)
        targets: dict[int, tuple[Node, bool]] = {}
        for place, command in enumerate(commands):
            try:
                targets[place] = (await cluster.node(command_slot(command)), False)
            except ServerError as error:
                replies[place] = error
        for _ in range(_MOST_REDIRECTS):
            groups: dict[tuple[Node, bool], list[int]] = {}
            for place, target in targets.items():
                groups.setdefault(target, []).append(place)
            answers = await asyncio.gather(
                *(
                    self._ask_group(target, [commands[place] for place in places], role, timeout_s)
                    for target, places in groups.items()
                )
            )
            for places, answer in zip(groups.values(), answers, strict=True):
                for place, reply in zip(places, answer, strict=True):
                    replies[place] = reply
            redirects = {
                place: (reply, target[0])
                for place, target in targets.items()
                if isinstance(reply := replies[place], Redirected)
            }
            if not redirects:
                break
            targets = await self._follow(cluster, redirects, replies)
        return replies

    async def _follow(
        self,
        cluster: ClusterMap,
        redirects: dict[int, tuple[Redirected, Node]],
        replies: list[Reply],
    ) -> dict[int, tuple[Node, bool]]:
        """Return where each redirected command goes next, after a moment if one must wait.

        One that may not go there ends among the replies.
        """
        targets: dict[int, tuple[Node, bool]] = {}
        early = False
        for place, (error, asked) in redirects.items():
            if str(error).startswith(("MOVED ", "ASK ")):
                try:
                    targets[place] = cluster.redirected(error, asked)
                except HostNotAllowed as refusal:
                    replies[place] = refusal
            else:
                early = True
                targets[place] = (asked, False)
        if early:
            await asyncio.sleep(_TRY_AGAIN_S)
        return targets

    async def _ask_group(
        self,
        target: tuple[Node, bool],
        commands: Sequence[Command],
        role: Role,
        timeout_s: float | None,
    ) -> list[Reply]:
        node, asking = target
        if not asking:
            return await self._ask(node, role, commands, timeout_s)
        announced = [part for command in commands for part in (("ASKING",), command)]
        return (await self._ask(node, role, announced, timeout_s))[1::2]

    def _make_map(self) -> NodeMap:
        address = self.address
        if address.topology is Topology.SINGLE:
            return OneServer(address.endpoints[0], self._make_node)
        allowed = AllowedHosts(address.endpoints, self.settings.cluster.hosts)
        if address.topology is Topology.CLUSTER:
            self._cluster = ClusterMap(address.endpoints, self._make_node, allowed)
            return self._cluster
        sentinels = [self._make_sentinel(endpoint) for endpoint in address.endpoints]
        return SentinelMap(address.service, sentinels, self._make_node, allowed)

    def _make_node(self, endpoint: Endpoint) -> Node:
        return self._keep(
            Node(
                endpoint,
                self._connector.connect,
                self.settings.pools,
                self.counters,
                self.settings.timeouts.silent_s,
            )
        )

    def _make_sentinel(self, endpoint: Endpoint) -> Node:
        return self._keep(
            Node(endpoint, self._connector.connect_sentinel, self.settings.pools, Counters())
        )

    def _keep(self, node: Node) -> Node:
        """Remember the node until it is over, so that closing the client leaves nothing open."""
        self._made = [*(old for old in self._made if not old.is_over), node]
        return node


def _unfit(command: Command) -> Exception:
    if not command:
        return ValueError("an empty command would get no reply")
    return CommandRefused(
        f"{command[0]!r} would change a shared connection: use redis_py() or lease()"
    )


def _unchanged(script: Script) -> Script:
    return script
