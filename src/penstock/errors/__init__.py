"""Everything Penstock raises on purpose.

PenstockError
├── ConfigError               what was configured cannot be used; nothing was sent
│   ├── SettingError          a setting has a wrong name or value
│   └── AddressError          a server address cannot be read
├── InvalidName               a topic, queue, group … name is not allowed
├── CodecError
│   ├── EncodeError           a value cannot be stored
│   └── DecodeError           a stored value cannot be read; its bytes are kept for the dead letters
│       └── InflationRefused  it would unpack to more than is allowed
├── EmbeddedError             the embedded server
│   ├── BinaryMissing         no server binary for this platform
│   └── StartFailed           it did not become ready in time
├── TopicError                a topic, a group or a message is not as the caller thinks
│   ├── TopicMissing          there is no such topic (any more)
│   ├── TopicMismatch         the topic has another number of partitions
│   ├── GroupMissing          there is no such group
│   ├── LeaseLost             a partition has passed to another consumer; nothing was written
│   └── InvalidMessage        a key, header, time or position that no message can have
├── QueueError                a queue or a job is not as the caller thinks
│   ├── QueueFull             there is no room, and the policy takes no more; nothing was stored
│   ├── QueueMismatch         the queue is used from its other end
│   ├── JobMissing            there is no such job, or it has no record
│   ├── JobFailed             the job whose result was asked for ended without one
│   ├── ClaimLost             a job has passed to another worker; nothing was written
│   └── InvalidJob            an argument, option or time that no job can have
├── CoordinationError         what is coordinated is not as the caller thinks
│   ├── ReservationLost       another process has taken over what was to be done once
│   ├── LimitReached          there was no permit in time; nothing was used
│   ├── SlotsTaken            no slot became free in time
│   ├── SlotLost              the lease of a slot has ended; another may have it
│   ├── RunMissing            there is no such run (any more)
│   ├── RunConflict           the run has another status or version; nothing was written
│   ├── ReaderTooSlow         a reader of a feed fell behind; it may resume
│   └── InvalidItem           an item, id or time that no window, feed or run can have
├── StoreError                a store of tables, vectors or files did not do what it was asked to
│   ├── StoreAway             it does not answer now; ask again later
│   ├── StoreFull             its disk is full; nothing was stored
│   └── StoreMismatch         what is stored is of another kind or size
├── DocumentError             a document could not be taken in this time; it is tried again
│   ├── ParserDied            the process that read it was ended: memory, time, or a crash
│   ├── EmbedderFailed        the embedder refused or did not answer
│   └── DocumentRefused       no repetition makes it acceptable: it goes to `failed/`
│       ├── FileMissing       there is no such file (any more)
│       ├── FileRefused       not a regular file within its folder and of an allowed size
│       ├── UnsupportedFile   a type that is not read, or another one than the name says
│       ├── ParseError        broken, encrypted, or made to harm its reader
│       ├── RagMissing        no RAG of this name is configured
│       └── ConfigurationWrong  `client.yaml` or a RAG's file cannot be used
├── SendBatchFailed           not every message of a batch is confirmed; `outcomes` has them all
├── NotOpen                   used before it was opened, after it was closed, or in a forked child
└── ServerError               a command did not end confirmed; `outcome` says how it did end
    ├── OutcomeUnknown        sent, but how it ended is not known: it may have happened
    │   ├── ScriptFailed      an error was raised inside a script: it may have done a part
    │   └── DurabilityMissed  it happened, but is not known to be as safe as was asked for
    └── Rejected              it did not happen
        ├── Unreachable       no connection could be made
        │   └── TlsFailed     … because the two sides do not trust each other
        ├── PoolExhausted     every connection of the role is in use
        ├── AuthenticationFailed   wrong or missing user or password
        ├── PermissionRefused      the server's access list does not allow it
        ├── OutOfMemory            the server is at `maxmemory`
        ├── ReadOnlyReplica        this server may not be written to
        ├── StillLoading           the server is reading its data from disk
        ├── StorageFailing         the server cannot persist, so it accepts no writes
        ├── TooFewReplicas         fewer replicas than the server demands for a write
        ├── ClusterDown            the cluster has no owner for the slot now
        ├── ServerBusy             a script or a function blocks the server
        ├── Redirected             the slot moved more often than we follow
        ├── ScriptMissing          the server forgot a script (it is loaded again by itself)
        ├── DurabilityUnavailable  this server cannot promise what was asked for
        └── CommandRefused         the command itself is wrong here (WRONGTYPE, CROSSSLOT, ERR …)

A call that returns is *confirmed*. `Rejected` means nothing was stored; `OutcomeUnknown` means that
repeating is safe only under the same idempotency key.
"""

