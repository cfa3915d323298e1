"""Checks of the configuration of the server; each finding has the command that corrects it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PermissionRefused, ServerError
from penstock.inspector.former_namespace import find_former
from penstock.inspector.key_scan import ScannedKey, is_guess, registered_queues, scan_keys
from penstock.inspector.workers import list_workers
from penstock.redis.address import Topology
from penstock.redis.client import Client
from penstock.redis.connector import parse_version
from penstock.redis.health import check_health, read_info
from penstock.redis.keys.family import Ttl
from penstock.redis.node import Node, Role
from penstock.stores.exposure import exposed_stores

__all__ = ["Diagnosis", "Finding", "diagnose"]

Level = Literal["ok", "warning", "failure"]

OLDEST = {"redis": (6, 2), "valkey": (7, 2)}
# First releases without the script engine's remote code execution (CVE-2025-49844), by series.
PATCHED = {
    "redis": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}
MEMORY_HEADROOM = 0.8
MOST_SCANNED = 100_000
_TOLERATED_SKEW_S = 1.0
_MOST_ORPHANS_SHOWN = 3
_MAKE_A_USER = (
    "make a user with penstock acl, name its password file in PENSTOCK_PASSWORD_FILE, and switch "
    "off the default user"
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one node."""

    check: str
    level: Level
    message: str
    fix: str = ""
    """A command that corrects it, if there is one."""
    endpoint: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    findings: list[Finding]
    connected: bool = True
    """Whether the server could be reached."""

    @property
    def sound(self) -> bool:
        return all(finding.level != "failure" for finding in self.findings)


async def diagnose(client: Client, *, clock: Clock = SYSTEM_CLOCK) -> Diagnosis:
    """Check every primary node. Reads the names of up to MOST_SCANNED keys of each."""
    health = await check_health(client)
    findings = [
        Finding(check="health", level="failure", message=reason)
        for reason in health.reasons
        if health.status == "unhealthy"
    ]
    if health.connected:
        for node in await client.primaries():
            findings += await _judge(client, node, clock)
        findings += await _judge_workers(client)
    findings += _judge_sentinels(client)
    findings += _judge_stores(client)
    return Diagnosis(address=str(client.address), findings=findings, connected=health.connected)


async def _judge(client: Client, node: Node, clock: Clock) -> list[Finding]:
    try:
        info = await read_info(node)
        findings = [
            *_judge_version(info),
            *_judge_port(client, node, info),
            *_judge_memory(info),
            *_judge_persistence(info, await _setting(node, "save")),
            *await _judge_clock(node, clock),
            *await _judge_access(client, node),
            *await _judge_keys(client, node),
            *await _judge_namespace(client, node),
        ]
    except ServerError as error:
        findings = [Finding(check="access", level="failure", message=str(error))]
    place = str(node.endpoint)
    return [msgspec.structs.replace(finding, endpoint=place) for finding in findings]


async def _judge_workers(client: Client) -> list[Finding]:
    """Workers that are not ready, or work with less than they could: no fences for parsers."""
    return [
        Finding(check="workers", level="warning", message=f"worker {view.id}: {reason}")
        for view in await list_workers(client)
        if view.about is not None
        for reason in view.about.reasons
    ]


def _judge_version(info: dict[str, str]) -> Iterator[Finding]:
    server = info.get("server_name", "redis")
    text = info.get("valkey_version") or info.get("redis_version", "0")
    version = parse_version(text)
    oldest = OLDEST.get(server, OLDEST["redis"])
    wanted = ".".join(map(str, oldest))
    if version < oldest:
        yield Finding(
            check="version",
            level="failure",
            message=f"{server} {text} is too old: Penstock needs {wanted} or newer",
            fix=f"install {server} {wanted} or newer",
        )
        return
    series = [patch for patch in PATCHED.get(server, ()) if patch[:2] == version[:2]]
    newest = max(PATCHED.get(server, ((0,),)))
    if version < (series[0] if series else newest):
        yield Finding(
            check="version",
            level="warning",
            message=f"{server} {text} may lack the fix for CVE-2025-49844 (some distributions "
            "patch it without a new number)",
            fix=f"upgrade to {'.'.join(map(str, series[0] if series else newest))} or newer",
        )
        return
    yield Finding(check="version", level="ok", message=f"{server} {text}")


