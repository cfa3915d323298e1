"""A limit in front of a queue."""

from __future__ import annotations

from penstock import Unreachable
from penstock.coordination.limits.limit import Limit
from penstock.coordination.limits.setting import setting_of
from penstock.queues.worker.claimed_jobs import ClaimedJobs
from penstock.testing.eventually import eventually


async def test_jobs_leave_a_queue_only_as_far_as_its_limit_allows(workplace):
    app, ran = await workplace.open(poll_s=0.02), []
    limit = Limit(app.redis, "api", setting_of("5/hour"))
    queue = app.queue("limited", gate=limit.gate())

    @app.task(queue="limited", name="limited")
    async def limited(number: int) -> None:
        ran.append(number)

    await workplace.start(app)
    await limited.send_many([(number,) for number in range(12)])
    await eventually(lambda: len(ran) == 5)

    async def nothing_is_left():
        return (await limit.peek()).remaining == 0

    await eventually(nothing_is_left)
    assert await app.redis.call("LLEN", queue.keyring.waiting) == 7
    assert await limit.try_acquire() is not True, "ordinary code shares the budget"
    await limit.edit(setting_of("9/hour"))
    await eventually(lambda: len(ran) == 9)
    assert await app.redis.call("LLEN", queue.keyring.waiting) == 3


async def test_permits_of_a_claim_that_was_refused_come_back(workplace, monkeypatch):
    app, ran = await workplace.open(poll_s=0.02), []
    limit = Limit(app.redis, "api", setting_of("3/hour"))
    app.queue("limited", gate=limit.gate())

    @app.task(queue="limited", name="limited")
    async def limited(number: int) -> None:
        ran.append(number)

    claim, refused = ClaimedJobs.claim, []

    async def refusing(claims, most):
        if most and len(refused) < 2:
            refused.append(most)
            raise Unreachable("not now")
        return await claim(claims, most)

    monkeypatch.setattr(ClaimedJobs, "claim", refusing)
    await limited.send_many([(number,) for number in range(3)])
    await workplace.start(app)
    await eventually(lambda: len(ran) == 3)
    assert len(refused) == 2
