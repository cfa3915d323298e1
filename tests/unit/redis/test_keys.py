"""Keys are spelled as agreed, in both layouts, whatever people call their things."""

import pickle
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordination.cache.keys import CacheKeys
from penstock.coordination.limits.keys import HourlyLimitKeys, LimitKeys
from penstock.coordination.once.keys import DedupeKeys
from penstock.coordination.runs.keys import RunKeys
from penstock.coordination.uploads.keys import UploadKeys
from penstock.coordination.windows.keys import BatchKeys, WindowKeys
from penstock.errors import InvalidName
from penstock.queues.storage.keys import JobKeys, QueueKeys
from penstock.redis.keys.hash_slot import key_slot
from penstock.redis.keys.names import decode_id, encode_id
from penstock.redis.keys.probe import ProbeKeys
from penstock.redis.keys.space import KeySpace
from penstock.runtime.keys import WorkersKeys
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys

SINGLE = KeySpace()
CLUSTER = KeySpace(cluster=True)

RUN = "manual_2024-09-17T14:30:00+00:00"
JOB = "rag-policies_rag-1704882600-a7b2c3d4"


@pytest.mark.parametrize(
    ("built", "spelled"),
    [
        (TopicsKeys.of(SINGLE).registry, "streaming:mq:topics:registry"),
        (TopicsKeys.of(SINGLE).payload_times, "streaming:mq:payload:ts"),
        (TopicKeys.of(SINGLE, "orders").meta, "streaming:mq:topic:orders:meta"),
        (TopicKeys.of(SINGLE, "orders").partitions, "streaming:mq:topic:orders:partitions"),
        (TopicKeys.of(SINGLE, "orders").dlq, "stream:topic:orders:dlq"),
        (TopicKeys.of(SINGLE, "orders").payload_index, "streaming:mq:payload:idx:orders"),
        (TopicKeys.of(SINGLE, "orders").java_retry, "streaming:mq:retry:orders"),
        (TopicKeys.of(SINGLE, "orders").java_retry_item("u1"), "streaming:mq:retry:item:orders:u1"),
        (TopicKeys.of(SINGLE, "orders").java_retry_lock, "streaming:mq:retry:lock:orders"),
        (PartitionKeys.of(SINGLE, "orders", 3).stream, "stream:topic:orders:p:3"),
        (
            PartitionKeys.of(SINGLE, "orders", 3).lease("billing"),
            "streaming:mq:lease:orders:billing:3",
        ),
        (PartitionKeys.of(SINGLE, "p", 3).lease("p"), "streaming:mq:lease:p:p:3"),
        (PartitionKeys.of(SINGLE, "orders", 3).commit, "streaming:mq:commit:orders:p:3"),
        (
            PartitionKeys.of(SINGLE, "orders", 3).java_acks("1-0"),
            "streaming:mq:acks:orders:p:3:1-0",
        ),
        (PartitionKeys.of(SINGLE, "orders", 3).payload("u1"), "streaming:mq:payload:orders:p:3:u1"),
        (QueueKeys.of(SINGLE, "detection_queue").waiting, "detection_queue"),
        (QueueKeys.of(SINGLE, "detection_queue").dead_letters, "dlq:detection_queue"),
        (QueueKeys.of(SINGLE, "detection_queue").overflow, "dlq:overflow:detection_queue"),
        (QueueKeys.of(SINGLE, "rag:ingest:queue").waiting, "rag:ingest:queue"),
        (QueueKeys.of(SINGLE, "rag:ingest:queue").priority("high"), "rag:ingest:queue:high"),
        (
            QueueKeys.of(SINGLE, "rag:ingest:queue").lane("policies_rag"),
            "rag:ingest:queue:policies_rag",
        ),
        (JobKeys.of(SINGLE, "rag:ingest:queue", JOB).status, f"rag:ingest:job:{JOB}"),
        (DedupeKeys.of(SINGLE, "a1b2").mark, "dedupe:a1b2"),
        (LimitKeys.of(SINGLE, "api", "192.168.1.1").log, "ratelimit:api:192.168.1.1"),
        (CacheKeys.of(SINGLE, "camera", "front_door").value, "cache:camera:front_door"),
        (WindowKeys.of(SINGLE, "analysis_queue", "front_door").current, "batch:front_door:current"),
        (BatchKeys.of(SINGLE, "analysis_queue", "b-1").key, "batch:b-1:camera_id"),
        (BatchKeys.of(SINGLE, "analysis_queue", "b-1").items, "batch:b-1:detections"),
        (BatchKeys.of(SINGLE, "analysis_queue", "b-1").started_at, "batch:b-1:started_at"),
        (BatchKeys.of(SINGLE, "analysis_queue", "b-1").last_activity, "batch:b-1:last_activity"),
        (
            HourlyLimitKeys.of(SINGLE).count("2024-09-17_14"),
            "courtlistener:rate_limit:2024-09-17_14",
        ),
        (RunKeys.of(SINGLE, "manual__1").record, "courtlistener:pipeline:manual__1"),
        (
            RunKeys.of(SINGLE, "manual__1").task_start("load"),
            "courtlistener:task_start:manual__1:load",
        ),
        (
            RunKeys.of(SINGLE, "manual__1").failed("2024-09-17_14"),
            "courtlistener:failed:2024-09-17_14",
        ),
        (UploadKeys.of(SINGLE, "abc123").state, "upload:abc123:state"),
        (UploadKeys.of(SINGLE, "abc123").parts, "upload:abc123:parts"),
        (UploadKeys.of(SINGLE, "abc123").metadata, "upload:abc123:metadata"),
        (UploadKeys.of(SINGLE, "abc123").chunk(0), "upload:abc123:chunks:0"),
    ],
)
def test_on_a_single_server_keys_have_their_established_names(built: str, spelled: str) -> None:
    assert built == spelled


