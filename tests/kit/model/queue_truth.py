"""Where the jobs of a queue are to be, and where they are seen to be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.queues.dead_letters.letter import read_letter
from penstock.queues.queue import Queue
from penstock.queues.storage.stored_job import read_item
from penstock.redis.keys.names import decode_id

STATES = ("submitted", "queued", "processing", "retrying", "done", "failed", "cancelled", "expired")
FINAL = frozenset({"done", "failed", "cancelled", "expired"})
LANES = ("", "high", "normal", "low", "a", "b")
FAIR = ("a", "b")
AT_LIMIT = 9e15


@dataclass
class Known:
    """A job as the model knows it."""

    id: str
    lane: str
    status: str = ""
    """Of its record; empty for a job without one."""
    unique: str = ""
    place: str = "waiting"
    """waiting, delayed, claimed, dead, overflow, or gone."""
    worker: str = ""
    claim: str = ""
    in_front: bool = False
    """Whether it goes to the front when it is due."""
    attempts: int = 0
    crashes: int = 0
    is_new: bool = True
    """Whether nothing has come of it yet: it may run before its record says so."""

    def turn(self, status: str) -> None:
        """Take a state, if the job has a record that has not ended."""
        if self.status and self.status not in FINAL:
            self.status = status


@dataclass
class Truth:
    """All that is to be so."""

    jobs: dict[str, Known] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=lambda: {lane: [] for lane in LANES})
    letters: list[str] = field(default_factory=list)
    overflow: list[str] = field(default_factory=list)
    due: list[str] = field(default_factory=list)
    uniques: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    live: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    """Workers that left or fell silent, and whose jobs are not returned yet."""

    def at(self, place: str) -> list[Known]:
        return [job for job in self.jobs.values() if job.place == place]

    def held_by(self, worker: str) -> list[Known]:
        held = [job for job in self.at("claimed") if job.worker == worker]
        return sorted(held, key=lambda job: int(job.claim.partition(":")[0]))

    def running_in(self, lane: str) -> int:
        return sum(job.lane == lane for job in self.at("claimed"))

    def free(self, job: Known) -> None:
        if self.uniques.get(job.unique) == job.id:
            del self.uniques[job.unique]

    def to_front(self, jobs: list[Known]) -> None:
        """Put jobs before the others of their lanes, in the order given."""
        for job in reversed(jobs):
            job.place, job.worker, job.claim = "waiting", "", ""
            job.turn("queued")
            self.lists[job.lane].insert(0, job.id)


@dataclass
class Seen:
    """What stands on the server."""

    lists: dict[str, list[str]]
    stored_bytes: int
    claims: dict[str, dict[str, str]]
    delayed: set[str]
    bodies: set[str]
    letters: list[str]
    overflow: list[str]
    records: dict[str, tuple[str, int]]
    """From id to state and TTL."""
    indexes: dict[str, set[str]]
    uniques: dict[str, str]
    guard_ttls: set[int]
    """Times to live of unique keys and of the marks of cancelled jobs."""
    marks: set[str]
    """Jobs that were cancelled while they waited."""
    ring: list[str]
    parked: dict[str, float]
    running: dict[str, set[str]]
    counters: dict[str, int]
    bytes_noted: int


async def look(queue: Queue) -> Seen:
    """Read all keys of a queue, found by their names."""
    call, keys = queue.client.call, queue.keyring

    def id_of(data: bytes) -> str:
        return read_item(data, queue.codec).id

    async def names(beginning: str) -> list[str]:
        found = [name.decode() for name in await call("KEYS", f"{beginning}*")]
        return [name[len(beginning) :] for name in found]

    async def hashed(key: str) -> dict[str, bytes]:
        flat = await call("HGETALL", key)
        return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}

    lists, size = {}, 0
    for lane in LANES:
        items = await call("LRANGE", keys.list_of(lane), 0, -1)
        lists[lane] = [id_of(item) for item in items]
        size += sum(map(len, items))
    claims = {}
    for worker in await names(keys.claims):
        held = await hashed(keys.claimed(worker))
        claims[worker] = {claim: id_of(data) for claim, data in held.items()}
    records = {}
    for name in await names(keys.records):
        said = await hashed(keys.records + name)
        assert decode_id(name) == said["job_id"].decode()
        records[name] = (said["status"].decode(), await call("PTTL", keys.records + name))
    parked = await call("ZRANGE", keys.parked, 0, -1, "WITHSCORES")
    return Seen(
        lists=lists,
        stored_bytes=size,
        claims=claims,
        delayed={one.decode() for one in await call("ZRANGE", keys.delayed, 0, -1)},
        bodies=set(await hashed(keys.delayed_bodies)),
        letters=[read_letter(one).id for one in await call("LRANGE", keys.dead_letters, 0, -1)],
        overflow=[read_letter(one).id for one in await call("LRANGE", keys.overflow, 0, -1)],
        records=records,
        indexes={
            state: {one.decode() for one in await call("ZRANGE", keys.jobs(state), 0, -1)}
            for state in STATES
        },
        uniques={
            name: (await call("GET", keys.uniques + name)).decode()
            for name in await names(keys.uniques)
        },
        guard_ttls={
            await call("PTTL", key)
            for key in (keys.cancelled, *map(keys.unique, await names(keys.uniques)))
        },
        marks={one.decode() for one in await call("SMEMBERS", keys.cancelled)},
        ring=[lane.decode() for lane in await call("LRANGE", keys.ring, 0, -1)],
        parked={
            lane.decode(): float(score)
            for lane, score in zip(parked[::2], parked[1::2], strict=True)
        },
        running={
            lane: {one.decode() for one in await call("SMEMBERS", keys.runnings + lane)}
            for lane in FAIR
        },
        counters={name: int(count) for name, count in (await hashed(keys.counters)).items()},
        bytes_noted=int(await call("HGET", keys.state, "bytes") or 0),
    )


def check(truth: Truth, seen: Seen) -> None:
    """Every job is in the one place where it is to be, and all that is said about it agrees."""
    assert seen.lists == truth.lists
    expected: dict[str, dict[str, str]] = {}
    for job in truth.at("claimed"):
        expected.setdefault(job.worker, {})[job.claim] = job.id
    assert seen.claims == expected
    delayed = {job.id for job in truth.at("delayed")}
    assert seen.delayed == seen.bodies == delayed
    assert seen.letters == truth.letters
    assert seen.overflow == truth.overflow
    places = Counter(
        [id_ for ids in seen.lists.values() for id_ in ids]
        + [id_ for held in seen.claims.values() for id_ in held.values()]
        + [*seen.delayed, *seen.letters, *seen.overflow]
    )
    there = {job.id for job in truth.jobs.values() if job.place != "gone"}
    assert places == dict.fromkeys(there, 1)

    tracked = {job.id: job.status for job in truth.jobs.values() if job.status}
    assert {id_: status for id_, (status, _) in seen.records.items()} == tracked
    for status, ttl in seen.records.values():
        assert (ttl > 0) == (status in FINAL)
    for state in STATES:
        assert seen.indexes[state] == {id_ for id_, status in tracked.items() if status == state}
    assert seen.uniques == truth.uniques
    assert seen.guard_ttls <= {-1, -2}, "what guards live work lives as long as the work"
    cancelled = [job for job in truth.jobs.values() if job.status == "cancelled"]
    on_lists = {job.id for job in cancelled if job.place == "waiting"}
    in_hand = {job.id for job in cancelled if job.place == "claimed"}
    assert on_lists <= seen.marks <= on_lists | in_hand

    with_jobs = {lane for lane in FAIR if truth.lists[lane]}
    assert len(seen.ring) == len(set(seen.ring))
    assert set(seen.ring) <= with_jobs <= set(seen.ring) | seen.parked.keys()
    assert not set(seen.ring) & seen.parked.keys()
    for lane in FAIR:
        held = {f"{job.worker} {job.claim}" for job in truth.at("claimed") if job.lane == lane}
        assert seen.running[lane] == held
        if seen.parked.get(lane) == AT_LIMIT:
            assert held, "nothing would ever set the lane free"
    assert seen.bytes_noted == seen.stored_bytes
    assert seen.counters == {name: count for name, count in truth.counts.items() if count}
