"""Every key has its place in the contract, and the contract has no gaps and no overlaps."""

import inspect
import re
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.inspector.key_contract import _READER, FAMILIES, classify, read_key
from penstock.queues.storage.keys import AREA_WORDS, PRIORITIES, JobKeys, QueueKeys
from penstock.redis.keys.family import Family, FamilyKeys, RedisType, Ttl
from penstock.redis.keys.hash_slot import key_slot
from penstock.redis.keys.names import NAME
from penstock.redis.keys.reading import KeyRead
from penstock.redis.keys.space import KeySpace
from penstock.settings.redis import RESERVED_WORDS
from penstock.topics.storage.keys import RESERVED_TOPICS, PartitionKeys

DOCUMENT = Path(__file__).parents[3] / "docs" / "contracts.md"

for engine in (
    *("topics.storage", "queues.storage", "runtime", "coordination.once", "coordination.cache"),
    *("coordination.limits", "coordination.windows", "coordination.runs", "coordination.slots"),
    *("coordination.feeds", "coordination.uploads"),
):
    import_module(f"penstock.{engine}.keys")

LAYOUTS = [KeySpace(), KeySpace(cluster=True), KeySpace("hsi"), KeySpace("hsi", cluster=True)]

# Most likely to be mistaken for something else: the words that keys themselves are made of.
WORDS = sorted(
    {
        word
        for family in FAMILIES
        for pattern in family.patterns
        for word in re.split("[:{}]", pattern)
        if re.fullmatch(NAME, word)
    }
    | {"queue", "high", "a", "0", "hsi"}
)
TRICKY = ["a:b", "{a}", "}", "*", "%3A", "%", "::1", "a:queue", "\ud800", "é", " ", "\n", "p:0"]

names = st.sampled_from(WORDS) | st.from_regex(rf"\A{NAME}\Z").map(lambda name: name[:20])
ids = st.sampled_from(WORDS + TRICKY) | st.text(st.characters(), min_size=1, max_size=12)
area_parts = names.filter(lambda word: word not in AREA_WORDS)
plain_queues = names.filter(lambda word: word not in RESERVED_WORDS)
area_queues = (
    st.lists(area_parts, min_size=1, max_size=3)
    .filter(lambda parts: parts[0] not in RESERVED_WORDS)
    .map(lambda parts: ":".join([*parts, "queue"]))
)
STRATEGIES = {
    "beside": plain_queues
    | area_queues
    | st.builds("{}:{}".format, plain_queues, st.integers(0, 4095)),
    "topic": names.filter(lambda word: word not in RESERVED_TOPICS),
    "group": names,
    "epoch": st.integers(0, 2**64),
    "index": st.integers(0, 2**64),
    "chunk": st.integers(0, 2**64),
    "queue": plain_queues | area_queues,
    "name": names,
    "priority": st.sampled_from(PRIORITIES),
    "hour": st.datetimes().map(lambda when: f"{when.year:04}-{when:%m-%d_%H}"),
}


def families_and_methods() -> dict[str, object]:
    """Every key that can be built, by the name its family must have."""
    return {
        f"{word_of(made)}.{name}": member
        for made in FamilyKeys.__subclasses__()
        for name, member in vars(made).items()
        if not name.startswith("_") and name != "of" and not is_prefix(name, member)
    }


def is_prefix(name: str, member: object) -> bool:
    """Whether it is what the keys of a family begin with, and no key."""
    return name.endswith("prefix") or (member.__doc__ or "").startswith("Prefix of")