@pytest.mark.parametrize(
    ("built", "spelled"),
    [
        (TopicsKeys.of(CLUSTER).registry, "streaming:mq:{topics}:registry"),
        (TopicKeys.of(CLUSTER, "orders").dlq, "stream:topic:{orders}:dlq"),
        (PartitionKeys.of(CLUSTER, "orders", 3).stream, "stream:topic:{orders:3}"),
        (PartitionKeys.of(CLUSTER, "orders", 3).lease("g"), "streaming:mq:lease:{orders:3}:g"),
        (QueueKeys.of(CLUSTER, "rag:ingest:queue").waiting, "{rag:ingest:queue}"),
        (QueueKeys.of(CLUSTER, "mail").priority("low"), "{mail}:low"),
        (QueueKeys.of(CLUSTER, "mail").dead_letters, "dlq:{mail}"),
        (
            JobKeys.of(CLUSTER, "rag:ingest:queue", "j").status,
            "penstock:queue:{rag:ingest:queue}:job:j",
        ),
        (WorkersKeys.of(CLUSTER).info("w1"), "penstock:{workers}:info:w1"),
        (ProbeKeys.of(CLUSTER, "slot-7").value, "penstock:probe:{slot-7}"),
        (LimitKeys.of(CLUSTER, "api", "10.0.0.1").log, "ratelimit:{api:10.0.0.1}"),
        (
            BatchKeys.of(CLUSTER, "analysis_queue", "b-1").items,
            "batch:{analysis_queue}:b-1:detections",
        ),
        (
            HourlyLimitKeys.of(CLUSTER).count("2024-09-17_14"),
            "courtlistener:{rate_limit}:2024-09-17_14",
        ),
        (
            RunKeys.of(CLUSTER, "r").failed("2024-09-17_14"),
            "courtlistener:failed:{r}:2024-09-17_14",
        ),
        (UploadKeys.of(CLUSTER, "abc123").chunk(7), "upload:{abc123}:chunks:7"),
    ],
)
def test_on_a_cluster_what_stays_together_is_in_braces(built: str, spelled: str) -> None:
    assert built == spelled