def _judge_memory(info: dict[str, str]) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        yield Finding(check="eviction", level="ok", message="nothing is evicted (noeviction)")
    else:
        everything = policy.startswith("allkeys")
        victims = "any key, jobs and messages included" if everything else "keys with a TTL"
        yield Finding(
            check="eviction",
            level="failure" if everything else "warning",
            message=f"maxmemory-policy {policy} silently deletes {victims} when memory is full",
            fix="CONFIG SET maxmemory-policy noeviction",
        )
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    total = int(info.get("total_system_memory", 0))
    bound, name = (limit, "maxmemory") if limit else (total, "the machine's memory")
    if bound and used > bound * MEMORY_HEADROOM:
        yield Finding(
            check="memory",
            level="failure",
            message=f"{used / bound:.0%} of {name} is in use; a full server refuses new work",
            fix=f"CONFIG SET maxmemory {used * 2}" if limit else "give the server more memory",
        )
    elif bound:
        yield Finding(check="memory", level="ok", message=f"{used / bound:.1%} of {name} is in use")


def _judge_persistence(info: dict[str, str], save: str | None) -> Iterator[Finding]:
    fix = "CONFIG SET appendonly yes"
    if info.get("aof_enabled") == "1":
        yield Finding(check="persistence", level="ok", message="append-only file is on")
    elif save is None:
        yield Finding(
            check="persistence",
            level="warning",
            message="no append-only file, and this user may not see whether there are snapshots: a "
            "crash loses everything since the last one",
            fix=fix,
        )
    elif save:
        yield Finding(
            check="persistence",
            level="warning",
            message="snapshots only: a crash loses everything since the last one",
            fix=fix,
        )
    else:
        yield Finding(
            check="persistence",
            level="failure",
            message="nothing is persisted: a restart loses everything",
            fix=fix,
        )
    for field, what in (("aof_last_write_status", "file"), ("rdb_last_bgsave_status", "snapshot")):
        if info.get(field, "ok") != "ok":
            yield Finding(
                check="disk",
                level="failure",
                message=f"the last write of the {what} failed: no writes are accepted",
                fix="free disk space, or mend the folder that CONFIG GET dir names",
            )


async def _judge_clock(node: Node, clock: Clock) -> list[Finding]:
    wire = await node.wire(Role.DEFAULT)
    seconds, micros = await wire.call("TIME")
    skew_s = abs(int(seconds) + int(micros) / 1e6 - clock.wall_ms() / 1000)
    if skew_s <= _TOLERATED_SKEW_S:
        return []
    message = f"the server's clock is {skew_s:.1f} s off this machine's; logs will not line up"
    return [Finding(check="clock", level="warning", message=message, fix="synchronise both (NTP)")]


async def _judge_keys(client: Client, node: Node) -> list[Finding]:
    """Find keys that violate the contract of their family: wrong type, or a missing TTL."""
    orphans: list[str] = []
    queues = await registered_queues(client)
    scanned = 0
    async for count, page in scan_keys(client, node):
        scanned += count
        orphans += [
            f"{one.key.decode(errors='replace')} ({why})"
            for one in page
            if (why := _breach(one, guessed=is_guess(one.read, queues)))
        ]
        if scanned >= MOST_SCANNED:
            break
    if not orphans:
        return [Finding(check="keys", level="ok", message=f"{scanned} keys, none orphaned")]
    shown = ", ".join(orphans[:_MOST_ORPHANS_SHOWN])
    more = (
        f" and {len(orphans) - _MOST_ORPHANS_SHOWN} more"
        if len(orphans) > _MOST_ORPHANS_SHOWN
        else ""
    )
    first = orphans[0].rpartition(" (")[0]
    return [
        Finding(
            check="keys",
            level="failure",
            message=f"{len(orphans)} orphaned keys: {shown}{more}",
            fix=f"see `penstock repair`; or inspect each, then UNLINK {first}",
        )
    ]


