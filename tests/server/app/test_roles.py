"""Each role does all that it is for, on each server, and is refused everything else."""

import asyncio

import pytest
from tests.kit.acl_users import grant, nodes_of, refusals, with_user
from tests.kit.settings import QUICK_TOPICS

from penstock import DeadLetter, Penstock, Retention
from penstock.errors import PermissionRefused, ScriptFailed, ServerError
from penstock.inspector.rights import ROLES
from penstock.settings import QueueSettings, Settings, TopicSettings, WorkerSettings
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.places("one server", "redis62", "redis7", "cluster")


@pytest.fixture
def opened_as(place, namespace, opened):
    """`await opened_as("worker")` is an application with the rights of that role."""

    async def open_one(role):
        settings = Settings(
            url=grant(place, role, namespace),
            namespace=namespace,
            topics=TopicSettings(**QUICK_TOPICS),
            queues=QueueSettings(poll_s=0.02, beat_s=0.1, silence_s=2.0),
            worker=WorkerSettings(poll_s=0.2, grace_s=1),
        )
        return await opened.enter_async_context(Penstock(settings=settings))

    return open_one


@pytest.fixture
def working(opened):
    """`await working(app)` runs the worker of an application until the test ends."""

    async def start(app):
        worker = app.worker()
        running = asyncio.create_task(worker.run())

        async def end():
            worker.ask_to_stop()
            await running

        opened.push_async_callback(end)
        await eventually(lambda: worker.readiness().ready)

    return start


def declare(app):
    """The same tasks, handlers, schedules and windows in each program; and what they have done."""
    done = []

    @app.task(queue="mail", status=True, name="send")
    async def send(number: int) -> int:
        if number < 0:
            raise DeadLetter
        done.append(("task", number))
        return number

    @app.subscribe("orders", "billing")
    async def bill(order: dict) -> None:
        done.append(("message", order["id"]))

    return send, done


async def test_a_producer_sends_and_reads_results_and_a_worker_does_the_work(
    place, namespace, opened_as, working
):
    at_work = await opened_as("worker")
    _, done = declare(at_work)
    ticked = asyncio.Event()

    @at_work.every(0.05, queue="mail", name="tick")
    async def tick() -> None:
        ticked.set()

    batches = []

    @at_work.queue("batches").handler
    async def take(batch: dict) -> None:
        batches.append(batch)

    small = at_work.topic("small", dead_letter_retention=Retention(max_length=1))

    @small.subscribe("group")
    async def refuse(number: int) -> None:
        raise DeadLetter

    at_work.window("reports", to=at_work.queue("batches"), max_items=2)
    await working(at_work)

    producer = await opened_as("producer")
    task, _ = declare(producer)
    job = await task.send(1)
    assert await job.result(timeout_s=20) == 1
    await task.with_options(delay=0.1).send(2)
    await producer.queue("raw").push({"any": "job"})
    await producer.topic("orders").send({"id": 3}, key="k")
    await producer.topic("orders").send_batch([{"id": 4}, {"id": 5}])
    await producer.topic("orders").send({"id": 6}, delay=0.1)
    await producer.topic("small").send_batch([1, 2, 3], key=lambda _: "k")
    limit = producer.limit("api", "2/min")
    assert [(await limit.try_acquire()).allowed for _ in range(3)] == [True, True, False]
    for number in range(2):
        await producer.window("reports", to=producer.queue("batches"), max_items=2).add(
            "k", {"n": number}
        )

    expected = {("task", 1), ("task", 2), *(("message", number) for number in (3, 4, 5, 6))}
    await eventually(lambda: expected <= set(done))
    await ticked.wait()
    await eventually(lambda: batches)

    async def trimmed():
        return await small.dead_letters.count() == 1

    await eventually(trimmed)
    assert refusals(place, namespace) == set()


async def test_an_operator_edits_replays_and_deletes(place, namespace, opened_as, working):
    at_work = await opened_as("worker")
    task, done = declare(at_work)
    await working(at_work)
    operator = await opened_as("operator")
    await task.send(-1)
    letters = operator.queues.dead_letters("mail")

    await eventually(letters.count)
    [letter] = (await letters.list()).letters
    await letters.edit(letter.id, b'{"task": "send", "args": [7]}')
    await letters.replay([letter.id])
    await eventually(lambda: ("task", 7) in done)
    await operator.queues.pause("mail")
    await task.send(8)
    await operator.queues.purge("mail")
    await operator.queues.resume("mail")
    await operator.topic("orders").send({"id": 1})
    await operator.topics.delete("orders")
    await operator.repairs.entries("queues", 10)
    found = await operator.doctor()
    assert not [
        one
        for one in found.findings
        if one.check in {"access", "health"} and "NOPERM" in one.message
    ]
    left = {what for _, what in refusals(place, namespace)}
    assert {what for what in left if not what.endswith("registry")} <= {"config|get", "config"}


