"""A job marked and queued on a cluster, where mark and queue live apart."""

from __future__ import annotations

import pytest
from tests.kit.workplace import stored

from penstock.coordination.leases import Leases
from penstock.coordination.once.keys import DedupeKeys
from penstock.coordination.once.once import Once
from penstock.errors import OutcomeUnknown

KEY = "c0ffee" * 8

pytestmark = pytest.mark.places("cluster")


@pytest.fixture
async def open_once(app):
    leases = Leases(app.redis)
    yield lambda: Once(app.redis, app.codec, leases)
    await leases.close()


async def run_out(app):
    """What a dead process has reserved."""
    keys = DedupeKeys.of(app.redis.keys, KEY)
    await app.redis.call("DEL", keys.mark, keys.holder)


async def test_a_process_that_dies_between_the_job_and_the_mark_costs_no_second_job(
    app, open_once, monkeypatch
):
    queue, dying, heir = app.queue("work"), open_once(), open_once()

    async def die(*_, **__):
        raise OutcomeUnknown("dead")

    monkeypatch.setattr(dying, "_commit", die)
    with pytest.raises(OutcomeUnknown):
        await dying.enqueue(KEY, queue, 1, value="/a.jpg")
    assert len(await stored(queue)) == 1
    await run_out(app)
    again = await heir.enqueue(KEY, queue, 1, value="/b.jpg")
    assert (again.first, again.value) == (False, "/a.jpg")
    assert len(await stored(queue)) == 1
    assert await heir.seen(KEY), "now it is marked"


async def test_one_that_wakes_up_late_adds_no_second_job(app, open_once, monkeypatch):
    queue, sleeper, heir = app.queue("work"), open_once(), open_once()
    reserve = sleeper._reserve

    async def reserve_and_sleep(wanted):
        answer = await reserve(wanted)
        await run_out(app)
        assert (await heir.enqueue(KEY, queue, 1, value="/b.jpg")).first
        return answer

    monkeypatch.setattr(sleeper, "_reserve", reserve_and_sleep)
    late = await sleeper.enqueue(KEY, queue, 1, value="/a.jpg")
    assert (late.first, late.value) == (False, "/b.jpg")
    assert len(await stored(queue)) == 1
    assert await heir.peek(KEY) == "/b.jpg"


async def test_one_that_was_overtaken_after_its_job_was_added_is_first_all_the_same(
    app, open_once, monkeypatch
):
    queue, sleeper, heir = app.queue("work"), open_once(), open_once()
    commit = sleeper._commit

    async def sleep_and_commit(wanted, **options):
        await run_out(app)
        assert not (await heir.enqueue(KEY, queue, 1, value="/b.jpg")).first
        return await commit(wanted, **options)

    monkeypatch.setattr(sleeper, "_commit", sleep_and_commit)
    assert (await sleeper.enqueue(KEY, queue, 1, value="/a.jpg")).first
    assert len(await stored(queue)) == 1
    assert await heir.seen(KEY)
