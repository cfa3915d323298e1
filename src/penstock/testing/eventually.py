"""Wait until a condition is true. The only place of the kit that may sleep."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

__all__ = ["eventually"]

EVERY_S = 0.005
WITHIN_S = 10.0
"""How long a call waits that does not say; a suite for slow machines may set it."""


async def eventually(
    condition: Callable[[], object], within_s: float | None = None, *, what: str = ""
) -> Any:
    """Ask `condition`, a plain or an async function, until it answers with something true.

    Returns that answer. After `within_s` seconds (10 by default) it fails with an `AssertionError`
    that names the condition (or `what`) and its last answer.

        await eventually(lambda: len(handled) == 3)
    """
    within_s = WITHIN_S if within_s is None else within_s
    deadline = time.monotonic() + within_s
    shown = "it has not answered"
    while True:
        limit = asyncio.timeout(deadline - time.monotonic())
        try:
            async with limit:
                answer = condition()
                if inspect.isawaitable(answer):
                    answer = await answer
        except TimeoutError:
            if not limit.expired():
                raise  # the condition's own
        else:
            if answer:
                return answer
            shown = f"last answer: {answer!r}"
        if time.monotonic() >= deadline:
            raise AssertionError(
                f"not true within {within_s:g} s: {what or _named(condition)}; {shown}"
            )
        await asyncio.sleep(EVERY_S)


def _named(condition: Callable[[], object]) -> str:
    """`<lambda> (test_worker.py:40)`, as far as it is known."""
    name = getattr(condition, "__qualname__", repr(condition))
    code = getattr(condition, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name
