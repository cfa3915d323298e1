"""Dead letters are queued again by processes that are killed in the middle, or race each other."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.kit.crews.queue_crew import QUEUE

from penstock.queues.storage.stored_job import read_item
from penstock.testing.eventually import eventually

LETTERS = 1_000
REQUEUE = """
import asyncio, sys
from penstock import Penstock
from penstock.settings import Settings

async def main(url, namespace, queue):
    async with Penstock(settings=Settings(url=url, namespace=namespace)) as app:
        print("begun", flush=True)
        result = await app.queues.dead_letters(queue).replay()
        print(result, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def bury_many(crew):
    """Let a worker bury jobs; their ids."""
    await crew.hire()
    jobs = [{"n": number, "dead": True} for number in range(LETTERS)]
    sent = await crew.task.send_many((one,) for one in jobs)
    await crew.drained()
    await crew.dismiss()
    return sorted(job.id for job in sent)


async def start_requeue(crew, folder: Path):
    program = folder / "requeue.py"
    program.write_text(REQUEUE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), crew.app.settings.url, crew.app.settings.namespace, QUEUE,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await process.stdout.readline()
    return process


async def whereabouts(crew):
    """Which jobs are letters, and which wait."""
    letters = [letter.job_id for letter in await crew.letters()]
    stored = await crew.app.redis.call("LRANGE", crew.keys.waiting, 0, -1)
    return letters, [read_item(data, crew.app.codec).id for data in stored]


@pytest.mark.parametrize("kind", ["status", "plain"])
async def test_requeueing_all_that_is_killed_in_the_middle_loses_and_doubles_nothing(
    make_queue_crew, valkey_server, tmp_path, kind
):
    crew = make_queue_crew(valkey_server.url, kind=kind)
    async with crew:
        jobs = await bury_many(crew)
        kills = 0
        for _ in range(6):
            process = await start_requeue(crew, tmp_path)
            before = len((await whereabouts(crew))[0])

            async def moves(before=before):
                return await crew.app.redis.call("LLEN", crew.keys.dead_letters) < before

            await eventually(moves)
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            letters, waiting = await whereabouts(crew)
            assert sorted(letters + waiting) == jobs
            kills += bool(letters) and bool(waiting)
            if kills or not letters:
                break
        assert kills, "no kill has hit the middle"
        process = await start_requeue(crew, tmp_path)
        await process.communicate()
        letters, waiting = await whereabouts(crew)
        assert (letters, sorted(waiting)) == ([], jobs)
        assert (await crew.counters())["requeued"] == LETTERS


async def test_three_that_requeue_all_at_once_queue_each_job_once(
    make_queue_crew, valkey_server, tmp_path
):
    crew = make_queue_crew(valkey_server.url)
    async with crew:
        jobs = await bury_many(crew)
        processes = [await start_requeue(crew, tmp_path) for _ in range(3)]
        await asyncio.gather(*(process.communicate() for process in processes))
        letters, waiting = await whereabouts(crew)
        assert letters == []
        assert sorted(waiting) == jobs
        assert max(Counter(waiting).values()) == 1
        # What was buried before has all its attempts again.
        await crew.hire()
        await crew.drained()
        letters, waiting = await whereabouts(crew)
        assert (sorted(letters), waiting) == (jobs, [])
        await crew.dismiss()
