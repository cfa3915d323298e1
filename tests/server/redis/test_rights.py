"""Rights of the roles: what `penstock acl` prints is all that the sources send, and no more."""

import re

import pytest
from tests.kit.sent_commands import Commands, sent_commands

from penstock.errors import InvalidName
from penstock.inspector import rights
from penstock.inspector.rights import ROLES, acl_user
from penstock.redis.keys.space import KeySpace

# Whose calls and scripts are not for those who only send, or only work.
ADMINISTERS = re.compile(r"inspector/|.*/admin/|.*/dead_letters/|delivery/foreign_keys")
WORKS = re.compile(
    r"runtime/|queues/(worker|isolation|schedules)/|queues/storage/lua/worker/"
    r"|topics/(consumer|delayed|java)/|topics/storage/lua/(consumer|delayed)/"
    # Consumers trim letters; workers for documents park groups, and replay jobs.
    r"|topics/admin/retention|topics/storage/lua/admin/trim_letters"
    r"|queues/storage/lua/(admin/(park|weigh)_lane|dead_letters/replay_letters)"
)
# Any producer completes a growth that another began.
GROWS = re.compile(r"topics/admin/growth|topics/storage/lua/admin/(finish_growth|mark_barrier)")
# redis-py says who it is.
BY_REDIS_PY = {"CLIENT|SETINFO"}


@pytest.fixture(scope="module")
def known(valkey_server):
    return Commands(valkey_server)


@pytest.fixture(scope="module")
def sent(known):
    return sent_commands(known)


def union(sent, wanted=lambda _: True):
    return set().union(*(commands for place, commands in sent.items() if wanted(place)))


def upper(group):
    return {command.upper() for command in group}


def test_every_command_that_the_sources_send_is_in_a_group_and_no_other(known, sent):
    granted = upper(rights.CONNECT | rights.READ | rights.BROWSE | rights.SEND)
    granted |= upper(rights.WORK | rights.ADMINISTER)
    assert granted == union(sent) | BY_REDIS_PY


def test_the_groups_are_those_of_the_parts_that_send_them(known, sent):
    to_administer = union(sent, ADMINISTERS.match)
    to_work = union(sent, WORKS.match)
    to_send = union(sent, GROWS.match) | union(
        sent, lambda place: not ADMINISTERS.match(place) and not WORKS.match(place)
    )
    writes = {command for command in union(sent) if known.is_write(command)}
    reads = {command for command in union(sent) if known.is_read(command)}
    assert upper(rights.READ) == to_send & reads
    assert upper(rights.BROWSE) == reads - to_send
    assert upper(rights.SEND) - {"PUBLISH", "ROLE", "WAIT", "WAITAOF"} == to_send & writes
    assert upper(rights.WORK) - {"CLIENT|ID", "CLIENT|UNBLOCK"} == (to_work & writes) - to_send
    assert upper(rights.ADMINISTER) == (to_administer & writes) - to_work - to_send


def test_a_reader_has_no_command_that_writes(known):
    reader = upper(rights.CONNECT | rights.READ | rights.BROWSE)
    assert [command for command in reader if known.is_write(command)] == []


def test_few_rights_are_called_dangerous_by_the_server_and_none_of_them_changes_it(valkey_server):
    dangerous = set(valkey_server.command("ACL", "CAT", "dangerous"))
    dangerous |= set(valkey_server.command("ACL", "CAT", "admin"))
    granted = rights.CONNECT | rights.READ | rights.BROWSE | rights.SEND
    granted |= rights.WORK | rights.ADMINISTER
    assert granted & dangerous == {"client|unblock", "info", "role"}


@pytest.mark.parametrize("role", ROLES)
def test_keys_and_channels_are_those_of_the_namespace(role):
    prefix = KeySpace("shop").prefix
    rules = acl_user(role, "shop").rules
    assert [rule for rule in rules if rule[0] in "~%"] == [f"~{prefix}*"]
    assert rules.index("resetchannels") < rules.index(f"&{prefix}*")
    assert rules.index("-@all") < min(
        place for place, rule in enumerate(rules) if rule.startswith("+")
    )
    assert not [rule for rule in rules if rule.startswith("+@")]


def test_without_a_namespace_there_is_no_common_beginning():
    assert {"~*", "&*"} <= set(acl_user("worker").rules)


def test_a_user_that_is_everybody_gets_no_role():
    with pytest.raises(InvalidName, match="everybody"):
        acl_user("worker", name="default")
    with pytest.raises(InvalidName):
        acl_user("worker", name="ann on nopass +@all ~*")
    with pytest.raises(InvalidName):
        acl_user("worker", "shop* ~other")


@pytest.mark.parametrize(
    ("binary", "server"), [("redis62", "6.2"), ("redis7", "7.0"), ("valkey", "7.2")]
)
@pytest.mark.parametrize("role", ROLES)
def test_each_server_takes_its_line_twice_and_has_just_these_commands(
    shared_server, binary, server, role
):
    place = shared_server(binary)
    made = acl_user(role, "shop", name=f"{role}-of-lines", password="s3cret", server=server)
    for _ in range(2):
        assert place.command(*made.command.split(" ")) == "OK"
    described = place.command("ACL", "GETUSER", made.name)
    facts = dict(zip(described[::2], described[1::2], strict=True))
    assert "on" in facts["flags"]
    assert len(facts["passwords"]) == 1
    assert place.command("AUTH", made.name, "s3cret") == "OK"
    place.command("ACL", "DELUSER", made.name)


@pytest.mark.parametrize(("binary", "server"), [("redis7", "7.0"), ("valkey", "7.2")])
def test_selectors_of_an_existing_user_are_replaced(shared_server, binary, server):
    place, made = shared_server(binary), acl_user("reader", "shop", name="once", server=server)
    place.command("ACL", "SETUSER", "once", "(+@all ~* &*)")
    place.command(*made.command.split(" "))
    assert place.command("ACL", "DRYRUN", "once", "SET", "shop::key", "value") != "OK"
    place.command("ACL", "DELUSER", "once")
