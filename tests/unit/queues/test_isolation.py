"""Real child processes, real crashes."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import math
import os
import pickle
import signal
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.kit.patience import patient

from penstock.errors import ConfigError, NotOpen, SettingError
from penstock.processes import child as processes_child
from penstock.queues.isolation import child_process
from penstock.queues.isolation import child_program as child
from penstock.queues.isolation.pool import ChildDied, ChildPool, ChildTraceback, Isolation, place_of
from penstock.testing.eventually import eventually
from penstock.testing.processes import is_alive

pytestmark = pytest.mark.faults

SHOP = """
    import asyncio, ctypes, os, signal, subprocess, sys, time
    from pathlib import Path
    from penstock.queues.isolation import child_program as child

    kept = []

    def add(a, b=0): return a + b
    def pid(*_): return os.getpid()
    def size(data): return len(data)
    def echo(value): return value
    def context(): return child.context()
    def argv(): return sys.argv
    def fail(text): raise LookupError(text)
    def crash(): ctypes.string_at(0)

    def leave(code, mib=0):
        kept.append(b"x" * (mib << 20))
        os._exit(code)

    def wait_for(started, go):
        Path(started).write_text(str(os.getpid()))
        while not Path(go).exists():
            time.sleep(0.01)
        return "went on"

    def exit_with(code): sys.exit(code)
    def answer_lambda(): return lambda: 1
    def interrupt(): raise KeyboardInterrupt
    def hang(note): Path(note).write_text(str(os.getpid())); time.sleep(600)
    def allocate(mib): return len(bytearray(mib << 20))
    def kill_itself(): os.kill(os.getpid(), signal.SIGKILL)
    async def exit_slowly(code): sys.exit(code)
    def close_all(): os.closerange(3, 100); time.sleep(600)
    def print_then_crash(text): print(text); sys.stdout.flush(); crash()

    def hoard():
        global kept
        while True:
            kept = (kept, bytes(100))  # small things, to the last free byte

    def tidy(note):
        try:
            hang(note)
        finally:
            Path(note).write_text("tidied")

    def deaf(note):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hang(note)

    def with_helper(note):
        helper = subprocess.Popen(["sleep", "600"])
        Path(note).write_text(str(helper.pid))
        time.sleep(600)

    def crash_with_helper(note):
        helper = subprocess.Popen(["sleep", "600"])
        Path(note).write_text(str(helper.pid))
        if os.fork() == 0:
            time.sleep(600)  # holds a copy of the line
        crash()

    async def slowly(value): await asyncio.sleep(0.01); return value
    async def fail_slowly(): await asyncio.sleep(0); raise LookupError("slowly")
    async def give_up(): raise asyncio.CancelledError

    async def tidy_slowly(note):
        try:
            Path(note).write_text(str(os.getpid()))
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0)
            Path(note).write_text("tidied")

    class Odd(Exception):
        def __init__(self, one, two): super().__init__("odd")

    class Stuck(Exception):
        def __reduce__(self): raise TypeError("never")

    def fail_oddly(): raise Odd(1, 2)
    def fail_stuck(): raise Stuck("in the mud")

    class Task:
        def __init__(self, function): self.function = function

    @Task
    def task(a): return f"task {a}"

    class Place:
        @staticmethod
        def inner(): return "inner"
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of functions, which children find by our `sys.path`."""
    (tmp_path / "penstock_shop.py").write_text(textwrap.dedent(SHOP))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("penstock_shop")
    del sys.modules["penstock_shop"]


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """No process, not even a dead one, no thread and no descriptor outlives a pool."""
    before = _belongings()
    yield
    gc.collect()
    assert _belongings() == before


def _belongings() -> tuple[set[int], set[str], set[str]]:
    children: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, _, rest = stat.read_text().partition(" ")
            if int(rest.rpartition(")")[2].split()[1]) == os.getpid():
                children.add(int(pid))
    descriptors: set[str] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one by which we look
            descriptors.add(f"{entry.name} is {entry.readlink()}")
    return children, descriptors, {thread.name for thread in threading.enumerate()}


@pytest.fixture
async def pool(nothing_left: None) -> AsyncIterator[ChildPool]:
    async with ChildPool(Isolation(grace_s=60)) as pool:
        yield pool
    assert not pool.pids


async def call(pool: ChildPool, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await pool.call(function, args, kwargs, timeout_s=60)


async def note_of(file: Path) -> str:
    return await eventually(lambda: file.exists() and file.read_text())


async def test_a_function_runs_in_another_process(pool: ChildPool, shop: Any) -> None:
    assert await call(pool, shop.add, 2, b=3) == 5
    assert await call(pool, shop.pid) in pool.pids - {os.getpid()}
    assert await call(pool, shop.argv) == sys.argv


async def test_an_async_function_runs_in_a_loop_of_its_own(pool: ChildPool, shop: Any) -> None:
    assert await call(pool, shop.slowly, "value") == "value"
    with pytest.raises(LookupError, match="slowly"):
        await call(pool, shop.fail_slowly)


async def test_a_task_stands_for_its_function(pool: ChildPool, shop: Any) -> None:
    assert await call(pool, shop.task, 1) == "task 1"
    assert await call(pool, shop.task.function, 2) == "task 2"
    assert await call(pool, shop.Place.inner) == "inner"


async def test_a_function_without_a_name_to_find_it_by_is_refused(pool: ChildPool) -> None:
    def local() -> None: ...

    for function in (local, lambda: None, print.__call__, functools.partial(print)):
        with pytest.raises(ConfigError, match="top level of a module"):
            await call(pool, function)
    assert place_of(test_a_task_stands_for_its_function)[1].startswith("test_a_task")


async def test_arguments_and_results_may_be_large(pool: ChildPool, shop: Any) -> None:
    data = os.urandom(1 << 20) * 20
    assert await call(pool, shop.echo, data) == data


async def test_the_context_of_a_call_is_known_in_the_child(pool: ChildPool, shop: Any) -> None:
    context = {"job": "7"}
    given = await pool.call(shop.context, (), {}, timeout_s=60, context=context)
    assert given == context
    assert await call(pool, shop.context) is None
    assert child.context() is None


async def test_an_exception_comes_back_with_its_traceback(pool: ChildPool, shop: Any) -> None:
    with pytest.raises(LookupError, match="no such shelf") as caught:
        await call(pool, shop.fail, "no such shelf")
    cause = caught.value.__cause__
    assert isinstance(cause, ChildTraceback)
    assert "penstock_shop.py" in cause.text
    assert "queues/isolation/child_program.py" not in cause.text
    assert await call(pool, shop.add, 1) == 1, "the child is still there"
    assert len(pool.pids) == 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("fail_oddly", "penstock_shop.Odd: odd"),
        ("fail_stuck", "penstock_shop.Stuck: in the mud"),
        ("interrupt", "KeyboardInterrupt"),
        ("give_up", "CancelledError"),
        ("answer_lambda", "a result of type function cannot be pickled"),
    ],
)
async def test_what_cannot_come_back_is_told_in_words(
    pool: ChildPool, shop: Any, function: str, words: str
) -> None:
    with pytest.raises(RuntimeError, match=words) as caught:
        await call(pool, getattr(shop, function))
    assert type(caught.value) is RuntimeError
    assert "penstock_shop.py" in str(caught.value.__cause__) or function == "answer_lambda"


async def test_a_module_that_cannot_be_imported_is_an_ordinary_failure(
    pool: ChildPool, shop: Any, tmp_path: Path
) -> None:
    (tmp_path / "penstock_shop.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        await call(pool, shop.add, 1)


@pytest.mark.parametrize(
    ("function", "args", "signal_number", "exit_code"),
    [
        ("crash", (), signal.SIGSEGV, None),
        ("leave", (3,), None, 3),
        ("exit_with", (4,), None, 4),
        ("exit_slowly", (5,), None, 5),
        ("kill_itself", (), signal.SIGKILL, None),
    ],
)
async def test_the_death_of_the_child_is_told_with_its_circumstances(
    pool: ChildPool, shop: Any, function: str, args: Any, signal_number: int, exit_code: int
) -> None:
    with pytest.raises(ChildDied) as caught:
        await call(pool, getattr(shop, function), *args)
    died = caught.value
    assert (died.signal, died.exit_code) == (signal_number, exit_code)
    assert 5_000 < died.max_rss_kb < 500_000
    assert await call(pool, shop.add, 1) == 1, "the next call has a new child"


async def test_the_peak_of_memory_is_the_childs_own(pool: ChildPool, shop: Any) -> None:
    # Linux counts what we have for whom we start as well; other tests have left us some of it.
    ours = bytearray(300 << 20)
    with pytest.raises(ChildDied) as small:
        await call(pool, shop.leave, 1)
    del ours
    assert small.value.max_rss_kb < 200_000
    with pytest.raises(ChildDied) as large:
        await call(pool, shop.leave, 1, mib=1200)
    assert large.value.max_rss_kb > 1_200_000


@pytest.mark.parametrize(
    ("died", "words"),
    [
        (
            ChildDied(signal.SIGSEGV, None, 812 * 1024),
            "the child process was killed by SIGSEGV (peak memory 812 MiB)",
        ),
        (ChildDied(None, 3), "the child process exited with code 3"),
        (ChildDied(40, None), "the child process was killed by signal 40"),
        (ChildDied(None, None), "the child process ended, how is not known"),
    ],
)
def test_a_death_reads_well_and_can_be_pickled(died: ChildDied, words: str) -> None:
    assert str(died) == words
    assert str(pickle.loads(pickle.dumps(died))) == words  # noqa: S301


async def test_more_memory_than_allowed_is_an_ordinary_failure(
    nothing_left: None, shop: Any
) -> None:
    async with ChildPool(Isolation(memory_mb=256)) as pool:
        assert await call(pool, shop.allocate, 50) == 50 << 20
        first = await call(pool, shop.pid)
        with pytest.raises(MemoryError):
            await call(pool, shop.allocate, 300)
        with pytest.raises(MemoryError):
            await call(pool, shop.hoard)
        assert await call(pool, shop.allocate, 50) == 50 << 20
        assert await call(pool, shop.pid) != first, "its memory may have been full"


@pytest.mark.parametrize("function", ["tidy", "tidy_slowly"])
async def test_a_call_that_takes_too_long_may_tidy_up(
    pool: ChildPool, shop: Any, tmp_path: Path, function: str
) -> None:
    note = tmp_path / "note"
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"longer than 0.2 s"):
        await pool.call(getattr(shop, function), (str(note),), {}, timeout_s=0.2)
    assert note.read_text() == "tidied"
    assert time.monotonic() - began < patient(5), "it was not killed only after the grace"
    assert not pool.pids
    assert await call(pool, shop.add, 1) == 1


async def test_who_ignores_the_end_is_killed_after_the_grace(
    nothing_left: None, shop: Any, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    async with ChildPool(Isolation(grace_s=0.1)) as pool:
        with pytest.raises(TimeoutError):
            await pool.call(shop.deaf, (str(note),), {}, timeout_s=0.2)
        assert not is_alive(int(note.read_text()))


async def test_the_time_to_load_a_module_does_not_count(
    pool: ChildPool, shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (tmp_path / "penstock_shop.py").read_text()
    (tmp_path / "penstock_shop.py").write_text(f"import time; time.sleep(0.5)\n{source}")
    assert await pool.call(shop.add, (1,), {}, timeout_s=0.3) == 1
    monkeypatch.setattr(child_process, "LOAD_S", 0.1)
    async with ChildPool() as other:
        with pytest.raises(TimeoutError, match="not loaded within"):
            await other.call(shop.add, (1,), {}, timeout_s=None)


async def test_a_cancelled_call_ends_its_child(pool: ChildPool, shop: Any, tmp_path: Path) -> None:
    note = tmp_path / "note"
    running = asyncio.create_task(call(pool, shop.tidy, str(note)))
    pid = int(await note_of(note))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert note.read_text() == "tidied"
    assert not is_alive(pid)


async def test_a_second_cancellation_does_not_wait_for_the_grace(
    nothing_left: None, shop: Any, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    async with ChildPool(Isolation(grace_s=600)) as pool:
        running = asyncio.create_task(call(pool, shop.deaf, str(note)))
        pid = int(await note_of(note))
        running.cancel()
        await asyncio.sleep(0)
        assert is_alive(pid)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not is_alive(pid)


async def test_a_call_cancelled_while_its_child_starts_leaves_nothing(
    pool: ChildPool, shop: Any
) -> None:
    running = asyncio.create_task(call(pool, shop.add, 1))
    await eventually(lambda: pool.pids)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not pool.pids


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
async def test_only_the_parent_ends_a_child(
    pool: ChildPool, shop: Any, tmp_path: Path, signal_number: int
) -> None:
    """A service manager's signal for all processes must not cut the jobs of a worker short."""
    started, go = tmp_path / "started", tmp_path / "go"
    running = asyncio.create_task(call(pool, shop.wait_for, str(started), str(go)))
    pid = int(await note_of(started))
    os.kill(pid, signal_number)
    go.touch()
    assert await running == "went on"
    os.kill(pid, signal_number)
    assert await call(pool, shop.pid) == pid


