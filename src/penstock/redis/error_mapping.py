"""The seam: error lines of the server become Penstock's errors, here and nowhere else."""

from __future__ import annotations

import re

from penstock.errors import (
    AuthenticationFailed,
    ClusterDown,
    CommandRefused,
    OutOfMemory,
    PermissionRefused,
    ReadOnlyReplica,
    Redirected,
    Rejected,
    ScriptFailed,
    ScriptMissing,
    ServerBusy,
    ServerError,
    StillLoading,
    StorageFailing,
    TooFewReplicas,
    Unreachable,
)

__all__ = ["is_forbidden", "refusal"]

_BY_CODE: dict[str, type[Rejected]] = {
    "ASK": Redirected,
    "BUSY": ServerBusy,
    "CLUSTERDOWN": ClusterDown,
    "DENIED": PermissionRefused,
    "LOADING": StillLoading,
    "MASTERDOWN": ReadOnlyReplica,
    "MISCONF": StorageFailing,
    "MOVED": Redirected,
    "NOAUTH": AuthenticationFailed,
    "NOPERM": PermissionRefused,
    "NOREPLICAS": TooFewReplicas,
    "NOSCRIPT": ScriptMissing,
    "OOM": OutOfMemory,
    "READONLY": ReadOnlyReplica,
    "TRYAGAIN": Redirected,
    "WRONGPASS": AuthenticationFailed,
}

# Refused at the first write of a script, and these states do not change while it runs.
_BY_STATE = frozenset({"MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY"})

# An error that is raised in a script names its place; what a script answers of its own accord does
# not. Since 7.0 the place comes last. Before, the server wraps what a command inside answered: ERR
# Error running script (call to f_…), the place as @user_script:8, and only then -OOM and the rest.
_INSIDE_SCRIPT = re.compile(r"user_script: ?\d+")
_CODE_INSIDE = re.compile(r"@user_script: ?\d+: -?([A-Z]+) ")

# A command that scripts may not call is refused without an error code, in every version.
_FORBIDDEN_INSIDE_SCRIPT = re.compile(r"ACL failure in script|user executing the script can't")


def is_forbidden(error: ServerError) -> bool:
    """Whether the server's access list refused it, be it a command or one inside a script."""
    return isinstance(error, PermissionRefused) or (
        _FORBIDDEN_INSIDE_SCRIPT.search(str(error)) is not None
    )


def refusal(text: str) -> ServerError:
    """Build the error for one error line.

    Nothing was written when the server answers a command with one. A script is a case of its own:
    our scripts check first and say themselves what is wrong, but an error that is raised in one may
    come after a write. What it did is then unknown.
    """
    code = text.partition(" ")[0]
    if code == "UNBLOCKED" and "state changed" in text:
        return ReadOnlyReplica(text)  # a primary that was read from with BLOCK became a replica
    if "Error compiling script" in text:
        return CommandRefused(text)
    if _INSIDE_SCRIPT.search(text) or _FORBIDDEN_INSIDE_SCRIPT.search(text):
        inside: list[str] = _CODE_INSIDE.findall(text)
        code = inside[-1] if inside else code
        return _BY_CODE[code](text) if code in _BY_STATE else ScriptFailed(text)
    if code == "ERR":
        if "max number of clients" in text:
            return Unreachable(text)
        if "AUTH" in text and "password" in text:
            return AuthenticationFailed(text)
    return _BY_CODE.get(code, CommandRefused)(text)