@pytest.mark.parametrize("role", ROLES)
async def test_no_role_reaches_beyond_its_namespace_or_changes_the_server(
    place, namespace, opened_as, role
):
    for node in nodes_of(place)[:1]:
        node.command("ACL", "LOG", "RESET")
    app = await opened_as(role)
    prefix = app.redis.keys.prefix
    own, foreign = f"{prefix}{{x}}", f"other-{namespace}:{{x}}"
    cases = [
        ("GET", foreign),
        ("SET", foreign, "x"),
        ("RENAMENX", own, foreign),
        ("EVAL", "return redis.call('GET', KEYS[1])", 1, foreign),
        ("PUBLISH", f"other-{namespace}:channel", "x"),
        *(("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("CONFIG", "SET", "maxmemory", "1")),
        *(("CONFIG", "GET", "requirepass"), ("DEBUG", "SLEEP", "0"), ("SCRIPT", "FLUSH")),
        *(("SHUTDOWN", "NOSAVE"), ("ACL", "LIST"), ("ACL", "SETUSER", "x"), ("SAVE",)),
        *(("CLIENT", "KILL", "ID", "1"), ("CLIENT", "LIST"), ("REPLICAOF", "NO", "ONE")),
        *(("SLOWLOG", "GET"), ("CLUSTER", "RESET"), ("SWAPDB", 0, 1), ("DUMP", own)),
        ("MIGRATE", "127.0.0.1", "1", own, 0, 1),
        ("RESTORE", own, 0, "x"),
        ("FUNCTION", "FLUSH"),
    ]
    for command in cases:
        with pytest.raises(ServerError) as refused:
            await app.redis.call(*command)
        unknown = "unknown command" in str(refused.value).lower()  # FUNCTION in 6.2
        assert unknown or isinstance(refused.value, PermissionRefused), command
    for command in ("'KEYS', '*'", "'GET', ARGV[1]", "'FLUSHALL'", "'PUBLISH', ARGV[1], 'x'"):
        with pytest.raises((ScriptFailed, PermissionRefused)):
            await app.redis.call("EVAL", f"return redis.call({command})", 1, own, foreign)


WRITES = [
    ("SET", "{x}", "v"),
    ("DEL", "{x}"),
    ("EXPIRE", "{x}", 1),
    ("LPUSH", "{x}", "v"),
    ("HSET", "{x}", "f", "v"),
    ("XADD", "{x}", "*", "f", "v"),
    ("EVAL", "return redis.call('SET', KEYS[1], 'v')", 1, "{x}"),
]


async def test_a_reader_writes_nothing(place, namespace, opened_as):
    reader = await opened_as("reader")
    for name, *rest in WRITES:
        own = [f"{reader.redis.keys.prefix}{one}" if one == "{x}" else one for one in rest]
        with pytest.raises((PermissionRefused, ScriptFailed)):
            await reader.redis.call(name, *own)
    for act in (
        reader.queue("mail").push({"a": 1}),
        reader.send("send", [1], queue="mail"),
        reader.topic("orders", partitions=1).send({"a": 1}),
        reader.limit("api", "2/min").try_acquire(),
    ):
        with pytest.raises((PermissionRefused, ScriptFailed)):
            await act
    owner = Settings(url=place.url, namespace=namespace)
    async with Penstock(settings=owner) as app:
        assert await app.queues.list() == []
        assert await app.topics.list() == []
    health = await reader.health()
    assert health.status == "degraded"
    assert all("not allowed" in why for why in health.reasons)
    assert health.connected


@pytest.mark.places("one server", "redis62", "redis7")
async def test_every_command_that_lists_or_shows_is_open_to_a_reader(
    place, namespace, opened_as, working, open_shell
):
    at_work = await opened_as("worker")
    task, done = declare(at_work)
    await working(at_work)
    await task.send(-1)
    job = await task.send(1)
    waiting = await task.with_options(delay=3600).send(2)
    await at_work.topic("orders").send({"id": 1})
    await at_work.feed("news").publish("progress", {"percent": 50})
    await at_work.limit("api", "2/min").try_acquire()
    run = await at_work.runs.start("nightly")
    operator = await opened_as("operator")
    await operator.queue("idle").push({"a": 1})

    letters = operator.queues.dead_letters("mail")
    await eventually(letters.count)
    [letter] = (await letters.list()).letters
    await eventually(lambda: len(done) == 2)
    for node in nodes_of(place):
        node.command("ACL", "LOG", "RESET")
    shell = open_shell(PENSTOCK_URL=grant(place, "reader", namespace))
    for line in (
        "workers",
        *("topic list", "topic show orders", "topic tail orders --no-follow"),
        *("group list orders", "group lag orders billing", "group pending orders billing"),
        *("queue list", "queue status", "queue status mail", "queue peek mail"),
        *("job search mail", f"job show mail {job.id}"),
        *("dlq list mail --queue", f"dlq show mail {letter.id} --queue", "dlq audit mail --queue"),
        *("limit show", "window list", "run list", f"run show {run.id}"),
        *(f"run failures {run.id}", "repair", "limit show api"),
    ):
        done = await asyncio.to_thread(shell, *line.split())
        assert done.returncode == 0, (line, done)
        expected = {("reader", "set")} if line == "limit show api" else set()
        assert refusals(place, namespace) <= expected, line
    shown = await asyncio.to_thread(shell, "limit", "show", "api")
    assert "not allowed" in shown.stdout
    for line in (
        *("topic send orders {}", "queue push mail {}", "queue pause mail", "job send send [1]"),
        *("queue purge idle --yes", f"dlq purge mail {letter.id} --queue --yes"),
        *(f"dlq replay mail {letter.id} --queue", "limit set api 1/s", "topic delete orders --yes"),
        *(f"job cancel mail {waiting.id}", "queue delete idle --yes"),
    ):
        done = await asyncio.to_thread(shell, *line.split())
        assert done.returncode == 4, (line, done)
    assert await letters.count() == 1


async def test_a_foreign_password_is_no_way_in(place, namespace):
    grant(place, "worker", namespace)
    url = with_user(place.url, f"operator-of-{namespace}")
    with pytest.raises(ServerError, match="WRONGPASS"):
        await Penstock(settings=Settings(url=url)).open()
