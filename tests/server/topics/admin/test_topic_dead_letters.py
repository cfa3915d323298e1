"""Dead letters: written once, read, edited, sent again, forgotten; each act is on record."""

import asyncio
from zlib import crc32

import msgspec
import pytest
from tests.kit.scripts import scripts_of

from penstock.delivery.failures import Failure
from penstock.errors import InvalidMessage, OutcomeUnknown, TopicError, TopicMissing
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings
from penstock.topics.dead_letters.dead_letters import DeadLetters
from penstock.topics.dead_letters.letter import bury
from penstock.topics.message import Message, Source, field_of
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.metadata import ensure_topic


@pytest.fixture
def codec():
    return Codec(CodecSettings())


@pytest.fixture
async def topic(client):
    await ensure_topic(client, "orders", 4)
    return "orders"


def failure(text="boom", at_ms=1_700_000_000_000, attempt=1):
    return Failure(
        error_class="ValueError",
        message=text,
        stack="Traceback …",
        fingerprint=f"fp-{text}",
        at_ms=at_ms,
        attempt=attempt,
    )


def message(*fields, partition=1, id_=b"1700000000000-0", group="billing"):
    source = Source(topic="orders", partition=partition, group=group, decode=msgspec.json.decode)
    raw = [part if isinstance(part, bytes) else str(part).encode() for part in fields]
    return Message(source, id_, raw)


async def bury_one(client, number, *, group="billing", text="boom", **fields):
    return await bury(
        client,
        message(
            *("payload", f'{{"n":{number}}}', "key", f"k{number}"),
            *(part for item in fields.items() for part in item),
            partition=number % 4,
            id_=f"1700000000000-{number}".encode(),
            group=group,
        ),
        reason="exhausted",
        attempts=3,
        failures=[failure(text)],
    )


async def raw_letters(client):
    return await client.call("XRANGE", TopicKeys.of(client.keys, "orders").dlq, "-", "+")


async def test_a_message_that_is_buried_twice_has_one_letter_per_group(client, topic):
    first = await bury_one(client, 1)
    assert await bury_one(client, 1) == first
    assert await bury_one(client, 1, group="mail") != first
    assert len(await raw_letters(client)) == 2


async def test_a_letter_has_every_field_of_the_java_library_and_ours(client, topic):
    await bury(
        client,
        message("payload", '{"n":1}', "key", "k", "headers", '{"trace":"abc"}', partition=3),
        reason="fatal",
        attempts=2,
        failures=[failure("first", 1_700_000_000_001), failure("last", 1_700_000_009_002, 2)],
        max_attempts=5,
    )
    [[_, fields]] = await raw_letters(client)
    pairs = dict(zip(fields[::2], fields[1::2], strict=True))
    assert {name.decode(): value.decode() for name, value in pairs.items()} == {
        "originalTopic": "orders",
        "payload": '{"n":1}',
        "timestamp": "2023-11-14T22:13:20.000Z",
        "failedAt": "2023-11-14T22:13:29.002Z",
        "retryCount": "1",
        "partitionId": "3",
        "headers": '{"trace":"abc"}',
        "originalMessageId": "1700000000000-0",
        "maxRetries": "4",
        "key": "k",
        "group": "billing",
        "attempts": "2",
        "reason": "fatal",
        "errorClass": "ValueError",
        "errorMessage": "last",
        "stack": "Traceback …",
        "fingerprint": "fp-last",
        "firstFailureMs": "1700000000001",
        "lastFailureMs": "1700000009002",
    }


async def test_undecodable_bytes_and_entries_without_a_payload_are_kept_whole(client, topic, codec):
    await bury(client, message("payload", b"\xff\xfe"), reason="undecodable", attempts=1)
    foreign = message("colour", "blue", "headers", "no json", id_=b"1700000000000-1")
    await bury(client, foreign, reason="undecodable", attempts=1)
    binary, strange = (await DeadLetters(client, codec, "orders").list()).letters
    assert (binary.payload.text, binary.payload.is_text) == ("\\xff\\xfe", False)
    assert strange.payload.is_missing
    assert strange.fields == {"colour": "blue", "headers": "no json"}
    [first, _] = await raw_letters(client)
    assert field_of(first[1], b"payload") == b"\xff\xfe"


