"""Penstock makes a Redis or Valkey server a dependable place to coordinate work."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.app import Penstock
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    AddressError,
    AuthenticationFailed,
    BinaryMissing,
    ClaimLost,
    ClusterDown,
    CodecError,
    CommandRefused,
    ConfigError,
    ConfigurationWrong,
    CoordinationError,
    DecodeError,
    DocumentError,
    DocumentRefused,
    DurabilityMissed,
    DurabilityUnavailable,
    EmbeddedError,
    EmbedderFailed,
    EncodeError,
    FileMissing,
    FileRefused,
    GroupMissing,
    InflationRefused,
    InvalidItem,
    InvalidJob,
    InvalidMessage,
    InvalidName,
    JobFailed,
    JobMissing,
    LeaseLost,
    LimitReached,
    NotOpen,
    Outcome,
    OutcomeUnknown,
    OutOfMemory,
    ParseError,
    ParserDied,
    PenstockError,
    PermissionRefused,
    PoolExhausted,
    QueueError,
    QueueFull,
    QueueMismatch,
    RagMissing,
    ReaderTooSlow,
    ReadOnlyReplica,
    Redirected,
    Rejected,
    ReservationLost,
    RunConflict,
    RunMissing,
    ScriptFailed,
    ScriptMissing,
    SendBatchFailed,
    ServerBusy,
    ServerError,
    SettingError,
    SlotLost,
    SlotsTaken,
    StartFailed,
    StillLoading,
    StorageFailing,
    StoreAway,
    StoreError,
    StoreFull,
    StoreMismatch,
    TlsFailed,
    TooFewReplicas,
    TopicError,
    TopicMismatch,
    TopicMissing,
    Unreachable,
    UnsupportedFile,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.node import Role
from penstock.redis.retry import with_retry
from penstock.redis.shared import close_redis, get_redis, get_redis_optional, init_redis
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.coordination.cache import Cache
    from penstock.coordination.feeds.events import Event, Snapshot
    from penstock.coordination.feeds.feed import Feed
    from penstock.coordination.feeds.reader import FeedReader
    from penstock.coordination.limits.answer import Answer, Usage
    from penstock.coordination.limits.book import LimitBook
    from penstock.coordination.limits.hourly import HourlyCount, HourlyLimit
    from penstock.coordination.limits.limit import Limit
    from penstock.coordination.limits.rates import Rate
    from penstock.coordination.limits.reservation import Reservation
    from penstock.coordination.limits.setting import LimitSetting
    from penstock.coordination.once import Enqueued, Mark, Once
    from penstock.coordination.runs.records import Failure, RunEvent, RunRecord, TaskStart
    from penstock.coordination.runs.run import Run
    from penstock.coordination.runs.runs import Runs
    from penstock.coordination.slot import Holder, Slot, SlotState
    from penstock.coordination.slots import Slots
    from penstock.coordination.windows.batches import Added, OpenBatch
    from penstock.coordination.windows.window import Window
    from penstock.delivery.depends import INJECTED, Depends
    from penstock.delivery.retries import DeadLetter, Exponential, Fixed, Retry, RetryPolicy
    from penstock.queues.admin import QueueAdmin
    from penstock.queues.context import JobContext, current_job
    from penstock.queues.dead_letters import QueueDeadLetters
    from penstock.queues.isolation import Isolation
    from penstock.queues.job import Job
    from penstock.queues.options import block
    from penstock.queues.queue import Queue
    from penstock.queues.records import JobRecord, Progress
    from penstock.queues.results import QueueAddResult, QueuePressure
    from penstock.queues.tasks import Task
    from penstock.redis.doctor import Diagnosis, Finding
    from penstock.redis.health import Health, NodeHealth
    from penstock.repair.repairs import OddEntry, Repairs
    from penstock.topics.admin import TopicAdmin
    from penstock.topics.consumer import Consumer
    from penstock.topics.dead_letters import DeadLetters
    from penstock.topics.durability import replicated
    from penstock.topics.facts import Retention
    from penstock.topics.message import Message, Outgoing
    from penstock.topics.partitioners import (
        ConsistentRing,
        Crc32,
        JavaHash,
        Partitioner,
        Random,
        RoundRobin,
    )
    from penstock.topics.subscription import Subscription
    from penstock.topics.topic import Topic

_LAZY = {
    "coordination.cache": ("Cache",),
    "coordination.feeds.events": ("Event", "Snapshot"),
    "coordination.feeds.feed": ("Feed",),
    "coordination.feeds.reader": ("FeedReader",),
    "coordination.limits.answer": ("Answer", "Usage"),
    "coordination.limits.book": ("LimitBook",),
    "coordination.limits.hourly": ("HourlyCount", "HourlyLimit"),
    "coordination.limits.limit": ("Limit",),
    "coordination.limits.rates": ("Rate",),
    "coordination.limits.reservation": ("Reservation",),
    "coordination.limits.setting": ("LimitSetting",),
    "coordination.once": ("Enqueued", "Mark", "Once"),
    "coordination.runs.records": ("Failure", "RunEvent", "RunRecord", "TaskStart"),
    "coordination.runs.run": ("Run",),
    "coordination.runs.runs": ("Runs",),
    "coordination.slot": ("Holder", "Slot", "SlotState"),
    "coordination.slots": ("Slots",),
    "coordination.windows.batches": ("Added", "OpenBatch"),
    "coordination.windows.window": ("Window",),
    "delivery.depends": ("INJECTED", "Depends"),
    "queues.admin": ("QueueAdmin",),
    "queues.context": ("JobContext", "current_job"),
    "queues.dead_letters": ("QueueDeadLetters",),
    "queues.isolation": ("Isolation",),
    "queues.job": ("Job",),
    "queues.options": ("block",),
    "queues.queue": ("Queue",),
    "queues.records": ("JobRecord", "Progress"),
    "queues.results": ("QueueAddResult", "QueuePressure"),
    "queues.tasks": ("Task",),
    "redis.doctor": ("Diagnosis", "Finding"),
    "redis.health": ("Health", "NodeHealth"),
    "repair.repairs": ("OddEntry", "Repairs"),
    "topics.admin": ("TopicAdmin",),
    "topics.consumer": ("Consumer",),
    "topics.dead_letters": ("DeadLetters",),
    "topics.durability": ("replicated",),
    "topics.facts": ("Retention",),
    "topics.message": ("Message", "Outgoing"),
    "topics.partitioners": (
        *("ConsistentRing", "Crc32", "JavaHash", "Partitioner", "Random", "RoundRobin"),
    ),
    "delivery.retries": ("DeadLetter", "Exponential", "Fixed", "Retry", "RetryPolicy"),
    "topics.subscription": ("Subscription",),
    "topics.topic": ("Topic",),
}
"""Names that are imported when they are first used, by their module."""


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"penstock.{module}"), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


__all__ = [
    # the application
    "Penstock",
    "Settings",
    # the door to the server
    "Client",
    "Role",
    "Codec",
    "with_retry",
    "init_redis",
    "close_redis",
    "get_redis",
    "get_redis_optional",
    # topics
    "Topic",
    "Message",
    "Outgoing",
    "Retention",
    "replicated",
    "Subscription",
    "Consumer",
    "RetryPolicy",
    "Exponential",
    "Fixed",
    "Retry",
    "DeadLetter",
    "DeadLetters",
    "TopicAdmin",
    "Partitioner",
    "Crc32",
    "RoundRobin",
    "Random",
    "ConsistentRing",
    "JavaHash",
    # queues
    "Queue",
    "QueueAddResult",
    "QueuePressure",
    "block",
    "Task",
    "Job",
    "JobRecord",
    "Progress",
    "JobContext",
    "current_job",
    "Isolation",
    "QueueAdmin",
    "QueueDeadLetters",
    "Repairs",
    "OddEntry",
    "Depends",
    "INJECTED",
    # coordination
    "Once",
    "Mark",
    "Enqueued",
    "Limit",
    "Answer",
    "Reservation",
    "Usage",
    "Rate",
    "LimitSetting",
    "LimitBook",
    "HourlyLimit",
    "HourlyCount",
    "Window",
    "Added",
    "OpenBatch",
    "Runs",
    "Run",
    "RunRecord",
    "RunEvent",
    "Failure",
    "TaskStart",
    "Slots",
    "Slot",
    "SlotState",
    "Holder",
    "Feed",
    "FeedReader",
    "Event",
    "Snapshot",
    "Cache",
    # is it well?
    "Health",
    "NodeHealth",
    "Diagnosis",
    "Finding",
    # time
    "Clock",
    "SystemClock",
    # errors: the tree is drawn in penstock.errors
    "Outcome",
    "PenstockError",
    "ConfigError",
    "SettingError",
    "AddressError",
    "InvalidName",
    "CodecError",
    "EncodeError",
    "DecodeError",
    "InflationRefused",
    "EmbeddedError",
    "BinaryMissing",
    "StartFailed",
    "TopicError",
    "TopicMissing",
    "TopicMismatch",
    "GroupMissing",
    "LeaseLost",
    "InvalidMessage",
    "QueueError",
    "QueueFull",
    "QueueMismatch",
    "JobMissing",
    "JobFailed",
    "ClaimLost",
    "InvalidJob",
    "CoordinationError",
    "ReservationLost",
    "LimitReached",
    "SlotsTaken",
    "SlotLost",
    "RunMissing",
    "RunConflict",
    "ReaderTooSlow",
    "InvalidItem",
    "StoreError",
    "StoreAway",
    "StoreFull",
    "StoreMismatch",
    "DocumentError",
    "ParserDied",
    "EmbedderFailed",
    "DocumentRefused",
    "FileMissing",
    "FileRefused",
    "UnsupportedFile",
    "ParseError",
    "RagMissing",
    "ConfigurationWrong",
    "SendBatchFailed",
    "NotOpen",
    "ServerError",
    "OutcomeUnknown",
    "ScriptFailed",
    "DurabilityMissed",
    "Rejected",
    "Unreachable",
    "TlsFailed",
    "PoolExhausted",
    "AuthenticationFailed",
    "PermissionRefused",
    "OutOfMemory",
    "ReadOnlyReplica",
    "StillLoading",
    "StorageFailing",
    "TooFewReplicas",
    "ClusterDown",
    "ServerBusy",
    "Redirected",
    "ScriptMissing",
    "DurabilityUnavailable",
    "CommandRefused",
]
