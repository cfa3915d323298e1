"""Put the events of a history together: which sends, copies, runs, settlements and leases it tells.

A *sent* message is what a producer meant: one call, or all calls with one idempotency key. A
*copy* is an entry that was seen under a partition and an id. A *track* is what became of a copy in
a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.kit.history.record import Event, HistoryBroken

__all__ = ["Copy", "Grant", "Ledger", "Run", "Sent", "Track", "Write"]

Copy: TypeAlias = tuple[int | None, str]
Lease: TypeAlias = tuple[str, int | None]
"""A group and a partition."""


@dataclass(slots=True, eq=False)
class Sent:
    """A message as its producer meant it."""

    number: int
    first: Event
    """The first invoke, or the whole call where only its end was written."""
    calls: int = 0
    open_calls: int = 0
    """Calls whose outcome nobody knows."""
    confirmed: list[Event] = field(default_factory=list[Event])
    copies: set[Copy] = field(default_factory=set[Copy])
    """Ids that the sends returned and ids under which the message was seen."""
    seen: Event | None = None
    replays: int = 0

    @property
    def is_confirmed(self) -> bool:
        return bool(self.confirmed)

    @property
    def is_rejected(self) -> bool:
        """Every call was refused, so nothing of it may be stored."""
        return not self.confirmed and not self.open_calls

    @property
    def is_due(self) -> bool:
        """It must be somewhere: it was confirmed, or it was seen although nobody confirmed it."""
        return bool(self.confirmed) or (self.seen is not None and self.open_calls > 0)

    @property
    def partition(self) -> int | None:
        if self.confirmed and self.confirmed[0].partition is not None:
            return self.confirmed[0].partition
        return self.first.partition if self.seen is None else self.seen.partition

    def __str__(self) -> str:
        told = self.confirmed[0] if self.confirmed else self.seen or self.first
        name = f"message {told.msg or self.first.payload_hash or self.number}"
        name += f" of partition {self.partition}" if self.partition is not None else ""
        return name + (f" (key {self.first.key!r})" if self.first.key else "")


@dataclass(slots=True, eq=False)
class Run:
    """One start of a handler."""

    start: Event
    fence: int | None
    finish: Event | None = None
    accepted: bool = False
    taken_back: bool = False
    """Its owner had lost the lease, and took the attempt back afterwards."""

    @property
    def charged(self) -> bool:
        """Whether it was counted when it began, and was not handed back by its owner."""
        return self.finish is None or self.finish.phase != "cancelled"

    @property
    def done(self) -> bool:
        return self.finish is not None and self.finish.phase == "ok"


@dataclass(slots=True, eq=False)
class Write:
    """An ack, a retry or a dead-lettering, as its owner saw it end."""

    end: Event
    fence: int | None
    since: float
    """It reached the server after this moment."""
    outcome: str


@dataclass(slots=True, eq=False)
class Grant:
    """A lease or a claim given, between `since` and the event's time."""

    event: Event
    fence: int
    since: float


@dataclass(slots=True, eq=False)
class Track:
    """What became of one copy in one group."""

    group: str
    partition: int | None
    msg: str
    sent: Sent
    runs: list[Run] = field(default_factory=list[Run])
    writes: list[Write] = field(default_factory=list[Write])
    places: list[Event] = field(default_factory=list[Event])
    claims: list[Grant] = field(default_factory=list[Grant])
    """Where messages are not leased by partitions but taken in hand one by one."""

    def accepted(self, *ops: str) -> Write | None:
        """The first write of these kinds that the server took."""
        for write in self.writes:
            if write.outcome == "accepted" and write.end.op in ops:
                return write
        return None

    def last_run_of(self, event: Event) -> Run | None:
        """The run that `event` speaks of: its actor's last, of its attempt if that is told."""
        for run in reversed(self.runs):
            start = run.start
            if start.actor == event.actor and (
                not event.attempt or not start.attempt or start.attempt == event.attempt
            ):
                return run
        return None