async def test_a_payload_stored_beside_the_stream_goes_into_the_letter(client, topic, codec):
    letters = DeadLetters(client, codec, "orders")
    await register(client, "billing")
    keys = PartitionKeys.of(client.keys, "orders", 1)
    body = b'"' + b"x" * 100_000 + b'"'
    await client.call("SET", keys.payload("abc"), body)
    reference = {
        "x-payload-storage-type": "hash",
        "x-payload-hash-ref": keys.payload("abc"),
        "x-payload-original-size": "100002",
        "trace": "t",
    }
    text = msgspec.json.encode(reference).decode()
    await bury(client, message("key", "k", "headers", text), reason="fatal", attempts=1)
    await client.call("DEL", keys.payload("abc"))
    [letter] = (await letters.list()).letters
    assert (letter.payload.size, letter.payload.is_cut) == (100_002, True)
    assert letter.headers == {"trace": "t"}

    assert (await letters.replay()).replayed == 1
    [[_, fields]] = await client.call("XRANGE", keys.stream, "-", "+")
    headers = msgspec.json.decode(field_of(fields, b"headers"))
    assert await client.call("GET", headers["x-payload-hash-ref"]) == body


async def test_a_reference_to_a_key_that_is_no_payload_is_not_followed(client, topic, codec):
    secret = TopicKeys.of(client.keys, "orders").meta
    reference = {"x-payload-storage-type": "hash", "x-payload-hash-ref": secret}
    text = msgspec.json.encode(reference).decode()
    await bury(client, message("headers", text), reason="fatal", attempts=1)
    [letter] = (await DeadLetters(client, codec, "orders").list()).letters
    assert letter.payload.is_missing


async def test_letters_are_listed_in_pages_and_by_group_and_cause(client, topic, codec):
    letters = DeadLetters(client, codec, "orders")
    ids = [await bury_one(client, n, text="odd" if n % 2 else "even") for n in range(7)]
    mail = await bury_one(client, 7, group="mail")
    first = await letters.list(5)
    rest = await letters.list(5, first.cursor)
    assert [letter.id for letter in first.letters + rest.letters] == [*ids, mail]
    assert rest.cursor is None
    backwards = await letters.list(3, reverse=True)
    assert [letter.id for letter in backwards.letters] == [mail, ids[6], ids[5]]
    assert [letter.id for letter in (await letters.list(group="mail")).letters] == [mail]
    odd = await letters.list(fingerprint="fp-odd")
    assert [letter.key for letter in odd.letters] == ["k1", "k3", "k5"]
    assert await letters.count() == 8
    assert (await letters.show(mail)).group == "mail"


async def test_causes_are_counted_and_a_bounded_look_says_so(client, topic, codec):
    letters = DeadLetters(client, codec, "orders")
    for number in range(5):
        await bury_one(client, number, text="rare" if number == 0 else "often")
    kinds = await letters.groups()
    assert [(kind.fingerprint, kind.count) for kind in kinds.kinds] == [
        ("fp-often", 4),
        ("fp-rare", 1),
    ]
    assert kinds.complete
    assert kinds.kinds[0].sample.key == "k4"
    assert kinds.kinds[0].groups == ["billing"]
    assert kinds.kinds[0].first_ms <= kinds.kinds[0].last_ms
    some = await letters.groups(limit=2)
    assert (some.complete, some.examined) == (False, 2)


async def test_what_is_not_there_is_told_from_nothing_to_show(client, topic, codec):
    letters = DeadLetters(client, codec, "orders")
    assert (await letters.list()).letters == []
    assert await letters.count() == 0
    with pytest.raises(TopicMissing):
        await DeadLetters(client, codec, "nowhere").list()
    with pytest.raises(TopicMissing):
        await DeadLetters(client, codec, "nowhere").replay()
    with pytest.raises(TopicError, match="no dead letter"):
        await letters.show("1700000000000-0")
    with pytest.raises(InvalidMessage):
        await letters.show("- + COUNT")


async def stored(client, partition):
    entries = await client.call(
        "XRANGE", PartitionKeys.of(client.keys, "orders", partition).stream, "-", "+"
    )
    return [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in entries]


async def register(client, *groups):
    for group in groups:
        await client.call("HSET", TopicKeys.of(client.keys, "orders").groups, group, "0")


async def test_a_replay_goes_to_the_failing_group_and_takes_the_letter_away(client, topic, codec):
    await register(client, "billing")
    letters = DeadLetters(client, codec, "orders")
    await bury_one(client, 3, headers='{"trace":"abc"}')
    done = await letters.replay(who="ann@desk")
    assert (done.matched, done.replayed, done.skipped) == (1, 1, {})
    [fields] = await stored(client, 3)
    assert fields == {
        b"payload": b'{"n":3}',
        b"key": b"k3",
        b"headers": b'{"trace":"abc","x-original-message-id":"1700000000000-3"}',
        b"targetGroup": b"billing",
        b"messageId": b"3-1700000000000-3",
    }
    assert await letters.count() == 0
    assert await client.call("HLEN", TopicKeys.of(client.keys, "orders").dlq_index) == 0
    [act] = await letters.audit()
    assert (act.who, act.what, act.count) == ("ann@desk", "replay", 1)