from __future__ import annotations

from penstock.errors.base import (
    AddressError,
    BinaryMissing,
    CodecError,
    ConfigError,
    DecodeError,
    EmbeddedError,
    EncodeError,
    InflationRefused,
    InvalidName,
    NotOpen,
    PenstockError,
    SendBatchFailed,
    SettingError,
    StartFailed,
)
from penstock.errors.coordination import (
    CoordinationError,
    InvalidItem,
    LimitReached,
    ReaderTooSlow,
    ReservationLost,
    RunConflict,
    RunMissing,
    SlotLost,
    SlotsTaken,
)
from penstock.errors.documents import (
    ConfigurationWrong,
    DocumentError,
    DocumentRefused,
    EmbedderFailed,
    FileMissing,
    FileRefused,
    ParseError,
    ParserDied,
    RagMissing,
    StoreAway,
    StoreError,
    StoreFull,
    StoreMismatch,
    UnsupportedFile,
)
from penstock.errors.queues import (
    ClaimLost,
    InvalidJob,
    JobFailed,
    JobMissing,
    QueueError,
    QueueFull,
    QueueMismatch,
)
from penstock.errors.server import (
    AuthenticationFailed,
    ClusterDown,
    CommandRefused,
    DurabilityMissed,
    DurabilityUnavailable,
    Outcome,
    OutcomeUnknown,
    OutOfMemory,
    PermissionRefused,
    PoolExhausted,
    ReadOnlyReplica,
    Redirected,
    Rejected,
    ScriptFailed,
    ScriptMissing,
    ServerBusy,
    ServerError,
    StillLoading,
    StorageFailing,
    TlsFailed,
    TooFewReplicas,
    Unreachable,
)
from penstock.errors.topics import (
    GroupMissing,
    InvalidMessage,
    LeaseLost,
    TopicError,
    TopicMismatch,
    TopicMissing,
)

__all__ = [
    "AddressError",
    "AuthenticationFailed",
    "BinaryMissing",
    "ClaimLost",
    "ClusterDown",
    "CodecError",
    "CommandRefused",
    "ConfigError",
    "ConfigurationWrong",
    "CoordinationError",
    "DecodeError",
    "DocumentError",
    "DocumentRefused",
    "DurabilityMissed",
    "DurabilityUnavailable",
    "EmbeddedError",
    "EmbedderFailed",
    "EncodeError",
    "FileMissing",
    "FileRefused",
    "GroupMissing",
    "InflationRefused",
    "InvalidItem",
    "InvalidJob",
    "InvalidMessage",
    "InvalidName",
    "JobFailed",
    "JobMissing",
    "LeaseLost",
    "LimitReached",
    "NotOpen",
    "OutOfMemory",
    "Outcome",
    "OutcomeUnknown",
    "ParseError",
    "ParserDied",
    "PenstockError",
    "PermissionRefused",
    "PoolExhausted",
    "QueueError",
    "QueueFull",
    "QueueMismatch",
    "RagMissing",
    "ReadOnlyReplica",
    "ReaderTooSlow",
    "Redirected",
    "Rejected",
    "ReservationLost",
    "RunConflict",
    "RunMissing",
    "ScriptFailed",
    "ScriptMissing",
    "SendBatchFailed",
    "ServerBusy",
    "ServerError",
    "SettingError",
    "SlotLost",
    "SlotsTaken",
    "StartFailed",
    "StillLoading",
    "StorageFailing",
    "StoreAway",
    "StoreError",
    "StoreFull",
    "StoreMismatch",
    "TlsFailed",
    "TooFewReplicas",
    "TopicError",
    "TopicMismatch",
    "TopicMissing",
    "Unreachable",
    "UnsupportedFile",
]

# The name of a class is stored with failed jobs and messages, and pickled. Which module of this
# package holds it is no part of that name.
for _name in __all__:
    globals()[_name].__module__ = __name__
