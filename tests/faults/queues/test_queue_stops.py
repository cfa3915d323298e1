"""Workers come and go in good order: nothing runs twice, nothing stays in hand."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from tests.kit.crews.queue_crew import QUEUE
from tests.kit.patience import patient

from penstock.testing.eventually import eventually


async def up(crew, hand):
    """Wait until it has taken over the signals."""
    await eventually((crew.folder / f"{hand.actor}.up").exists)
    await crew.at_work(hand)


@pytest.mark.parametrize(
    ("kind", "handler"),
    [
        ("status", "handle"),
        ("lanes", "handle_in_thread"),
        ("plain", "handle"),
    ],
)
async def test_with_enough_time_all_that_runs_is_finished(
    make_queue_crew, valkey_server, kind, handler
):
    crew = make_queue_crew(valkey_server.url, kind=kind, handler=handler, max_attempts=1)
    async with crew:
        (leaver,) = await crew.hire()
        jobs = [await crew.send(pause=0.4) for _ in range(60)]
        await eventually(lambda: len(crew.events("start")) == 32)
        await leaver.stop()
        assert len(crew.events("finish", "ok")) == 32
        assert await crew.left() == 28
        await crew.nothing_is_held()
        assert await crew.names() == []
        await crew.hire()
        verdict = await crew.hold(attempt_gaps=False)
        assert verdict.counts.started == verdict.counts.finished == len(jobs)
        assert not crew.events("lose")


@pytest.mark.parametrize(
    ("kind", "handler", "signals"),
    [
        ("status", "handle", 1),
        ("plain", "handle_in_thread", 1),
        ("lanes", "handle", 2),
        ("plain", "handle", 1),
        ("status", "handle_in_thread", 2),
    ],
)
async def test_what_is_cut_short_runs_elsewhere_at_once_and_is_not_charged(
    make_queue_crew, valkey_server, figure, kind, handler, signals
):
    crew = make_queue_crew(
        valkey_server.url,
        kind=kind,
        handler=handler,
        max_attempts=1,
        # So long that nobody is found dead by silence here.
        queues={"silence_s": 30.0, "beat_s": 1.0},
        worker={"poll_s": 0.2, "grace_s": 0.3 if signals == 1 else 20.0},
    )
    async with crew:
        (leaver,) = await crew.hire()
        await up(crew, leaver)
        jobs = [await crew.send(pause=3.0) for _ in range(10)]
        for job_id in jobs:
            await crew.started(job_id)
        (heir,) = await crew.hire(worker={"poll_s": 0.2, "grace_s": 20.0})
        await up(crew, heir)
        for _ in range(signals):
            leaver.signal(signal.SIGTERM)
            await asyncio.sleep(0.05)
        code = await leaver.ended()
        ended = time.monotonic()
        assert code == (0 if signals == 1 else 128 + signal.SIGTERM), leaver.log
        again = [await crew.started(job_id, 2) for job_id in jobs]
        took_s = max(one.t_mono for one in again) - ended
        assert {one.attempt for one in again} == {1}
        if handler == "handle_in_thread":  # nobody can cut a thread; it ended with its process
            for event in crew.events("start", actor=leaver.actor):
                crew.nemesis.write("lose", victim=event.actor)
        rules = {"waive": {"I04", "I11", "I12", "I15"}} if handler == "handle_in_thread" else {}
        verdict = await crew.hold(**rules)
        assert verdict.counts.finished == 10
        assert not await crew.letters()
        figure(
            "queue faults",
            f"cut short, {kind}, {handler}: restart",
            took_s,
            "s",
            "<=",
            patient(5.0),
        )


async def test_an_idle_worker_ends_at_once(make_queue_crew, valkey_server):
    crew = make_queue_crew(valkey_server.url)
    async with crew:
        (idle,) = await crew.hire()
        await up(crew, idle)
        began = time.monotonic()
        await idle.stop()
        assert time.monotonic() - began < patient(5.0)
        await crew.nothing_is_held()
        assert await crew.names() == []


async def test_jobs_that_wait_for_their_last_chance_go_back_at_a_stop(
    make_queue_crew, valkey_server
):
    """They run one at a time, since one of them may have ended their last worker."""
    crew = make_queue_crew(valkey_server.url, max_attempts=2)
    async with crew:
        (victim,) = await crew.hire()
        jobs = [await crew.send(pause=0.3) for _ in range(6)]
        await eventually(lambda: len(crew.events("start")) == 6)
        await victim.kill()
        (leaver,) = await crew.hire()
        await eventually(lambda: len(crew.events("start")) == 7)
        await leaver.stop()
        assert len(crew.events("start")) == 7
        await crew.hire()
        verdict = await crew.hold()
        assert verdict.counts.finished == len(jobs)
        assert [event.attempt for job_id in jobs for event in crew.starts_of(job_id)] == [1, 2] * 6


async def rolling_restart(crew, pace_s, rounds=1, least=0):
    hands = await crew.hire(3)
    restarted = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(crew.send_until(restarted, least, pace_s=pace_s))
        await crew.at_work(*hands)
        for _ in range(rounds):
            for place, old in enumerate(hands):
                await old.stop()
                hands[place] = (await crew.hire())[0]
                await crew.at_work(*hands)
        restarted.set()
    verdict = await crew.hold(attempt_gaps=False)
    assert verdict.counts.started == verdict.counts.finished == sending.result()
    assert not crew.events("lose")
    return verdict


@pytest.mark.parametrize("kind", ["plain", "status", "lanes"])
async def test_a_rolling_restart_runs_every_job_exactly_once(make_queue_crew, valkey_server, kind):
    """With one attempt allowed, whoever is charged for a mere claim ends in the dead letters."""
    crew = make_queue_crew(
        valkey_server.url,
        kind=kind,
        max_attempts=1 if kind == "plain" else 3,
        queues={"silence_s": 30.0, "beat_s": 1.0},
        work_s=0.001,
    )
    async with crew:
        await rolling_restart(crew, 0.012)


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["plain", "status", "lanes"])
async def test_ten_rolling_restarts_run_every_job_exactly_once(
    make_queue_crew, valkey_server, kind, figure
):
    crew = make_queue_crew(
        valkey_server.url, kind=kind, queues={"silence_s": 30.0, "beat_s": 1.0}, work_s=0.001
    )
    async with crew:
        verdict = await rolling_restart(crew, 0.005, rounds=10, least=40_000)
        name = f"30 restarts, {kind} queue"
        figure("queue faults", f"{name}: done twice", verdict.counts.duplicated, "", "<=", 0)
        figure("queue faults", f"{name}: done", verdict.counts.finished, "", ">=", 40_000)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("plain", "swallow"),
        ("status", "cut_before"),
        ("plain", "cut_before"),
        ("status", "swallow"),
    ],
)
async def test_a_stop_on_a_bad_line_leaves_nothing_in_hand(
    make_queue_crew, valkey_server, fault_proxy, kind, fault
):
    """Words are lost while the worker says goodbye: it says them again before it leaves."""
    proxy = fault_proxy(valkey_server)
    crew = make_queue_crew(
        valkey_server.url,
        kind=kind,
        worker_url=proxy.url,
        max_attempts=3,
        queues={"silence_s": 30.0, "beat_s": 10.0},
        timeouts={"connect_s": 0.5, "command_s": 0.5},
    )
    async with crew:
        for round_number in range(2):
            (leaver,) = await crew.hire()
            await up(crew, leaver)
            await crew.send_many(40, seed=round_number, failing=0, pause=0.01 + 0.04 * round_number)
            leaver.signal(signal.SIGTERM)
            getattr(proxy, fault)("EVALSHA", times=2)
            assert await leaver.ended() == 0, leaver.log
            assert "grace period over" not in leaver.log, leaver.log
            proxy.heal()
            # Its last word may be lost; then its name stays for a while, and nothing with it.
            assert (await crew.app.queues.facts(QUEUE)).claimed == 0
        await crew.hire()
        await crew.drained()
        verdict = await crew.verdict(attempt_gaps=False)
        assert verdict.ok, str(verdict)
        assert verdict.counts.started == verdict.counts.finished == 80
