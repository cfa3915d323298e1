"""Sentinels of the kit watch a real primary and replace it."""

from __future__ import annotations

import hiredis
import pytest


@pytest.mark.parametrize("binary", ["valkey", "redis7", "redis62"])
def test_an_ordered_failover_keeps_the_data(start_sentinel, binary):
    setup = start_sentinel(binary=binary)
    old = setup.primary
    assert setup.primary_address == old.address
    assert setup.url == f"redis+sentinel://127.0.0.1:{setup.sentinels[0].port}/main"
    with old.connect() as client:
        client.call("SET", "key", "value")
        assert client.call("WAIT", 1, 4000) == 1

    new = setup.failover()

    assert new is not old
    assert setup.primary_address == new.address
    assert new.command("GET", "key") == "value"
    with pytest.raises(hiredis.ReplyError, match="READONLY"):
        old.command("SET", "key", "another")


@pytest.mark.faults
def test_three_sentinels_replace_a_killed_primary(start_sentinel):
    setup = start_sentinel(sentinels=3)
    old = setup.primary
    old.kill()
    new = setup.wait_for_new_primary(old)
    assert new.command("SET", "key", "value") == "OK"
    assert {sentinel.primary_address for sentinel in setup.sentinels} == {new.address}
