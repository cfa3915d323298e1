"""A topic used in any order by producers, owners, thieves and people; checked after every step."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.kit.scripts import scripts_of

from penstock.errors import CommandRefused
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings, Settings
from penstock.topics.admin.groups import delete_group
from penstock.topics.admin.growth import grow_topic
from penstock.topics.admin.retention import trim_partition
from penstock.topics.dead_letters.dead_letters import DeadLetters
from penstock.topics.dead_letters.letter import bury
from penstock.topics.message import Message, Source
from penstock.topics.storage.entries import claimed_fields, message_fields
from penstock.topics.storage.group_registration import register_group
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.metadata import Retention, ensure_topic, read_metadata
from penstock.topics.storage.scripts import CONSUMER, PartitionOwner, PublishKeys

from .compare import check
from .seen import look
from .truth import BEGINNING, Delayed, Id, Partition, Place, Share, Stored, Truth, numbers, spelled

T = TypeVar("T")

TOPIC = "orders"
GROUPS = ("billing", "mail")
WORKERS = ("anna", "ben", "carl")
LEASE_MS = 600_000
HOUR_MS = 3_600_000
STALE = -1
# Small, so that pages have to be turned.
PAGE = 2

any_group = st.sampled_from(GROUPS)
any_worker = st.sampled_from(WORKERS)
any_number = st.integers(0, 11)
"""Chooses among what there is, by its remainder."""
some_numbers = st.lists(any_number, min_size=1, max_size=3)


rarely = precondition(lambda self: self.steps % 4 == 0)
"""For what undoes the work of many steps."""


@dataclass(slots=True)
class HeldPartition:
    """A partition as one owner believes to have it: it may have passed on long ago."""

    worker: str
    group: str
    index: int
    epoch: int
    fresh: set[Id] = field(default_factory=set)
    """Read and not begun."""
    begun: set[Id] = field(default_factory=set)
    again: set[Id] = field(default_factory=set)
    """Taken over, or due again: the next attempt has to be counted first."""
    failed: set[Id] = field(default_factory=set)
    """Messages of which an earlier attempt failed, or may have."""

    def held(self) -> list[Id]:
        return sorted(self.fresh | self.begun | self.again)

    def drop(self, id_: Id) -> None:
        for some in (self.fresh, self.begun, self.again, self.failed):
            some.discard(id_)


class TopicMachine(RuleBasedStateMachine):
    """`url` is the server's; the class of a test names it."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.namespace = f"model-{uuid.uuid4().hex[:8]}"
        self.client = Client(Settings(url=self.url, namespace=self.namespace))
        self.hands: list[HeldPartition] = []
        self.sent = self.steps = 0
        self.generation = 1

    def do(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self.runner.run(wait())

    @initialize(partitions=st.integers(1, 2), groups=st.integers(1, 2), backlog=st.integers(1, 6))
    def create(self, partitions: int, groups: int, backlog: int) -> None:
        """Begin in the middle of work: every partition has messages and an owner that reads."""
        self.do(self.client.open())
        self.do(self.client.call("FLUSHALL"))
        self.do(ensure_topic(self.client, TOPIC, partitions))
        self.truth = Truth([Partition() for _ in range(partitions)])
        self.letters = DeadLetters(self.client, Codec(CodecSettings()), TOPIC)
        for index in range(partitions):
            self.send(choice=index, key=None, count=backlog)
        for group, worker in zip(GROUPS[:groups], WORKERS, strict=False):
            self.register(group=group, start="0")
            for index in range(partitions):
                self.acquire(worker=worker, group=group, choice=index, count=3)

    def teardown(self) -> None:
        self.do(self.client.close())
        self.runner.close()

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        self.steps += 1
        check(self.truth, self.do(look(self.client, TOPIC, len(self.truth.partitions))))

    # ---- producers

    @rule(choice=any_number, key=st.sampled_from((None, "k")), count=st.integers(1, 3))
    def send(self, choice: int, key: str | None, count: int) -> None:
        index = choice % len(self.truth.partitions)
        stream = self.keys(index).stream
        for _ in range(count):
            fields = message_fields(self.next_payload(), key and key.encode(), None)
            id_ = self.do(self.client.call("XADD", stream, "NOMKSTREAM", "*", *fields))
            self.store(index, numbers(id_), fields)

    @rule(
        choice=any_number,
        once=st.sampled_from(("", "a", "b")),
        is_large=st.booleans(),
        due=st.sampled_from(("now", "past", "at once", "soon", "far")),
    )
    def publish(self, choice: int, once: str, is_large: bool, due: str) -> None:
        """Send what a plain XADD cannot: once per key, with a large body, or for later."""
        index = choice % len(self.truth.partitions)
        partition = self.truth.partitions[index]
        keys, data = self.keys(index), self.next_payload()
        name = f"body{self.sent}" if is_large else ""
        place = keys.payload(name or "none")
        fields = claimed_fields(place, 1, None, None) if name else message_fields(data, None, None)
        waits = {"now": 0, "past": -1, "at once": 0, "soon": 2, "far": HOUR_MS}
        waiting_id = "" if due == "now" else f"d-{self.sent}"
        before_ms = self.server_ms()
        id_, is_new, wait_ms = self.do(
            scripts_of(self.client).publish_message(
                keys=PublishKeys.of(keys, name),
                idempotency_key=once,
                remember_ms=HOUR_MS,
                payload_name=name,
                body=data,
                waiting_id=waiting_id,
                wait_ms=waits[due],
                fields=fields,
            )
        )
        known = partition.remembered.get(once)
        assert is_new == (known is None)
        if known is not None:
            assert id_.decode() == known
            return
        if once:
            partition.remembered[once] = id_.decode()
        if due == "now":
            self.store(index, numbers(id_), fields, name)
            return
        due_ms = int(self.do(self.client.call("ZSCORE", keys.delayed, waiting_id)))
        assert before_ms <= due_ms - wait_ms <= self.server_ms()
        assert wait_ms == max(0, waits[due])
        partition.delayed[waiting_id] = Delayed(due_ms, texts(fields), name)

    @rule(choice=any_number, most=st.sampled_from((1, 500)))
    def move_due(self, choice: int, most: int) -> None:
        index = choice % len(self.truth.partitions)
        keys, partition = self.keys(index), self.truth.partitions[index]
        last = max(partition.messages, default=BEGINNING)
        before_ms = self.server_ms()
        moved, next_ms = self.do(
            scripts_of(self.client).move_due(
                stream=keys.stream,
                delayed=keys.delayed,
                delayed_bodies=keys.delayed_bodies,
                payloads=keys.payloads,
                counters=keys.counters,
                count=most,
                generation=self.generation,
            )
        )
        after_ms = self.server_ms()
        due = sorted(partition.delayed, key=lambda name: (partition.delayed[name].due_ms, name))
        surely = [name for name in due if partition.delayed[name].due_ms <= before_ms]
        perhaps = [name for name in due if partition.delayed[name].due_ms <= after_ms]
        assert min(most, len(surely)) <= moved <= min(most, len(perhaps))
        new = self.do(self.client.call("XRANGE", keys.stream, f"({spelled(last)}", "+"))
        for name, (id_, fields) in zip(due[:moved], new, strict=True):
            one = partition.delayed.pop(name)
            assert one.fields == texts(fields)
            self.store(index, numbers(id_), one.fields, one.body)
        assert (next_ms == -1) == (not partition.delayed)

    # ---- groups

    @rarely
    @rule(group=any_group, start=st.sampled_from(("0", "$")))
    def register(self, group: str, start: str) -> None:
        facts = self.do(read_metadata(self.client, TOPIC))
        self.do(register_group(self.client, facts, group, start))
        for index, partition in enumerate(self.truth.partitions):
            if group not in partition.shares:
                epoch = int(self.do(self.client.call("HGET", self.keys(index).epochs, group)))
                share = partition.shares[group] = Share(epoch, BEGINNING)
                last = max(partition.messages, default=BEGINNING)
                position = BEGINNING if start == "0" else last
                for id_, message in partition.messages.items():
                    if message.trimmed:
                        share.ended[id_] = Place.OUTSIDE
                share.start_over(epoch, position, partition.messages)
                self.revive(group, index)

    @rarely
    @rule(group=any_group, choice=any_number, position=st.sampled_from(("0", "$", "an id")))
    def reset(self, group: str, choice: int, position: str) -> None:
        index = choice % len(self.truth.partitions)
        partition, keys = self.truth.partitions[index], self.keys(index)
        share, ids = partition.shares.get(group), list(partition.messages)
        goal = max(ids, default=BEGINNING) if position == "$" else BEGINNING
        if position == "an id" and ids:
            goal = ids[choice % len(ids)]
        done = self.do(
            scripts_of(self.client).reset_group(
                **self.share_keys(group, index, "stream", "epochs", "commit"),
                lease=keys.lease(group),
                retry=keys.retry(group),
                failures=keys.failures(group),
                group=group,
                position="$" if position == "$" else spelled(goal),
                fences=keys.fence(group, 0).removesuffix("0"),
            )
        )
        assert done == (share is not None)
        if share is not None:
            share.start_over(share.epoch + 1, goal, partition.messages)
            self.revive(group, index)

    @rarely
    @precondition(lambda self: self.is_known(GROUPS[1]))
    @rule()
    def delete(self) -> None:
        self.do(delete_group(self.client, TOPIC, GROUPS[1], force=True, who="model"))
        for partition in self.truth.partitions:
            del partition.shares[GROUPS[1]]

    @rarely
    @precondition(lambda self: len(self.truth.partitions) < 3 and self.sent > 3)
    @rule()
    def grow(self) -> None:
        count = len(self.truth.partitions) + 1
        meta = TopicKeys.of(self.client.keys, TOPIC).meta
        # Nobody sends meanwhile, so nobody has to be waited for.
        self.do(scripts_of(self.client).begin_growth(meta=meta, partitions=count, hold_ms=0))
        self.do(grow_topic(self.client, TOPIC, count))
        facts = self.do(self.client.call("HGETALL", meta))
        generation = int(facts[facts.index(b"generation") + 1])
        for index in range(count - 1):
            marker = facts[facts.index(f"barrier:{generation}:{index}".encode()) + 1]
            self.store(index, numbers(marker), ("barrier", str(generation)))
        self.generation = generation
        new = Partition()
        for group in self.truth.partitions[0].shares:
            new.shares[group] = Share(
                int(self.do(self.client.call("HGET", self.keys(count - 1).epochs, group))),
                BEGINNING,
            )
        self.truth.partitions.append(new)

    # ---- owners

    @rule(worker=any_worker, group=any_group, choice=any_number, count=st.integers(0, 3))
    def acquire(self, worker: str, group: str, choice: int, count: int) -> None:
        index = choice % len(self.truth.partitions)
        share = self.truth.partitions[index].shares.get(group)
        epoch = self.do(
            scripts_of(self.client).acquire_partition(
                **self.share_keys(group, index, "epochs"),
                lease=self.keys(index).lease(group),
                group=group,
                owner=worker,
                ttl_ms=LEASE_MS,
                fences=self.keys(index).fence(group, 0).removesuffix("0"),
                dead_owner="",
            )
        )
        if share is None:
            assert epoch == -1
        elif share.owner not in {None, worker}:
            assert epoch == 0
        else:
            place = (group, index)
            assert epoch > max(share.epoch, self.truth.epochs_seen.get(place, 0))
            self.truth.epochs_seen[place] = epoch
            share.epoch = share.fenced_epoch = epoch
            share.owner = worker
            hand = HeldPartition(worker, group, index, epoch)
            self.hands.append(hand)
            self.take_over(hand)
            if count:
                self.read_now(hand, count)

    @precondition(lambda self: self.hands)
    @rule(choice=any_number)
    def look_for_strays(self, choice: int) -> None:
        hand = self.hands[choice % len(self.hands)]
        if not hand.held():
            self.take_over(hand)

    @precondition(lambda self: self.hands)
    @rule(choice=any_number)
    def renew(self, choice: int) -> None:
        hand = self.hands[choice % len(self.hands)]
        share = self.current(hand)
        held = self.do(scripts_of(self.client).renew_partition(self.owner(hand), ttl_ms=LEASE_MS))
        assert held == (share is not None and share.owner in {None, hand.worker})
        if share is not None and held:
            share.owner, share.fenced_epoch = hand.worker, hand.epoch

    @precondition(lambda self: self.hands)
    @rule(choice=any_number)
    def release(self, choice: int) -> None:
        hand = self.hands.pop(choice % len(self.hands))
        share = self.current(hand)
        given_up = self.do(
            scripts_of(self.client).release_partition(
                self.owner(hand), unbegun=[spelled(id_) for id_ in hand.fresh]
            )
        )
        assert given_up == (share is not None)
        if share is not None:
            share.owner = share.fenced_epoch = None
            share.epoch += 1
            for id_ in hand.fresh:
                self.claim(hand, share, id_, 0)

    @rule(group=any_group, choice=any_number, takes_fence=st.booleans())
    def lease_runs_out(self, group: str, choice: int, takes_fence: bool) -> None:
        index = choice % len(self.truth.partitions)
        share = self.truth.partitions[index].shares.get(group)
        if share is not None and share.owner is not None:
            self.do(self.client.call("DEL", self.keys(index).lease(group)))
            share.owner = None
            if takes_fence:
                fence = self.keys(index).fence(group, share.epoch)
                self.do(self.client.call("DEL", fence))
                share.fenced_epoch = None

    @rarely
    @precondition(lambda self: self.hands)
    @rule(choice=any_number)
    def crash(self, choice: int) -> None:
        """An owner ends; one that has lost its partition by then takes back what it had fetched."""
        hand = self.hands.pop(choice % len(self.hands))
        share = self.truth.partitions[hand.index].shares.get(hand.group)
        if self.current(hand) is not None or share is None or not hand.fresh:
            return
        fresh = [id_ for id_ in sorted(hand.fresh) if share.attempts.get(id_)]
        lowered = self.do(
            scripts_of(self.client).uncharge_messages(
                self.owner(hand), ids=[spelled(id_) for id_ in sorted(hand.fresh)]
            )
        )
        assert lowered == len(fresh)
        for id_ in fresh:
            due_ms = share.waiting.get(id_)
            self.claim(hand, share, id_, share.attempts[id_] - 1)
            if due_ms is not None and id_ in share.attempts:
                share.waiting[id_] = due_ms

    # ---- what owners do with messages; those that own no more are refused

    @precondition(lambda self: self.hands)
    @rule(choice=any_number, count=st.integers(1, 4))
    def read(self, choice: int, count: int) -> None:
        self.read_now(self.hands[choice % len(self.hands)], count)

    @precondition(lambda self: self.hands)
    @rule(choice=any_number)
    def park_and_fetch_again(self, choice: int) -> None:
        hand = self.hands[choice % len(self.hands)]
        share, ids = self.current(hand), sorted(hand.fresh)
        if not ids:
            return
        owner, listed = self.owner(hand), [spelled(id_) for id_ in ids]
        parked = self.do(scripts_of(self.client).park_messages(owner, ids=listed))
        assert (parked == STALE) == (share is None)
        if share is None:
            return
        there = [id_ for id_ in ids if self.claim(hand, share, id_, 0)]
        found = self.do(scripts_of(self.client).unpark_messages(owner, ids=listed))
        assert [numbers(id_) for id_, _ in found] == there
        for id_ in there:
            self.claim(hand, share, id_, 1)
        hand.fresh.intersection_update(there)

    @precondition(lambda self: self.hands)
    @rule(choice=any_number, which=some_numbers)
    def settle(self, choice: int, which: list[int]) -> None:
        hand = self.hands[choice % len(self.hands)]
        self.settle_now(hand, chosen(hand.held(), which), Place.SETTLED)

    @precondition(lambda self: self.hands)
    @rule(choice=any_number, which=any_number, wait_ms=st.sampled_from((0, 1, HOUR_MS)))
    def fail(self, choice: int, which: int, wait_ms: int) -> None:
        hand = self.hands[choice % len(self.hands)]
        for id_ in chosen(hand.held(), [which]):
            share = self.current(hand)
            now_ms = self.do(
                scripts_of(self.client).retry_later(
                    self.owner(hand), failed=[spelled(id_), wait_ms, "[]"]
                )
            )
            assert (now_ms == STALE) == (share is None)
            if share is not None and id_ in share.attempts:
                share.waiting[id_] = now_ms + wait_ms
                share.failed.add(id_)
                hand.drop(id_)
                hand.failed.add(id_)

    @precondition(lambda self: self.hands)
    @rule(choice=any_number, count=st.integers(1, 4), begins=st.integers(0, 4))
    def look_for_due(self, choice: int, count: int, begins: int) -> None:
        hand = self.hands[choice % len(self.hands)]
        share = self.current(hand)
        before_ms = self.server_ms()
        reply = self.do(scripts_of(self.client).due_retries(self.owner(hand), count=count, ids=()))
        after_ms = self.server_ms()
        assert (reply == STALE) == (share is None)
        if share is None:
            return
        next_ms, *rows = reply
        surely = sum(due <= before_ms for due in share.waiting.values())
        perhaps = sum(due <= after_ms for due in share.waiting.values())
        assert min(count, surely) <= len(rows) <= min(count, perhaps)
        assert next_ms >= 1 or (next_ms == -1 and perhaps == len(share.waiting))
        self.welcome(hand, share, rows, are_due=True)
        self.begin_now(hand, sorted(hand.again)[:begins])

    @precondition(lambda self: any(hand.again for hand in self.hands))
    @rule(choice=any_number, which=some_numbers)
    def begin(self, choice: int, which: list[int]) -> None:
        hands = [hand for hand in self.hands if hand.again]
        hand = hands[choice % len(hands)]
        self.begin_now(hand, chosen(sorted(hand.again), which))

    @precondition(lambda self: self.hands)
    @rule(choice=any_number, which=any_number, crashes=st.booleans())
    def give_up(self, choice: int, which: int, crashes: bool) -> None:
        """Write a dead letter, then settle; a crash may come between."""
        hand = self.hands[choice % len(self.hands)]
        share = self.current(hand)
        if share is None:
            return  # letters are in another slot, where epochs are not known
        for id_ in chosen(hand.held(), [which]):
            message = self.message(hand, id_)
            letter = self.do(bury(self.client, message, reason="fatal", attempts=1))
            place = (hand.group, hand.index, id_)
            assert self.truth.letters.setdefault(place, letter) == letter
            if crashes:
                self.hands.remove(hand)
            else:
                hand.failed.add(id_)
                self.settle_now(hand, [id_], Place.DEAD)

    # ---- people

    @rarely
    @rule(choice=any_number, length=st.sampled_from((0, 1, 3)), cap=st.sampled_from((0, 0, 3, 5)))
    def trim(self, choice: int, length: int, cap: int) -> None:
        index = choice % len(self.truth.partitions)
        retention = Retention(max_length=length, hard_length=cap)
        outcome = self.do(trim_partition(self.client, TOPIC, index, retention))
        assert outcome == self.truth.partitions[index].trim(length, cap)

    @precondition(lambda self: self.truth.letters)
    @rule(to=st.sampled_from(("group", "all")))
    def replay(self, to: Any) -> None:
        last = [max(part.messages, default=BEGINNING) for part in self.truth.partitions]
        outcome = self.do(self.letters.replay(to=to, who="model"))
        sent = {
            place: letter
            for place, letter in self.truth.letters.items()
            if to == "all" or self.is_known(place[0])
        }
        assert outcome.replayed == len(sent)
        arrived = 0
        for index, before in enumerate(last):
            stream = self.keys(index).stream
            for id_, fields in self.do(
                self.client.call("XRANGE", stream, f"({spelled(before)}", "+")
            ):
                self.store(index, numbers(id_), fields)
                arrived += 1
        assert arrived == len(sent)
        for place in sent:
            # A letter that was sent is remembered for a day.
            self.forget_letter(place)
        self.recall_replays()

    @precondition(lambda self: self.truth.letters)
    @rule(which=some_numbers)
    def purge(self, which: list[int]) -> None:
        places = chosen(list(self.truth.letters), which)
        ids = [self.truth.letters[place] for place in places]
        assert self.do(self.letters.purge(ids, who="model")) == len(ids)
        for place in places:
            self.forget_letter(place)

    # ---- parts of steps

    def keys(self, index: int) -> Any:
        return PartitionKeys.of(self.client.keys, TOPIC, index)

    def owner(self, hand: HeldPartition) -> PartitionOwner:
        return PartitionOwner.of(self.keys(hand.index), hand.group, hand.worker, hand.epoch)

    def share_keys(self, group: str, index: int, *names: str) -> dict[str, str]:
        found = {name: getattr(self.keys(index), name) for name in names}
        return {name: key if isinstance(key, str) else key(group) for name, key in found.items()}

    def server_ms(self) -> int:
        seconds, micros = self.do(self.client.call("TIME"))
        return int(seconds) * 1000 + int(micros) // 1000

    def next_payload(self) -> bytes:
        self.sent += 1
        return msgspec.json.encode(self.sent)

    def is_known(self, group: str) -> bool:
        return group in self.truth.partitions[0].shares

    def store(self, index: int, id_: Id, fields: Any, body: str = "") -> None:
        messages = self.truth.partitions[index].messages
        assert id_ > max(messages, default=BEGINNING)
        messages[id_] = Stored(id_, texts(fields), body)

    def current(self, hand: HeldPartition) -> Share | None:
        """The share that a hand still owns; None if it has passed on."""
        share = self.truth.partitions[hand.index].shares.get(hand.group)
        return share if share is not None and share.epoch == hand.epoch else None

    def message(self, hand: HeldPartition, id_: Id) -> Message:
        source = Source(TOPIC, hand.index, hand.group, msgspec.json.decode)
        fields = self.truth.partitions[hand.index].messages[id_].fields
        return Message(source, spelled(id_).encode(), [part.encode() for part in fields])

    def read_now(self, hand: HeldPartition, count: int) -> None:
        share, keys = self.current(hand), self.keys(hand.index)
        fence = keys.fence(hand.group, hand.epoch)
        command = ("XREADGROUP", "GROUP", hand.group, CONSUMER, "COUNT", count, "STREAMS")
        ask = self.client.call(*command, keys.stream, fence, ">", ">")
        if share is None or share.fenced_epoch != hand.epoch:
            try:
                self.do(ask)
            except CommandRefused as refusal:
                assert str(refusal).startswith("NOGROUP")  # noqa: PT017
                return
            raise AssertionError("a stale owner was given messages")
        reply = self.do(ask)
        entries = reply[0][1] if reply else []
        partition = self.truth.partitions[hand.index]
        expected = partition.unread(hand.group)[:count]
        assert [numbers(id_) for id_, _ in entries] == expected
        for id_, (_, fields) in zip(expected, entries, strict=True):
            assert texts(fields) == partition.messages[id_].fields
            share.attempts[id_], share.position = 1, id_
            hand.fresh.add(id_)

    def take_over(self, hand: HeldPartition) -> None:
        """List what is pending, page by page."""
        share, start, seen = self.current(hand), "-", []
        while True:
            page = self.do(
                scripts_of(self.client).pending_page(self.owner(hand), start=start, count=PAGE)
            )
            assert (page == STALE) == (share is None)
            if share is None:
                return
            seen += page
            if len(page) < PAGE:
                break
            start = f"({page[-1][0].decode()}"
        assert [numbers(row[0]) for row in seen] == sorted(share.attempts)
        for row in seen:
            assert (row[2] > 0) == (numbers(row[0]) in share.waiting)
        self.welcome(hand, share, [row for row in seen if not row[2]])

    def welcome(
        self, hand: HeldPartition, share: Share, rows: list[Any], *, are_due: bool = False
    ) -> None:
        """Take pending messages in hand; what is gone or dead-lettered comes to its end."""
        messages = self.truth.partitions[hand.index].messages
        for name, attempts, _, failures, fields in rows:
            id_ = numbers(name)
            assert attempts == share.attempts[id_]
            assert (failures == b"[]") == (id_ in share.failed)
            assert texts(fields) == ([] if messages[id_].trimmed else messages[id_].fields)
            assert (id_ in share.waiting) == are_due
            hand.failed.add(id_)
            if not fields:
                self.settle_now(hand, [id_], Place.LOST)
            elif (hand.group, hand.index, id_) in self.truth.letters:
                # Its owner crashed between the letter and the acknowledgement.
                self.settle_now(hand, [id_], Place.DEAD)
            else:
                hand.again.add(id_)

    def settle_now(self, hand: HeldPartition, ids: list[Id], place: Place) -> None:
        if not ids:
            return
        share = self.current(hand)
        failed = [id_ for id_ in ids if id_ in hand.failed]
        fine = [id_ for id_ in ids if id_ not in hand.failed]
        acked = self.do(
            scripts_of(self.client).ack_messages(
                self.owner(hand),
                failed_before=len(failed),
                ids=[spelled(id_) for id_ in failed + fine],
            )
        )
        if share is None:
            assert acked == STALE
            return
        assert acked == sum(id_ in share.attempts for id_ in ids)
        for id_ in ids:
            hand.drop(id_)
            share.failed.discard(id_)
            if id_ in share.attempts:
                share.end(id_, place)

    def begin_now(self, hand: HeldPartition, ids: list[Id]) -> None:
        share = self.current(hand)
        if not ids:
            return
        pending = share.attempts if share is not None else {}
        known = [part for id_ in ids for part in (spelled(id_), pending.get(id_, 1))]
        begun = self.do(
            scripts_of(self.client).begin_messages(self.owner(hand), not_attempts=0, known=known)
        )
        assert (begun == STALE) == (share is None)
        if share is None:
            return
        allowed = [id_ for id_ in ids if self.claim(hand, share, id_, pending.get(id_, 1) + 1)]
        assert begun == [share.attempts[id_] if id_ in allowed else 0 for id_ in ids]
        # What is not pending any more is settled, so that its failures are forgotten.
        self.settle_now(hand, [id_ for id_ in ids if id_ not in allowed], Place.LOST)
        hand.begun.update(allowed)
        hand.again.difference_update(allowed)

    def claim(self, hand: HeldPartition, share: Share, id_: Id, attempts: int) -> bool:
        """Let a message count so many attempts; one that was trimmed away is pending no more."""
        if id_ not in share.attempts:
            return False
        share.waiting.pop(id_, None)
        if self.truth.partitions[hand.index].messages[id_].trimmed:
            del share.attempts[id_]
            share.ended[id_] = Place.LOST
            return False
        share.attempts[id_] = attempts
        return True

    def forget_letter(self, place: tuple[str, int, Id]) -> None:
        group, index, id_ = place
        del self.truth.letters[place]
        self.truth.revived.discard(place)
        share = self.truth.partitions[index].shares.get(group)
        if share is not None and share.ended.get(id_) is Place.DEAD:
            share.ended[id_] = Place.PURGED

    def revive(self, group: str, index: int) -> None:
        """Note that the group may handle messages again of which there are letters."""
        self.truth.revived |= {place for place in self.truth.letters if place[:2] == (group, index)}

    def recall_replays(self) -> None:
        """Note the marks by which a replay is recognised."""
        for index, partition in enumerate(self.truth.partitions):
            marks = texts(self.do(self.client.call("HGETALL", self.keys(index).dedup)))
            for mark, id_ in zip(marks[::2], marks[1::2], strict=True):
                if mark.startswith("replay/"):
                    partition.remembered[mark] = id_


def chosen(some: list[T], which: list[int]) -> list[T]:
    """Those of `some` that the numbers choose, each once and in order."""
    places = sorted({number % len(some) for number in which}) if some else []
    return [some[place] for place in places]


def texts(parts: Any) -> list[str]:
    return [part if isinstance(part, str) else part.decode() for part in parts]
