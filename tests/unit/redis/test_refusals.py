"""Error lines of real servers, word for word, and what they become."""

import pickle

import pytest

from penstock.errors import (
    AuthenticationFailed,
    ClusterDown,
    CommandRefused,
    Outcome,
    OutOfMemory,
    PermissionRefused,
    ReadOnlyReplica,
    Redirected,
    ScriptFailed,
    ScriptMissing,
    ServerBusy,
    StillLoading,
    StorageFailing,
    TooFewReplicas,
    Unreachable,
)
from penstock.redis.error_mapping import refusal
from penstock.testing.resp import REFUSALS

WRAPPED = "ERR Error running script (call to f_d8f2fad9f8e86a53d2a6ebd960b33c4972cacc37): "

LINES = [
    ("OOM command not allowed when used memory > 'maxmemory'.", OutOfMemory),
    ("OOM command not allowed when used memory > 'maxmemory'. script: d8f2, on @user_script:1.",
     OutOfMemory),
    (WRAPPED + "@user_script:1: @user_script: 1: -OOM command not allowed when used memory > "
     "'maxmemory'.", OutOfMemory),
    ("@user_script: 67: -OOM command not allowed when used memory > 'maxmemory'.", OutOfMemory),
    ("READONLY You can't write against a read only replica.", ReadOnlyReplica),
    (WRAPPED + "@user_script:1: @user_script: 1: -READONLY You can't write against a read only "
     "replica.", ReadOnlyReplica),
    ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
     ReadOnlyReplica),
    ("UNBLOCKED force unblock from blocking operation, instance state changed", ReadOnlyReplica),
    ("UNBLOCKED client unblocked via CLIENT UNBLOCK", CommandRefused),
    ("LOADING Redis is loading the dataset in memory", StillLoading),
    ("MISCONF Errors writing to the AOF file: No space left on device", StorageFailing),
    (WRAPPED + "@user_script:7: @user_script: 7: -MISCONF Redis is configured to save RDB "
     "snapshots", StorageFailing),
    ("NOREPLICAS Not enough good replicas to write.", TooFewReplicas),
    ("CLUSTERDOWN Hash slot not served", ClusterDown),
    ("NOAUTH Authentication required.", AuthenticationFailed),
    ("NOAUTH HELLO must be called with the client already authenticated", AuthenticationFailed),
    ("WRONGPASS invalid username-password pair or user is disabled.", AuthenticationFailed),
    ("ERR AUTH <password> called without any password configured for the default user.",
     AuthenticationFailed),
    ("NOPERM this user has no permissions to access one of the keys used as arguments",
     PermissionRefused),
    ("DENIED Redis is running in protected mode because", PermissionRefused),
    ("NOSCRIPT No matching script. Please use EVAL.", ScriptMissing),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
     ServerBusy),
    ("BUSYGROUP Consumer Group name already exists", CommandRefused),
    ("BUSYKEY Target key name already exists.", CommandRefused),
    ("MOVED 3999 127.0.0.1:6381", Redirected),
    ("ASK 3999 127.0.0.1:6381", Redirected),
    ("TRYAGAIN Multiple keys request during rehashing of slot", Redirected),
    ("CROSSSLOT Keys in request don't hash to the same slot", CommandRefused),
    ("WRONGTYPE Operation against a key holding the wrong kind of value", CommandRefused),
    ("NOGROUP No such key 'x' or consumer group 'g'", CommandRefused),
    ("ERR max number of clients reached", Unreachable),
    ("ERR unknown command 'NOSUCH', with args beginning with: ", CommandRefused),
    ("ERR value is not an integer or out of range", CommandRefused),
    ("ERR Error compiling script (new function): user_script:4: '=' expected", CommandRefused),
    ("OOMPH is no code", CommandRefused),
    ("lower case", CommandRefused),
    ("", CommandRefused),
]  # fmt: skip


# Raised inside a script, perhaps after it has written.
INSIDE = [
    "WRONGTYPE Operation against a key holding the wrong kind script: d8f2, on @user_script:9.",
    WRAPPED + "@user_script:1: @user_script: 1: -WRONGTYPE Operation against a key",
    "ERR ACL failure in script: User alice has no permissions to run the 'set' command",
    WRAPPED + "@user_script:1: @user_script: 1: The user executing the script can't run this "
    "command or subcommand",
    "NOGROUP No such key 'x' or consumer group 'g' script: d8f2, on @user_script:3.",
    WRAPPED + "@user_script:1: user said so",
    "ERR user_script:3: -OOM is what the text says",
    "ERR user_script:263: attempt to perform arithmetic on a nil value script: on @user_script:26.",
]


@pytest.mark.parametrize(("line", "kind"), LINES, ids=[line[:25] for line, _ in LINES])
def test_a_line_becomes_its_type_and_keeps_its_words(line, kind):
    error = refusal(line)
    assert type(error) is kind
    assert str(error) == line
    assert error.outcome is Outcome.REJECTED
    assert type(pickle.loads(pickle.dumps(error))) is kind  # noqa: S301


@pytest.mark.parametrize("line", INSIDE, ids=[line[:25] for line in INSIDE])
def test_an_error_that_is_raised_inside_a_script_leaves_unknown_what_it_did(line):
    error = refusal(line)
    assert type(error) is ScriptFailed
    assert str(error) == line
    assert (error.outcome, error.transient) == (Outcome.UNKNOWN, False)


def test_every_refusal_of_the_test_kit_has_a_type_of_its_own_kind():
    for line in REFUSALS.values():
        assert type(refusal(line[1:])) is not CommandRefused
