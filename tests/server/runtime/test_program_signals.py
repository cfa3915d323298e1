"""A worker inside a program leaves SIGINT and SIGTERM to it, and gives its jobs back."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, sys
from contextlib import asynccontextmanager
from penstock import Penstock
from penstock.settings import QueueSettings, Settings, WorkerSettings

app = Penstock(settings=Settings(
    url=os.environ["SERVER"], namespace=os.environ["SPACE"],
    queues=QueueSettings(beat_s=1, silence_s=60, poll_s=0.02),
    worker=WorkerSettings(grace_s=0.2),
))

@app.task(queue="mail")
async def work() -> None:
    print("began", flush=True)
    if "first" in sys.argv:
        await asyncio.Event().wait()

async def send():
    if "first" in sys.argv:
        await work.send()

async def in_place():
    async with app:
        await send()
        await app.worker().run()

async def beside():
    async with app:
        await send()
        running = asyncio.create_task(app.worker().run())
        await asyncio.Event().wait()

async def in_a_lifespan():
    # As web servers do: their own handlers, and the lifespan around them.
    from fastapi import FastAPI
    from penstock.interfaces.fastapi import lifespan
    api, stop = FastAPI(lifespan=lifespan(app, worker=True)), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    async with api.router.lifespan_context(api):
        await send()
        await stop.wait()
    print("served", flush=True)

if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]]())
"""


@pytest.fixture
def start(valkey_server, namespace, tmp_path):
    (tmp_path / "shop.py").write_text(PROGRAM)
    started = []

    def run(*arguments):
        program = subprocess.Popen(
            [sys.executable, "shop.py", *arguments],
            cwd=tmp_path,
            env=os.environ | {"SERVER": valkey_server.url, "SPACE": namespace},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        assert program.stdout.readline() == "began\n"
        return program

    yield run
    for program in started:
        program.kill()
        program.communicate()


@pytest.mark.parametrize("shape", ["in_place", "beside"])
def test_the_first_ctrl_c_ends_a_program_and_its_job_is_free_at_once(start, shape):
    program = start(shape, "first")
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    assert program.returncode == -signal.SIGINT  # as any program that an interrupt ends
    start("in_place", "second")  # begins the job of the first, long before its silence is over


def test_the_first_sigterm_ends_a_program_as_it_does_without_a_worker(start):
    program = start("in_place", "first")
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=60)
    assert program.returncode == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_web_server_keeps_its_signals_and_its_worker_stops_with_it(start, number):
    program = start("in_a_lifespan", "first")
    program.send_signal(number)
    output, _ = program.communicate(timeout=60)
    assert (program.returncode, output) == (0, "served\n")
    start("in_place", "second")