def test_the_namespace_comes_first_and_outside_the_braces() -> None:
    assert QueueKeys.of(KeySpace("hsi"), "detection_queue").waiting == "hsi::detection_queue"
    tagged = PartitionKeys.of(KeySpace("hsi", cluster=True), "orders", 3).stream
    assert tagged == "hsi::stream:topic:{orders:3}"
    assert key_slot(tagged) == key_slot(PartitionKeys.of(CLUSTER, "orders", 3).stream)


def test_partitions_of_one_topic_spread_over_the_cluster() -> None:
    slots = [key_slot(PartitionKeys.of(CLUSTER, "orders", index).stream) for index in range(300)]
    assert len(set(slots)) > 280
    thirds = {slot * 3 // 16_384 for slot in slots[:12]}
    assert thirds == {0, 1, 2}


def test_a_probe_can_be_aimed_at_any_third_of_a_cluster() -> None:
    tags = (str(number) for number in range(100))
    reached = {key_slot(ProbeKeys.of(CLUSTER, tag).value) * 3 // 16_384 for tag in tags}
    assert reached == {0, 1, 2}


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("123456789", 0x31C3),  # the check value of this CRC
        ("", 0),
        ("stream:topic:{orders}:p:0", 105),
        ("{a}b}", 15_495),
        (b"{a}", 15_495),
    ],
)
def test_slots_are_those_of_the_server(key: str | bytes, slot: int) -> None:
    assert key_slot(key) == slot


def test_an_empty_tag_counts_for_nothing() -> None:
    assert key_slot("{}{orders}:1") != key_slot("{}{orders}:2")
    assert key_slot("a{b") != key_slot("b")


def test_a_key_that_is_not_utf8_has_the_same_slot_as_text_and_as_bytes() -> None:
    raw = b"caf\xe9"
    assert key_slot(raw) == key_slot(raw.decode("utf-8", "surrogateescape"))


NAMED = [
    partial(TopicKeys.of, SINGLE),
    lambda name: PartitionKeys.of(SINGLE, name, 0),
    lambda name: PartitionKeys.of(SINGLE, "orders", 0).lease(name),
    lambda name: PartitionKeys.of(SINGLE, "orders", 0).retry(name),
    partial(QueueKeys.of, SINGLE),
    lambda name: JobKeys.of(SINGLE, name, "1"),
    KeySpace,
]


@pytest.mark.parametrize("build", NAMED)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("   ", "is blank; write 1 to 128"),
        ("\N{NO-BREAK SPACE}", "is blank"),
        ("n" * 129, "has 129 characters; write 1 to 128"),
        ("n" * 65_536, "has 65536 characters"),
        ("{orders}", "'{', which decides where a key lives on a cluster; write 'orders'"),
        ("or}ders", "'}', which decides where"),
        ("or*ders", "'*', which is a pattern when keys are searched; write 'or-ders'"),
        ("what?", "'?', which is a pattern"),
        ("[ab]", "'[', which is a pattern"),
        ("two words", "a blank; write 'two-words'"),
        ("line\nend", "the control character '\\n'"),
        ("orders\n", "the control character '\\n'; write 'orders'"),
        ("nul\0", "the control character '\\x00'"),
        ("tab\t", "the control character '\\t'"),
        ("bell\a", "the control character '\\x07'"),
        ("../up", "'/', which reads as a path; write 'up'"),
        ("a\\b", "'\\\\', which reads as a path"),
        ("%2e%2e", "'%', which marks encoded characters"),
        ("café", "U+00E9, which is not ASCII"),
        ("cafe\N{COMBINING ACUTE ACCENT}", "U+0301, which is not ASCII"),
        ("zero\N{ZERO WIDTH SPACE}", "U+200B, which is not ASCII"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}x", "U+202E, which is not ASCII"),
        ("\ud800", "U+D800, which is not ASCII"),
        ("٣", "U+0663, which is not ASCII"),
        ("a@b", "'@', which is not allowed; write 'a-b'"),
        ("-rf", "starts with '-', which reads as a command-line option; write 'rf'"),
        (".hidden", "starts with '.', which reads as a hidden file; write 'hidden'"),
        ("..", "starts with '.'"),
        (None, "must be text (a str), not NoneType"),
        (7, "must be text (a str), not int"),
        (b"orders", "must be text (a str), not bytes"),
        (["orders"], "must be text (a str), not list"),
    ],
)
def test_a_bad_name_is_refused_with_the_remedy(build, name, words) -> None:
    with pytest.raises(InvalidName) as refused:
        build(name)
    assert words in refused.value.reason
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()
    assert pickle.loads(pickle.dumps(refused.value)).reason == refused.value.reason  # noqa: S301