async def test_fields_that_a_later_version_added_come_back_with_a_replay(client, topic, codec):
    await register(client, "billing")
    await bury_one(client, 3, shard="7", odd=b"\xff")
    assert (await DeadLetters(client, codec, "orders").replay()).replayed == 1
    [fields] = await stored(client, 3)
    assert (fields[b"shard"], fields[b"odd"]) == (b"7", b"\xff")
    assert fields[b"payload"] == b'{"n":3}'


async def test_a_replay_to_all_names_no_group(client, topic, codec):
    await bury_one(client, 3)
    assert (await DeadLetters(client, codec, "orders").replay(to="all")).replayed == 1
    [fields] = await stored(client, 3)
    assert b"targetGroup" not in fields


async def test_a_dry_run_sends_nothing_and_says_what_cannot_be_sent(client, topic, codec):
    await register(client, "billing")
    letters = DeadLetters(client, codec, "orders")
    await bury_one(client, 1)
    gone = await bury_one(client, 2, group="long-gone")
    would = await letters.replay(dry_run=True)
    assert (would.matched, would.replayed) == (2, 0)
    assert list(would.skipped) == [gone]
    assert await letters.count() == 2
    assert await stored(client, 1) == []


async def test_replays_can_be_chosen_by_id_group_cause_and_number(client, topic, codec):
    await register(client, "billing", "mail")
    letters = DeadLetters(client, codec, "orders")
    ids = [await bury_one(client, n, text=f"t{n % 2}") for n in range(4)]
    await bury_one(client, 5, group="mail")
    by_id = await letters.replay([ids[2], "1-1"])
    assert (by_id.replayed, by_id.missing) == (1, 1)
    assert (await letters.replay(group="mail")).replayed == 1
    assert (await letters.replay(fingerprint="fp-t1", limit=1)).replayed == 1
    assert [letter.id for letter in (await letters.list()).letters] == [ids[0], ids[3]]


async def test_a_replay_that_was_cut_off_is_completed_without_sending_twice(
    client, topic, codec, monkeypatch
):
    await register(client, "billing")
    letters = DeadLetters(client, codec, "orders")
    for number in range(4):
        await bury_one(client, number)

    async def cut_off(**_):
        raise OutcomeUnknown("the connection died")

    with monkeypatch.context() as cut:
        cut.setattr(scripts_of(client), "remove_letters", cut_off)
        with pytest.raises(OutcomeUnknown):
            await letters.replay()
    assert await letters.count() == 4
    again = await letters.replay()
    assert (again.replayed, again.repeated) == (0, 4)
    assert await letters.count() == 0
    assert [len(await stored(client, index)) for index in range(4)] == [1, 1, 1, 1]


async def test_two_replays_at_once_send_each_letter_once(client, topic, codec):
    await register(client, "billing")
    for number in range(40):
        await bury_one(client, number)
    both = await asyncio.gather(*(DeadLetters(client, codec, "orders").replay() for _ in range(2)))
    assert sum(done.replayed for done in both) == 40
    assert sum([len(await stored(client, index)) for index in range(4)]) == 40


async def test_a_replay_keeps_to_its_rate(client, topic, codec):
    await register(client, "billing")
    for number in range(6):
        await bury_one(client, number)
    started = asyncio.get_running_loop().time()
    await DeadLetters(client, codec, "orders").replay(rate=20)
    assert asyncio.get_running_loop().time() - started >= 4 / 20  # two at a time


async def test_a_letter_from_before_a_growth_goes_where_its_key_belongs_now(client, topic, codec):
    await register(client, "billing")
    await bury_one(client, 1)  # before the marker
    await bury_one(client, 9)  # after it
    meta = TopicKeys.of(client.keys, "orders").meta
    marker = ("barrier:2:1", "1700000000000-5")
    await client.call("HSET", meta, "partitionCount", 16, "generation", 2, *marker)
    await ensure_topic(client, "orders")
    await DeadLetters(client, codec, "orders").replay()
    new_home = crc32(b"k1") % 16
    assert new_home != 1
    assert [fields[b"key"] for fields in await stored(client, new_home)] == [b"k1"]
    assert [fields[b"key"] for fields in await stored(client, 1)] == [b"k9"]


