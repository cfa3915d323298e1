"""The network between a worker and its server breaks: no job is lost, stuck, or run twice."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.scripts import load_script, scripts_of

from penstock.testing.eventually import eventually
from penstock.testing.link import Rule, RuleKind


class OfScript(Rule):
    """Takes calls of one script."""

    def __init__(self, name: str, kind: RuleKind, times: int = 1) -> None:
        super().__init__("EVALSHA", kind, times)
        script = load_script(name)
        self._digests = {script.digest.encode(), script.plain_digest.encode()}

    def takes(self, request):
        return request[1] in self._digests and super().takes(request)


def make_network_crew(make_queue_crew, server, proxy, **options):
    """Workers talk through the proxy; the producer and the test do not."""
    return make_queue_crew(
        server.url,
        **{
            "timeouts": {"connect_s": 0.5, "command_s": 0.5},
            "queues": {"silence_s": 30.0, "beat_s": 1.0},
            "work_s": 0.001,
            "worker_url": proxy.url,
            **options,
        },
    )


SAID = {
    "claim_jobs": ("plain", {}),
    "begin_jobs": ("status", {"pause": 0.1}),  # what takes less never says that it runs
    "finish_jobs": ("status", {}),
    "retry_job": ("plain", {"fail": True, "attempts": 1}),
    "bury_job": ("status", {"dead": True}),
}


@pytest.mark.parametrize("fault", [RuleKind.SWALLOW, RuleKind.CUT])
@pytest.mark.parametrize("script", SAID)
async def test_a_word_that_is_lost_costs_no_job_and_no_repetition(
    make_queue_crew, valkey_server, fault_proxy, script, fault
):
    """The answer does not come, or the question does not arrive; the worker lives all the while."""
    kind, orders = SAID[script]
    proxy = fault_proxy(valkey_server)
    crew = make_network_crew(make_queue_crew, valkey_server, proxy, kind=kind)
    async with crew:
        await crew.at_work(*await crew.hire())
        rule = proxy.add(OfScript(script, fault))
        for _ in range(30):
            await crew.send(**orders)
        await eventually(lambda: rule.hits == 1)
        for _ in range(10):
            await crew.send()
        verdict = await crew.hold(attempt_gaps=False)
        runs_each = 2 if orders.get("fail") else 1
        assert verdict.counts.started == 30 * runs_each + 10
        assert len(await crew.letters()) == (30 if orders.get("dead") else 0)
        assert (await crew.counters())["done"] == (10 if orders.get("dead") else 40)


@pytest.mark.parametrize("fault", [RuleKind.SWALLOW, RuleKind.CUT])
async def test_a_lost_note_that_a_single_attempt_begins_starts_it_once(
    make_queue_crew, valkey_server, fault_proxy, fault
):
    proxy = fault_proxy(valkey_server)
    crew = make_network_crew(make_queue_crew, valkey_server, proxy, max_attempts=1)
    async with crew:
        await crew.at_work(*await crew.hire())
        rule = proxy.add(OfScript("begin_jobs", fault))
        await crew.send_many(40, failing=0)
        await eventually(lambda: rule.hits == 1)
        verdict = await crew.hold(attempt_gaps=False)
        assert verdict.counts.started == verdict.counts.finished == 40


async def test_a_note_that_arrives_after_the_end_brings_no_job_back(make_queue_crew, valkey_server):
    """It was sent on a connection that was given up, sent again on another, and then it came."""
    crew = make_queue_crew(valkey_server.url, max_attempts=1)
    async with crew:
        scripts, keys = scripts_of(crew.app.redis), crew.keys
        await crew.send()
        await scripts.join_queue(keys=keys, worker="w")
        claim = {"keys": keys, "worker": "w", "first": 1}
        *_, (item,) = (await scripts.claim_jobs(**claim, most=1, done=[])).lanes
        late = {"keys": keys, "worker": "w", "jobs": ["1", "", 1, "", item]}
        assert await scripts.begin_jobs(**late) == [1]
        await scripts.claim_jobs(**claim, most=0, done=["1"])
        assert await scripts.begin_jobs(**late) == [0]
        assert await crew.left() == 0


@pytest.mark.parametrize("kind", ["status", "plain"])
async def test_cut_connections_are_made_anew(make_queue_crew, valkey_server, fault_proxy, kind):
    proxy = fault_proxy(valkey_server)
    async with make_network_crew(make_queue_crew, valkey_server, proxy, kind=kind) as crew:
        await crew.at_work(*await crew.hire(2))
        async with asyncio.TaskGroup() as group:
            group.create_task(crew.send_many(400, pace_s=0.02))
            for number in range(4):
                await asyncio.sleep(0.2)
                proxy.cut(reset=number % 2 == 0)
        verdict = await crew.hold(attempt_gaps=False)
        assert verdict.counts.duplicated == 0


@pytest.mark.parametrize(
    "way",
    [
        "to_client",
        "to_server",
        None,
    ],
)
async def test_a_black_hole_longer_than_the_silence_is_survived(
    make_queue_crew, valkey_server, fault_proxy, way
):
    """Both sides believe that the connection is fine; another worker has a better way."""
    proxy = fault_proxy(valkey_server)
    crew = make_network_crew(
        make_queue_crew,
        valkey_server,
        proxy,
        kind="status",
        queues={"silence_s": 0.6, "beat_s": 0.1},
        work_s=0.01,
    )
    async with crew:
        (cut_off,) = await crew.hire()
        (fine,) = await crew.hire(url=valkey_server.url)
        await crew.at_work(cut_off, fine)
        async with asyncio.TaskGroup() as group:
            group.create_task(crew.send_many(300, pace_s=0.04))
            await asyncio.sleep(0.2)
            crew.nemesis.write("lose", victim=cut_off.actor)
            proxy.blackhole(way=way)

            async def given_up():
                return cut_off not in await crew.members()

            await eventually(given_up)
        proxy.heal()
        await crew.at_work(cut_off, fine)
        verdict = await crew.hold()
        assert verdict.counts.finished == 300


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["plain", "status", "lanes"])
async def test_a_minute_of_every_fault_of_the_network(
    make_queue_crew, valkey_server, fault_proxy, kind, figure
):
    proxy = fault_proxy(valkey_server)
    crew = make_network_crew(
        make_queue_crew,
        valkey_server,
        proxy,
        kind=kind,
        max_attempts=20,
        queues={"silence_s": 1.0, "beat_s": 0.2},
    )
    async with crew:
        verdict = await crew.survive_network(proxy, "EVALSHA", "BLPOP")
        name = f"60 faults of the network, {kind} queue"
        figure("queue faults", f"{name}: lost", verdict.counts.lost, "jobs", "<=", 0)
        figure("queue faults", f"{name}: done twice", verdict.counts.duplicated, "jobs", "<=", 200)