class Ledger:
    """All that a history tells. `events` must be in the order of time."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.sents: list[Sent] = []
        self.tracks: dict[tuple[str, int | None, str], Track] = {}
        self.grants: defaultdict[Lease, list[Grant]] = defaultdict(list)
        self.losses: list[Event] = []
        self.purges: list[Event] = []
        self.groups: set[str] = set()
        self.finals = 0
        self.everywhere: list[tuple[Sent, Event]] = []
        """Places that count for every group: delayed messages."""
        self.voids: list[Event] = []
        """Seen, but never sent."""
        self.altered: list[tuple[Sent, Event]] = []
        """Seen with other bytes, or under an id that is another message's."""
        self._by_id: dict[Copy, Sent] = {}
        self._by_hash: dict[str, Sent] = {}
        self._invokes: dict[tuple[int, str, int], Event] = {}
        self._fences: dict[tuple[str, str, int | None], int] = {}
        self._unjoined: list[Event] = []
        self._read_rest(self._read_sends(events))
        self._end_open_writes()
        self._judge_unjoined()

    # sends

    def _read_sends(self, events: Iterable[Event]) -> list[Event]:
        """Take the sends first, so that every later sight can be joined with its send."""
        others: list[Event] = []
        by_idem: dict[str, Sent] = {}
        calls: dict[tuple[int, str, int], Sent] = {}
        for event in events:
            if event.op != "send":
                others.append(event)
            elif event.phase == "invoke":
                sent = self._sent(event, by_idem)
                sent.open_calls += 1
                calls[event.pid, event.actor, event.seq] = sent
            elif event.call is None:
                self._end_send(self._sent(event, by_idem), event)
            else:
                sent = calls.pop((event.pid, event.actor, event.call), None)
                if sent is None:
                    raise HistoryBroken(
                        f"a send of {event.actor} ended without its invoke: {event}"
                    )
                sent.open_calls -= 1
                self._end_send(sent, event)
        self._index_payloads()
        return others

    def _sent(self, event: Event, by_idem: dict[str, Sent]) -> Sent:
        sent = by_idem.get(event.idem) if event.idem else None
        if sent is None:
            sent = Sent(len(self.sents), event)
            self.sents.append(sent)
            if event.idem:
                by_idem[event.idem] = sent
        sent.calls += 1
        return sent

    def _end_send(self, sent: Sent, event: Event) -> None:
        if event.phase == "ok":
            sent.confirmed.append(event)
            if event.partition is not None and event.msg:
                if self._by_id.setdefault((event.partition, event.msg), sent) is not sent:
                    self.altered.append((sent, event))
                if not sent.first.delay_s:
                    sent.copies.add((event.partition, event.msg))
        elif event.phase == "unknown":
            sent.open_calls += 1

    def _index_payloads(self) -> None:
        """Of equal payloads the one without an id comes first: the others are found by theirs."""
        for sent in sorted(self.sents, key=lambda sent: bool(sent.copies)):
            if sent.first.payload_hash:
                self._by_hash.setdefault(sent.first.payload_hash, sent)

    # what happened to them

    def _read_rest(self, events: Iterable[Event]) -> None:
        readers: dict[str, Callable[[Event], None]] = {
            "start": self._read_start,
            "finish": self._read_finish,
            "ack": self._read_write,
            "retry": self._read_write,
            "dead": self._read_write,
            "uncharge": self._read_uncharge,
            "replay": self._read_replay,
            "grant": self._read_grant,
            "claim": self._read_claim,
            "lose": self.losses.append,
            "purge": self.purges.append,
            "final": self._read_final,
        }
        for event in events:
            if event.phase == "invoke":
                self._invokes[event.pid, event.actor, event.seq] = event
                continue
            if event.group:
                self.groups.add(event.group)
            readers[event.op](event)

    def _read_start(self, event: Event) -> None:
        track = self._seen(event)
        if track is not None:
            track.runs.append(Run(event, self._fence_of(event)))

    def _read_finish(self, event: Event) -> None:
        track = self.tracks.get((event.group, event.partition, event.msg))
        run = track.last_run_of(event) if track else None
        if run is not None and run.finish is None:
            run.finish = event

    def _read_write(self, event: Event, outcome: str = "") -> None:
        invoke = self._invoke_of(event)
        about = event if event.msg or invoke is None else invoke
        track = self._track(about)
        if track is None:
            self._unjoined.append(about)
            return
        run = track.last_run_of(about)
        since = event.t_mono
        if invoke is not None:
            since = invoke.t_mono
        elif run is not None and run.finish is not None:
            since = run.finish.t_mono
        fence = event.fence if event.fence is not None else self._fence_of(about)
        outcome = outcome or event.phase
        track.writes.append(Write(event, fence, since, outcome))
        if run is not None and outcome == "accepted":
            run.accepted = True

    def _read_uncharge(self, event: Event) -> None:
        track = self.tracks.get((event.group, event.partition, event.msg))
        run = track.last_run_of(event) if track else None
        if run is not None:  # else it was fetched and never begun
            run.taken_back = True

    def _read_grant(self, event: Event) -> None:
        invoke = self._invoke_of(event)
        if event.phase not in {"", "ok", "accepted"} or event.fence is None:
            return
        about = event if event.group or invoke is None else invoke
        since = event.t_mono if invoke is None else invoke.t_mono
        self.groups.add(about.group)
        self._fences[event.actor, about.group, about.partition] = event.fence
        self.grants[about.group, about.partition].append(Grant(event, event.fence, since))

    def _read_claim(self, event: Event) -> None:
        track = self._seen(event)
        if track is None or event.fence is None:
            return
        invoke = self._invokes.get((event.pid, event.actor, event.call or 0))
        since = event.t_mono if invoke is None or event.call is None else invoke.t_mono
        track.claims.append(Grant(event, event.fence, since))

    def _read_replay(self, event: Event) -> None:
        sent = self.find(event)
        if sent is not None and event.phase != "fail":
            sent.replays += 1

    def _read_final(self, event: Event) -> None:
        self.finals += 1
        if event.group:
            track = self._seen(event)
            if track is not None:
                track.places.append(event)
            return
        sent = self._sight(event)
        if sent is not None and event.place != "log":
            self.everywhere.append((sent, event))

    def _end_open_writes(self) -> None:
        for invoke in list(self._invokes.values()):
            if invoke.op in {"ack", "retry", "dead"}:
                self._read_write(invoke, "unknown")

    def _judge_unjoined(self) -> None:
        """A write need not tell bytes, so it may be about a send whose id nobody learnt."""
        if not any(sent.open_calls for sent in self.sents):
            self.voids += self._unjoined

    # joining

    def find(self, event: Event) -> Sent | None:
        """The sent message that `event` speaks of, by its id or else by its bytes."""
        sent = self._by_id.get((event.partition, event.msg))
        if sent is None and event.payload_hash:
            sent = self._by_hash.get(event.payload_hash)
        return sent

    def _seen(self, event: Event) -> Track | None:
        return None if self._sight(event) is None else self._track(event)

    def _sight(self, event: Event) -> Sent | None:
        """A copy was seen: remember whose it is, and whether its bytes are right."""
        sent = self.find(event)
        if sent is None:
            self.voids.append(event)
            return None
        if event.payload_hash and event.payload_hash != sent.first.payload_hash:
            self.altered.append((sent, event))
        if sent.seen is None:
            sent.seen = event
        if event.msg and event.place != "delayed":
            sent.copies.add((event.partition, event.msg))
            self._by_id.setdefault((event.partition, event.msg), sent)
        return sent

    def _track(self, event: Event) -> Track | None:
        name = (event.group, event.partition, event.msg)
        track = self.tracks.get(name)
        if track is None:
            sent = self.find(event)
            if sent is None:
                return None
            track = self.tracks[name] = Track(*name, sent)
        return track

    def _invoke_of(self, event: Event) -> Event | None:
        if event.call is None:
            return None
        return self._invokes.pop((event.pid, event.actor, event.call), None)

    def _fence_of(self, event: Event) -> int | None:
        if event.fence is not None:
            return event.fence
        return self._fences.get((event.actor, event.group, event.partition))
