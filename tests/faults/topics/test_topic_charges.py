"""A process that loses a partition and lives charges nothing to what it had in hand."""

from __future__ import annotations

import pytest
from tests.kit.history import read_history

from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import PartitionKeys


def running(crew, id_):
    """Workers whose handlers of a message have begun and not ended, as far as they have told."""
    begun = []
    for event in read_history(crew.folder):
        if event.msg == id_ and event.op == "start":
            begun.append(event.actor)
        elif event.msg == id_ and event.op == "finish":
            begun.remove(event.actor)
    return begun


async def counted(crew, id_):
    """Attempts that the server counts for a message; None when it is settled."""
    stream = PartitionKeys.of(crew.app.redis.keys, crew.topic.name, 0).stream
    rows = await crew.app.redis.call("XPENDING", stream, crew.group, id_, id_, 1)
    return rows[0][3] if rows else None


@pytest.mark.parametrize(
    ("ordering", "handler"),
    [
        ("partition", "handle"),
        ("key", "handle"),
        ("none", "handle"),
        ("partition", "handle_in_thread"),
    ],
)
async def test_workers_that_are_paused_again_and_again_cost_a_message_nothing(
    make_crew, valkey_server, ordering, handler
):
    """Five times its handler is frozen for longer than the lease; two attempts are allowed."""
    crew = make_crew(
        valkey_server.url,
        partitions=1,
        max_attempts=2,
        handler=handler,
        subscription={"ordering": ordering},
        topics={"lease_ttl_s": 0.3},
    )
    async with crew:
        hands = await crew.hire(2)
        await crew.at_work()
        id_ = (await crew.send("k", pause=1.0)).partition("-")[2]
        for _ in range(5):
            by_name = {hand.actor: hand for hand in hands}
            owner = await eventually(lambda: next(iter((running(crew, id_) or [None])[-1:]), None))
            victim = by_name[owner]
            crew.nemesis.write("lose", victim=victim.actor)
            victim.freeze()
            (heir,) = [hand for hand in hands if hand is not victim]
            await crew.owned_by({heir})
            await eventually(lambda h=heir: h.actor in running(crew, id_))
            victim.thaw()

            async def uncharged():
                return await counted(crew, id_) in (1, None)

            await eventually(uncharged, what="the thawed worker to take its attempt back")
            if await counted(crew, id_) is None:
                break
        await crew.drained()
        await crew.dismiss()
        assert not (await crew.topic.dead_letters.list()).letters
