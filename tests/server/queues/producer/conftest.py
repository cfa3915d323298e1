"""Tasks whose calls are sent."""

from __future__ import annotations

import pytest

from penstock import Penstock, RetryPolicy
from penstock.queues.task import Task


@pytest.fixture
def welcome(app: Penstock) -> Task:
    @app.task(queue="mail", name="mail.welcome")
    async def welcome(user_id: int, *, lang: str = "en") -> str:
        return f"{user_id} {lang}"

    return welcome


@pytest.fixture
def tracked(app: Penstock) -> Task:
    @app.task(queue="mail", name="mail.tracked", status=True, retry=RetryPolicy(max_attempts=3))
    async def tracked(user_id: int) -> int:
        return user_id

    return tracked
