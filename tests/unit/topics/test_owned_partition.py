"""A partition that is given up: nothing is called or kept for it any more."""

from __future__ import annotations

import pytest

from penstock.delivery.message_sizes import MessageSizes
from penstock.errors import LeaseLost
from penstock.redis.client import Client
from penstock.settings import Settings
from penstock.topics.consumer.fetch_budget import FetchBudget, InflightBytes
from penstock.topics.consumer.owned_partition import (
    ConsumerCounts,
    OwnedPartition,
    PartitionState,
)
from penstock.topics.message import Source


@pytest.fixture
async def owned() -> OwnedPartition:
    budget = FetchBudget(100, MessageSizes(1 << 20), InflightBytes(1 << 20))
    return OwnedPartition(
        Client(Settings(namespace="n")),
        Source("orders", 0, "billing", bytes.decode),
        ConsumerCounts(),
        budget,
        owner="me",
        epoch=1,
        acquired_at=0.0,
    )


async def test_a_call_that_is_refused_after_the_release_is_made_once(owned) -> None:
    owned.close()
    owned._enter(PartitionState.RELEASED)
    calls: list[str] = []

    async def retry_later() -> None:
        calls.append("retry later")
        if len(calls) == 1:
            raise LeaseLost("orders", "billing", 0, 1)

    assert await owned.until_answered("retry later", retry_later) is None
    assert calls == ["retry later"]


async def test_a_reply_that_comes_too_late_takes_nothing_of_the_budget(owned) -> None:
    owned.put([(b"1-0", [b"p", b"x"])])
    owned.give_up()
    owned.put([(b"2-0", [b"p", b"x"])])
    assert owned.budget.buffered == 0
