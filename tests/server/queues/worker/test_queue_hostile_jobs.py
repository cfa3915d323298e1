"""Jobs that name code instead of a task, or are code: none runs, wherever in a queue it lies."""

import base64
import json
import os
import pickle
import sys
from typing import Any

import pytest
import zstandard
from tests.kit.signing import signing
from tests.kit.workplace import QUICK, letters, stored

from penstock import Fixed, RetryPolicy
from penstock.queues.dead_letters.letter import read_letter
from penstock.testing.eventually import eventually

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.settings(
        queues={**QUICK, "unknown_s": 0.05}, worker={"grace_s": 1.0, "poll_s": 0.2}
    ),
]

UNUSED = "antigravity"
"""A module that nothing imports, and that would show if a name was taken for one."""


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def call(task, *args, **members):
    return json.dumps({"task": task, "args": args, **members}).encode()


def hostile_jobs(trace):
    """Name and bytes of each; what would run makes a folder at `trace`."""
    code = f"__import__('os').mkdir({trace!r})"
    planted = pickle.dumps(Planted(trace))
    text = base64.b64encode(planted).decode()
    named = {
        name: call(name, trace)
        for name in (
            *("os:mkdir", "os.mkdir", "posix.mkdir", "os/mkdir", "builtins.exec", "__import__"),
            *("note.__globals__", "note.__call__", "note\0", "Note", " note", "note ", "../note"),
            *(f"{UNUSED}:x", f"{UNUSED}.x", UNUSED, "penstock.app:Penstock", "__main__:note"),
        )
    }
    return named | {
        "code as a task": call(code),
        "a task of markup": call("{0.__class__}%s$(x)`x`"),
        "a module as a member": call("os:mkdir", trace, module="os", function="mkdir", py_object=1),
        "a pickle": planted,
        "a pickle, compressed": b"Z:" + base64.b64encode(zstandard.compress(planted)),
        "a pickle, base64": base64.b64encode(planted),
        "a pickle as metadata": call("note", 1, _penstock={"raw": text})[:-1] + b" ",
        "a pickle as a raw job": json.dumps({"_penstock": {"raw": text}}).encode(),
        "a pickled call of celery": json.dumps(
            {"body": text, "content-type": "application/x-python-serialize", "headers": {}}
        ).encode(),
        "nested brackets": b'{"task":"note","args":%b}' % (b"[" * 100_000 + b"]" * 100_000),
        "nested objects": b'{"task":"take","args":[%b1%b]}' % (b'{"a":' * 100_000, b"}" * 100_000),
        "brackets that do not end": b'{"task":"take","args":' + b"[" * 100_000,
        "nested brackets for any value": call("take", 0).replace(b"0", b"[" * 9_999 + b"]" * 9_999),
        "many digits": b'{"task":"note","args":[%b]}' % (b"9" * 500_000),
        "many digits for any value": b'{"task":"take","args":[%b]}' % (b"9" * 500_000),
        "many digits in metadata": b'{"task":"os","_penstock":{"attempts":%b}}' % (b"9" * 500_000),
        "a large exponent": b'{"task":"note","args":[1e999999999]}',
    }


@pytest.fixture
def trace(tmp_path):
    """A folder that is there after the test if anything was run."""
    yield str(tmp_path / "run")
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def ran():
    return []


@pytest.fixture
def note(app, ran):
    once = RetryPolicy(max_attempts=2, backoff=Fixed(0.01))

    @app.task(queue="mail", name="take", retry=once)
    async def take(value: Any) -> None:
        ran.append(value)

    @app.task(queue="mail", name="alone", retry=once, isolate=True)
    def alone(value: int) -> None: ...

    @app.task(queue="mail", name="note", retry=once)
    async def note(number: int) -> None:
        ran.append(number)

    return note


async def buried(queue, count):
    """The dead letters, once there are so many and nothing else is left."""

    async def are_there():
        if await stored(queue) or await queue.client.call("ZCARD", queue.keyring.delayed):
            return None
        found = await letters(queue)
        return found if len(found) == count else None

    return [read_letter(letter) for letter in await eventually(are_there)]


async def test_no_name_is_imported_and_no_pickle_is_read(workplace, app, note, ran, trace):
    queue, jobs = note.queue, hostile_jobs(trace)
    await queue.client.call("RPUSH", queue.keyring.waiting, *jobs.values())
    worker = await workplace.start(app)
    found = await buried(queue, len(jobs))
    assert {letter.reason for letter in found} == {"unknown", "undecodable"}
    await workplace.stop(worker)
    assert await app.queues.dead_letters("mail").replay()
    await workplace.start(app)
    assert {letter.reason for letter in await buried(queue, len(jobs))} == {
        "unknown",
        "undecodable",
    }
    await note.send(7)
    await eventually(lambda: ran == [7])
    assert UNUSED not in sys.modules


@pytest.mark.parametrize("isolate", [False, True])
async def test_arguments_of_a_task_are_data(workplace, app, note, ran, trace, isolate):
    planted = base64.b64encode(pickle.dumps(Planted(trace))).decode()
    values = [planted, {"py/reduce": [{"py/function": "os.mkdir"}, [trace]]}]
    values += [{"__class__": "os.mkdir", "__reduce__": [trace]}, "!!python/object/apply:os.mkdir"]
    values += [{"py/object": "os.mkdir"}, f"{{{{''.__class__}}}} ${{jndi}} %(x)s {trace}"]
    task = "alone" if isolate else "take"
    jobs = [call(task, value) for value in values]
    await note.queue.client.call("RPUSH", note.queue.keyring.waiting, *jobs)
    await workplace.start(app)
    if isolate:  # no number is among them
        found = await buried(note.queue, len(jobs))
        assert {letter.reason for letter in found} == {"undecodable"}
    else:
        await eventually(lambda: ran == values)


@pytest.mark.settings(signing=signing(require="all"))
async def test_where_signatures_are_required_none_waits_for_a_worker_that_knows_it(
    workplace, app, note, trace
):
    queue, jobs = note.queue, hostile_jobs(trace)
    await queue.client.call("RPUSH", queue.keyring.waiting, *jobs.values())
    await workplace.start(app)
    found = await buried(queue, len(jobs))
    assert {letter.reason for letter in found} <= {"refused", "undecodable"}


async def test_a_stored_schedule_that_no_worker_declares_runs_nothing(
    workplace, app, note, ran, trace
):
    keys, client = note.queue.keyring, note.queue.client
    for name, text in hostile_jobs(trace).items():
        await client.call("ZADD", keys.schedule, 1, name)
        await client.call("HSET", keys.state, f"cron:{name}", text)
    app.every(3_600, name="hourly", args=(1,))(note)
    await workplace.start(app)
    await note.send(7)
    await eventually(lambda: 7 in ran)
    assert len(await app.schedules.list()) >= len(hostile_jobs(trace))