def word_of(made: type[FamilyKeys]) -> str:
    """`WindowIndexKeys` has the families `window_index.…`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", made.__name__.removesuffix("Keys")).lower()


def parameters(method) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name != "self"]


def build(keys: KeySpace, family: Family, arguments: "Drawn") -> str:
    factory, attribute = family.name.split(".")
    make = next(one for one in FamilyKeys.__subclasses__() if word_of(one) == factory).of
    given = {name: arguments[name] for name in parameters(make) if name != "keys"}
    key = getattr(make(keys, **given), attribute)
    return key(**{name: arguments[name] for name in parameters(key)}) if callable(key) else key


class Drawn(dict[str, object]):
    """Arguments by name, each drawn when it is first asked for."""

    def __init__(self, data: st.DataObject) -> None:
        super().__init__()
        self.data = data

    def __missing__(self, name: str) -> object:
        self[name] = self.data.draw(STRATEGIES.get(name, ids), name)
        return self[name]


# The first example compiles the readers, on a busy machine for longer than an example may take.
unhurried = settings(deadline=None)

any_family = st.sampled_from(FAMILIES)
any_layout = st.sampled_from(LAYOUTS)


def test_every_key_has_its_entry_in_the_contract_and_every_entry_its_key() -> None:
    assert sorted(families_and_methods()) == sorted(family.name for family in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_docstring_of_a_key_gives_its_type_and_content(family: Family) -> None:
    docstring = families_and_methods()[family.name].__doc__
    assert docstring is not None
    assert re.fullmatch(rf"{family.redis_type.upper()}: .+\.", docstring)


@unhurried
@given(any_layout, any_family, st.data())
def test_a_key_gives_back_its_family_and_arguments_so_no_two_are_alike(
    keys: KeySpace, family: Family, data: st.DataObject
) -> None:
    arguments = Drawn(data)
    key = build(keys, family, arguments)
    written = family.cluster if keys.cluster else family.pattern
    expected = {name: str(arguments[name]) for name in re.findall(r"<(\w+)>", written)}
    assert read_key(key, keys.namespace) == KeyRead(family, expected)
    assert classify(key.encode(), keys.namespace) is family


@unhurried
@given(any_layout, any_family, st.data())
def test_a_key_belongs_to_one_family_only(
    keys: KeySpace, family: Family, data: st.DataObject
) -> None:
    key = build(keys, family, Drawn(data)).removeprefix(keys.prefix)
    readers = [entry for entries in _READER.patterns.values() for entry in entries]
    assert [owner.name for owner, reader in readers if reader.fullmatch(key)] == [family.name]


@unhurried
@given(any_layout, any_family, st.data())
def test_nothing_from_outside_can_break_a_key(
    keys: KeySpace, family: Family, data: st.DataObject
) -> None:
    key = build(keys, family, Drawn(data))
    assert re.fullmatch(r"[A-Za-z0-9_.+@=%:{}-]+", key)
    braces = re.sub(r"[^{}]", "", key)
    assert braces == ("{}" if keys.cluster else "")
    assert "{}" not in key


FACTORIES = sorted({family.name.split(".")[0] for family in FAMILIES})


@unhurried
@pytest.mark.parametrize(
    "factories",
    [*((name,) for name in FACTORIES), ("queue", "job"), ("window", "batch", "window_index")],
)
@given(st.data())
def test_on_a_cluster_what_a_script_may_span_is_in_one_slot(
    factories: tuple[str, ...], data: st.DataObject
) -> None:
    arguments = Drawn(data)
    keys = [
        build(KeySpace(cluster=True), family, arguments)
        for family in FAMILIES
        if family.name.split(".")[0] in factories
    ]
    assert len(keys) >= len(factories)
    assert len({key_slot(key) for key in keys}) == 1


@unhurried
@given(STRATEGIES["topic"], STRATEGIES["topic"], STRATEGIES["index"], STRATEGIES["index"])
def test_different_partitions_have_different_tags(topic, other_topic, index, other_index) -> None:
    keys = KeySpace(cluster=True)
    tags = {
        re.findall(r"\{(.+)\}", PartitionKeys.of(keys, name, number).stream)[0]
        for name, number in ((topic, index), (other_topic, other_index))
    }
    assert (len(tags) == 1) == ((topic, index) == (other_topic, other_index))


@pytest.mark.parametrize(
    "key",
    [
        "",
        ":",
        "dlq",
        "dlq:",
        "stream:topic:orders",
        "stream:topic:orders:p:x",
        "stream:topic:{orders:3",
        "stream:topic:{orders}:p:3",
        "streaming:mq:retry:item:orders",
        "upload:u:chunks:01",
        "courtlistener:counter:2024-09-17_14",
        "cache:one",
        "cache:a:b:c",
        "mail:a:b",
        "rag:ingest:job:a:b",
        "two words",
        "cache:space:%3a",
        b"\xff\xfe",
    ],
)
def test_a_key_that_is_not_ours_has_no_family(key: str | bytes) -> None:
    assert classify(key) is None


namespaces = st.just("") | names.filter(lambda word: word not in RESERVED_WORDS)


@unhurried
@given(
    st.lists(namespaces, min_size=2, max_size=2, unique=True),
    st.lists(st.booleans(), min_size=2, max_size=2),
    st.lists(any_family, min_size=2, max_size=2),
    st.data(),
)
def test_no_key_of_one_namespace_is_a_key_of_another(
    spaces: list[str], clusters: list[bool], families: list[Family], data: st.DataObject
) -> None:
    one, other = (
        build(KeySpace(space, cluster=cluster), family, Drawn(data))
        for space, cluster, family in zip(spaces, clusters, families, strict=True)
    )
    assert one != other
    for key, stranger in ((one, spaces[1]), (other, spaces[0])):
        assert read_key(key, stranger) is None
        assert not (stranger and fnmatchcase(key, f"{stranger}::*"))


@unhurried
@given(namespaces.filter(bool), any_family, st.booleans(), st.data())
def test_the_pattern_of_an_access_list_covers_all_keys_of_its_namespace(
    namespace: str, family: Family, cluster: bool, data: st.DataObject
) -> None:
    key = build(KeySpace(namespace, cluster=cluster), family, Drawn(data))
    assert fnmatchcase(key, f"{namespace}::*")


@pytest.mark.parametrize(
    ("key", "namespace"),
    [
        (QueueKeys.of(KeySpace(), "rag:ingest:queue").waiting, "rag"),
        (JobKeys.of(KeySpace(), "rag:ingest:queue", "1").status, "rag"),
        (QueueKeys.of(KeySpace(), "mail").lane("bulk"), "mail"),
        (QueueKeys.of(KeySpace(), "mail").lane(":bulk"), "mail"),
    ],
)
def test_queues_and_lanes_without_a_namespace_are_in_no_namespace(key: str, namespace: str) -> None:
    assert read_key(key) is not None
    assert read_key(key, namespace) is None


def test_a_key_of_another_namespace_is_not_ours() -> None:
    assert classify("hsi::dlq:mail", "hsi") is not None
    assert classify("hsi:dlq:mail", "hsi") is None
    assert classify("hsi::dlq:mail") is None
    assert classify("dlq:mail", "hsi") is None
    assert classify("other::dlq:mail", "hsi") is None


def test_reserved_words_come_from_the_keys_themselves() -> None:
    first_words = {family.pattern.split(":")[0] for family in FAMILIES}
    assert {word for word in first_words if "<" not in word} <= RESERVED_WORDS
    assert frozenset({"job", "queue"}) == AREA_WORDS


def test_what_must_expire_and_what_must_not_is_said_of_every_key() -> None:
    by_name = {family.name: family for family in FAMILIES}
    assert by_name["partition.stream"].ttl is Ttl.NEVER
    assert by_name["partition.lease"].ttl is Ttl.ALWAYS
    assert by_name["job.status"].ttl is Ttl.TERMINAL
    assert by_name["queue.waiting"].redis_type is RedisType.LIST
    assert all(family.lifetime and family.owner and family.writers for family in FAMILIES)


def rows_of(document: str) -> list[str]:
    """Rows of the tables in the section on keys."""
    section = document.partition("\n## Keys\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `[^\n]+$", section, flags=re.MULTILINE)


def row_for(family: Family) -> str:
    spellings = " or ".join(f"`{one}`" for one in (family.pattern, family.also) if one)
    content = families_and_methods()[family.name].__doc__.partition(": ")[2].rstrip(".")
    cells = (
        spellings,
        f"`{family.cluster}`",
        family.redis_type.upper(),
        content,
        f"{family.ttl}: {family.lifetime}",
        family.owner,
        family.writers,
    )
    return f"| {' | '.join(cells)} |"


def test_the_contract_page_lists_exactly_the_families() -> None:
    assert rows_of(DOCUMENT.read_text(encoding="utf-8")) == [row_for(one) for one in FAMILIES]


def test_the_contract_page_explains_every_ttl_rule() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [rule for rule in Ttl if f"- **{rule}**:" not in text] == []


def test_the_contract_page_names_every_reserved_word() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    reserved = RESERVED_WORDS | RESERVED_TOPICS | AREA_WORDS
    assert [word for word in sorted(reserved) if f"`{word}`" not in text] == []


def reserved_in(argument: str) -> set[str]:
    """Words that stand in other keys where this argument stands in its own."""
    patterns = [
        pattern.split(":")
        for family in FAMILIES
        for pattern in (family.pattern, family.also)
        if pattern
    ]
    return {
        other[position]
        for parts in patterns
        for position, part in enumerate(parts)
        if part == f"<{argument}>"
        for other in patterns
        if other[:position] == parts[:position] and len(other) > position
        if not other[position].startswith("<")
    }


def test_the_reserved_words_are_those_that_keys_are_made_of() -> None:
    assert reserved_in("queue") == RESERVED_WORDS
    # A topic may be called dlq: what follows tells its payloads from those of dead letters.
    assert reserved_in("topic") - {"dlq"} == RESERVED_TOPICS
    areas = {family.also.split(":")[1] for family in FAMILIES if family.also.startswith("<area>:")}
    assert areas | {"queue"} == AREA_WORDS
