"""Functions in child processes: their deaths are attempts, told with the signal; none is left."""

from __future__ import annotations

import os

import pytest
from tests.kit.crews.queue_crew import QUEUE

from penstock.testing.eventually import eventually


def make_isolated_crew(make_queue_crew, server, **options):
    return make_queue_crew(
        server.url,
        **{
            "kind": "status",
            "max_attempts": 2,
            "isolate": {"memory_mb": 512},
            "queue": {"concurrency": 2},
            "backoff_s": 0.02,
            **options,
        },
    )


def pids(file):
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that nobody has waited for yet is dead all the same.
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("orders", "told"),
    [
        ({"segfault": True}, "SIGSEGV"),
        ({"kill": True}, "SIGKILL"),
        ({"exit": True}, "3"),
        ({"memory": 2**31}, "MemoryError"),
    ],
)
async def test_the_death_of_a_child_is_an_attempt_with_its_cause(
    make_queue_crew, valkey_server, tmp_path, orders, told
):
    crew = make_isolated_crew(make_queue_crew, valkey_server)
    async with crew:
        (hand,) = await crew.hire()
        file, others = tmp_path / "runs", tmp_path / "others"
        job_id = await crew.send(file=str(file), **orders)
        innocent = [await crew.send(file=str(others)) for _ in range(4)]
        await crew.drained()
        assert hand.code is None, "the worker itself lives on"
        assert len(pids(file)) == 2
        assert len(pids(others)) == len(innocent)
        (letter,) = await crew.letters()
        assert (letter.job_id, letter.attempts) == (job_id, 2)
        assert told in f"{letter.error_type} {letter.error}", letter
        record = await crew.app.queues.job(QUEUE, job_id)
        assert record.status == "failed"
        await crew.dismiss()


async def test_the_children_of_a_killed_worker_end_with_it(
    make_queue_crew, valkey_server, tmp_path
):
    """Else the function would run on beside its second run."""
    crew = make_isolated_crew(make_queue_crew, valkey_server, max_attempts=3)
    async with crew:
        (victim,) = await crew.hire()
        file = tmp_path / "runs"
        await crew.send(file=str(file), pause=1.5)
        (child,) = await eventually(lambda: pids(file))
        await victim.kill()
        await eventually(lambda: not is_alive(child))
        await crew.hire()
        await eventually(lambda: len(pids(file)) == 2)
        await crew.drained()
        assert not await crew.letters()
        await crew.dismiss()
