"""Everything Penstock raises on purpose.

PenstockError
├── ConfigError               the configuration is invalid; nothing was sent
│   ├── SettingError          a setting has an unknown name or an invalid value
│   └── AddressError          a server address is invalid
│       └── UnprotectedServer  the server is on a network and asks for no password
├── InvalidName               a topic, queue, group … name is not allowed
├── CodecError
│   ├── EncodeError           a value cannot be stored
│   └── DecodeError           a stored value cannot be decoded; dead letters keep its bytes
│       └── InflationRefused  it would decompress to more than is allowed
├── BadSignature              a job or message is not signed, or not as it was signed
├── EmbeddedError             the embedded server
│   ├── BinaryMissing         no server binary for this platform
│   └── StartFailed           it did not become ready in time
├── TopicError                the call does not fit the state of a topic or group
│   ├── TopicMissing          the topic does not exist
│   ├── TopicMismatch         the topic has another number of partitions
│   ├── GroupMissing          the group does not exist
│   ├── LeaseLost             another consumer owns the partition; nothing was written
│   └── InvalidMessage        an invalid key, header, time or position
├── QueueError                the call does not fit the state of a queue or job
│   ├── QueueFull             the queue is full and its policy rejects; nothing was stored
│   ├── QueueMismatch         the queue is pushed to at its other end
│   ├── JobMissing            the job does not exist, or has no record
│   ├── JobFailed             the awaited job ended without a result
│   ├── ClaimLost             another worker has the job; nothing was written
│   └── InvalidJob            an invalid argument, option or time
├── CoordinationError         the call does not fit the state of a primitive
│   ├── ReservationLost       another process has taken over the reservation
│   ├── LimitReached          no permit in time; nothing was used
│   ├── SlotsTaken            no slot became free in time
│   ├── SlotLost              the lease of a slot has expired; it may have another holder
│   ├── RunMissing            the run does not exist
│   ├── RunConflict           the run has another status or version; nothing was written
│   ├── ReaderTooSlow         a reader of a feed fell behind; it may resume
│   └── InvalidItem           an invalid item, id or time of a window, feed or run
├── StoreError                a store of tables, vectors or files failed
│   ├── StoreAway             it does not answer; try again later
│   ├── StoreFull             its disk is full; nothing was stored
│   └── StoreMismatch         what is stored has another kind or size
├── DocumentError             an attempt to ingest a document failed; it is retried
│   ├── ParserDied            the process that read it was killed or crashed
│   ├── FencesMissing         this machine cannot fence the process that would have read it
│   ├── EmbedderFailed        the embedder refused or did not answer
│   └── DocumentRefused       it cannot be ingested: it is moved to `failed/`
│       ├── FileMissing       the file does not exist
│       ├── FileRefused       not a regular file within its folder and of an allowed size
│       ├── UnsupportedFile   an unsupported type, or not the type of its extension
│       ├── ParseError        broken, encrypted or malicious
│       ├── RagMissing        no RAG of this name is configured
│       └── ConfigurationWrong  `client.yaml` or a RAG's file cannot be used
├── SendBatchFailed           not every message of a batch is confirmed; see `outcomes`
├── TooMany                   a setting allows no more of them; nothing was stored
├── NotOpen                   used before it was opened, after it was closed, or in a forked child
└── ServerError               a command was not confirmed; see `outcome`
    ├── OutcomeUnknown        sent, but not confirmed: it may have happened
    │   ├── ScriptFailed      a script failed: it may have done a part
    │   └── DurabilityMissed  it happened, but its durability is not confirmed
    └── Rejected              it did not happen
        ├── Unreachable       no connection could be made
        │   └── TlsFailed     the TLS handshake failed
        ├── PoolExhausted     every connection of the role is in use
        ├── AuthenticationFailed   wrong or missing user or password
        ├── PermissionRefused      the server's access list does not allow it
        ├── OutOfMemory            the server is at `maxmemory`
        ├── ReadOnlyReplica        this server accepts no writes
        ├── StillLoading           the server is reading its data from disk
        ├── StorageFailing         the server cannot persist, so it accepts no writes
        ├── TooFewReplicas         fewer replicas than `min-replicas-to-write`
        ├── ClusterDown            the cluster has no owner for the slot now
        ├── ServerBusy             a script or a function blocks the server
        ├── Redirected             too many redirections
        ├── HostNotAllowed         the server names a host that `cluster.hosts` does not allow
        ├── ScriptMissing          the server does not have a script (it is loaded again)
        ├── DurabilityUnavailable  this server cannot offer the requested durability
        └── CommandRefused         the server refused the command (WRONGTYPE, CROSSSLOT, ERR …)

A call that returns is *confirmed*. `Rejected` means nothing was stored; `OutcomeUnknown` means that
repeating is safe only under the same idempotency key.
"""

from __future__ import annotations

from penstock.errors import base, coordination, documents, queues, server, topics
from penstock.errors.base import *
from penstock.errors.coordination import *
from penstock.errors.documents import *
from penstock.errors.queues import *
from penstock.errors.server import *
from penstock.errors.topics import *

__all__: list[str] = []
__all__ += base.__all__
__all__ += coordination.__all__
__all__ += documents.__all__
__all__ += queues.__all__
__all__ += server.__all__
__all__ += topics.__all__

# The name of a class is stored with failed jobs and messages, and pickled: it does not depend on
# the module of this package that the class is in.
for _name in __all__:
    globals()[_name].__module__ = __name__
