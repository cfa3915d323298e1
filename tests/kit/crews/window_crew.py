"""Aggregator processes around one window, and the verdict in the end."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime

from tests.kit.crews.worker_crew import WorkerCrew, WorkerProcess
from tests.kit.settings import settings_of

from penstock import Penstock
from penstock.coordination.windows.window import Window
from penstock.errors import ServerError
from penstock.testing.eventually import eventually

MAX_AGE_S, IDLE_S, MAX_ITEMS = 1.0, 0.4, 7
LATE_MS = 1_000
SHARES = 4


class WindowCrew(WorkerCrew):
    """Four aggregator processes around one window, and what has come of it."""

    def __init__(self, launcher, server, namespace, folder, *, keys, items, pace_s=0.005):
        orders = {
            "url": server.url,
            "namespace": namespace,
            "keys": keys,
            "items": items,
            "shares": SHARES,
            "pace_s": pace_s,
            "crash": "",
            "timeouts": {"connect_s": 1.0, "command_s": 1.0},
            "window": {"max_age": MAX_AGE_S, "idle": IDLE_S, "max_items": MAX_ITEMS},
        }
        super().__init__(launcher, folder, Penstock(settings=settings_of(orders)), orders)
        self.items = items
        self.queue = self.app.queue("batches", max_size=0)
        self.window = Window(
            self.app.redis, self.app.codec, "gather", to=self.queue, **orders["window"]
        )
        self.aggregators: dict[int, WorkerProcess] = {}

    async def aggregate(self, *shares: int, crash: str = "") -> None:
        """Start the aggregators of these shares; those before them have to be dead."""
        for share in shares:
            (self.aggregators[share],) = await self.hire(first=share, crash=crash)

    def done(self):
        """How many items the aggregators know to be added."""
        files = [self.folder / f"share-{first}" for first in range(SHARES)]
        return sum(int(file.read_text()) for file in files if file.exists())

    async def all_added(self, within_s=600.0):
        await eventually(lambda: self.done() >= self.items, within_s, what="all items to be added")

    async def jobs(self):
        stored = await self.app.redis.call("LRANGE", self.queue.keyring.waiting, 0, -1)
        return [json.loads(job) for job in stored]

    async def all_closed(self, within_s=60.0):
        async def none_is_open():
            try:
                return await self.window.open_batches() == []
            except ServerError:
                return False

        await eventually(none_is_open, within_s, what="all batches to be closed")

    async def hold(self, *, late_ms=LATE_MS):
        """Check that every promise was kept; how late batches were closed, at most."""
        await self.all_closed()
        jobs = await self.jobs()
        items = Counter(item for job in jobs for item in job["items"])
        assert sorted(items) == list(range(self.items)), "items were lost"
        assert set(items.values()) == {1}, "items were doubled"
        ids = Counter(job["batch_id"] for job in jobs)
        assert set(ids.values()) == {1}, "a batch was closed twice"
        late = [0]
        for job in jobs:
            assert {item % self.orders["keys"] for item in job["items"]} == {int(job["key"][4:])}
            assert 1 <= job["count"] == len(job["items"]) <= MAX_ITEMS
            if job["reason"] in {"max_age", "idle"}:
                last_ms = round(datetime.fromisoformat(job["last_activity"]).timestamp() * 1000)
                due_ms = min(job["started_ms"] + MAX_AGE_S * 1000, last_ms + IDLE_S * 1000)
                late.append(job["ended_ms"] - due_ms)
        assert min(late) >= 0
        assert max(late) <= late_ms
        await self.nothing_is_left()
        return max(late)

    async def nothing_is_left(self):
        if self.app.redis.keys.cluster:
            return
        left = await self.app.redis.call("KEYS", f"{self.orders['namespace']}:batch:*")
        assert [key for key in left if not key.endswith(b":seen")] == []