async def test_what_a_function_has_started_ends_with_it(
    pool: ChildPool, shop: Any, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    with pytest.raises(TimeoutError):
        await pool.call(shop.with_helper, (str(note),), {}, timeout_s=0.5)
    await eventually(lambda: not is_alive(int(note.read_text())))
    with pytest.raises(ChildDied, match="SIGSEGV"):
        await call(pool, shop.crash_with_helper, str(note))
    await eventually(lambda: not is_alive(int(note.read_text())))


async def test_a_child_that_has_lost_its_line_does_not_hang_the_call(
    nothing_left: None, shop: Any
) -> None:
    async with ChildPool(Isolation(grace_s=0.1)) as pool:
        with pytest.raises(ChildDied):
            await pool.call(shop.close_all, (), {}, timeout_s=None)


async def test_a_child_is_used_so_often_and_no_more(nothing_left: None, shop: Any) -> None:
    async with ChildPool(Isolation(reuse=3)) as pool:
        pids = [await call(pool, shop.pid) for _ in range(7)]
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]
        assert len(pool.pids) == 1


async def test_fifty_calls_share_two_children(nothing_left: None, shop: Any) -> None:
    async with ChildPool(size=2) as pool:
        assert not pool.pids, "they are started when needed"
        pids = await asyncio.gather(*(call(pool, shop.pid, n) for n in range(50)))
        assert set(pids) <= pool.pids
        assert len(pool.pids) == 2
        assert len(set(pids)) == 2


