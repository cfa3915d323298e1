"""Lua files: the header and the body say the same, and every script has its typed call."""

import inspect
import re
from importlib.resources import files

import pytest

from penstock.redis.scripts import Scripts, load_script

NAMES = sorted(
    path.name.removesuffix(".lua")
    for path in files("penstock.redis").joinpath("lua").iterdir()
    if path.name.endswith(".lua")
)
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
    assert "math.random" not in body


@pytest.mark.parametrize("name", NAMES)
def test_every_script_has_a_typed_call_that_takes_keywords_only(name):
    method = getattr(Scripts, name)
    signature = inspect.signature(method)
    kinds = {parameter.kind for parameter in list(signature.parameters.values())[1:]}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    assert signature.return_annotation is not inspect.Signature.empty
    if "keys" in signature.parameters:
        return  # one argument for all keys of a queue, and for the beginnings of their names
    header, _ = split(name)
    arguments = len(numbers(header, "KEYS")) + len(numbers(header, "ARGV")) + has_tail(header)
    assert len(signature.parameters) - 1 == arguments


def test_flags_reach_servers_that_know_them_and_no_others():
    script = load_script("beat")
    assert script.text.startswith("#!lua flags=allow-oom\n-- beat:")
    assert script.plain_text.startswith("-- beat:")
    assert script.digest != script.plain_digest
