"""A handler that computes without a pause is slow, not dead: it runs once and keeps its place."""

from __future__ import annotations

import pytest
from tests.kit.history import read_history

from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import TopicKeys


def started(crew, id_):
    return [one for one in read_history(crew.folder) if one.op == "start" and one.msg == id_]


@pytest.mark.parametrize(
    ("ordering", "lease_s", "busy_s"),
    [
        ("key", 0.4, 1.6),
        ("partition", 0.4, 1.6),
        ("none", 0.4, 1.6),
        ("key", 2.0, 4.0),
        pytest.param("key", 15.0, 20.0, marks=pytest.mark.torture),
    ],
)
async def test_a_handler_that_blocks_for_longer_than_the_lease_runs_once(
    make_crew, valkey_server, ordering, lease_s, busy_s
):
    """Another consumer looks on, and would take whatever is free."""
    crew = make_crew(
        valkey_server.url,
        partitions=2,
        max_attempts=1,
        subscription={"ordering": ordering},
        topics={"lease_ttl_s": lease_s},
    )
    async with crew:
        (busy,) = await crew.hire()
        await crew.at_work(busy)
        (rival,) = await crew.hire()
        await crew.at_work(busy, rival)
        mine = [index for index, owner in (await crew.owners()).items() if owner is busy]
        id_ = (await crew.send(crew.key_in(mine[0]), busy=busy_s)).partition("-")[2]
        await eventually(lambda: started(crew, id_))
        members = TopicKeys.of(crew.app.redis.keys, crew.topic.name).members(crew.group)
        known = set(await crew.app.redis.call("ZRANGE", members, 0, -1))
        for _ in range(3):
            await crew.send(crew.key_in(mine[0]))
        await crew.drained(busy_s + 60)
        assert set(await crew.app.redis.call("ZRANGE", members, 0, -1)) == known
        assert [one.actor for one in started(crew, id_)] == [busy.actor]
        counted = await crew.dismiss()
        assert (counted["leases_lost"], counted["refused"], counted["dead"]) == (0, 0, 0)
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)
        assert verdict.counts.started == verdict.counts.finished == 4