async def test_never_more_children_than_the_size_also_while_old_ones_leave(
    nothing_left: None, shop: Any
) -> None:
    async with ChildPool(Isolation(reuse=1), size=2) as pool:
        most = 0

        async def one(n: int) -> int:
            nonlocal most
            answer = await call(pool, shop.add, n)
            most = max(most, len(pool.pids))
            return answer

        assert await asyncio.gather(*map(one, range(10))) == list(range(10))
        assert most == 2


async def test_the_death_of_an_idle_child_is_no_fault_of_the_next_call(
    pool: ChildPool, shop: Any
) -> None:
    pid = await call(pool, shop.pid)
    os.kill(pid, signal.SIGKILL)  # noticed at once or only when the next call is under way
    assert await call(pool, shop.pid) != pid
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not pool.pids)
    assert await call(pool, shop.pid) != pid


async def test_what_a_child_prints_goes_where_the_workers_output_goes(
    pool: ChildPool, shop: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ChildDied):
        await call(pool, shop.print_then_crash, "last words")
    out, err = capfd.readouterr()
    assert "last words" in out
    assert "Segmentation fault" in err
    assert "print_then_crash" in err


async def test_a_pool_that_closes_ends_its_calls(
    nothing_left: None, shop: Any, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    pool = ChildPool(Isolation(grace_s=60))
    with pytest.raises(NotOpen):
        await call(pool, shop.add, 1)
    await pool.open()
    running = asyncio.create_task(call(pool, shop.tidy, str(note)))
    waiting = asyncio.create_task(call(pool, shop.add, 1))
    await note_of(note)
    await pool.close()
    for task in (running, waiting):
        with pytest.raises(NotOpen):
            await task
    assert note.read_text() == "tidied"
    await pool.close()


def test_it_works_on_uvloop(shop: Any, tmp_path: Path) -> None:
    async def main() -> None:
        before = _belongings()
        async with ChildPool(Isolation(reuse=5), size=2) as pool:
            assert await asyncio.gather(*(call(pool, shop.add, n) for n in range(20)))
            data = os.urandom(1 << 20) * 20
            assert await call(pool, shop.echo, data) == data
            with pytest.raises(ChildDied, match="SIGSEGV"):
                await call(pool, shop.crash)
            with pytest.raises(TimeoutError):
                await pool.call(shop.tidy, (str(tmp_path / "a"),), {}, timeout_s=0.1)
            running = asyncio.create_task(call(pool, shop.tidy, str(tmp_path / "b")))
            await note_of(tmp_path / "b")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await call(pool, shop.add, 1) == 1
        assert _belongings() == before

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_it_works_where_the_kernel_does_not_tell_of_an_end(
    nothing_left: None, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes_child, "_open_pidfd", lambda pid: None)
    async with ChildPool() as pool:
        assert await call(pool, shop.add, 1) == 1
        with pytest.raises(ChildDied, match="SIGSEGV"):
            await call(pool, shop.crash)
        with pytest.raises(TimeoutError):
            await pool.call(shop.deaf, ("/dev/null",), {}, timeout_s=0.2)
        assert await call(pool, shop.add, 1) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_mb": 63},
        {"memory_mb": 1e3},
        {"memory_mb": True},
        {"grace_s": -1},
        {"grace_s": math.nan},
        {"grace_s": "1"},
        {"reuse": 0},
        {"reuse": 1.5},
    ],
)
def test_a_wrong_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=f"Isolation.{next(iter(wrong))}"):
        Isolation(**wrong)
    with pytest.raises(SettingError, match=r"ChildPool\.size"):
        ChildPool(size=0)


