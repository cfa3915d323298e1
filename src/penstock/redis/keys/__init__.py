"""Every key name, spelled once, in both layouts: single server and cluster.

`Keys` builds them, `FAMILIES` holds what is promised about each, `classify` tells the family of a
key, `key_slot` its place on a cluster.
"""

from penstock.redis.keys.builder import Keys
from penstock.redis.keys.contract import FAMILIES
from penstock.redis.keys.coordination import (
    BatchKeys,
    CacheKeys,
    DedupeKeys,
    FeedKeys,
    HourlyLimitKeys,
    LimitKeys,
    RunKeys,
    SlotKeys,
    WindowKeys,
)
from penstock.redis.keys.family import Family, RedisType, Ttl
from penstock.redis.keys.keyring import QueueKeyring
from penstock.redis.keys.names import check_name, decode_id, encode_id
from penstock.redis.keys.queues import PRIORITIES, JobKeys, Priority, QueueKeys, QueuesKeys
from penstock.redis.keys.reading import KeyRead, classify, read_key
from penstock.redis.keys.slots import SLOTS, key_slot
from penstock.redis.keys.topics import PartitionKeys, TopicKeys, TopicsKeys
from penstock.redis.keys.uploads import UploadKeys
from penstock.redis.keys.workers import ProbeKeys, WorkersKeys

__all__ = [
    "FAMILIES",
    "PRIORITIES",
    "SLOTS",
    "BatchKeys",
    "CacheKeys",
    "DedupeKeys",
    "Family",
    "FeedKeys",
    "HourlyLimitKeys",
    "JobKeys",
    "KeyRead",
    "Keys",
    "LimitKeys",
    "PartitionKeys",
    "Priority",
    "ProbeKeys",
    "QueueKeyring",
    "QueueKeys",
    "QueuesKeys",
    "RedisType",
    "RunKeys",
    "SlotKeys",
    "TopicKeys",
    "TopicsKeys",
    "Ttl",
    "UploadKeys",
    "WindowKeys",
    "WorkersKeys",
    "check_name",
    "classify",
    "decode_id",
    "encode_id",
    "key_slot",
    "read_key",
]
