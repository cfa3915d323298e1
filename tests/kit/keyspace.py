"""Every key that a test left has a family, its type, and the TTL that the contract says."""

from __future__ import annotations

from collections.abc import Iterator

from redis import Redis

from penstock.inspector.key_contract import classify
from penstock.redis.keys.family import Ttl
from penstock.testing.cluster import ClusterProcess
from penstock.testing.servers import ServerProcess

__all__ = ["dumped", "unaccounted"]

_GONE = -2


def unaccounted(place: ServerProcess | ClusterProcess, namespace: str) -> list[str]:
    """What is wrong with the keys of a namespace, one line for each."""
    return [
        f"{name}: {why}" for node in _nodes(place) for name, why in _judged(node, namespace) if why
    ]


def dumped(server: ServerProcess, namespace: str) -> dict[str, bytes]:
    """Each key of a namespace with all that is in it."""
    with server.connect() as redis:
        keys = sorted(redis.call("KEYS", f"{namespace}::*"))
        return {key: redis.call("DUMP", key) for key in keys}


def _nodes(place: ServerProcess | ClusterProcess) -> list[ServerProcess]:
    return list(place.nodes) if isinstance(place, ClusterProcess) else [place]


def _judged(node: ServerProcess, namespace: str) -> Iterator[tuple[str, str]]:
    with Redis(unix_socket_path=node.socket_path) as redis:
        names = [name.decode() for name in redis.scan_iter(f"{namespace}::*", count=1000)]
        for name in names:
            pipe = redis.pipeline(transaction=False)
            pipe.type(name).pttl(name)
            kind, ttl_ms = pipe.execute()
            if ttl_ms != _GONE:
                yield name, _fault(name, namespace, kind.decode(), ttl_ms)


def _fault(name: str, namespace: str, kind: str, ttl_ms: int) -> str:
    family = classify(name, namespace)
    if family is None:
        return "no family has such keys"
    if kind != family.redis_type:
        return f"a {kind}, where {family.name} is a {family.redis_type}"
    if family.ttl is Ttl.ALWAYS and ttl_ms < 0:
        return f"no TTL, where {family.name} always has one"
    if family.ttl is Ttl.NEVER and ttl_ms >= 0:
        return f"a TTL of {ttl_ms} ms, where {family.name} never has one"
    return "" if family.owner else f"{family.name} has no owner"
