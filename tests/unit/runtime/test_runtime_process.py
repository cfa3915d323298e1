"""A real worker process, real signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.runtime.process import run_process, the_last_resort
from penstock.runtime.signals import StopSignals

DOCUMENT = Path(__file__).parents[3] / "docs" / "explanation" / "worker.md"
SCRIPT = """
    import asyncio, sys, time
    {prepare}
    from penstock.runtime import Service, Worker, configure
    from penstock.settings import LogSettings, WorkerSettings

    configure(LogSettings())

    def say(text):
        print(text, flush=True)

    class Job(Service):
        async def run(self):
            say(f"ready on {{type(asyncio.get_running_loop()).__module__}}")
            try:
                await work(self)
            except asyncio.CancelledError:
                say("cancelled")
                raise
            say("drained")

    {work}

    worker = Worker(work=[Job("job")], settings=WorkerSettings(grace_s={grace_s}))
    code = worker.run_forever()
    say(f"returned {{code}}")
    sys.exit(code)
"""

IDLE = """
    async def work(job):
        await job.stop_asked.wait()
"""
TAKES_FOREVER = """
    async def work(job):
        await asyncio.Event().wait()
"""
IGNORES_CANCELLATION = """
    async def work(job):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
"""
NEVER_YIELDS = """
    async def work(job):
        while True:
            time.sleep(0.01)
"""
THREAD_THAT_NOBODY_CAN_STOP = """
    async def work(job):
        await asyncio.to_thread(time.sleep, 60)
"""


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., object]:
    @asynccontextmanager
    async def start(
        work: str, grace_s: float = 30, loop: str = "uvloop"
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        prepare = "" if loop == "uvloop" else 'sys.modules["uvloop"] = None  # as if not installed'
        work = textwrap.dedent(work)
        source = textwrap.dedent(SCRIPT).format(work=work, grace_s=grace_s, prepare=prepare)
        async with script(tmp_path, source) as process:
            assert (await process.stdout.readline()).startswith(f"ready on {loop}".encode())
            yield process

    return start


@asynccontextmanager
async def script(folder: Path, source: str) -> AsyncIterator[asyncio.subprocess.Process]:
    file = folder / "worker.py"
    file.write_text(source, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(file),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_an_idle_worker_long_before_its_grace_is_over(
    started, number, loop
) -> None:
    async with started(IDLE, loop=loop) as process:
        began = time.monotonic()
        process.send_signal(number)
        code, out, err = await ended(process)
        assert time.monotonic() - began < 25
        assert (code, out) == (0, "drained\nreturned 0\n")
        assert f"{number.name} received" in err


async def test_what_outlasts_the_grace_period_is_cancelled_and_the_end_is_orderly(started) -> None:
    async with started(TAKES_FOREVER, grace_s=0.3) as process:
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code, out, err = await ended(process)
        assert time.monotonic() - began >= 0.3
        assert (code, out) == (0, "cancelled\nreturned 0\n")
        assert "grace period over" in err


@pytest.mark.parametrize(
    ("first", "second", "expected", "loop"),
    [
        (signal.SIGINT, signal.SIGINT, 130, "uvloop"),
        (signal.SIGINT, signal.SIGINT, 130, "asyncio"),
        (signal.SIGTERM, signal.SIGTERM, 143, "uvloop"),
        (signal.SIGTERM, signal.SIGINT, 130, "uvloop"),
    ],
)
async def test_a_second_signal_is_immediate(started, first, second, expected, loop) -> None:
    async with started(TAKES_FOREVER, grace_s=60, loop=loop) as process:
        process.send_signal(first)
        await said(process, f"{first.name} received")
        began = time.monotonic()
        process.send_signal(second)
        code, out, _ = await ended(process)
        assert time.monotonic() - began < 25
        assert (code, out) == (expected, f"cancelled\nreturned {expected}\n")


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        pytest.param(IGNORES_CANCELLATION, 1, id="task"),
        pytest.param(THREAD_THAT_NOBODY_CAN_STOP, 0, id="thread"),
    ],
)
async def test_work_that_cannot_be_cancelled_does_not_keep_the_process(
    started, work, expected
) -> None:
    async with started(work, grace_s=0.2) as process:
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code, _, err = await ended(process)
        assert time.monotonic() - began < 25
        assert "ended hard" in err
        assert code == expected


async def test_a_second_signal_ends_even_a_process_whose_event_loop_is_blocked(started) -> None:
    async with started(NEVER_YIELDS, grace_s=60) as process:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        code, out, err = await ended(process)
        assert (code, out) == (143, "")
        assert "work" in err.splitlines()[-1]


async def test_the_example_in_the_documentation_runs_and_stops(tmp_path) -> None:
    example = (
        DOCUMENT.read_text(encoding="utf-8")
        .split('```python title="worker.py"\n')[1]
        .split("```")[0]
    )
    async with script(tmp_path, example) as process:
        assert await process.stdout.readline() == b"handled hello\n"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code, _, err = await ended(process)
        assert code == 0
        assert time.monotonic() - began < 25
        assert [json.loads(line)["level"] for line in err.splitlines()] == ["info"] * 4


def test_ctrl_c_without_a_worker_gives_130_and_leaves_nothing() -> None:
    threads = set(threading.enumerate())

    async def main() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        return 0

    assert run_process(main) == 130
    assert the_last_resort() is None
    assert set(threading.enumerate()) <= threads


def test_an_error_of_main_is_raised() -> None:
    async def main() -> int:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_process(main)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_what_a_task_of_a_handler_ends_with_reaches_the_handler_and_ends_nothing_else(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        raise error

    async def main() -> int:
        with StopSignals(lambda number, count: None):
            beside = asyncio.create_task(asyncio.sleep(0.02, "done"))
            with pytest.raises(type(error)):
                await asyncio.gather(leave(), asyncio.sleep(0))
            with pytest.raises(type(error)):
                await asyncio.wait_for(leave(), 1)
            asyncio.get_running_loop().call_soon(sys.exit, 4)
            assert await beside == "done"
            return 7

    assert run_process(main) == 7
    assert "others continue" in caplog.text


def test_an_exit_of_main_itself_is_one() -> None:
    async def main() -> int:
        await asyncio.sleep(0)
        sys.exit(5)

    with pytest.raises(SystemExit) as raised:
        run_process(main)
    assert raised.value.code == 5


async def said(process: asyncio.subprocess.Process, text: str) -> None:
    while text not in (line := (await process.stderr.readline()).decode()):
        assert line, f"the process ended before it said {text!r}"
