"""Lua files: the header and the body say the same, and every script has its typed call.

What the calls pass is held against the headers in `test_script_calls.py`.
"""

import inspect
import re

import pytest
from tests.kit.scripts import CALLERS, FOLDERS, NAMES, folder_of, load_script

FORBIDDEN = ("KEYS", "FLUSHALL", "FLUSHDB", "SCAN", "RANDOMKEY", "SPOP", "EVAL")


def split(name):
    """Header and body of a script, without the check of its keys that is made from the header."""
    lines = load_script(name).plain_text.splitlines()
    lines = [line for line in lines if not line.startswith("do local fault = ")]
    end = next(index for index, line in enumerate(lines) if not line.startswith("--"))
    return "\n".join(lines[:end]), "\n".join(lines[end:])


def numbers(text, table):
    return {int(found) for found in re.findall(rf"{table}\[(\d+)\]", text)}


def has_tail(header):
    """Whether any number of arguments may follow the named ones."""
    named = len(numbers(header, "ARGV"))
    found = re.findall(r"ARGV\[(\d+)\.\.\]", header)
    assert found in ([], [str(named + 1)])
    return bool(found)


@pytest.mark.parametrize("name", NAMES)
def test_the_header_names_the_script_and_what_it_returns(name):
    header, _ = split(name)
    assert re.match(rf"-- {name}: \S", header)
    assert re.search(r"^-- Returns +\S+ +\S", header, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("table", ["KEYS", "ARGV"])
def test_the_header_lists_exactly_what_the_body_uses(name, table):
    header, body = split(name)
    assert numbers(header, table) == numbers(body, table)
    assert numbers(header, table) == set(range(1, len(numbers(header, table)) + 1))
    assert has_tail(header) == ("#ARGV" in body or "unpack(ARGV" in body)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_in_the_header_has_a_redis_type(name):
    header, _ = split(name)
    for line in re.findall(r"^-- KEYS.*$", header, re.MULTILINE):
        assert re.match(r"-- KEYS\[\d+\]  ?(STRING|LIST|SET|ZSET|HASH|STREAM) +\S", line)


@pytest.mark.parametrize("name", NAMES)
def test_the_body_declares_its_variables_and_uses_no_dangerous_command(name):
    _, body = split(name)
    for command in re.findall(r"redis\.p?call\('(\w+)'", body):
        assert command not in FORBIDDEN
    assert not re.search(r"^\w+ *= ", body, re.MULTILINE), "a global variable"
    assert not re.search(r"\b(load\w*|dofile|[gs]etfenv|require)\b *[('\"]", body), "text as code"
    assert "math.random" not in body


@pytest.mark.parametrize("name", NAMES)
def test_every_script_has_a_typed_call_that_takes_keywords_only(name):
    method = next(vars(caller)[name] for caller in CALLERS if name in vars(caller))
    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())[1:]
    if parameters[0].annotation == "PartitionOwner":  # all of a call's keys, by their names
        del parameters[0]
    assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    assert signature.return_annotation is not inspect.Signature.empty


def test_flags_reach_servers_that_know_them_and_no_others():
    script = load_script("beat_worker")
    assert script.text.startswith("#!lua flags=allow-oom\n-- beat_worker:")
    assert script.plain_text.startswith("-- beat_worker:")
    assert script.digest != script.plain_digest


# ---- work that does not grow with what is stored

CALL = re.compile(r"redis\.p?call\('([A-Z]+)'((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")
UNBOUNDED = {"HGETALL", "HKEYS", "HVALS", "SMEMBERS", "ZREMRANGEBYSCORE", "LREM", "DEL"}
BOUNDED_BY = {
    **dict.fromkeys(("ZRANGEBYSCORE", "ZREVRANGEBYSCORE"), "'LIMIT'"),
    **dict.fromkeys(("XRANGE", "XREVRANGE"), "'COUNT'"),
    "LPOS": "'MAXLEN'",
    "XTRIM": "'LIMIT'",
}
WHOLE = re.compile(r", 0, -1\b")
GROWS = {
    # One entry for each process that lives.
    "beat_member": {"ZRANGE"},
    # Of claims that are few.
    "open_claims": {"HKEYS"},
    # At most as many as there are slots.
    "release_slot": {"ZRANGE"},
    # It tells all holders, and of each process whether it waits.
    "look_at_slots": {"HGETALL", "ZRANGEBYSCORE"},
    # Where lanes, letters and jobs are taken out of the middle of a list, by hand.
    "parts/pull": {"LREM"},
    "park_lane": {"LREM"},
    "pause_lane": {"LREM"},
    "purge_jobs": {"LREM"},
    "relist_lane": {"LPOS"},
    "resume_lane": {"LREM"},
    "take_items": {"LREM"},
    # The items of one batch, which is bounded.
    "parts/batches": {"DEL", "LRANGE"},
    # Messages by their ids, one at a time.
    "due_retries": {"XRANGE"},
    "edit_letter": {"XRANGE"},
    "read_pending": {"XRANGE"},
    "pending_page": {"XRANGE"},
    "remove_letters": {"XRANGE"},
    # What was left behind before the state of a limit was lost; what leaves a window in one moment.
    "parts/limit_exact": {"ZRANGE", "ZRANGEBYSCORE", "ZREMRANGEBYSCORE"},
    # Keys of another kind than a collection, or that hold none.
    "commit_once": {"DEL"},
    "drop_group": {"DEL"},
    "drop_legacy": {"DEL"},
    "forget_once": {"DEL"},
    "land_flight": {"DEL"},
    "parts/records": {"DEL"},
    "release_partition": {"DEL"},
    "remove_worker": {"DEL"},
    "release_once": {"DEL"},
    "set_cached": {"DEL"},
    "take_flight": {"DEL"},
    # It trims nothing away: it is a write that needs no memory.
    "note_queue_act": {"XTRIM"},
    "remove_queue_letters": {"LTRIM"},
    # Retention walks over what it drops.
    "trim_partition": {"DEL", "XRANGE", "XTRIM"},
}
"""Commands that may take longer the more there is, by script or part, with the reason."""
TEXTS = {
    **{name: folder_of(name).files[name].read_text() for name in NAMES},
    **{
        f"parts/{name}": path.read_text()
        for folder in FOLDERS
        for name, path in folder.parts.items()
    },
}


def unbounded_commands(text):
    for command, rest in CALL.findall(text):
        limit = BOUNDED_BY.get(command)
        if command in UNBOUNDED or WHOLE.search(rest) or (limit and limit not in rest):
            yield command


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_script_uses_no_command_whose_work_grows_with_what_is_stored(name):
    assert set(unbounded_commands(TEXTS[name])) <= GROWS.get(name, set())
