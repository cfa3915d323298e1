"""Users of test servers with the rights that `penstock acl` prints."""

from __future__ import annotations

from penstock.inspector.rights import Role, Server, acl_user
from penstock.testing.binaries import Binary
from penstock.testing.cluster import ClusterProcess
from penstock.testing.servers import ServerProcess

PASSWORD = "least-rights"


def known_to(binary: Binary) -> Server:
    """Which commands a server knows, as `penstock acl --server` takes it."""
    if binary.version < (7, 0):
        return "6.2"
    return "7.0" if "redis" in binary.path.name and binary.version < (7, 2) else "7.2"


def nodes_of(place: ServerProcess | ClusterProcess) -> list[ServerProcess]:
    return place.nodes if isinstance(place, ClusterProcess) else [place]


def with_user(url: str, name: str) -> str:
    """The address with this user in place of another, if there is one."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{name}:{PASSWORD}@{rest.rpartition('@')[2]}"


def grant(place: ServerProcess | ClusterProcess, role: Role, namespace: str) -> str:
    """Make a user with the rights of a role; its address."""
    name = f"{role}-of-{namespace}"
    for node in nodes_of(place):
        known = known_to(node.binary)
        user = acl_user(role, namespace, name=name, password=PASSWORD, server=known)
        node.command(*user.command.split(" "))
    return with_user(place.url, name)


def refusals(place: ServerProcess | ClusterProcess, namespace: str) -> set[tuple[str, str]]:
    """Role and command, key or channel of all that was refused to users of this namespace."""
    found: set[tuple[str, str]] = set()
    for node in nodes_of(place):
        for entry in node.command("ACL", "LOG", 1000):
            facts = dict(zip(entry[::2], entry[1::2], strict=True))
            role, _, whose = facts["username"].partition("-of-")
            if whose == namespace:
                found.add((role, facts["object"]))
    return found
