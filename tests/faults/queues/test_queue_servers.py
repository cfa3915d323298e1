"""Servers are killed, replaced and full: no confirmed job is lost, workers go on."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.crews.worker_crew import Load
from tests.kit.scripts import scripts_of

from penstock.errors import OutOfMemory, PenstockError
from penstock.runtime.heartbeat_thread import Beat, HeartbeatThread
from penstock.testing.eventually import eventually

TIMEOUTS = {"connect_s": 1.0, "command_s": 1.0}


@pytest.mark.parametrize("kind", ["status", "plain"])
async def test_a_killed_server_loses_no_job_that_was_confirmed(make_queue_crew, start_server, kind):
    server = start_server()
    async with make_queue_crew(server.url, kind=kind, timeouts=TIMEOUTS) as crew:
        verdict = await crew.survive_kills(server, 2, 200)
        assert verdict.counts.sent_ok >= 600


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["plain", "status", "lanes"])
async def test_twenty_killed_servers_lose_no_job_that_was_confirmed(
    make_queue_crew, start_server, kind, figure
):
    server = start_server()
    async with make_queue_crew(
        server.url, kind=kind, timeouts=TIMEOUTS, max_attempts=30, work_s=0.002
    ) as crew:
        verdict = await crew.survive_kills(server, 20, 2_000)
        counts, name = verdict.counts, f"20 server kills, {kind} queue"
        figure("queue faults", f"{name}: confirmed and lost", counts.lost, "", "<=", 0)
        figure("queue faults", f"{name}: confirmed", counts.sent_ok, "", ">=", 40_000)


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_ten_failovers_with_jobs_in_hand(make_queue_crew, start_cluster, figure):
    """A copy that takes over may be behind by some jobs; what it has, it keeps consistent."""
    cluster = start_cluster(primaries=3, replicas=1)
    crew = make_queue_crew(
        cluster.url,
        kind="status",
        max_attempts=30,
        timeouts=TIMEOUTS,
        work_s=0.01,
        queues={"silence_s": 3.0, "beat_s": 0.3},
    )
    async with crew:
        hands = await crew.hire(2)
        await crew.at_work(*hands)
        slot = cluster.slot_of(crew.keys.waiting)
        async with Load(crew) as load:
            for _ in range(10):
                await load.confirms(500)
                primary = cluster.primary_of(slot)
                # What is confirmed is on the copy as well, once that has answered.
                await crew.app.redis.call("WAIT", 1, 2_000)
                with crew.nemesis.losing():
                    primary.kill()
                await asyncio.to_thread(cluster.primary_of, slot)
                await eventually(lambda: cluster_answers(crew))
                await asyncio.to_thread(primary.restart)
                await asyncio.to_thread(cluster.wait_until_well)
            await load.confirms(500)
        assert [hand.code for hand in hands] == [None, None]
        await crew.drained(60)
        await crew.dismiss()
        # What ended right before the failover may run again, and what was sent may be gone with it.
        verdict = await crew.verdict(waive={"I12", "I16", "I01", "I02", "I08", "I09"})
        assert verdict.ok, str(verdict)
        lost, confirmed = verdict.counts.lost, verdict.counts.sent_ok
        figure("queue faults", "10 failovers: confirmed", confirmed, "jobs", ">=", 5_000)
        figure("queue faults", "10 failovers: lost with the primary", lost, "jobs", "<=", 80)


async def cluster_answers(crew):
    try:
        return await crew.left() >= 0
    except PenstockError:
        return False


@pytest.mark.parametrize(
    ("binary", "kind"),
    [
        ("valkey", "status"),
        ("redis62", "plain"),
        ("valkey", "plain"),
        ("redis62", "status"),
        ("redis7", "status"),
    ],
)
async def test_a_full_server_refuses_jobs_and_drains(make_queue_crew, start_server, binary, kind):
    server = start_server(binary)
    crew = make_queue_crew(server.url, kind=kind, max_attempts=3, work_s=0.002)
    async with crew:
        (victim,) = await crew.hire()
        await crew.at_work(victim)
        await fill_up(crew, server)
        assert await crew.left() > 0
        # A worker that begins on the full server takes over from one that dies on it.
        (heir,) = await crew.hire()
        await crew.at_work(heir)
        await victim.kill()
        await crew.drained()
        with pytest.raises(OutOfMemory):
            await crew.send()
        counts = await heir.counts()
        assert counts["stale"] == 0
        server.command("CONFIG", "SET", "maxmemory", "0")
        await crew.send()
        verdict = await crew.hold()
        letters = await crew.letters()
        assert len(letters) == verdict.counts.dead >= 200
        assert verdict.counts.sent_ok == verdict.counts.finished + len(letters) == 601


async def fill_up(crew, server):
    """Send more than is handled meanwhile, some to be retried or buried, then take the memory."""
    for number in range(600):
        orders = ({}, {"fail": True, "attempts": 1}, {"dead": True})[number % 3]
        await crew.send(pause=0.03, **orders)
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    assert int(server.info("memory")["used_memory"]) > 1_000_000
    with pytest.raises(OutOfMemory):
        await crew.send()


async def test_a_worker_that_starts_while_the_server_is_away_gives_signs_of_life_later(
    make_queue_crew, start_server
):
    """The thread that gives them has a connection of its own, which it makes when it begins."""
    server = start_server()
    async with make_queue_crew(server.url, timeouts=TIMEOUTS) as crew:
        client, keys = crew.app.redis, crew.keys
        heartbeats = HeartbeatThread(client)
        await scripts_of(client).join_queue(keys=keys, worker="w")

        async def beat(client):
            await scripts_of(client).beat_queue(keys=keys, worker="w")

        heartbeats.add(Beat("queue jobs", 0.1, beat))
        first = await client.call("ZSCORE", keys.workers, "w")
        server.kill()
        running = asyncio.create_task(heartbeats.serve())
        await eventually(heartbeats.trouble)
        await asyncio.to_thread(server.restart)

        async def beats():
            try:
                return await client.call("ZSCORE", keys.workers, "w") > first
            except PenstockError:
                return False

        await eventually(beats)
        heartbeats.ask_to_stop()
        await running