@pytest.mark.parametrize("build", NAMED[:-1])
def test_an_empty_name_is_refused(build) -> None:
    with pytest.raises(InvalidName, match="is empty; write 1 to 128"):
        build("")


@pytest.mark.parametrize("build", [*NAMED[:4], NAMED[-1]])
def test_only_queue_names_may_have_colons(build) -> None:
    with pytest.raises(InvalidName, match=r"':', which separates .*; write 'a\.b'"):
        build("a:b")


@pytest.mark.parametrize("build", NAMED)
@pytest.mark.parametrize("name", ["a", "_", "7", "Orders", "a.b-c_d", "n" * 128])
def test_ordinary_names_are_taken_as_they_are(build, name) -> None:
    build(name)


def test_names_that_differ_in_case_are_different() -> None:
    assert TopicKeys.of(SINGLE, "Orders").meta != TopicKeys.of(SINGLE, "orders").meta


@pytest.mark.parametrize("topic", ["item", "lock", "idx", "ts"])
def test_a_topic_may_not_be_called_like_a_part_of_other_keys(topic) -> None:
    with pytest.raises(InvalidName, match=f"reserved for other keys; write '{topic}-topic'"):
        TopicKeys.of(SINGLE, topic)


@pytest.mark.parametrize(
    "word",
    [
        "dlq", "overflow", "stream", "streaming", "batch", "dedupe", "ratelimit", "cache",
        "upload", "courtlistener", "penstock",
    ],
)  # fmt: skip
def test_a_queue_may_not_begin_like_other_keys(word) -> None:
    with pytest.raises(InvalidName, match="reserved for other keys"):
        QueueKeys.of(SINGLE, word)
    with pytest.raises(InvalidName, match="reserved for other keys"):
        QueueKeys.of(CLUSTER, f"{word}:queue")
    with pytest.raises(InvalidName, match=f"reserved for other keys; write '{word}-namespace'"):
        KeySpace(word)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mail:bulk", "must end in ':queue'.*write 'mail.bulk' or 'mail:bulk:queue'"),
        ("rag:queue:high", "write 'rag.queue.high' or 'rag.queue.high:queue'"),
        (":queue", "nothing before, between or after"),
        ("rag::queue", "nothing before, between or after"),
        ("rag:queue:", "nothing before, between or after"),
        (":", "nothing before, between or after"),
        ("rag:{x}:queue", "its part '{x}' contains '{'"),
        ("rag: :queue", "its part ' ' is blank"),
        ("rag:-x:queue", "its part '-x' starts with '-'"),
        ("rag:job:queue", "its part 'job' has a meaning of its own"),
        ("rag:queue:queue", "its part 'queue' has a meaning of its own"),
        ("a:" * 62 + "queue", "has 129 characters"),
    ],
)
def test_a_queue_name_with_colons_cannot_be_taken_for_another_key(name, words) -> None:
    with pytest.raises(InvalidName, match=words):
        QueueKeys.of(SINGLE, name)


