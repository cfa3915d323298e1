"""Which node answers for a key: one server, the primary that sentinels name, or a cluster's owner.

Asked again after each sign that the answer changed, so that a demoted primary is not written to for
ever. The questions go over the same wires as everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, cast

from penstock.errors import (
    AddressError,
    ClusterDown,
    HostNotAllowed,
    PenstockError,
    Redirected,
    ServerError,
    Unreachable,
)
from penstock.hosts import HostPatterns
from penstock.redis.address import Endpoint
from penstock.redis.keys.hash_slot import SLOTS, key_slot
from penstock.redis.node import Node, Role
from penstock.redis.wire import Argument, Reply

__all__ = ["AllowedHosts", "ClusterMap", "NodeMap", "OneServer", "SentinelMap"]

# While a primary is down every call doubts the answer; the question is not asked for each of them.
_BETWEEN_QUESTIONS_S = 0.2
# One that hangs must not hold up the question to the next.
_ANSWER_WITHIN_S = 1.0
# With this many tags even a node that owns a single slot has one with near certainty.
_MOST_TAGS = SLOTS * 16

MakeNode = Callable[[Endpoint], Node]


class AllowedHosts:
    """Hosts that a server may name: those of our address, and of `cluster.hosts`, if it is set.

    The password goes to whatever is named.
    """

    def __init__(self, own: tuple[Endpoint, ...], hosts: str) -> None:
        self._own = {endpoint.host for endpoint in own}
        patterns = hosts.split(",") if hosts else ()
        self._patterns = HostPatterns(patterns, setting="cluster.hosts") if patterns else None

    def check(self, host: str, named_by: Node) -> None:
        """Raise HostNotAllowed for any other."""
        if self._patterns is None or host in self._own or self._patterns.allows(host):
            return
        raise HostNotAllowed(
            f"{named_by.endpoint} names the host {host[:100]!r}, which cluster.hosts does not allow"
        )


class NodeMap(Protocol):
    """Finds nodes. `doubt` reports that a node may no longer be the right one."""

    async def node(self, slot: int | None) -> Node: ...

    def doubt(self, suspect: Node) -> None: ...

    async def primaries(self) -> list[Node]: ...


class OneServer:
    """A single address, the embedded server's too."""

    def __init__(self, endpoint: Endpoint, make_node: MakeNode) -> None:
        self.only = make_node(endpoint)

    async def node(self, slot: int | None) -> Node:  # noqa: ARG002
        return self.only

    def doubt(self, suspect: Node) -> None:
        """There is nowhere else to look."""

    async def primaries(self) -> list[Node]:
        return [self.only]


class SentinelMap:
    """The primary that the sentinels name; asked again after every doubt."""

    def __init__(
        self,
        service: str,
        sentinels: list[Node],
        make_node: MakeNode,
        allowed: AllowedHosts,
    ) -> None:
        self._service, self._allowed = service, allowed
        self._sentinels = sentinels
        self._make_node = make_node
        self._primary: Node | None = None
        self._question = _Question()

    async def node(self, slot: int | None) -> Node:  # noqa: ARG002
        if self._primary is None or self._question.is_due:
            await self._question.put(self._ask, wait=self._primary is None)
        return cast("Node", self._primary)

    def doubt(self, suspect: Node) -> None:
        if self._primary is suspect:
            self._question.doubted = True

    async def primaries(self) -> list[Node]:
        return [await self.node(None)]

    async def _ask(self) -> None:
        failure: PenstockError | None = None
        for sentinel in list(self._sentinels):
            try:
                named = await _answer(
                    sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service
                )
                if named:
                    self._allowed.check(named[0].decode(), sentinel)
            except (ServerError, AddressError) as error:
                failure = failure or error
                continue
            if not named:
                failure = Unreachable(
                    f"{sentinel.endpoint}: it knows no primary named {self._service!r}"
                )
                continue
            # Ask the one that answered first next time.
            self._sentinels.sort(key=lambda other: other is not sentinel)
            self._turn_to(Endpoint(named[0].decode(), int(named[1])))
            return
        raise failure or Unreachable("no sentinel is known")

    def _turn_to(self, endpoint: Endpoint) -> None:
        if self._primary is None or self._primary.endpoint != endpoint:
            if self._primary is not None:
                self._primary.retire()
            self._primary = self._make_node(endpoint)


