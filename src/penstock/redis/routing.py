"""Which key decides where a command goes on a cluster."""

from __future__ import annotations

from penstock.redis.keys.hash_slot import key_slot
from penstock.redis.wire import Argument, Command

__all__ = ["command_slot"]

_KEYLESS = frozenset(
    """
    ACL AUTH BGREWRITEAOF BGSAVE CLIENT CLUSTER COMMAND COMMANDLOG CONFIG DBSIZE ECHO FAILOVER
    FLUSHALL FLUSHDB FUNCTION HELLO INFO KEYS LASTSAVE LATENCY LOLWUT MODULE PING PUBLISH PUBSUB
    RANDOMKEY READONLY READWRITE REPLICAOF ROLE SAVE SCAN SCRIPT SHUTDOWN SLOWLOG TIME WAIT WAITAOF
    """.split()  # noqa: SIM905  one word a line would fill a page
)
# Where the first key stands, if not right after the name.
_KEY_AT = {
    **dict.fromkeys(["BITOP", "DEBUG", "MEMORY", "OBJECT", "XGROUP", "XINFO"], 2),
    "MIGRATE": 3,
}
# Where the number of keys stands; the first key follows it.
_COUNT_AT = {
    **dict.fromkeys(["LMPOP", "SINTERCARD", "ZDIFF", "ZINTER", "ZINTERCARD", "ZMPOP", "ZUNION"], 1),
    **dict.fromkeys(["BLMPOP", "BZMPOP", "EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO"], 2),
    **dict.fromkeys(["FCALL", "FCALL_RO"], 2),
}


def command_slot(command: Command) -> int | None:
    """Return the slot of the command's first key; None if any node will do.

    That its other keys share the slot is the key builder's promise; the server checks it. The
    server also says what is wrong with a command that is not whole.
    """
    name = _text(command[0]).upper()
    if name in _KEYLESS:
        return None
    if name in _COUNT_AT:
        at = _COUNT_AT[name] + 1
        if len(command) < at or _text(command[at - 1]) == "0":
            return None
    elif name in {"XREAD", "XREADGROUP"}:
        at = _after_streams(command)
    else:
        at = _KEY_AT.get(name, 1)
    if at >= len(command):
        return None
    key = command[at]
    return key_slot(key if isinstance(key, bytes) else str(key))


def _after_streams(command: Command) -> int:
    """Find the word STREAMS where it is not the name of a group or a consumer."""
    at = 1
    while at < len(command):
        word = _text(command[at]).upper()
        if word == "STREAMS":
            return at + 1
        at += {"GROUP": 3, "COUNT": 2, "BLOCK": 2}.get(word, 1)
    return at


def _text(word: Argument) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else str(word)
