"""Work on large payloads outside the event loop, in a few threads of this process.

zstd lets other threads run while it packs and unpacks. msgspec, which writes and reads JSON, does
not: in a thread it would hold up the event loop for as long, so it is called in the loop itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final, ParamSpec, TypeVar

__all__ = ["LARGE", "off_loop"]

P = ParamSpec("P")
R = TypeVar("R")

LARGE: Final = 128 * 1024
"""Bytes from which on a thread is worth its while: packing them takes about half a millisecond,
handing them to a thread and back a tenth of that."""
_THREADS: Final = 4


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock payloads")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads


async def off_loop(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a thread and wait for what it returns."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads(), lambda: function(*args, **kwargs))
