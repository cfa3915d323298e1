"""Penstock makes a Redis or Valkey server a dependable place to coordinate work."""

from penstock.app import Penstock
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    AddressError,
    AuthenticationFailed,
    BinaryMissing,
    ClusterDown,
    CodecError,
    CommandRefused,
    ConfigError,
    DecodeError,
    EmbeddedError,
    EncodeError,
    InflationRefused,
    InvalidName,
    NotOpen,
    Outcome,
    OutcomeUnknown,
    OutOfMemory,
    PenstockError,
    PermissionRefused,
    PoolExhausted,
    ReadOnlyReplica,
    Redirected,
    Rejected,
    ScriptMissing,
    ServerBusy,
    ServerError,
    SettingError,
    StartFailed,
    StillLoading,
    StorageFailing,
    TlsFailed,
    TooFewReplicas,
    Unreachable,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.doctor import Diagnosis, Finding
from penstock.redis.health import Health, NodeHealth
from penstock.redis.node import Role
from penstock.redis.retry import with_retry
from penstock.redis.shared import close_redis, get_redis, get_redis_optional, init_redis
from penstock.settings import Settings

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
    "NotOpen",
    "ServerError",
    "OutcomeUnknown",
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
    "CommandRefused",
]
