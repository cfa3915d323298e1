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
    ScriptMissing,
    ServerBusy,
    StillLoading,
    StorageFailing,
    TooFewReplicas,
    Unreachable,
)

__all__ = ["refusal"]

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

# Before 7.0 the server wraps what a command inside a script answered: ERR Error running script
# (call to f_…), the place as @user_script:8, and only then -OOM and the rest.
_INSIDE_SCRIPT = re.compile(r"@user_script: ?\d+: -?([A-Z]+) ")

# What a script may not do is told without a code, before 7.0 and since.
_FORBIDDEN_INSIDE_SCRIPT = re.compile(r"ACL failure in script|user executing the script can't")


def refusal(text: str) -> Rejected:
    """Build the error for one error line. Nothing was written when the server answers with one.

    For a script that holds only because every script of ours checks first and writes after.
    """
    code = text.partition(" ")[0]
    if code == "UNBLOCKED" and "state changed" in text:
        return ReadOnlyReplica(text)  # a primary that was read from with BLOCK became a replica
    if code == "ERR":
        if "max number of clients" in text:
            return Unreachable(text)
        if "AUTH" in text and "password" in text:
            return AuthenticationFailed(text)
        if _FORBIDDEN_INSIDE_SCRIPT.search(text):
            return PermissionRefused(text)
        inside: list[str] = _INSIDE_SCRIPT.findall(text)
        code = inside[-1] if inside else code
    return _BY_CODE.get(code, CommandRefused)(text)
