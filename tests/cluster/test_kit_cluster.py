"""The kit's cluster is a real one: it redirects, moves slots and elects new primaries."""

from __future__ import annotations

import time

import hiredis
import pytest
from tests.kit.patience import patient

from penstock.redis.keys.hash_slot import SLOTS


def other_primary(cluster, slot):
    owner = cluster.primary_of(slot)
    return next(
        primary
        for primary in map(cluster.primary_of, (0, SLOTS // 2, SLOTS - 1))
        if primary is not owner
    )


def test_all_slots_are_served_by_three_primaries(cluster):
    owners = {cluster.primary_of(slot) for slot in range(0, SLOTS, SLOTS // 12)}
    assert len(owners) == 3
    assert len(cluster.addresses) == 3
    assert cluster.url.startswith("redis+cluster://127.0.0.1:")
    for node in cluster.nodes:
        assert "cluster_slots_ok:16384" in node.command("CLUSTER", "INFO")


def test_a_key_of_another_node_is_redirected(cluster, namespace):
    slot = cluster.slot_of(namespace)
    owner = cluster.primary_of(slot)
    with pytest.raises(hiredis.ReplyError, match=f"MOVED {slot} 127.0.0.1:{owner.port}"):
        other_primary(cluster, slot).command("GET", namespace)
    assert owner.command("SET", namespace, "value") == "OK"


@pytest.mark.parametrize("binary", ["valkey", "redis7", "redis62"])
def test_a_cluster_is_ready_in_seconds_and_a_moved_slot_answers_moved(start_cluster, binary):
    began = time.monotonic()
    cluster = start_cluster(binary=binary)
    assert time.monotonic() - began < patient(10)

    slot = cluster.slot_of("key")
    source, target = cluster.primary_of(slot), other_primary(cluster, slot)
    for number in range(5):
        source.command("SET", f"{number}{{key}}", number)

    cluster.begin_move(slot, target)
    assert source.command("GET", "3{key}") == "3"
    with pytest.raises(hiredis.ReplyError, match=f"ASK {slot} 127.0.0.1:{target.port}"):
        source.command("GET", "unknown{key}")

    cluster.finish_move(slot, target)
    with pytest.raises(hiredis.ReplyError, match=f"MOVED {slot} 127.0.0.1:{target.port}"):
        source.command("GET", "3{key}")
    assert [target.command("GET", f"{number}{{key}}") for number in range(5)] == list("01234")
    assert cluster.primary_of(slot) is target


def test_replicas_take_over_by_order_and_after_a_kill(start_cluster):
    cluster = start_cluster(replicas=1)
    slot = cluster.slot_of("key")
    first = cluster.primary_of(slot)
    second = cluster.replicas_of(first)[0]
    first.command("SET", "key", "value")

    assert cluster.failover(first) is second
    assert cluster.primary_of(slot) is second
    assert cluster.replicas_of(second) == [first]
    assert second.command("GET", "key") == "value"

    cluster.kill(second)
    assert cluster.primary_of(slot) is first
    cluster.wait_until_well()
    assert first.command("SET", "key", "another") == "OK"

    second.restart()
    cluster.wait_until_well()
    assert cluster.replicas_of(first) == [second]


def test_without_replicas_a_killed_primary_is_missed(start_cluster):
    cluster = start_cluster()
    slot = cluster.slot_of("key")
    cluster.kill(cluster.primary_of(slot))
    with pytest.raises(TimeoutError, match=f"an owner of slot {slot}"):
        cluster.primary_of(slot, timeout_s=0.1)