PARENT = """
    import asyncio, os, sys, time
    from penstock.processes import in_child
    from penstock.queues.isolation.pool import ChildPool

    class Order:
        number = 7

    class Refused(Exception):
        pass

    def handle(order):
        raise Refused(order.number)

    def work(by_kernel):
        if not by_kernel:
            import ctypes, signal, socket
            ctypes.CDLL(None).prctl(1, 0)
            line = socket.socket(fileno=os.dup(int(sys.orig_argv[sys.orig_argv.index("-c") + 2])))
            in_child.end_with_parent(os.getppid(), line, by_kernel=False)
        print(os.getpid(), flush=True)
        time.sleep(600)

    async def main():
        async with ChildPool() as pool:
            try:
                await pool.call(handle, (Order(),), {}, timeout_s=60)
            except Refused as error:
                print(error, flush=True)
            await pool.call(work, (sys.argv[1] == "kernel",), {}, timeout_s=None)

    if __name__ == "__main__":
        asyncio.run(main())
"""


@pytest.mark.parametrize("watch", ["kernel", "thread"])
async def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path, watch: str) -> None:
    file = tmp_path / "parent.py"
    file.write_text(textwrap.dedent(PARENT))
    parent = await asyncio.create_subprocess_exec(
        sys.executable, str(file), watch, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(30):
            assert await parent.stdout.readline() == b"7\n", "the main module is known in the child"
            pid = int(await parent.stdout.readline())
        assert is_alive(pid)
    finally:
        parent.kill()
        await parent.wait()
    await eventually(lambda: not is_alive(pid))
