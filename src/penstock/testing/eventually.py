"""Wait for what becomes true by itself. The one place around the tests that may sleep."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

__all__ = ["eventually"]

EVERY_S = 0.005


async def eventually(
    condition: Callable[[], object], within_s: float = 10.0, *, what: str = ""
) -> Any:
    """Ask `condition`, a plain or an async function, until it answers with something true.

    Returns that answer. After `within_s` seconds it fails with an `AssertionError` that names the
    condition (or `what`) and its last answer.

        await eventually(lambda: len(handled) == 3)
    """
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
