"""The aggregator process of the fault tests; see `serving.py` for how it is started.

It adds its share of the items, from where the one before it got to, and closes what is due.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.kit.programs.serving import serve
from tests.kit.settings import settings_of

from penstock import Penstock
from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.window import Window
from penstock.errors import ServerError
from penstock.redis.prepared_call import Prepared

AT_ONCE = 16


def plant_crash(point: str) -> None:
    """End the process right before the n-th call of a script, or right after its answer."""
    if not point:
        return
    when, name, number = point.split()
    place = {"add_to_window": (Prepared, "send"), "close_windows": (Window, "close_at")}[name]
    run, left = getattr(*place), int(number)

    async def crash(*words):
        nonlocal left
        left -= 1
        dies = left == 0
        if dies and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await run(*words)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(*place, crash)


class Progress:
    """How many items of a share are known to be added; outlives the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = int(path.read_text()) if path.exists() else 0

    def note(self, count: int) -> None:
        scratch = self._path.with_suffix(f".{os.getpid()}")
        scratch.write_text(str(count))
        scratch.rename(self._path)


async def add_share(window: Window, told: dict, progress: Progress) -> None:
    """Add every `shares`-th item, some at a time, from where the one before got to."""
    mine = range(told["first"], told["items"], told["shares"])

    async def add(number: int) -> None:
        while True:
            try:
                await window.add(f"key-{number % told['keys']}", number, id=f"item-{number}")
            except ServerError:  # with its id it may be said again
                await asyncio.sleep(0.02)
            else:
                return

    for at in range(progress.count, len(mine), AT_ONCE):
        some = mine[at : at + AT_ONCE]
        await asyncio.gather(*map(add, some))
        progress.note(at + len(some))
        await asyncio.sleep(told["pace_s"])


async def work(told: dict) -> int:
    app = Penstock(settings=settings_of(told))
    plant_crash(told["crash"])
    queue = app.queue("batches", max_size=0)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app:
        window = Window(app.redis, app.codec, "gather", to=queue, **told["window"])
        async with WindowCloser(app.redis, app.codec, [window]):
            progress = Progress(Path(told["folder"]) / f"share-{told['first']}")
            adding = asyncio.create_task(add_share(window, told, progress))
            await stop.wait()
            adding.cancel()
            await asyncio.wait([adding])
    return 0


if __name__ == "__main__":
    serve(work)
