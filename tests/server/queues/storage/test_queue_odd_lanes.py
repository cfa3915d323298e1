"""Fair lanes whose names are not UTF-8: other programs make them, and they are lanes like any."""

import json

import pytest
from tests.kit.workplace import QUICK

from penstock.queues.storage.keys import QueuesKeys
from penstock.testing.eventually import eventually

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.settings(queues=QUICK, worker={"grace_s": 1.0, "poll_s": 0.2}),
]

LANES = [b"\xff", b"caf\xe9", b"\xed\xa0\x80", b"a b\\xff", b"%ZZ"]


async def fill(app, lane, count=3, queue="mail"):
    """Put jobs into a lane as another program would."""
    keys = app.queue(queue).keyring
    await app.redis.call("SADD", QueuesKeys.of(app.redis.keys).registry, queue)
    await app.redis.call("HSET", keys.state, "lanes", 1)
    await app.redis.call("RPUSH", keys.ring, lane)
    jobs = [json.dumps({"n": number}) for number in range(count)]
    await app.redis.call("RPUSH", keys.waiting.encode() + b":" + lane, *jobs)


async def left(app, lane, queue="mail"):
    return await app.redis.call("LLEN", app.queue(queue).keyring.waiting.encode() + b":" + lane)


@pytest.mark.parametrize("lane", LANES)
async def test_its_jobs_are_counted_and_shown(app, lane):
    await fill(app, lane)
    facts = await app.queues.facts("mail")
    assert facts.waiting == 3
    assert [one.waiting for one in facts.lanes if one.waiting] == [3]
    assert facts.foreign == []
    assert len(await app.queues.peek("mail", lane)) == 3
    assert [job.place for job in await app.queues.peek("mail", lane, 1, 1)] == [1]
    assert await left(app, lane) == 3


async def test_a_queue_with_such_a_lane_is_not_drained(app):
    await fill(app, b"\xff")
    assert not await app.queues.drain("mail", 0.1)


@pytest.mark.parametrize("lane", LANES)
async def test_it_is_paused_moved_and_purged_alone(workplace, app, lane):
    ran = []

    @app.queue("mail").handler
    async def note(job: dict) -> None:
        ran.append(job["n"])

    await fill(app, lane)
    assert await app.queues.pause("mail", lane)
    assert not await app.queues.pause("mail", lane)
    await app.queue("mail").push({"n": 7})
    workplace.begin(app)
    await eventually(lambda: ran == [7])
    assert await left(app, lane) == 3
    assert await app.queues.move("mail", "other", limit=1, lane=lane, to_lane="") == 1
    assert await app.queues.purge("mail", lane) == 2
    await fill(app, lane, 1)
    assert await app.queues.resume("mail", lane)
    await eventually(lambda: ran == [7, 0])


async def test_purging_and_deleting_a_queue_leave_nothing_in_it(app):
    await fill(app, b"\xff")
    assert await app.queues.purge("mail") == 3
    assert await left(app, b"\xff") == 0
    await fill(app, b"\xff")
    assert await app.queues.delete("mail")
    assert await left(app, b"\xff") == 0


async def test_a_list_of_another_type_in_its_place_is_reported_and_deleted(app):
    keys = app.queue("mail").keyring
    await app.queue("mail").push({"n": 1})
    await app.redis.call("RPUSH", keys.ring, b"\xff")
    odd = keys.waiting.encode() + b":\xff"
    await app.redis.call("SET", odd, "theirs")
    [found] = await app.queues.foreign_keys("mail")
    assert str(found) == rf"key {keys.waiting}:\xff holds a string where a list is expected"
    await app.queues.delete_foreign("mail", found.key)
    assert await app.redis.call("EXISTS", odd) == 0


async def test_the_command_line_names_it_by_its_bytes(app, shell):
    await fill(app, b"\xff", 2)
    status = shell("queue", "status", "mail")
    assert status.returncode == 0
    assert r"\xff" in status.stdout
    output = shell("queue", "peek", "mail", "--lane", "\udcff", "--json")
    assert len(json.loads(output.stdout)) == 2
    done = shell("queue", "pause", "mail", "--lane", "\udcff")
    assert (done.returncode, done.stdout) == (0, "lane \\xff of queue mail is paused\n")
    done = shell("queue", "purge", "mail", "--lane", "\udcff", "--yes", "--json")
    assert json.loads(done.stdout) == {"queue": "mail", "lane": "\\xff", "purged": 2}
