"""Every command that the sources of Penstock send, found in the scripts and in the Python code.

A literal in capitals that the server knows as a command counts as sent, with what follows it if the
command has subcommands. So nothing is overlooked that is spelled where it is used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import penstock
from penstock.testing.servers import ServerProcess

SOURCES = Path(penstock.__file__).parent
# They have no connection of their own, or one to no server of this kind.
WITHOUT = {"interfaces", "pipelines", "stores", "testing"}
# Literals that are not sent, or not by the connections of a role.
NOT_SENT = {
    "redis/client.py": {
        *("AUTH", "HELLO", "MONITOR", "MULTI", "PSUBSCRIBE", "PSYNC", "QUIT", "RESET", "SELECT"),
        *("SSUBSCRIBE", "SUBSCRIBE", "SYNC", "WATCH"),  # refused on shared connections
    },
    "redis/embedded/keeper.py": {"CONFIG|SET", "SHUTDOWN"},  # the embedded server's own user
    "redis/embedded/server.py": {"INFO", "PING", "SHUTDOWN"},
    "redis/error_mapping.py": {"AUTH", "READONLY"},  # codes and words of error lines
    "redis/handshake.py": {"AUTH"},  # an argument of HELLO
    "redis/routing.py": None,  # a table of all commands
    # A refusal is taken for an answer: what it shows (all passwords) is no right of any role.
    "inspector/doctor.py": {"ACL|GETUSER", "CONFIG|GET"},
    "redaction.py": None,  # texts
    "topics/producer/durability.py": {"CONFIG|GET"},
    "inspector/rights.py": {"ACL|SETUSER"},  # printed
}
_INCLUDE = re.compile(r"^-- Include: ([a-z_]+)$", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_LITERAL = re.compile(r"'([^']*)'")


class Commands:
    """What a server knows: each command, and each `command|subcommand`, with its flags."""

    def __init__(self, server: ServerProcess) -> None:
        self.flags: dict[str, set[str]] = {}
        for command in server.command("COMMAND"):
            for name, _, flags, *_ in (command, *command[-1]):
                self.flags[name.upper()] = set(flags)
        self.with_subcommands = {name.split("|")[0] for name in self.flags if "|" in name}

    def is_write(self, command: str) -> bool:
        return "write" in self.flags[command]

    def is_read(self, command: str) -> bool:
        return "readonly" in self.flags[command]

    def among(self, literals: Iterable[str]) -> Iterator[str]:
        for literal, following in pairwise([*literals, ""]):
            if literal not in self.flags:
                continue
            if literal not in self.with_subcommands:
                yield literal
            elif f"{literal}|{following.upper()}" in self.flags:
                yield f"{literal}|{following.upper()}"


def sent_commands(known: Commands) -> dict[str, set[str]]:
    """By the path of a module or script: what it sends."""
    parts = {path.stem: path.read_text() for path in SOURCES.rglob("lua/parts/*.lua")}
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCES.rglob("*.*")):
        place = path.relative_to(SOURCES)
        if place.parts[0] in WITHOUT or "parts" in place.parts:
            continue
        if path.suffix == ".lua":
            literals = _of_script(path.read_text(), parts)
        elif path.suffix == ".py":
            literals = _of_module(path.read_text())
        else:
            continue
        unsent = NOT_SENT.get(str(place), set())
        if unsent is not None and (sent := set(known.among(literals)) - unsent):
            found[str(place)] = sent
    return found


def _of_script(text: str, parts: dict[str, str]) -> list[str]:
    whole = "-- Include: types\n" + text  # as `LuaFolder` puts it before most of them
    while _INCLUDE.search(whole):
        whole = _INCLUDE.sub(lambda line: parts[line[1]], whole)
    return _LITERAL.findall(_COMMENT.sub("", whole))


def _of_module(text: str) -> list[str]:
    literals = [
        (node.lineno, node.col_offset, node.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [value for *_, value in sorted(literals)]
