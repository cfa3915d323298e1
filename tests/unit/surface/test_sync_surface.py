"""`penstock.sync` offers everything that the asynchronous objects offer, under the same names."""

import inspect

import pytest

import penstock
from penstock import coordination, inspector, queues, sync, topics
from penstock.coordination import FeedReader
from penstock.queues import Schedules
from penstock.queues.task import TaskSender
from penstock.redis import Client
from penstock.runtime import Worker
from penstock.sync import cache as sync_cache
from penstock.sync import feeds as sync_feeds
from penstock.sync import limits as sync_limits
from penstock.sync import once as sync_once
from penstock.sync import queue_admin as sync_queue_admin
from penstock.sync import queues as sync_queues
from penstock.sync import repairs as sync_repairs
from penstock.sync import runs as sync_runs
from penstock.sync import slots as sync_slots
from penstock.sync import topics as sync_topics
from penstock.sync import windows as sync_windows
from penstock.sync import worker as sync_worker
from penstock.sync.portal import Blocking
from penstock.sync.sibling import Named

PAIRS = {
    penstock.Penstock: sync.Penstock,
    Client: sync.Client,
    Worker: sync_worker.Worker,
    penstock.Topic: sync_topics.Topic,
    topics.TopicAdmin: sync_topics.TopicAdmin,
    topics.DeadLetters: sync_topics.DeadLetters,
    penstock.Queue: sync_queues.Queue,
    penstock.Task: sync_queues.Task,
    TaskSender: sync_queues.TaskSender,
    penstock.Job: sync_queues.Job,
    queues.QueueAdmin: sync_queue_admin.QueueAdmin,
    queues.QueueDeadLetters: sync_queue_admin.QueueDeadLetters,
    Schedules: sync_queue_admin.Schedules,
    inspector.Repairs: sync_repairs.Repairs,
    coordination.Cache: sync_cache.Cache,
    coordination.HourlyLimit: sync_limits.HourlyLimit,
    coordination.LimitRegistry: sync_limits.LimitRegistry,
    coordination.Once: sync_once.Once,
    coordination.Window: sync_windows.Window,
    coordination.Feed: sync_feeds.Feed,
    FeedReader: sync_feeds.FeedReader,
    coordination.Limit: sync_limits.Limit,
    coordination.Reservation: sync_limits.Reservation,
    coordination.Slot: sync_slots.Slot,
    coordination.Slots: sync_slots.Slots,
    coordination.Run: sync_runs.Run,
    coordination.Runs: sync_runs.Runs,
}
"""Each asynchronous class and its blocking counterpart."""

NOT_BLOCKING = {
    # They belong to the event loop: connections, background tasks, consumers.
    Client: {
        "lease",
        "dedicated",
        "wire",
        "owes",
        "primaries",
        "redis_py",
        "run_script",
        "tag_on",
        "open",
        "close",
    }
    # It repeats a coroutine function; a loop around a blocking call does the same.
    | {"with_retry"},
    penstock.Penstock: {"leases", "wakeups", "hub", "close_coordination", "registry"},
    penstock.Topic: {"close", "consumers"},
    FeedReader: {"aclose"},
    # For the other parts of the implementation, not for programs.
    Worker: {"work"},
    penstock.Queue: {
        *("add_task", "close", "configure", "declared", "has_handlers", "held_key", "lane_of"),
        *("performers", "raw_performer", "server_ms", "target"),
    },
    penstock.Task: {"on", "options_for", "performer"},
    queues.QueueDeadLetters: {"find", "page"},
    Schedules: {"add", "declared", "on", "scheduler"},
    coordination.Limit: {"ask", "settle", "keys", "note", "fall_back", "close", "of"},
    coordination.LimitRegistry: {"declare"},
    coordination.Slot: {"renew", "hold"},
    coordination.Slots: {"close"},
    coordination.Window: {"close_at", "close_named", "record", "registered"},
    coordination.Feed: {"at"},
}
OTHER_WORDS = {
    (
        coordination.Limit,
        "reserved",
    ),  # it names the options that the asynchronous one hands on
}


def public_names(kind):
    return {name for name in dir(kind) if not name.startswith("_")} - NOT_BLOCKING.get(kind, set())


def vars_of(kind):
    """Attributes of a class and its bases, without calling descriptors."""
    return {name: value for one in reversed(kind.__mro__) for name, value in vars(one).items()}


def parameters(function):
    told = inspect.signature(inspect.unwrap(function), follow_wrapped=True).parameters.values()
    return [(one.name, one.kind, one.default, one.annotation) for one in told]


@pytest.mark.parametrize("asynchronous", PAIRS, ids=lambda kind: kind.__name__)
def test_nothing_is_missing_in_the_blocking_one(asynchronous):
    blocking = PAIRS[asynchronous]
    set_in_constructor = blocking.__init__.__code__.co_names
    missing = public_names(asynchronous) - {*dir(blocking), *set_in_constructor}
    assert not missing, f"give {blocking} these, or list them in NOT_BLOCKING with a reason"


@pytest.mark.parametrize("asynchronous", PAIRS, ids=lambda kind: kind.__name__)
def test_methods_have_the_same_parameters(asynchronous):
    blocking = PAIRS[asynchronous]
    for name in public_names(asynchronous):
        method, sibling = (vars_of(one).get(name) for one in (asynchronous, blocking))
        if isinstance(sibling, Blocking | Named):
            assert sibling._method is method, name
            assert sibling.__doc__ == method.__doc__
        elif inspect.isfunction(method) and (asynchronous, name) not in OTHER_WORDS:
            assert not inspect.iscoroutinefunction(sibling), name
            assert parameters(sibling) == parameters(method), name


@pytest.mark.parametrize("asynchronous", NOT_BLOCKING, ids=lambda kind: kind.__name__)
def test_what_is_left_out_exists(asynchronous):
    assert set(dir(asynchronous)) >= NOT_BLOCKING[asynchronous]


def test_the_constructors_of_applications_take_the_same():
    assert parameters(sync.Penstock.__init__) == parameters(penstock.Penstock.__init__)


def test_an_application_has_the_same_attributes():
    theirs, ours = (vars(one.Penstock("redis://127.0.0.1:1")) for one in (penstock, sync))
    assert {name for name in theirs if not name.startswith("_")} <= set(ours)


def test_a_bound_method_shows_its_signature():
    app = sync.Penstock("redis://127.0.0.1:1")
    assert list(inspect.signature(app.redis.call).parameters) == ["command", "role", "timeout_s"]