def test_a_remedy_is_itself_allowed() -> None:
    with pytest.raises(InvalidName, match="write 'dlq-queue'"):
        QueueKeys.of(SINGLE, "{dlq}")


def test_a_lane_never_becomes_another_queue_or_a_priority() -> None:
    mail = QueueKeys.of(SINGLE, "mail")
    assert mail.lane("queue") != QueueKeys.of(SINGLE, "mail:queue").waiting
    assert mail.lane("high") != mail.priority("high")
    assert mail.lane("high") == "mail:%68igh"


def test_an_unknown_priority_is_refused() -> None:
    with pytest.raises(InvalidName, match="must be one of high, normal, low"):
        QueueKeys.of(SINGLE, "mail").priority("urgent")


@pytest.mark.parametrize("index", [-1, True, 1.0, "1", "٣", None, float("nan")])
def test_a_partition_is_a_whole_number_from_0_on(index) -> None:
    with pytest.raises(InvalidName, match="must be a whole number from 0 on"):
        PartitionKeys.of(SINGLE, "orders", index)
    with pytest.raises(InvalidName, match="must be a whole number from 0 on"):
        UploadKeys.of(SINGLE, "u").chunk(index)


@pytest.mark.parametrize("hour", ["", "2024-09-17", "2024-09-17_1٤", "2024-09-17_14\n", 14])
def test_an_hour_has_its_fixed_form(hour) -> None:
    with pytest.raises(InvalidName, match="must look like '2024-09-17_14'"):
        HourlyLimitKeys.of(SINGLE).count(hour)


@pytest.mark.parametrize(
    ("raw", "encoded"),
    [
        ("front_door", "front_door"),
        ("scheduled__2024-09-17", "scheduled__2024-09-17"),
        (RUN, "manual_2024-09-17T14%3A30%3A00+00%3A00"),
        ("2001:db8::1", "2001%3Adb8%3A%3A1"),
        ("/api/events?x=*", "%2Fapi%2Fevents%3Fx=%2A"),
        ("%2e%2e%2f", "%252e%252e%252f"),
        ("{a}", "%7Ba%7D"),
        ("a b\n\0", "a%20b%0A%00"),
        ("é", "%C3%A9"),
        ("\ud800", "%ED%A0%80"),
    ],
)
def test_identifiers_keep_their_spelling_as_far_as_it_is_safe(raw, encoded) -> None:
    assert encode_id("id", raw) == encoded
    assert decode_id(encoded) == raw


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("", "is empty"),
        ("x" * 513, "has 513 characters, at most 512 fit; use its hash"),
        (None, "must be text"),
        (b"x", "must be text"),
        (12, "must be text"),
    ],
)
def test_an_identifier_that_cannot_be_one_is_refused(raw, words) -> None:
    with pytest.raises(InvalidName, match=words):
        UploadKeys.of(SINGLE, raw)


ANY_TEXT = st.text(st.characters(), min_size=1, max_size=40)


@given(ANY_TEXT)
def test_every_identifier_can_be_read_back(raw: str) -> None:
    assert decode_id(encode_id("id", raw)) == raw


@given(ANY_TEXT, ANY_TEXT)
def test_different_identifiers_stay_different(one: str, other: str) -> None:
    assert (encode_id("id", one) == encode_id("id", other)) == (one == other)


def test_key_objects_are_values() -> None:
    one = PartitionKeys.of(SINGLE, "orders", 3)
    assert one == PartitionKeys.of(KeySpace(), "orders", 3)
    assert hash(one) == hash(PartitionKeys.of(KeySpace(), "orders", 3))
    assert one != TopicKeys.of(SINGLE, "orders")
    with pytest.raises(AttributeError):
        one.home = "other"  # type: ignore[misc]
    assert not hasattr(one, "__dict__")
    assert KeySpace("hsi", cluster=True) == KeySpace("hsi", cluster=True)
    assert repr(KeySpace("hsi")) == "KeySpace(namespace='hsi', cluster=False)"
