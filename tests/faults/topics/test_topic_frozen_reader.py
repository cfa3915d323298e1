"""A read loop that hangs makes its worker not ready and is restarted; nothing is lost."""

from __future__ import annotations

import asyncio
import secrets
import time

from tests.kit.patience import patient
from tests.kit.slow_link import slow_link

from penstock import Penstock
from penstock.redis.wire import Wire
from penstock.settings import Settings
from penstock.testing.eventually import eventually

POLL_S = 1.0
LOADED_S = 1.0
"""What a loaded machine may need besides."""
MESSAGES = 50


class FrozenRead:
    """Once armed, lets the next blocking read reach the server and never return here."""

    def __init__(self, monkeypatch) -> None:
        self.armed = False
        self.frozen_at: float | None = None
        self._call = Wire.call

        async def call(wire, *command, **how):
            return await self.call(wire, *command, **how)

        monkeypatch.setattr(Wire, "call", call)

    async def call(self, wire, *command, **how):
        if not self.armed or command[0] != "XREADGROUP":
            return await self._call(wire, *command, **how)
        self.armed = False
        reply = wire.send((command,), timeout_s=60)
        self.frozen_at = time.monotonic()
        try:
            await asyncio.Event().wait()
        finally:
            reply.cancel()


async def test_a_frozen_read_loop_is_noticed_and_restarted_and_nothing_is_lost(
    start_server, namespace, monkeypatch, caplog
):
    settings = Settings.load(
        {"url": start_server().url, "namespace": namespace, "worker.poll_s": POLL_S}
    )
    handled: list[int] = []
    frozen = FrozenRead(monkeypatch)
    async with Penstock(settings=settings) as app:
        orders = app.topic("orders", partitions=2)

        @orders.subscribe(group="billing")
        async def bill(number: int) -> None:
            handled.append(number)

        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await eventually(worker.readiness)
        await orders.send(0)
        await eventually(lambda: handled == [0])

        frozen.armed = True
        await eventually(lambda: frozen.frozen_at is not None)
        for number in range(1, MESSAGES):  # the frozen read takes some of them
            await orders.send(number)
        await eventually(lambda: any("silent" in reason for reason in worker.readiness().reasons))
        assert time.monotonic() - frozen.frozen_at < patient(2 * POLL_S + LOADED_S)
        assert len(handled) == 1

        await eventually(lambda: len(handled) >= MESSAGES)
        await eventually(worker.readiness)
        (consumer,) = worker.work
        assert consumer.counts.strays > 0
        assert consumer.restarted == 0  # the loop was restarted, its partitions were kept
        assert "restarting it" in caplog.text
        await worker.stop()
        assert await running == 0
    assert sorted(handled) == list(range(MESSAGES))


async def test_a_read_that_arrives_slowly_is_not_taken_for_a_frozen_one(
    start_server, namespace, caplog
):
    server, handled = start_server(), []
    large = secrets.token_hex(50_000)

    def settings(url: str) -> Settings:
        return Settings.load({"url": url, "namespace": namespace, "worker.poll_s": 0.2})

    async with (
        slow_link(server.port, bytes_per_s=20_000) as url,
        Penstock(settings=settings(server.url)) as near,
        Penstock(settings=settings(url)) as app,
    ):
        orders = app.topic("orders", partitions=1)

        @orders.subscribe(group="billing")
        async def bill(order: str) -> None:
            handled.append(len(order))

        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await eventually(worker.readiness)
        await near.topic("orders", partitions=1).send(large)
        await eventually(lambda: handled)
        (consumer,) = worker.work
        assert consumer.counts.strays == 0
        await worker.stop()
        assert await running == 0
    assert len(handled) == 1
    assert "restarting it" not in caplog.text
