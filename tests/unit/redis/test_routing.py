"""Which key decides where a command goes."""

import pytest

from penstock.redis.keys.hash_slot import key_slot
from penstock.redis.routing import command_slot

WITH_KEY = [
    ("GET", "key"),
    ("get", "key"),
    (b"GET", b"key"),
    ("SET", "key", "value"),
    ("XADD", "key", "*", "field", "value"),
    ("BLPOP", "key", 0),
    ("MSET", "key", 1, "{key}2", 2),
    ("SPUBLISH", "key", "message"),
    ("EVAL", "return 1", 1, "key", "argument"),
    ("EVALSHA", "d8f2", "2", "key", "{key}2"),
    ("FCALL", "function", b"1", "key"),
    ("XREAD", "COUNT", 1, "STREAMS", "key", "0"),
    ("XREAD", "BLOCK", 0, "streams", "key", "0"),
    ("XREADGROUP", "GROUP", "group", "consumer", "STREAMS", "key", ">"),
    ("XREADGROUP", "GROUP", "streams", "STREAMS", "COUNT", 5, "NOACK", "STREAMS", "key", ">"),
    ("XREADGROUP", "COUNT", 5, "GROUP", "group", "count", "STREAMS", "key", ">"),
    ("XGROUP", "CREATE", "key", "group", "$"),
    ("XINFO", "STREAM", "key"),
    ("OBJECT", "ENCODING", "key"),
    ("MEMORY", "USAGE", "key"),
    ("BITOP", "AND", "key", "{key}2"),
    ("LMPOP", 1, "key", "LEFT"),
    ("BLMPOP", 0, 1, "key", "LEFT"),
    ("ZUNION", 2, "key", "{key}2"),
    ("SINTERCARD", 1, "key"),
    ("MIGRATE", "host", 6379, "key", 0, 100),
]
ANYWHERE = [
    ("PING",),
    ("INFO",),
    ("INFO", "memory"),
    ("SCRIPT", "LOAD", "return 1"),
    ("CONFIG", "GET", "maxmemory"),
    ("CLUSTER", "SLOTS"),
    ("PUBLISH", "channel", "message"),
    ("FLUSHALL", "ASYNC"),
    ("EVAL", "return 1", 0),
    ("EVAL", "return 1", "0", "argument"),
    ("MEMORY", "STATS"),
    ("XINFO", "HELP"),
]
NOT_WHOLE = [("EVAL",), ("EVAL", "return 1"), ("XREAD", "COUNT"), ("XREAD", "STREAMS"), ("GET",)]


@pytest.mark.parametrize("command", WITH_KEY, ids=str)
def test_the_first_key_decides(command):
    assert command_slot(command) == key_slot("key")


@pytest.mark.parametrize("command", ANYWHERE, ids=str)
def test_without_a_key_any_node_will_do(command):
    assert command_slot(command) is None


@pytest.mark.parametrize("command", NOT_WHOLE, ids=str)
def test_what_is_not_whole_is_left_to_the_server(command):
    assert command_slot(command) is None


def test_a_number_can_be_a_key():
    assert command_slot(("GET", 42)) == key_slot("42")


def test_braces_decide():
    assert command_slot(("GET", "queue:{a}:jobs")) == command_slot(("GET", "{a}")) == key_slot("a")
