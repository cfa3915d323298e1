"""Leases are renewed from one task, each until it ends or is lost."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from penstock.coordination.leases import MOST_AT_ONCE, Leases
from penstock.errors import Unreachable
from penstock.testing.eventually import eventually


@pytest.fixture
async def leases(open_client, valkey_server, namespace):
    client = await open_client(valkey_server.url, namespace=namespace)
    leases = Leases(client)
    yield leases
    await leases.close()


class Kept:
    """Something held: what it answers, and what was asked and told."""

    def __init__(self, answer=True) -> None:
        self.answer, self.asked, self.losses = answer, [], []

    async def renew(self) -> bool:
        self.asked.append(time.monotonic())
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def lost(self) -> None:
        self.losses.append(time.monotonic())


def tasks():
    return [task for task in asyncio.all_tasks() if task.get_name() == "penstock leases"]


async def test_a_lease_is_renewed_in_its_rhythm_until_it_ends(leases):
    kept = Kept()
    lease = leases.hold(kept.renew, 0.05, kept.lost, ttl_s=5)
    await eventually(lambda: len(kept.asked) >= 4)
    await lease.end()
    assert len(leases) == 0
    gaps = [later - earlier for earlier, later in zip(kept.asked, kept.asked[1:], strict=False)]
    assert min(gaps) > 0.04
    count = len(kept.asked)
    await eventually(lambda: not tasks())
    assert len(kept.asked) == count
    assert kept.losses == []


async def test_many_leases_need_one_task_that_ends_with_the_last(leases):
    many = [Kept() for _ in range(300)]
    held = [leases.hold(kept.renew, 0.06, kept.lost, ttl_s=5) for kept in many]
    assert len(tasks()) == 1
    await eventually(lambda: all(len(kept.asked) >= 2 for kept in many))
    assert len(tasks()) == 1
    for lease in held:
        await lease.end()
    await eventually(lambda: not tasks())
    kept = Kept()
    leases.hold(kept.renew, 0.02, kept.lost)  # and starts again
    await eventually(lambda: kept.asked)


async def test_no_more_renewals_than_some_are_under_way_at_once(leases):
    now, most, done = 0, 0, 0

    async def renew() -> bool:
        nonlocal now, most, done
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.002)
        now -= 1
        done += 1
        return True

    for _ in range(3 * MOST_AT_ONCE):
        leases.hold(renew, 0.1, pytest.fail, ttl_s=5)
    await eventually(lambda: done >= 3 * MOST_AT_ONCE)
    assert most == MOST_AT_ONCE


async def test_a_refused_renewal_is_a_loss_told_once(leases):
    kept = Kept(answer=False)
    lease = leases.hold(kept.renew, 0.02, kept.lost, ttl_s=60)
    await eventually(lambda: kept.losses)
    assert lease.lost
    await lease.end()
    await eventually(lambda: not tasks())
    assert len(kept.losses) == len(kept.asked) == 1


async def test_errors_are_tried_again_until_the_time_is_up(leases, caplog):
    kept = Kept(Unreachable("it is away"))
    began = time.monotonic()
    lease = leases.hold(kept.renew, 0.1, kept.lost)
    await eventually(lambda: kept.losses)
    assert lease.lost
    assert kept.losses[0] - began > 0.25
    assert 2 <= len(kept.asked) <= 10
    lines = [one for one in caplog.records if "was not renewed" in one.message]
    assert len(lines) <= 1  # not one for each try


async def test_a_lease_survives_an_outage_that_is_shorter_than_it(leases):
    kept = Kept(Unreachable("it is away"))
    lease = leases.hold(kept.renew, 0.1, kept.lost, ttl_s=2)
    await eventually(lambda: len(kept.asked) >= 3)
    kept.answer = True
    count = len(kept.asked)
    await eventually(lambda: len(kept.asked) >= count + 2)
    assert not lease.lost
    assert kept.losses == []


async def test_a_renewal_without_an_answer_does_not_hold_up_loss_nor_others(leases):
    async def hang() -> bool:
        await asyncio.Event().wait()
        return True

    hanging, other = Kept(), Kept()
    began = time.monotonic()
    leases.hold(hang, 0.1, hanging.lost)
    leases.hold(other.renew, 0.05, other.lost, ttl_s=5)
    await eventually(lambda: hanging.losses)
    assert hanging.losses[0] - began > 0.25
    assert len(other.asked) >= 3
    assert other.losses == []


async def test_a_lease_is_lost_on_time_even_if_the_event_loop_is_kept_busy(leases):
    kept = Kept()
    lease = leases.hold(kept.renew, 0.05, kept.lost, ttl_s=0.15)
    assert not lease.lost
    time.sleep(0.16)  # noqa: ASYNC251  a handler that computes
    assert lease.lost
    assert kept.losses == []  # nobody could tell us
    await eventually(lambda: kept.losses)


async def test_time_counts_from_before_the_lease_was_asked_for(leases):
    kept = Kept()
    lease = leases.hold(kept.renew, 10, kept.lost, ttl_s=30, began=time.monotonic() - 29.8)
    assert lease.lost  # a little before the server's own time
    await eventually(lambda: kept.losses)


async def test_an_ended_lease_does_not_report_the_answer_that_comes_late(leases):
    asked, answer = asyncio.Event(), asyncio.Event()

    async def renew() -> bool:
        asked.set()
        await answer.wait()
        return False

    kept = Kept()
    lease = leases.hold(renew, 0.01, kept.lost, ttl_s=60)
    await asked.wait()
    await lease.end()
    await lease.end()
    answer.set()
    await eventually(lambda: not tasks())
    assert kept.losses == []


async def test_who_fails_when_told_of_a_loss_does_no_harm_to_others(leases, caplog):
    def fail() -> None:
        raise RuntimeError("I do not want to know")

    bad, good = Kept(answer=False), Kept()
    leases.hold(bad.renew, 0.02, fail)
    leases.hold(good.renew, 0.02, good.lost, ttl_s=5)
    await eventually(lambda: len(good.asked) > 3)
    assert [one.levelno for one in caplog.records] == [logging.ERROR]


async def test_close_ends_everything_and_may_come_twice_or_before_any_lease(leases):
    await leases.close()
    kept = Kept()
    leases.hold(kept.renew, 0.01, kept.lost)
    await eventually(lambda: kept.asked)
    await leases.close()
    await leases.close()
    assert not tasks()
    assert len(leases) == 0
    assert kept.losses == []


async def test_an_earlier_lease_does_not_wait_for_a_later_one(leases):
    late, soon = Kept(), Kept()
    leases.hold(late.renew, 60, late.lost)
    await eventually(tasks)
    leases.hold(soon.renew, 0.02, soon.lost, ttl_s=5)
    await eventually(lambda: len(soon.asked) >= 2)
    assert late.asked == []
