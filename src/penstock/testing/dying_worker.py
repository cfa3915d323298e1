"""A worker process that kills itself at the worst moment, and the call that starts one.

python -m penstock.testing.dying_worker MODULE:NAME TASK MOMENT
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from penstock.app import Penstock
from penstock.queues.queue import Queue
from penstock.queues.worker.performer import Performer
from penstock.runtime.process import run_process
from penstock.sync.portal import application_of

__all__ = ["Moment", "kill_worker"]

Moment = Literal["begun", "returned"]


class Named(Protocol):
    """A task, or a queue of raw jobs."""

    @property
    def name(self) -> str: ...


async def kill_worker(
    app: Penstock,
    target: str,
    task: Named | str,
    *,
    when: Moment = "returned",
    timeout_s: float = 30.0,
) -> None:
    """Start a worker process for `target`, and let `kill -9` hit it while it runs `task`.

        await kill_worker(app, "shop:app", charge)

    `target` names the application as `penstock worker` does, MODULE:NAME, or FILE.py:NAME. `task`
    is one of its tasks, or a queue whose raw jobs it handles. With `when="returned"` the function
    has done its work and has not acknowledged it; with "begun" it has not done anything yet. The
    process finds the server, the namespace and the settings of queues of `app` in its environment.

    Returns when the process is dead. AssertionError if it ends in another way, or not in time.
    """
    name = task if isinstance(task, str) else task.name
    command = (sys.executable, "-m", __name__, target, name, when)
    child = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | _environ(app),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await child.communicate()
    except TimeoutError:
        raise AssertionError(f"no job of {name!r} has {when} within {timeout_s:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != -signal.SIGKILL:
        raise AssertionError(
            f"the worker ended with {child.returncode} instead of being killed:\n{output.decode()}"
        )


def _environ(app: Penstock) -> dict[str, str]:
    settings = app.settings
    given = {"url": settings.url, "namespace": settings.namespace, "home": settings.home}
    for item in dataclasses.fields(settings.queues):
        given[f"queues_{item.name}"] = str(getattr(settings.queues, item.name))
    return {f"PENSTOCK_{name.upper()}": value for name, value in given.items() if value}


def _main(target: str, name: str, moment: Moment) -> int:
    app = _find(target)
    _arrange(name, moment)

    async def work() -> int:
        async with app:
            return await app.worker().run(handle_signals=True)

    return run_process(work)


def _find(target: str) -> Penstock:
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        spec = spec_from_file_location(Path(place).stem, place)
        assert spec is not None  # noqa: S101  a Python file has one
        assert spec.loader is not None  # noqa: S101
        module = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, str(Path.cwd()))
        module = import_module(place)
    found = getattr(module, name)
    app = application_of(found)
    if app is None:
        raise TypeError(f"{target!r} is of type {type(found).__name__}, not a Penstock application")
    return app


def _arrange(name: str, moment: Moment) -> None:
    """Let the functions of one task, or of one queue's raw jobs, end with the process."""
    performers, raw_performer = Queue.performers, Queue.raw_performer

    def dying_performers(self: Queue) -> dict[str, Performer]:
        return {
            task: _dying(performer, moment) if task == name else performer
            for task, performer in performers(self).items()
        }

    def dying_raw_performer(self: Queue) -> Performer | None:
        performer = raw_performer(self)
        return _dying(performer, moment) if performer and self.name == name else performer

    Queue.performers, Queue.raw_performer = dying_performers, dying_raw_performer


def _dying(performer: Performer, moment: Moment) -> Performer:
    function = _dying_function(performer.function, moment, is_async=performer.is_async)
    return dataclasses.replace(performer, function=function)


def _dying_function(
    function: Callable[..., Any], moment: Moment, *, is_async: bool
) -> Callable[..., Any]:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def run_and_die(*args: Any, **kwargs: Any) -> None:
        if moment == "returned":
            await function(*args, **kwargs)
        die()

    def call_and_die(*args: Any, **kwargs: Any) -> None:
        if moment == "returned":
            function(*args, **kwargs)
        die()

    dying = run_and_die if is_async else call_and_die
    # What is injected is read from the signature.
    dying.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    dying.__annotations__ = inspect.get_annotations(function)
    return dying


if __name__ == "__main__":
    target, name, moment = sys.argv[1:]
    moments = {one: one for one in get_args(Moment)}
    sys.exit(_main(target, name, moments[moment]))
