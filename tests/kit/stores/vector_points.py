"""Points for tests of vectors, and stores that are closed, and their process gone, at the end."""

from __future__ import annotations

import math
import random
import struct
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.settings import Settings, VectorSettings
from penstock.stores.opening import open_vectors
from penstock.stores.vectors.daemon_client import EmbeddedVectors
from penstock.stores.vectors.daemon_process import DaemonProcess
from penstock.stores.vectors.port import Point
from penstock.testing.eventually import eventually
from penstock.testing.processes import processes_in

DIMENSION = 8


def packed(values):
    return struct.pack(f"<{len(values)}f", *values)


def unit(seed, dimension=DIMENSION):
    """A vector of length 1 that depends on the seed alone."""
    chance = random.Random(seed)  # noqa: S311
    values = [chance.gauss(0, 1) for _ in range(dimension)]
    length = math.sqrt(sum(value * value for value in values))
    return packed([value / length for value in values])


def point_id(*parts):
    return str(uuid.uuid5(uuid.NAMESPACE_OID, repr(parts)))


def point(document, n, *, dimension=DIMENSION, **payload):
    seed = f"{document}/{n}"
    return Point(point_id(document, n), unit(seed, dimension), {"n": n, **payload})


def points(document, count, **options):
    return [point(document, n, **options) for n in range(count)]


def settings_for(home, **vectors):
    return Settings(home=str(home), vectors=VectorSettings(**{"linger_s": 0.2, **vectors}))


def place_of(home, **vectors) -> DaemonProcess:
    return DaemonProcess(Path(home) / "vectors", settings_for(home, **vectors).vectors)


@asynccontextmanager
async def opened(home, **vectors):
    store = open_vectors(settings_for(home, **vectors))
    assert isinstance(store, EmbeddedVectors)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def house_gone(home):
    folder = Path(home) / "vectors"
    await eventually(lambda: not processes_in(folder), what="the end of the house")
