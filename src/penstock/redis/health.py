"""Is the server fit for work now? Asked with a deadline, answered without an exception."""

from __future__ import annotations

import asyncio
import secrets
from typing import Literal, cast

import msgspec

from penstock.errors import PenstockError, ServerError
from penstock.redis.client import Client
from penstock.redis.error_mapping import is_forbidden
from penstock.redis.keys.probe import ProbeKeys
from penstock.redis.node import Node, Role
from penstock.redis.script import COMMON_LUA, ScriptCaller

__all__ = ["ConnectionCounts", "Health", "NodeHealth", "ProbeScripts", "check_health", "read_info"]

Status = Literal["healthy", "degraded", "unhealthy"]

_PROBE_TTL_MS = 60_000
_MAY_NOT_WRITE = "not allowed: this user may not write, so it is not known whether writes are taken"
_MAY_NOT_ASK = "not allowed: this user may not ask for INFO, so memory and disk are not judged"


class ProbeScripts(ScriptCaller):
    """The script of health probes, as a call."""

    lua = COMMON_LUA

    async def probe(self, *, probe: str, token: str, ttl_ms: int) -> int:
        """Write the probe and return the server's time in ms."""
        return await self.run("probe", (probe,), (token, ttl_ms))


class ConnectionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How connecting has gone in this process."""

    attempts: int
    failures: int
    success_rate: float
    consecutive_failures: int


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One server that takes writes, or should."""

    endpoint: str
    status: Status
    reasons: list[str]
    server: str = ""
    version: str = ""
    role: str = ""
    writable: bool = False
    latency_ms: float | None = None
    used_memory: int = 0
    max_memory: int = 0
    """0: no limit is set."""
    aof_enabled: bool = False
    persistence_ok: bool = True
    replicas: int = 0


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer. `healthy` means: a script just wrote to every node, and nothing is full."""

    status: Status
    reasons: list[str]
    address: str
    connected: bool
    redis_version: str = ""
    nodes: list[NodeHealth] = []
    connections: ConnectionCounts

    @property
    def healthy(self) -> bool:
        return self.status == "healthy"


async def check_health(client: Client) -> Health:
    """Probe every primary with a real write; takes at most `health.timeout_s`."""
    timeout_s = client.settings.health.timeout_s
    nodes: list[NodeHealth] = []
    reasons: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            await client.open()
            primaries = await client.primaries()
            nodes = await asyncio.gather(*(_check_node(client, node) for node in primaries))
    except TimeoutError:
        reasons.append(f"no answer within {timeout_s:g} s")
    except PenstockError as error:
        reasons.append(f"{type(error).__name__}: {error}")
    several = len(nodes) > 1
    for node in nodes:
        reasons += [f"{node.endpoint}: {why}" if several else why for why in node.reasons]
    return Health(
        status=_worst(nodes) if nodes else "unhealthy",
        reasons=reasons,
        address=str(client.address),
        connected=any(node.version for node in nodes),
        redis_version=nodes[0].version if nodes else "",
        nodes=nodes,
        connections=ConnectionCounts(
            attempts=client.counters.attempts,
            failures=client.counters.failures,
            success_rate=client.counters.success_rate,
            consecutive_failures=client.counters.consecutive_failures,
        ),
    )


async def read_info(node: Node) -> dict[str, str]:
    """Return the fields of INFO."""
    wire = await node.wire(Role.DEFAULT)
    text = cast("bytes", await wire.call("INFO")).decode(errors="replace")
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}


async def _check_node(client: Client, node: Node) -> NodeHealth:
    loop = asyncio.get_running_loop()
    reasons: list[str] = []
    latency_ms: float | None = None
    fit = True
    try:
        started = loop.time()
        probe = ProbeKeys.of(client.keys, client.tag_on(node)).value
        await ProbeScripts.of(client).probe(
            probe=probe, token=secrets.token_hex(8), ttl_ms=_PROBE_TTL_MS
        )
        latency_ms = round((loop.time() - started) * 1000, 3)
    except ServerError as error:
        fit = is_forbidden(error)
        reasons.append(_MAY_NOT_WRITE if fit else f"{type(error).__name__}: {error}")
    writable = not reasons
    try:
        info = await read_info(node)
    except ServerError as error:
        info = {}
        if is_forbidden(error):
            reasons.append(_MAY_NOT_ASK)
            hello = (await node.wire(Role.DEFAULT)).hello
            info = {"redis_version": str(hello["version"]), "role": str(hello["role"])}
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    persistence_ok = all(
        info.get(field, "ok") == "ok"
        for field in ("aof_last_write_status", "rdb_last_bgsave_status")
    )
    if limit and used >= limit * client.settings.health.memory_ratio:
        reasons.append(f"memory is {used / limit:.0%} full")
    if not persistence_ok:
        reasons.append("the server could not write to its disk")
    return NodeHealth(
        endpoint=str(node.endpoint),
        status="unhealthy" if not fit else "degraded" if reasons else "healthy",
        reasons=reasons,
        server=info.get("server_name", "redis"),
        version=info.get("valkey_version") or info.get("redis_version", ""),
        role=info.get("role", ""),
        writable=writable,
        latency_ms=latency_ms,
        used_memory=used,
        max_memory=limit,
        aof_enabled=info.get("aof_enabled") == "1",
        persistence_ok=persistence_ok,
        replicas=int(info.get("connected_slaves", 0)),
    )


def _worst(nodes: list[NodeHealth]) -> Status:
    found = {node.status for node in nodes}
    return "unhealthy" if "unhealthy" in found else "degraded" if "degraded" in found else "healthy"
