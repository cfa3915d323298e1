"""No false alarms: histories of a correct little topic, with kills, pauses and lost replies, pass.

The topic below lives in memory and keeps all promises; Hypothesis decides what happens to it.
"""

import itertools
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.history import Event, check

GROUPS = ("billing", "search")
PARTITIONS = (0, 1)
MAX_ATTEMPTS = 3
PREFETCHED = 2


@dataclass
class Entry:
    id: str
    key: str
    payload: str
    target: str = ""

    def __hash__(self):
        return hash(self.id)


@dataclass
class Shelf:
    """What the server keeps for one group and partition."""

    position: int = 0
    epoch: int = 0
    pending: dict = field(default_factory=dict)  # entry -> deliveries
    waiting: set = field(default_factory=set)  # to be retried
    letters: dict = field(default_factory=dict)  # entry -> attempts


@dataclass
class Owner:
    """What a worker believes about one group and partition."""

    actor: str
    group: str
    partition: int
    epoch: int
    queue: list
    running: tuple | None = None  # entry, attempt, how it ended


class Topic:
    def __init__(self):
        self.events = []
        self.numbers = itertools.count(1)
        self.log = {partition: [] for partition in PARTITIONS}
        self.shelves = {(g, p): Shelf() for g in GROUPS for p in PARTITIONS}
        self.owners = {}
        self.zombies = []
        self.delayed = []  # due, entry, partition
        self.known = {}  # idempotency key -> partition, id

    # recording

    def write(self, actor, op, phase="", **facts):
        number = len(self.events)
        self.events.append(
            Event(
                seq=number,
                actor=actor,
                pid=1,
                t_mono=float(number),
                t_wall=0.0,
                op=op,
                phase=phase,
                **facts,
            )
        )
        return number

    def told(self, owner, entry):
        return {"group": owner.group, "partition": owner.partition, "msg": entry.id}

    # producers

    def send(self, key, outcome, name, delay):
        idem = f"once-{name}" if name else ""
        delay = float(10 * name) if name else delay * 4.0
        payload = idem or f"payload-{next(self.numbers)}"
        actor = f"producer-{key % 2}"
        key = f"key-{name or key}"
        call = self.write(
            actor, "send", "invoke", key=key, idem=idem, payload_hash=payload, delay_s=delay
        )
        if outcome == "fail":
            self.write(actor, "send", "fail", call=call)
            return
        if outcome != "dropped":
            partition, stored = self.known.get(idem) or self.store(key, payload, delay)
            if idem:
                self.known[idem] = partition, stored
        if outcome == "ok":
            self.write(actor, "send", "ok", call=call, partition=partition, msg=stored)
        elif outcome == "unknown":
            self.write(actor, "send", "unknown", call=call)

    def store(self, key, payload, delay):
        partition = ord(key[-1]) % 2
        if not delay:
            return partition, self.append(partition, key, payload).id
        entry = Entry(f"delayed-{next(self.numbers)}", key, payload)
        self.delayed.append((len(self.events) + delay, entry, partition))
        return partition, entry.id

    def append(self, partition, key, payload, target=""):
        entry = Entry(f"{next(self.numbers)}-0", key, payload, target)
        self.log[partition].append(entry)
        return entry

    def move(self):
        for item in [item for item in self.delayed if item[0] <= len(self.events)]:
            self.delayed.remove(item)
            self.append(item[2], item[1].key, item[1].payload)

    # owners

    def acquire(self, group, partition):
        shelf = self.shelves[group, partition]
        shelf.epoch += 1
        left = sorted(
            (entry for entry in shelf.pending if entry not in shelf.waiting),
            key=lambda entry: int(entry.id[:-2]),
        )
        owner = Owner(f"worker-{next(self.numbers)}", group, partition, shelf.epoch, left)
        self.owners[group, partition] = owner
        self.write(owner.actor, "grant", group=group, partition=partition, fence=owner.epoch)

    def fetch(self, owner, shelf):
        log = self.log[owner.partition]
        while len(owner.queue) < PREFETCHED and shelf.position < len(log):
            entry = log[shelf.position]
            shelf.position += 1
            if entry.target in {"", owner.group}:
                shelf.pending[entry] = 0
                owner.queue.append(entry)

    def step(self, place, outcome):
        if place not in self.owners:
            self.acquire(*place)
        self.go_on(self.owners[place], outcome, stale=False)

    def resume(self, outcome):
        if self.zombies:
            zombie = self.zombies[0]
            self.go_on(zombie, outcome, stale=True)
            if zombie.running is None and not zombie.queue and zombie in self.zombies:
                self.zombies.remove(zombie)

    def go_on(self, owner, outcome, *, stale):
        shelf = self.shelves[owner.group, owner.partition]
        if owner.running is None:
            self.begin(owner, shelf, stale=stale)
        elif owner.running[2] is None:
            entry, attempt, _ = owner.running
            owner.running = (entry, attempt, outcome)
            ended = "ok" if outcome == "ok" else "fail"
            self.write(owner.actor, "finish", ended, attempt=attempt, **self.told(owner, entry))
        else:
            self.settle(owner, shelf, stale=stale)

    def begin(self, owner, shelf, *, stale):
        if not stale and not owner.queue:
            self.fetch(owner, shelf)
        if not stale and not owner.queue and shelf.waiting:
            owner.queue.append(min(shelf.waiting, key=lambda entry: entry.id))
            shelf.waiting.discard(owner.queue[0])
        if not owner.queue:
            return
        entry = owner.queue.pop(0)
        if stale:
            attempt = 1  # it was counted when it was read, before the lease was lost
        elif shelf.pending[entry] >= MAX_ATTEMPTS:
            owner.running = (entry, MAX_ATTEMPTS, "dead")
            self.settle(owner, shelf, stale=False)
            return
        else:
            attempt = shelf.pending[entry] = shelf.pending[entry] + 1
        owner.running = (entry, attempt, None)
        told = {"key": entry.key, "payload_hash": entry.payload, "attempt": attempt}
        self.write(owner.actor, "start", **told, **self.told(owner, entry))

    def settle(self, owner, shelf, *, stale):
        entry, attempt, outcome = owner.running
        owner.running = None
        op = {"ok": "ack", "retry": "retry", "dead": "dead"}[outcome]
        if op == "retry" and attempt >= MAX_ATTEMPTS:
            op = "dead"
        call = self.write(owner.actor, op, "invoke", attempt=attempt, **self.told(owner, entry))
        if stale:
            self.write(owner.actor, op, "refused", call=call)
            facts = {"group": owner.group, "partition": owner.partition, "victim": owner.actor}
            self.write(owner.actor, "lose", **facts)
            self.zombies.remove(owner)
            return
        if op == "retry":
            shelf.waiting.add(entry)
        else:
            del shelf.pending[entry]
        if op == "dead":
            shelf.letters[entry] = attempt
        self.write(owner.actor, op, "accepted", call=call)

    def release(self, place):
        if place in self.owners and self.owners[place].running is None:
            del self.owners[place]

    def lose_reply(self, place):
        """Killed when the server has taken the ack, before its owner knows."""
        self.kill(place, reply_lost=True)

    def kill(self, place, *, reply_lost=False):
        owner = self.owners.pop(place, None)
        if owner is None:
            return
        if reply_lost and owner.running and owner.running[2] == "ok":
            entry, attempt, _ = owner.running
            self.write(owner.actor, "ack", "invoke", attempt=attempt, **self.told(owner, entry))
            del self.shelves[place].pending[entry]
        self.write("nemesis", "lose", victim=owner.actor)

    def pause(self, place):
        """The lease runs out meanwhile; what was read and not begun is counted as read once."""
        owner = self.owners.pop(place, None)
        if owner is None:
            return
        shelf = self.shelves[place]
        fresh = [entry for entry in owner.queue if shelf.pending[entry] == 0]
        for entry in fresh:
            shelf.pending[entry] = 1
        owner.queue = fresh
        self.zombies.append(owner)
        self.write("nemesis", "lose", victim=owner.actor)

    def purge(self, place):
        self.replay(place, purge=True)

    def replay(self, place, *, purge=False):
        letters = self.shelves[place].letters
        if not letters:
            return
        group, partition = place
        entry, _ = letters.popitem()
        facts = {"msg": entry.id, "partition": partition, "group": group}
        if purge:
            self.write("admin", "purge", **facts)
        else:
            self.append(partition, entry.key, entry.payload, target=group)
            self.write("admin", "replay", "ok", **facts)

    # the end

    def read_all(self):
        for partition, log in self.log.items():
            for entry in log:
                facts = {"partition": partition, "msg": entry.id, "payload_hash": entry.payload}
                self.write("reader", "final", place="log", **facts)
        for _, entry, partition in self.delayed:
            facts = {"partition": partition, "msg": entry.id, "payload_hash": entry.payload}
            self.write("reader", "final", place="delayed", **facts)
        for place, shelf in self.shelves.items():
            for entry, where, attempt in self.found(place, shelf):
                self.write(
                    "reader",
                    "final",
                    place=where,
                    group=place[0],
                    partition=place[1],
                    msg=entry.id,
                    key=entry.key,
                    payload_hash=entry.payload,
                    attempt=attempt,
                    detail="it failed",
                )

    def found(self, place, shelf):
        for entry in self.log[place[1]][shelf.position :]:
            if entry.target in {"", place[0]}:
                yield entry, "stream", 0
        for entry in shelf.pending:
            yield entry, "retry" if entry in shelf.waiting else "pending", 0
        for entry, attempt in shelf.letters.items():
            yield entry, "dlq", attempt


