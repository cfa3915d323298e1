"""Which key decides where a command goes on a cluster."""

from __future__ import annotations

from penstock.redis.keys import key_slot
from penstock.redis.wire import Argument, Command

__all__ = ["command_slot"]

_KEYLESS = frozenset(
    [
        "ACL",
        "AUTH",
        "CLIENT",
        "CLUSTER",
        "COMMAND",
        "CONFIG",
        "DBSIZE",
        "ECHO",
        "FUNCTION",
        "HELLO",
        "INFO",
        "LATENCY",
        "PING",
        "PUBLISH",
        "ROLE",
        "SCAN",
        "SCRIPT",
        "SLOWLOG",
        "TIME",
        "WAIT",
        "WAITAOF",
    ]
)
_AFTER_COUNT = frozenset({"EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"})
_AFTER_STREAMS = frozenset({"XREAD", "XREADGROUP"})
_SECOND = frozenset({"XGROUP", "XINFO", "OBJECT", "MEMORY", "BITOP", "DEBUG"})


def command_slot(command: Command) -> int | None:
    """Return the slot of the command's first key; None if any node will do.

    That its other keys share the slot is the key builder's promise; the server checks it.
    """
    name = _text(command[0]).upper()
    if name in _KEYLESS or len(command) == 1:
        return None
    at = 1
    if name in _AFTER_COUNT:
        if int(command[2]) == 0:
            return None
        at = 3
    elif name in _AFTER_STREAMS:
        words = [_text(word).upper() for word in command]
        at = words.index("STREAMS") + 1
    elif name in _SECOND:
        at = 2
    key = command[at]
    return key_slot(key if isinstance(key, bytes) else str(key))


def _text(word: Argument) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else str(word)