async def test_letters_of_the_java_library_are_read_and_replayed_to_all(client, topic, codec):
    await client.call(
        *("XADD", TopicKeys.of(client.keys, "orders").dlq, "*"),
        *("originalTopic", "orders", "payload", '{"n":1}', "timestamp", "2024-01-01T00:00:00Z"),
        *("failedAt", "2024-01-01T00:00:05Z", "retryCount", "3", "partitionId", "2"),
        *("headers", '{"trace":"abc"}', "originalMessageId", "1704067200000-0", "maxRetries", "3"),
    )
    letters = DeadLetters(client, codec, "orders")
    [letter] = (await letters.list()).letters
    assert (letter.group, letter.attempts, letter.partition) == (None, 4, 2)
    assert letter.payload.text == '{"n":1}'
    assert (await letters.replay()).replayed == 1
    [fields] = await stored(client, 2)
    assert b"targetGroup" not in fields
    assert fields[b"payload"] == b'{"n":1}'


async def test_an_edited_letter_has_a_new_id_and_stays_the_only_one_of_its_message(
    client, topic, codec
):
    await register(client, "billing")
    letters = DeadLetters(client, codec, "orders")
    old = await bury_one(client, 2)
    new = await letters.edit(old, payload={"n": 42}, headers={"fixed": "yes"}, who="ann")
    assert new != old
    with pytest.raises(TopicError):
        await letters.edit(old, payload="x")
    view = await letters.show(new)
    assert (view.payload.text, view.headers) == ('{"n":42}', {"fixed": "yes"})
    assert (view.error_message, view.key) == ("boom", "k2")
    assert await bury_one(client, 2) == new
    assert (await letters.audit())[0].what == "edit"
    await letters.replay()
    assert (await stored(client, 2))[0][b"payload"] == b'{"n":42}'


async def test_an_entry_without_payload_is_replayed_as_it_was_or_as_it_was_edited(
    client, topic, codec
):
    await register(client, "billing")
    letters = DeadLetters(client, codec, "orders")
    for number in range(2):
        foreign = message("colour", "blue", id_=f"1700000000000-{number}".encode())
        await bury(client, foreign, reason="undecodable", attempts=1)
    await letters.edit((await letters.list()).letters[0].id, payload='"mended"')
    await letters.replay()
    as_it_was, mended = await stored(client, 1)
    assert as_it_was[b"colour"] == b"blue"
    assert as_it_was[b"targetGroup"] == b"billing"
    assert mended[b"payload"] == b'"mended"'


async def test_purging_forgets_letters_and_their_places(client, topic, codec):
    letters = DeadLetters(client, codec, "orders")
    ids = [await bury_one(client, number) for number in range(5)]
    with pytest.raises(ValueError, match="one of them"):
        await letters.purge()
    assert await letters.purge([ids[1], "1-1"], who="ann") == 1
    assert await letters.purge(older_than=3600) == 0
    assert await letters.purge(everything=True) == 4
    assert await client.call("HLEN", TopicKeys.of(client.keys, "orders").dlq_index) == 0
    assert [(act.what, act.count) for act in await letters.audit()] == [("purge", 4), ("purge", 1)]


async def test_a_purge_can_be_tried_out(client, topic, codec):
    letters = DeadLetters(client, codec, "orders")
    ids = [await bury_one(client, number) for number in range(3)]
    for chosen, count in (
        ({"ids": [ids[0], ids[0], "1-1"]}, 1),
        ({"older_than": 3600}, 0),
        ({"older_than": 0}, 3),
        ({"everything": True}, 3),
    ):
        assert await letters.purge(**chosen, dry_run=True) == count
    assert await letters.count() == 3
    assert await letters.audit() == []


async def test_the_record_of_a_topic_that_is_not_there_is_no_empty_record(client, codec):
    with pytest.raises(TopicMissing):
        await DeadLetters(client, codec, "orders").audit()


async def test_letters_have_a_retention_of_their_own(client, topic, codec):
    letters = DeadLetters(client, codec, "orders")
    ids = [await bury_one(client, number) for number in range(6)]
    assert await letters.trim(max_length=4) == 2
    assert [letter.id for letter in (await letters.list()).letters] == ids[2:]
    assert await letters.trim(max_age_s=3600) == 0
    assert await letters.trim(max_age_s=0) == 4
    assert await client.call("HLEN", TopicKeys.of(client.keys, "orders").dlq_index) == 0
    assert await letters.audit() == []