def some_action(draw):
    """What happens next: a method of the topic and what it is told. `draw` picks from a list."""
    place = draw(list(itertools.product(GROUPS, PARTITIONS)))
    name = draw([*["send"] * 3, *["step"] * 8, *["resume"] * 2, *UPHEAVALS])
    if name == "send":
        outcome = draw(["ok", "ok", "ok", "unknown", "dropped", "fail"])
        return name, (draw(range(6)), outcome, draw(range(4)), draw(range(2)))
    if name == "step":
        return name, (place, draw(["ok", "ok", "retry", "dead"]))
    if name == "resume":
        return name, (draw(["ok", "retry"]),)
    return name, () if name == "move" else (place,)


UPHEAVALS = ("release", "pause", "kill", "lose_reply", "replay", "purge", "move")


def life(draw, length):
    topic = Topic()
    for _ in range(length):
        name, told = some_action(draw)
        getattr(topic, name)(*told)
    topic.read_all()
    return topic.events


def verdict_on(events):
    return check(
        events, max_attempts=MAX_ATTEMPTS, ordering="partition", groups=GROUPS, attempt_gaps=True
    )


@pytest.mark.faults
@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 80))
def test_a_topic_that_keeps_its_promises_is_never_convicted(data, length):
    verdict = verdict_on(life(lambda choices: data.draw(st.sampled_from(choices)), length))
    assert verdict.ok, str(verdict)


def test_a_long_life_gives_every_invariant_something_to_examine():
    verdict = verdict_on(life(random.Random(7).choice, 20_000))  # noqa: S311
    assert verdict.ok, str(verdict)
    examined = {f"I{number:02}" for number in (*range(1, 13), 15, 16, 19, 26)}
    assert {name for name, times in verdict.examined.items() if times > 20} == examined
    counts = verdict.counts
    assert counts.recovered < counts.sent_unknown
    assert min(counts.recovered, counts.duplicated, counts.dead, counts.sent_failed) > 20
    assert counts.lost == 0
