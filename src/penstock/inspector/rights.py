"""Rights that the server's access list (ACL) has to give, by what a program does.

Each role is a list of commands that are allowed, and nothing else is. The groups below are all that
our scripts and calls send; a test compares them with the sources.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal, get_args

import msgspec

from penstock.errors import InvalidName
from penstock.redis.keys.names import check_name
from penstock.redis.keys.space import KeySpace

__all__ = ["ROLES", "SERVERS", "AclUser", "Role", "Server", "acl_user"]

Role = Literal["producer", "worker", "operator", "reader"]
Server = Literal["6.2", "7.0", "7.2"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
SERVERS: Final[tuple[Server, ...]] = get_args(Server)

CONNECT: Final = frozenset(
    """
    acl|whoami asking client|setinfo cluster|slots eval evalsha hello info ping select subscribe
    time unsubscribe
    """.split()  # noqa: SIM905  as in all groups, one word a line would fill a page
)
"""Without keys: to connect, to ask for the state of the server, and to run scripts, whose commands
are checked one by one."""

READ: Final = frozenset(
    """
    exists get getrange hexists hget hgetall hlen hmget hscan hstrlen hvals lindex llen lrange
    memory|usage mget pttl scard sismember smismember srandmember sscan strlen type xinfo|groups
    xinfo|stream xlen xpending xrange xrevrange zcard zcount zrandmember zrange zrangebyscore zrank
    zrevrank zscan zscore
    """.split()  # noqa: SIM905
)

BROWSE: Final = frozenset(
    "hkeys lpos scan smembers xread zmscore zrevrangebyscore".split()  # noqa: SIM905
)
"""To read what others have sent. `scan` shows the names of all keys, whatever their namespace."""

SEND: Final = frozenset(
    """
    del hdel hincrby hset hsetnx incrby lpush ltrim mset persist pexpire publish role rpush sadd set
    srem unlink wait waitaof xadd xgroup|create xgroup|destroy xgroup|setid xtrim zadd zpopmax
    zpopmin zrem zremrangebyrank zremrangebyscore
    """.split()  # noqa: SIM905
)
"""To send messages and jobs, and to use the coordination primitives."""

WORK: Final = frozenset(
    """
    blmove blpop client|id client|unblock lmove lpop lrem lset rpop xack xclaim xdel xreadgroup
    """.split()  # noqa: SIM905
)
"""To take what was sent, to trim dead letters, and to park groups, as workers do by themselves."""

ADMINISTER: Final = frozenset({"renamenx"})
"""To rename unusable keys, and those of an earlier version."""

_COMMANDS: Final[dict[Role, frozenset[str]]] = {
    "producer": CONNECT | READ | SEND,
    "worker": CONNECT | READ | BROWSE | SEND | WORK,
    "operator": CONNECT | READ | BROWSE | SEND | WORK | ADMINISTER,
    "reader": CONNECT | READ | BROWSE,
}

# A server refuses a line with a command that it does not know. Redis 6.2 knows no subcommands, and
# takes any word for a first argument.
_UNKNOWN: Final[dict[Server, frozenset[str]]] = {
    "6.2": frozenset({"waitaof"}),
    "7.0": frozenset({"client|setinfo", "waitaof"}),
    "7.2": frozenset(),
}


class AclUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the server as its access list describes it."""

    name: str
    rules: list[str]
    """What `ACL SETUSER` takes after the name. The rules set here replace those of an existing
    user; passwords are replaced only if there is one among them."""
    has_password: bool

    @property
    def command(self) -> str:
        """For `redis-cli`."""
        return " ".join(("ACL", "SETUSER", self.name, *self.rules))

    @property
    def file_line(self) -> str:
        """For the server's ACL file."""
        return " ".join(("user", self.name, *self.rules))


def acl_user(
    role: Role,
    namespace: str = "",
    *,
    name: str = "",
    password: str | None = None,
    server: Server = "7.2",
) -> AclUser:
    """A user with the least rights of a role, for the keys and channels of one namespace.

    Without a namespace it may use all keys and channels: their names have no common beginning.
    Valkey takes what Redis 7.2 takes. `InvalidName` for an impossible name or namespace, and for
    the user `default`: it is everybody who gives no name, and may have no password.
    """
    name = name or f"penstock-{role}"
    if name == "default":
        raise InvalidName("user", name, "is everybody who gives no name; choose another")
    prefix = KeySpace(namespace).prefix
    digest = None if password is None else hashlib.sha256(password.encode()).hexdigest()
    commands = sorted(_COMMANDS[role] - _UNKNOWN[server])
    return AclUser(
        name=check_name("user", name),
        rules=[
            "on",
            *(() if digest is None else ("resetpass", f"#{digest}")),
            # Each of them would be a further list of rights, which `-@all` does not end.
            *(() if server == "6.2" else ("clearselectors",)),
            *("resetkeys", f"~{prefix}*", "resetchannels", f"&{prefix}*", "-@all"),
            *(f"+{command}" for command in commands),
        ],
        has_password=digest is not None,
    )
