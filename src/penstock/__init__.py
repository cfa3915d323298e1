"""Penstock makes a Redis or Valkey server a dependable place to coordinate work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.app import Penstock
    from penstock.delivery.depends import INJECTED, Depends
    from penstock.delivery.retries import DeadLetter, Exponential, Fixed, Retry, RetryPolicy
    from penstock.errors import (
        ConfigError,
        DecodeError,
        EncodeError,
        JobFailed,
        JobMissing,
        LimitReached,
        NotOpen,
        Outcome,
        OutcomeUnknown,
        PenstockError,
        QueueFull,
        Rejected,
        SendBatchFailed,
        ServerError,
        SlotsTaken,
        TooMany,
        TopicMissing,
        Unreachable,
    )
    from penstock.queues import (
        Isolation,
        Job,
        JobContext,
        Queue,
        QueueAddResult,
        Task,
        block,
        current_job,
    )
    from penstock.settings import Settings
    from penstock.topics import Message, Outgoing, Retention, Topic, replicated
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "app": "Penstock",
            "delivery.depends": "Depends INJECTED",
            "delivery.retries": "DeadLetter Exponential Fixed Retry RetryPolicy",
            "errors": (
                "ConfigError DecodeError EncodeError JobFailed JobMissing LimitReached "
                "NotOpen Outcome OutcomeUnknown PenstockError QueueFull Rejected "
                "SendBatchFailed ServerError SlotsTaken TooMany TopicMissing "
                "Unreachable"
            ),
            "queues": "Isolation Job JobContext Queue QueueAddResult Task block current_job",
            "settings": "Settings",
            "topics": "Message Outgoing Retention Topic replicated",
        },
    )

__all__ = [
    # the application
    "Penstock",
    "Settings",
    "Depends",
    "INJECTED",
    # topics
    "Topic",
    "Message",
    "Outgoing",
    "Retention",
    "replicated",
    # queues
    "Queue",
    "QueueAddResult",
    "block",
    "Task",
    "Job",
    "current_job",
    "JobContext",
    "Isolation",
    # what follows a failure
    "RetryPolicy",
    "Exponential",
    "Fixed",
    "Retry",
    "DeadLetter",
    # errors that programs catch; penstock.errors has the tree
    "PenstockError",
    "ConfigError",
    "EncodeError",
    "DecodeError",
    "NotOpen",
    "ServerError",
    "Rejected",
    "Unreachable",
    "OutcomeUnknown",
    "Outcome",
    "SendBatchFailed",
    "TooMany",
    "TopicMissing",
    "QueueFull",
    "JobMissing",
    "JobFailed",
    "LimitReached",
    "SlotsTaken",
]
