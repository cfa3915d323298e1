"""Which node answers for a key: one server, the primary that sentinels name, or a cluster's owner.

Asked anew after every sign that the answer changed, so that a demoted primary is not written to for
ever. The questions go over the same wires as everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock.errors import ClusterDown, Redirected, ServerError, Unreachable
from penstock.redis.address import Endpoint
from penstock.redis.keys import SLOTS, key_slot
from penstock.redis.node import Node, Role

__all__ = ["ClusterMap", "NodeMap", "OneServer", "SentinelMap"]

# While a primary is down every call doubts the map; the cluster is not asked for each of them.
_BETWEEN_QUESTIONS_S = 0.2

MakeNode = Callable[[Endpoint], Node]


class NodeMap(Protocol):
    """Finds nodes. `doubt` tells it that this one may be the wrong one by now."""

    async def node(self, slot: int | None) -> Node: ...

    def doubt(self, suspect: Node) -> None: ...

    async def primaries(self) -> list[Node]: ...

    def known(self) -> list[Node]: ...


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

    def known(self) -> list[Node]:
        return [self.only]


class SentinelMap:
    """The primary that the sentinels name; asked again after every doubt."""

    def __init__(
        self,
        service: str,
        sentinels: list[Node],
        make_node: MakeNode,
    ) -> None:
        self._service = service
        self._sentinels = sentinels
        self._make_node = make_node
        self._nodes: dict[Endpoint, Node] = {}
        self._primary: Node | None = None

    async def node(self, slot: int | None) -> Node:  # noqa: ARG002
        if self._primary is None:
            endpoint = await self._ask()
            self._primary = self._nodes.get(endpoint) or self._make_node(endpoint)
            self._nodes[endpoint] = self._primary
        return self._primary

    def doubt(self, suspect: Node) -> None:
        if self._primary is suspect:
            self._primary = None

    async def primaries(self) -> list[Node]:
        return [await self.node(None)]

    def known(self) -> list[Node]:
        return [*self._nodes.values(), *self._sentinels]

    async def _ask(self) -> Endpoint:
        failure: ServerError | None = None
        for index, sentinel in enumerate(self._sentinels):
            try:
                wire = await sentinel.wire(Role.DEFAULT)
                named = await wire.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            except ServerError as error:
                failure = error
                continue
            if named:
                # Ask the one that answered first next time.
                self._sentinels.insert(0, self._sentinels.pop(index))
                return Endpoint(named[0].decode(), int(named[1]))
        raise failure or Unreachable(f"no sentinel knows a primary named {self._service!r}")


class ClusterMap:
    """The owner of each slot, as the cluster's nodes tell it."""

    def __init__(self, seeds: tuple[Endpoint, ...], make_node: MakeNode) -> None:
        self._seeds = seeds
        self._make_node = make_node
        self._nodes: dict[Endpoint, Node] = {}
        self._owners: list[Node | None] = []
        self._asking = asyncio.Lock()
        self._asked_at = 0.0

    async def node(self, slot: int | None) -> Node:
        if not self._owners:
            await self._ask()
        if slot is None:
            return next(owner for owner in self._owners if owner)
        if (owner := self._owners[slot]) is None:
            self._owners = []
            raise ClusterDown(f"no node owns slot {slot}")
        return owner

    def doubt(self, suspect: Node) -> None:  # noqa: ARG002
        if asyncio.get_running_loop().time() - self._asked_at > _BETWEEN_QUESTIONS_S:
            self._owners = []

    async def primaries(self) -> list[Node]:
        self._owners = []
        await self._ask()
        return list(dict.fromkeys(owner for owner in self._owners if owner))

    def known(self) -> list[Node]:
        return list(self._nodes.values())

    def tag_on(self, node: Node) -> str:
        """Return a hash tag whose slot `node` owns."""
        for tag in map(str, range(SLOTS)):
            if self._owners and self._owners[key_slot(tag)] is node:
                return tag
        raise ClusterDown(f"{node.endpoint} owns no slot")

    def redirected(self, error: Redirected, asked: Node) -> tuple[Node, bool]:
        """Return the node that the answer names and whether it wants `ASKING` first.

        A finished move is remembered; a move under way (ASK) is not.
        """
        kind, slot, place = str(error).split(" ")[:3]
        host, _, port = place.rpartition(":")
        node = self._at(Endpoint(host or asked.endpoint.host, int(port)))
        if kind == "MOVED" and self._owners:
            self._owners[int(slot)] = node
        return node, kind == "ASK"

    async def _ask(self) -> None:
        """Read the slot map from the first node that answers; one question at a time."""
        async with self._asking:
            if self._owners:
                return
            failure: ServerError | None = None
            for node in self._likely():
                try:
                    wire = await node.wire(Role.DEFAULT)
                    ranges = await wire.call("CLUSTER", "SLOTS")
                except ServerError as error:
                    failure = error
                    continue
                owners: list[Node | None] = [None] * SLOTS
                for first, last, (host, port, *_), *_ in ranges:
                    owner = self._at(Endpoint(host.decode() or node.endpoint.host, port))
                    owners[first : last + 1] = [owner] * (last + 1 - first)
                if any(owners):
                    self._owners, self._asked_at = owners, asyncio.get_running_loop().time()
                    await self._forget_others({owner for owner in owners if owner})
                    return
                failure = ClusterDown(f"{node.endpoint}: no slot has an owner")
            raise failure or Unreachable("no cluster node is known")

    def _likely(self) -> list[Node]:
        """Nodes to ask, those with an open connection first."""
        nodes = dict.fromkeys([*self._nodes.values(), *map(self._at, self._seeds)])
        return sorted(nodes, key=lambda node: node.shared(Role.DEFAULT) is None)

    async def _forget_others(self, owners: set[Node]) -> None:
        gone = [place for place, node in self._nodes.items() if node not in owners]
        for place in gone:
            await self._nodes.pop(place).close()

    def _at(self, endpoint: Endpoint) -> Node:
        if endpoint not in self._nodes:
            self._nodes[endpoint] = self._make_node(endpoint)
        return self._nodes[endpoint]