async def _judge_namespace(client: Client, node: Node) -> list[Finding]:
    """Find keys that an earlier version, or a program that pushes to it, stored under one colon."""
    found: list[str] = []
    scanned = 0
    async for count, page in find_former(client, node):
        scanned += count
        found += page
        if scanned >= MOST_SCANNED:
            break
    if not found:
        return []
    shown = ", ".join(found[:_MOST_ORPHANS_SHOWN])
    return [
        Finding(
            check="namespace",
            level="warning",
            message=f"{len(found)} keys of namespace {client.keys.namespace!r} have names of an "
            f"earlier version, with one colon after it, and are not used: {shown}",
            fix="stop what writes them, then penstock repair --rename-namespace",
        )
    ]


def _breach(one: ScannedKey, *, guessed: bool) -> str:
    family, kind = one.read.family, one.kind.decode()
    if kind == "none":
        return ""  # gone meanwhile
    if kind != family.redis_type:
        return "" if guessed else f"a {kind}, {family.redis_type} expected"
    if family.ttl is Ttl.ALWAYS and one.ttl_ms == -1:
        return "no TTL"
    if family.ttl is Ttl.NEVER and one.ttl_ms >= 0:
        return "a TTL will delete it"
    return ""


async def _judge_access(client: Client, node: Node) -> list[Finding]:
    """Who else may use the server, and who can listen."""
    wire = await node.wire(Role.DEFAULT)
    if not wire.peer:
        return []  # a unix socket: its file says who may
    findings: list[Finding] = []
    is_local = not wire.is_remote
    if wire.serves_strangers or not client.address.credentials.password:
        others = "every user of that machine" if is_local else "everybody on the network"
        findings.append(
            Finding(
                check="access",
                level="warning",
                message=f"the server asks for no password: {others} can read and change all of it",
                fix=_MAKE_A_USER,
            )
        )
    elif not is_local and await _may_do_everything(node):
        findings.append(
            Finding(
                check="access",
                level="warning",
                message="the default user, which may run every command, is used over the network",
                fix=_MAKE_A_USER,
            )
        )
    if not is_local and not client.address.tls:
        findings.append(
            Finding(
                check="tls",
                level="warning",
                message="what goes over the network can be read and changed on its way",
                fix="have the server speak TLS, and write rediss:// instead of redis://",
            )
        )
    return findings


async def _may_do_everything(node: Node) -> bool:
    """Whether we are the default user without a limit."""
    wire = await node.wire(Role.DEFAULT)
    try:
        if await wire.call("ACL", "WHOAMI") != b"default":
            return False
        rights = await wire.call("ACL", "GETUSER", "default")
    except PermissionRefused:
        return False
    return dict(zip(rights[::2], rights[1::2], strict=True))[b"commands"] == b"+@all"


def _judge_sentinels(client: Client) -> Iterator[Finding]:
    """They are asked by those who look for the server, not by this check."""
    if client.address.topology is Topology.SENTINEL and not client.settings.sentinel_password:
        for endpoint in client.address.endpoints:
            yield Finding(
                check="access",
                level="warning",
                message="the sentinel asks for no password: others can have it name their server",
                fix="set one there, and sentinel_password here",
                endpoint=str(endpoint),
            )


def _judge_stores(client: Client) -> list[Finding]:
    """Connections of the settings, to which nothing is connected here."""
    return [
        Finding(check="stores", level="warning", message=message, fix=fix)
        for message, fix in exposed_stores(client.settings)
    ]


def _judge_port(client: Client, node: Node, info: dict[str, str]) -> Iterator[Finding]:
    """A server that we reach by a socket may listen on a TCP port, too."""
    port = info.get("tcp_port", "0")
    if not node.endpoint.path or port == "0":
        return
    embedded = client.embedded
    if (embedded.password() if embedded else client.address.credentials.password) is None:
        yield Finding(
            check="access",
            level="warning",
            message=f"its TCP port {port} has no password: everyone who reaches it may use it",
            fix="restart it, so that it gets one: penstock server stop"
            if embedded
            else _MAKE_A_USER,
        )


async def _setting(node: Node, name: str) -> str | None:
    """Return a CONFIG value; None if this user may not see it."""
    try:
        wire = await node.wire(Role.DEFAULT)
        reply = cast("list[bytes]", await wire.call("CONFIG", "GET", name))
    except ServerError:
        return None
    return reply[1].decode() if reply else None