class ClusterMap:
    """The owner of each slot, as the cluster's nodes report it.

    A doubt leaves the map in use: while one caller asks, the others go on with what is known.
    """

    def __init__(
        self, seeds: tuple[Endpoint, ...], make_node: MakeNode, allowed: AllowedHosts
    ) -> None:
        self._seeds, self._allowed = seeds, allowed
        self._make_node = make_node
        self._nodes: dict[Endpoint, Node] = {}
        self._owners: list[Node | None] = []
        self._primaries: list[Node] = []
        self._suspects: set[Node] = set()
        self._question = _Question()

    async def node(self, slot: int | None) -> Node:
        if not self._owners or self._question.is_due:
            await self._question.put(self._ask, wait=not self._owners)
        if slot is None:
            return min(self._primaries, key=_unfitness)
        if (owner := self._owners[slot]) is None:
            self._question.doubted = True
            raise ClusterDown(f"no node owns slot {slot}")
        return owner

    def doubt(self, suspect: Node) -> None:
        self._suspects.add(suspect)
        self._question.doubted = True

    async def primaries(self) -> list[Node]:
        await self._question.put(self._ask, wait=True)
        return list(self._primaries)

    def tag_on(self, node: Node) -> str:
        """Return a hash tag whose slot `node` owns."""
        if node in self._primaries:
            for tag in map(str, range(_MOST_TAGS)):
                if self._owners[key_slot(tag)] is node:
                    return tag
        raise ClusterDown(f"{node.endpoint} owns no slot")

    def redirected(self, error: Redirected, asked: Node) -> tuple[Node, bool]:
        """Return the node that the answer names and whether it wants `ASKING` first.

        A finished move is remembered; a move under way (ASK) is not. HostNotAllowed for a host that
        may not be named.
        """
        kind, slot, place = str(error).split(" ")[:3]
        host, _, port = place.rpartition(":")
        if host:
            self._allowed.check(host, asked)
        node = self._at(Endpoint(host or asked.endpoint.host, int(port)))
        if kind == "MOVED" and self._owners:
            self._owners[int(slot)] = node
        return node, kind == "ASK"

    async def _ask(self) -> None:
        """Read the slot map from the first node that answers."""
        failure: PenstockError | None = None
        for node in self._likely():
            try:
                owners = self._owners_in(await _answer(node, "CLUSTER", "SLOTS"), node)
            except (ServerError, AddressError) as error:
                failure = error
                continue
            if any(owners):
                self._owners = owners
                self._primaries = list(dict.fromkeys(owner for owner in owners if owner))
                self._suspects.clear()
                self._forget_others()
                return
            failure = ClusterDown(f"{node.endpoint}: no slot has an owner")
        raise failure or Unreachable("no cluster node is known")

    def _owners_in(self, ranges: Reply, node: Node) -> list[Node | None]:
        """The owner of each slot, as `node` reports it."""
        owners: list[Node | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_ in ranges:
            # Without a host it is the one that we have just talked to.
            place = host.decode() if host else node.endpoint.host
            if host:
                self._allowed.check(place, node)
            owners[first : last + 1] = [self._at(Endpoint(place, port))] * (last + 1 - first)
        return owners

    def _likely(self) -> Iterator[Node]:
        """Nodes to ask: those with an open connection first, those under suspicion late."""
        yield from sorted(
            self._nodes.values(), key=lambda node: (node in self._suspects, *_unfitness(node))
        )
        for seed in self._seeds:
            if seed not in self._nodes:
                yield self._at(seed)

    def _forget_others(self) -> None:
        for place, node in list(self._nodes.items()):
            if node not in self._primaries:
                del self._nodes[place]
                node.retire()

    def _at(self, endpoint: Endpoint) -> Node:
        if endpoint not in self._nodes:
            self._nodes[endpoint] = self._make_node(endpoint)
        return self._nodes[endpoint]


class _Question:
    """Asks for the map: one caller at a time, and not for every doubt."""

    def __init__(self) -> None:
        self.doubted = False
        self._asking = asyncio.Lock()
        self._asked_at = 0.0
        self._failure: PenstockError | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is a doubt, the last question is a while ago and none is under way."""
        return (
            self.doubted
            and not self._asking.locked()
            and asyncio.get_running_loop().time() - self._asked_at > _BETWEEN_QUESTIONS_S
        )

    async def put(self, ask: Callable[[], Coroutine[Any, Any, None]], *, wait: bool) -> None:
        """Ask; a caller that must `wait` gets the failure, others keep using the old answer."""
        loop = asyncio.get_running_loop()
        wanted_at = loop.time()
        async with self._asking:
            if self._asked_at <= wanted_at:  # else another asked while this one waited its turn
                try:
                    await ask()
                    self._failure = None
                except PenstockError as error:
                    self._failure = error
                self.doubted = self._failure is not None
                self._asked_at = loop.time()
            if wait and self._failure is not None:
                raise type(self._failure)(*self._failure.args)


async def _answer(node: Node, *question: Argument) -> Reply:
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            wire = await node.wire(Role.DEFAULT)
            return await wire.call(*question)
    except TimeoutError:
        raise Unreachable(f"{node.endpoint}: no answer within {_ANSWER_WITHIN_S:g} s") from None


def _unfitness(node: Node) -> tuple[bool, bool]:
    return (node.shared(Role.DEFAULT) is None, node.refused)
