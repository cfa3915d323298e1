"""A real cluster from the same server binary, ready in seconds, for tests.

with ClusterProcess(primaries=3, replicas=1) as cluster:
    old = cluster.primary_of(cluster.slot_of("orders"))
    old.kill()
    new = cluster.primary_of(cluster.slot_of("orders"))    # waits for the election
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import hiredis

from penstock.redis.keys.hash_slot import SLOTS
from penstock.testing.binaries import Binary
from penstock.testing.servers import ServerProcess, Startable, wait_until

__all__ = ["ClusterProcess"]

_READY_TIMEOUT_S = 30.0
_FAILOVER_TRIES = 3
_KEYS_PER_MOVE = 1_000
_NODE_ARGUMENTS = (
    *("--cluster-enabled", "yes"),
    *("--cluster-config-file", "nodes.conf"),
    *("--cluster-node-timeout", "1500"),
    *("--cluster-replica-validity-factor", "0"),  # a replica stands for election, however stale
)


@dataclass(frozen=True, slots=True)
class _Member:
    """One line of CLUSTER NODES: how one node sees another."""

    id: str
    flags: frozenset[str]
    primary_id: str
    slots: frozenset[int]

    @classmethod
    def parse(cls, line: str) -> _Member:
        identifier, _, flags, primary_id, _, _, _, _, *slots = line.split(" ")
        owned: set[int] = set()
        for word in slots:
            if not word.startswith("["):  # a slot on its way still belongs to its old owner
                first, _, last = word.partition("-")
                owned.update(range(int(first), int(last or first) + 1))
        return cls(identifier, frozenset(flags.split(",")), primary_id, frozenset(owned))


class ClusterProcess(Startable):
    """`primaries` nodes that share the slots evenly, each with `replicas` replicas in step."""

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 0,
        *arguments: str,
        binary: str | Binary = "valkey",
    ) -> None:
        self._primary_count = primaries
        self.nodes = [
            ServerProcess(binary, *_NODE_ARGUMENTS, *arguments)
            for _ in range(primaries * (1 + replicas))
        ]
        """The primaries as they were at the start, then their replicas in the same order."""
        self._ids: dict[str, ServerProcess] = {}

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every node."""
        return [node.address for node in self.nodes]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in self.addresses)

    @property
    def living(self) -> list[ServerProcess]:
        """The nodes that run and are not frozen."""
        return [node for node in self.nodes if node.is_running and not node.is_paused]

    def start(self) -> None:
        """Start all nodes and return when the cluster is well, seen from each of them."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_ready()
        self._ids = {str(node.command("CLUSTER", "MYID")): node for node in self.nodes}
        primaries = self.nodes[: self._primary_count]
        for number, primary in enumerate(primaries):
            first, last = (SLOTS * edge // len(primaries) for edge in (number, number + 1))
            primary.command("CLUSTER", "ADDSLOTS", *range(first, last))
            primary.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            self.nodes[0].command("CLUSTER", "MEET", *node.address)
        for number, replica in enumerate(self.nodes[self._primary_count :]):
            self._replicate(replica, primaries[number % len(primaries)])
        self.wait_until_well()

    def wait_until_well(self, timeout_s: float = _READY_TIMEOUT_S) -> None:
        """Return when every living node finds the cluster well and every replica is in step."""
        wait_until(
            lambda: all(self._is_well(node) for node in self.living),
            what="the cluster to be well",
            timeout_s=timeout_s,
        )

    def close(self) -> None:
        """End all nodes and remove their data."""
        for node in self.nodes:
            node.close()

    def slot_of(self, key: str) -> int:
        """Return the slot of a key, as the servers count."""
        return int(self.living[0].command("CLUSTER", "KEYSLOT", key))

    def primary_of(self, slot: int, *, timeout_s: float = _READY_TIMEOUT_S) -> ServerProcess:
        """Return the living node that all living nodes name as the slot's owner.

        Waits while they disagree, as during an election; TimeoutError if they never do.
        """
        return wait_until(
            lambda: self._agreed_owner(slot), what=f"an owner of slot {slot}", timeout_s=timeout_s
        )

    def replicas_of(self, primary: ServerProcess) -> list[ServerProcess]:
        """Return the living replicas of a node, as the node itself sees them."""
        own_id = self._id(primary)
        return [
            self._ids[member.id]
            for member in _members(primary)
            if member.primary_id == own_id and self._ids[member.id] in self.living
        ]

    def kill(self, node: ServerProcess) -> None:
        """End one node as `kill -9` does; `node.restart()` brings it back."""
        node.kill()

    def failover(self, primary: ServerProcess) -> ServerProcess:
        """Let a replica take over from this living primary, which follows it then; returns it."""
        slot = min(next(m.slots for m in _members(primary) if "myself" in m.flags))
        replica = self.replicas_of(primary)[0]
        for _ in range(_FAILOVER_TRIES):
            # Right after another election the others refuse their votes; the try then lapses.
            replica.command("CLUSTER", "FAILOVER")
            with contextlib.suppress(TimeoutError):
                wait_until(
                    lambda: (
                        self._agreed_owner(slot) is replica and primary in self.replicas_of(replica)
                    ),
                    what="the replica to take over",
                    timeout_s=_READY_TIMEOUT_S / _FAILOVER_TRIES,
                )
                self.wait_until_well()
                return replica
        raise TimeoutError(f"{replica} was not elected")

    def begin_move(self, slot: int, target: ServerProcess) -> None:
        """Mark a slot as on its way: its owner answers ASK for keys that it does not hold."""
        source = self.primary_of(slot)
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(target))

    def finish_move(self, slot: int, target: ServerProcess) -> None:
        """Carry the keys over and hand the slot on; its former owner answers MOVED."""
        source = self.primary_of(slot)
        while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_PER_MOVE):
            source.command("MIGRATE", *target.address, "", 0, 5_000, "KEYS", *keys)
        # The target first: if all this ended half-way, no node would be left without an owner.
        others = [node for node in self.living if node is not target and self._is_primary(node)]
        for node in (target, *others):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", self._id(target))
        wait_until(
            lambda: self._agreed_owner(slot) is target, what=f"slot {slot} to move to {target}"
        )

    def move_slot(self, slot: int, target: ServerProcess) -> None:
        """Move a slot with its keys to another primary."""
        self.begin_move(slot, target)
        self.finish_move(slot, target)

    def _id(self, node: ServerProcess) -> str:
        return next(identifier for identifier, known in self._ids.items() if known is node)

    def _replicate(self, replica: ServerProcess, primary: ServerProcess) -> None:
        def accepted() -> bool:
            try:
                return replica.command("CLUSTER", "REPLICATE", self._id(primary)) == "OK"
            except hiredis.ReplyError:  # it has not heard of the primary yet
                return False

        wait_until(accepted, what=f"{replica} to follow {primary}")

    def _is_primary(self, node: ServerProcess) -> bool:
        return node.info("replication")["role"] == "master"

    def _is_well(self, node: ServerProcess) -> bool:
        members = {member.id: member for member in _members(node)}
        return (
            "cluster_state:ok" in node.command("CLUSTER", "INFO")
            and node.is_in_step
            and all(
                self._id(other) in members
                and not members[self._id(other)].flags & {"handshake", "fail", "fail?"}
                for other in self.living
            )
        )

    def _agreed_owner(self, slot: int) -> ServerProcess | None:
        owners = {
            member.id
            for node in self.living
            for member in _members(node)
            if slot in member.slots and "fail" not in member.flags
        }
        owner = self._ids[owners.pop()] if len(owners) == 1 else None
        return owner if owner in self.living else None


def _members(node: ServerProcess) -> list[_Member]:
    return [_Member.parse(line) for line in str(node.command("CLUSTER", "NODES")).splitlines()]
