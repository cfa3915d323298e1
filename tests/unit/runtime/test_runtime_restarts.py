"""A service that may be run again: it is, with back-off, and everybody sees that it fails."""

import asyncio
import logging

import pytest

from penstock.errors import ConfigError
from penstock.runtime import service as services
from penstock.runtime.service import Service
from penstock.runtime.worker import Worker
from penstock.testing.eventually import eventually


class Flaky(Service):
    restartable = True

    def __init__(self, name, fails):
        super().__init__(name)
        self.runs, self._fails = 0, fails

    async def run(self):
        self.runs += 1
        if self.runs <= self._fails:
            raise LookupError("no such shelf")
        await self.stop_asked.wait()


class Misconfigured(Flaky):
    async def run(self):
        async with asyncio.TaskGroup() as group:
            group.create_task(self._complain())

    async def _complain(self):
        raise ConfigError("it has other options elsewhere")


class CancelledFromWithin(Flaky):
    async def run(self):
        self.runs += 1
        if self.runs == 1:
            raise asyncio.CancelledError
        await self.stop_asked.wait()


@pytest.fixture
async def begin():
    running = []

    def run(*work, support=()):
        worker = Worker(work=work, support=support)
        running.append((worker, asyncio.create_task(worker.run())))
        return running[-1]

    yield run
    for worker, task in running:
        await worker.stop()
        await task


@pytest.mark.parametrize("kind", ["work", "support"])
async def test_a_failing_service_is_run_again_while_the_others_go_on(begin, kind, caplog):
    failing, healthy = Flaky(f"failing {kind}", 1), Flaky("queue reports", 0)
    if kind == "work":
        worker, task = begin(failing, healthy)
    else:
        worker, task = begin(healthy, support=[failing])
    await eventually(lambda: failing.failing)
    reasons = worker.readiness().reasons
    assert f"failing {kind} failed: LookupError: no such shelf" in reasons
    await eventually(lambda: failing.runs == 2)
    assert (healthy.runs, task.done(), worker.failures) == (1, False, [])
    [line] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert line.exc_info is not None
    assert line.getMessage().startswith(f"failing {kind} failed and is started again in ")


async def test_a_service_that_runs_steadily_again_counts_as_healthy(begin, monkeypatch):
    monkeypatch.setattr(services, "STEADY_S", 0.05)
    failing = Flaky("queue mail", 1)
    worker, task = begin(failing)
    await eventually(lambda: failing.runs == 2)
    await eventually(lambda: worker.readiness().ready)
    await worker.stop()
    assert await task == 0


async def test_a_worker_that_stops_while_a_service_fails_does_not_end_well(begin):
    failing = Flaky("queue mail", 99)
    worker, task = begin(failing, Flaky("queue reports", 0))
    await eventually(lambda: failing.failing)
    await worker.stop()
    assert await task == 1


async def test_what_no_repetition_mends_ends_the_service(begin):
    worker, task = begin(Misconfigured("orders/billing", 1), Flaky("queue reports", 0))
    assert await task == 1
    [failure] = worker.failures
    assert isinstance(failure, ExceptionGroup)


async def test_a_body_that_ends_as_cancelled_is_run_again(begin):
    service = CancelledFromWithin("queue mail", 0)
    begin(service)
    await eventually(lambda: service.runs == 2)


async def test_waits_grow_while_a_service_fails(begin):
    service = Flaky("queue mail", 99)
    begin(service)
    await eventually(lambda: service.runs == 2)
    assert service.restarted >= 1  # what the next wait follows from
