"""The stored contract: key families of all engines, and the family of a given key.

`docs/contracts.md` has the same table; tests keep the two equal and check that each key property
has its entry here.
"""

from __future__ import annotations

from typing import Final

from penstock.coordination.contract import COORDINATION_FAMILIES
from penstock.coordination.uploads.contract import UPLOAD_FAMILIES
from penstock.queues.storage.contract import QUEUE_FAMILIES
from penstock.queues.storage.keys import AREA_WORDS, PRIORITIES
from penstock.redis.keys import names
from penstock.redis.keys.family import Family
from penstock.redis.keys.probe import PROBE_FAMILIES
from penstock.redis.keys.reading import KeyRead, KeyReader, any_but
from penstock.runtime.keys import WORKER_FAMILIES
from penstock.settings.redis import RESERVED_WORDS
from penstock.topics.storage.contract import TOPIC_FAMILIES
from penstock.topics.storage.keys import TOPIC_ARGUMENTS

__all__ = ["FAMILIES", "classify", "read_key"]

FAMILIES: Final[tuple[Family, ...]] = (
    *TOPIC_FAMILIES,
    *QUEUE_FAMILIES,
    *WORKER_FAMILIES,
    *PROBE_FAMILIES,
    *COORDINATION_FAMILIES,
    *UPLOAD_FAMILIES,
)

_AREA_PART = f"{any_but(AREA_WORDS)}{names.NAME}"
_AREA = f"{any_but(RESERVED_WORDS)}{_AREA_PART}(?::{_AREA_PART})*"

_READER: Final = KeyReader(
    FAMILIES,
    {
        **TOPIC_ARGUMENTS,
        "area": _AREA,
        "beside": r"(?:[A-Za-z0-9_.:-]|%[0-9A-F]{2})+",
        "chunk": names.NUMBER,
        "hour": names.HOUR,
        "lane": f"{any_but({*PRIORITIES, names.QUEUE_WORD})}{names.ID}",
        "name": names.NAME,
        "priority": "|".join(PRIORITIES),
        "queue": f"{_AREA}:{names.QUEUE_WORD}|{any_but(RESERVED_WORDS)}{names.NAME}",
    },
)


def classify(key: str | bytes, namespace: str = "") -> Family | None:
    """Family of a key in either layout; None if it is not one of ours in this namespace.

    The name alone decides. A queue's jobs wait under its plain name, so without a namespace any
    foreign `word` or `word:other` reads as a queue or a lane: compare the type as well.
    """
    read = read_key(key, namespace)
    return read and read.family


def read_key(key: str | bytes, namespace: str = "") -> KeyRead | None:
    """Family and arguments of a key in either layout; None as for `classify`."""
    return _READER.read(key, namespace)
