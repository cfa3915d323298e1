# ruff: noqa: E501, ISC004  a row of a table is one line, and its text one text
"""The configuration of documents: what is taken, and the exact words for every mistake."""

from __future__ import annotations

import functools
import os
import pickle
import re
import stat
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from penstock.errors.documents import ConfigurationWrong, RagMissing
from penstock.pipelines.documents.config.fields import names_of, words_for
from penstock.pipelines.documents.config.models import (
    BUILTIN_DIMENSION,
    TAKEN_IDS,
    TYPES,
    Chunking,
    ClientConfig,
    Collection,
    Embeddings,
    RagConfig,
    Sources,
)
from penstock.pipelines.documents.config.reading import (
    changed,
    effective_settings,
    read_configuration,
)
from penstock.pipelines.documents.config.validation import (
    CLIENT_IGNORED,
    CLIENT_NAMES,
    RAG_IGNORED,
    RAG_NAMES,
    STRATEGIES,
    variable_of,
)
from penstock.pipelines.documents.config.writing import ensure_default_rag, make_folders, write_rag
from penstock.pipelines.documents.watch.incoming import UNFINISHED
from penstock.settings import DocumentSettings, Settings, VectorSettings

KNOWN = ", ".join(TYPES)

SEED_CLIENT = """
app: {host: "0.0.0.0", port: 8000, log_level: INFO, environment: development, name: Test}
qdrant: {url: "http://qdrant:6333", api_key: null, timeout_s: 30, max_retries: 3}
redis: {url: "redis://redis:6379/0", password: null, db: 0, timeout_s: 10, max_pool_size: 20}
llm: {provider: openrouter, api_key_env_var: OPENROUTER_API_KEY, default_model: m}
paths: {sources_root: ./data/sources, rags_config_dir: ./rags, logs_dir: /l, templates_dir: /t}
concurrency: {global_max_inflight_requests: 100, global_rate_limit: 1000, request_timeout_s: 120}
security: {behind_nginx: true, trusted_proxies: ["127.0.0.1"], require_api_key: false}
cache: {enabled: true, ttl_seconds: 3600, backend: redis}
sessions: {enabled: true, ttl_seconds: 86400, max_history_turns: 10}
monitoring: {enable_metrics: true, enable_tracing: false, trace_sample_rate: 0.1}
error_handling: {return_stack_traces: false, log_full_errors: true}
"""

SEED_RAG = """
rag_id: "example_rag"
display_name: "Example RAG"
description: "Example RAG for documentation and policies"
collection: {name: "example_rag_docs", recreation_policy: "skip", shard_number: 1}
embeddings:
  model_name: "sentence-transformers/all-MiniLM-L6-v2"
  dimension: 384
  batch_size: 32
  normalize: true
chunking:
  splitter: "recursive_character"
  chunk_size: 512
  chunk_overlap: 128
  separator: "\\n\\n"
  secondary_separators: ["\\n", " ", ""]
retrieval: {top_k: 5, score_threshold: 0.5, max_context_chunks: 10, rerank: false,
            filter_duplicates: true}
prompting: {system_template_path: /app/system_prompt.txt, max_tokens: 1024, temperature: 0.7}
rate_limit: {requests_per_second: 10, burst_size: 20, per_user: false}
errors: {no_context_message: "No relevant information found for your query."}
cache: {enabled: true, ttl_seconds: 3600, key_prefix: "example_rag"}
sessions: {enabled: true, history_turns: 5}
sources:
  directory: "example_rag_sources"
  allowed_extensions: [".pdf", ".txt", ".md", ".docx"]
  max_file_size_mb: 50
  auto_reload: true
metadata: {extract_title: true, extract_date: true, custom_fields: []}
security: {public: true, allowed_users: [], require_consent: false}
monitoring: {log_queries: true}
experimental: {enable_reranking: false}
"""


class Place:
    """A data directory whose files a test writes."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.base = self.home / "documents"
        self.rags = self.base / "rags"
        self.rags.mkdir(parents=True)
        self.settings = Settings(home=str(self.home))

    def client(self, text: str) -> Path:
        file = self.base / "client.yaml"
        file.write_text(dedent(text))
        return file

    def rag(self, text: str | bytes, name: str = "faq.yaml") -> None:
        content = text if isinstance(text, bytes) else dedent(text).encode()
        (self.rags / name).write_bytes(content)

    def read(self, **environ: str):
        return read_configuration(self.settings, environ)

    def mistakes(self, **environ: str) -> tuple[str, ...]:
        with pytest.raises(ConfigurationWrong) as wrong:
            self.read(**environ)
        return wrong.value.problems


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def test_without_any_file_everything_is_in_the_data_directory(place):
    config = place.read()
    assert config.rags == {}
    assert (config.sources_root, config.rags_dir, config.work_dir) == (
        place.base / "sources",
        place.base / "rags",
        place.base / "work",
    )


def test_a_client_file_of_the_chatbot_works_as_it_is(place):
    place.client(SEED_CLIENT)
    config = place.read()
    assert config.client.qdrant.url == "http://qdrant:6333"
    assert config.client.qdrant.timeout == 30
    assert config.client.redis.db == 0
    assert config.sources_root == place.base / "data" / "sources"  # relative to the file
    assert config.rags_dir == place.base / "rags"


def test_a_rag_file_of_the_chatbot_works_as_it_is(place):
    place.rag(SEED_RAG)
    config = place.read()
    assert config.problems == {}
    rag = config.rag("example_rag")
    assert rag.embeddings.provider == "sentence-transformers"
    assert rag.embeddings.model == "sentence-transformers/all-MiniLM-L6-v2"
    assert (rag.embeddings.dimension, rag.embeddings.batch) == (384, 32)
    assert rag.chunking == Chunking(strategy="recursive", size=512, overlap=128)
    assert rag.retrieval.threshold == 0.5
    assert rag.sources.extensions == (".pdf", ".txt", ".md", ".docx")
    assert rag.title == "Example RAG"
    assert config.folder_of(rag) == config.sources_root / "example_rag_sources"


def test_every_foreign_field_is_none_of_ours():
    fields = msgspec.to_builtins(RagConfig(rag_id="a"))
    ours = {
        f"{name}.{key}" if isinstance(value, dict) else name
        for name, value in fields.items()
        for key in (value if isinstance(value, dict) else [""])
    }
    assert not ours & RAG_IGNORED
    assert not ours & RAG_NAMES.keys()
    assert set(RAG_NAMES.values()) <= ours


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("chunking: {overlap: 600}", "chunking.overlap = 600: expected less than chunking.size (512)"),
        ("chunking: {size: 512, overlap: 512}", "chunking.overlap = 512: expected less than chunking.size (512)"),
        ("chunking: {size: 100}", "chunking.overlap = 128 (by default): expected less than chunking.size (100)"),
        (
            "chunking: {chunk_size: 256, chunk_overlap: 300}",
            "chunking.chunk_overlap = 300: expected less than chunking.chunk_size (256)",
        ),
        ("chunking: {size: 5}", "chunking.size = 5: expected a whole number from 64 to 4096"),
        ("chunking: {size: 4097}", "chunking.size = 4097: expected a whole number from 64 to 4096"),
        ("chunking: {size: '512'}", "chunking.size = '512': expected a whole number from 64 to 4096"),
        ("chunking: {size: 512.5}", "chunking.size = 512.5: expected a whole number from 64 to 4096"),
        ("chunking: {size: true}", "chunking.size = True: expected a whole number from 64 to 4096"),
        ("chunking: {overlap: -1}", "chunking.overlap = -1: expected a whole number from 0 to 1024"),
        ("chunking: {strategy: magic}", "chunking.strategy = 'magic': expected one of recursive, structure"),
        ("chunking: {splitter: magic}", "chunking.splitter = 'magic': expected one of recursive, structure"),
        ("chunking: 512", "chunking = 512: expected fields of its own"),
        ("chunking: [1]", "chunking = [1]: expected fields of its own"),
        ("chunking: {size: 256, chunk_size: 256}", "chunking.chunk_size: the same as chunking.size; expected one of them"),
        ("chunking: {overlp: 1}", "chunking.overlp: unknown; did you mean chunking.overlap?"),
        ("chunkin: {size: 512}", "chunkin: unknown; did you mean chunking?"),
        ("promptin: {}", "promptin: unknown; did you mean prompting?"),
        ("collection: {shard_nmber: 1}", "collection.shard_nmber: unknown; did you mean collection.shard_number?"),
        ("retrieval: {zzz: 1}", "retrieval.zzz: unknown; there are retrieval.top_k, retrieval.threshold"),
        (
            "zzz: 1",
            "zzz: unknown; there are rag_id, display_name, description, weight, collection, embeddings, "
            "chunking, sources, retrieval",
        ),
        ("sources: {extensions: [.exe]}", f"sources.extensions = '.exe': expected one of {KNOWN}"),
        ("sources: {extensions: [pdf]}", "sources.extensions = 'pdf': expected a leading dot, as .pdf"),
        ("sources: {extensions: []}", f"sources.extensions = []: expected at least one of {KNOWN}"),
        ("sources: {extensions: .pdf}", "sources.extensions = '.pdf': expected a list of texts"),
        ("sources: {extensions: [1]}", "sources.extensions = [1]: expected a list of texts"),
        ("sources: {max_mb: 0}", "sources.max_mb = 0: expected a number above 0 to 500"),
        ("sources: {max_mb: 501}", "sources.max_mb = 501: expected a number above 0 to 500"),
        ("sources: {max_mb: .nan}", "sources.max_mb = nan: expected a number above 0 to 500"),
        ("sources: {watch: 1}", "sources.watch = 1: expected true or false"),
        ("sources: {directory: ../up}", "sources.directory = '../up': expected a directory within ROOT"),
        ("sources: {directory: a/../../b}", "sources.directory = 'a/../../b': expected a directory within ROOT"),
        ("sources: {directory: /etc}", "sources.directory = '/etc': expected a directory within ROOT"),
        ("sources: {directory: .}", "sources.directory = '.': expected a directory within ROOT"),
        ("sources: {directory: ''}", "sources.directory = '': expected a directory within ROOT"),
        ("sources: {directory: ROOT-other/a}", "sources.directory = 'ROOT-other/a': expected a directory within ROOT"),
        ("collection: {name: a/b}", "collection.name = 'a/b': expected 1 to 100 letters, digits, _, . or -, the first not . or -"),
        ("collection: {name: ..}", "collection.name = '..': expected 1 to 100 letters, digits, _, . or -, the first not . or -"),
        ("retrieval: {top_k: 51}", "retrieval.top_k = 51: expected a whole number from 1 to 50"),
        ("retrieval: {threshold: 1.5}", "retrieval.threshold = 1.5: expected a number from 0 to 1"),
        ("weight: 0", "weight = 0: expected a whole number from 1 to 1000"),
        ("description: 7", "description = 7: expected a text"),
        (
            "embeddings: {provider: open_ai}",
            "embeddings.provider = 'open_ai': expected one of builtin, http, sentence-transformers, python",
        ),
        ("embeddings: {provider: sentence-transformers}", "embeddings.model: missing; the provider sentence-transformers needs it"),
        ("embeddings: {provider: python}", "embeddings.model: missing; the provider python needs it"),
        ("embeddings: {provider: python, model: mine}", "embeddings.model = 'mine': expected what makes the embedder, as package.module:factory"),
        ("embeddings: {dimension: 384}", "embeddings.dimension = 384: expected 256, the built-in model's"),
        ("embeddings: {model: other}", "embeddings.model = 'other': expected none: the provider builtin has no use for it"),
        (
            "embeddings: {url: 'http://h/v1'}",
            "embeddings.url = 'http://h/v1': expected none: the provider builtin has no use for it",
        ),
        (
            "embeddings: {provider: http, model: m, url: h/v1}",
            "embeddings.url = 'h/v1': expected an address, as https://host/v1",
        ),
        (
            "embeddings: {provider: http, model: m, url: 'https://u:p@h/v1'}",
            "embeddings.url = 'https://u:…@h/v1': expected no user or password; api_key_env names what has the key",
        ),
        (
            "embeddings: {provider: http, model: m, url: 'http://h', api_key_env: sk-proj-SECRET}",
            "embeddings.api_key_env = …: expected the name of an environment variable; this looks like a key itself",
        ),
        (
            "embeddings: {provider: http, model: m, url: 'http://h', api_key_env: 0a1b2c3d4e5f60718293a4b5c6d7e8f9}",
            "embeddings.api_key_env = …: expected the name of an environment variable; this looks like a key itself",
        ),
        (
            "embeddings: {provider: http, model: m, url: 'http://h', api_key_env: 'MY KEY'}",
            "embeddings.api_key_env = …: expected the name of an environment variable, as OPENAI_API_KEY",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_these_words(place, text, expected):
    root = str(place.base / "sources")
    place.rag("rag_id: faq\n" + text.replace("ROOT", root))
    assert place.read().problems == {"faq.yaml": (expected.replace("ROOT", root),)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("description: none", "rag_id: missing; every RAG has one"),
        ("rag_id:", "rag_id: missing; every RAG has one"),
        ("rag_id: my-rag", "rag_id = 'my-rag': expected 1 to 64 letters, digits or _"),
        ("rag_id: ''", "rag_id = '': expected 1 to 64 letters, digits or _"),
        ('rag_id: "a\\n"', r"rag_id = 'a\n': expected 1 to 64 letters, digits or _"),
        (f"rag_id: {'a' * 65}", f"rag_id = '{'a' * 65}': expected 1 to 64 letters, digits or _"),
        ("rag_id: 7", "rag_id = 7: expected 1 to 64 letters, digits or _"),
        ("rag_id: no", "rag_id = False: expected 1 to 64 letters, digits or _"),
        (
            "rag_id: high",
            "rag_id = 'high': expected another one: high, low, normal, queue are the queue's own",
        ),
        (
            "rag_id: queue",
            "rag_id = 'queue': expected another one: high, low, normal, queue are the queue's own",
        ),
    ],
)
def test_a_wrong_id_is_told_in_these_words(place, text, expected):
    place.rag(text)
    assert place.read().problems == {"faq.yaml": (expected,)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "the file is empty"),
        (b"# only words\n", "the file is empty"),
        (b"- a\n", "expected fields with values, as `name: value`, not a list"),
        (b"hello\n", "expected fields with values, as `name: value`, not a single value"),
        (b"rag_id: a\n---\nrag_id: b\n", "line 2: a second document begins here; expected one in a file"),
        (b"rag_id: a\nchunking:\n\tsize: 512\n", "line 3: a tab; expected spaces"),
        (b"rag_id: a\nrag_id: b\n", "line 2: 'rag_id' stands here a second time, first in line 1"),
        (
            b"rag_id: a\nchunking:\n  size: 99\n  size: 98\n",
            "line 4: 'size' stands here a second time, first in line 3",
        ),
        (b"rag_id: &x a\n", "line 1: anchors and aliases (&, *) are not taken"),
        (b"rag_id: a\nsources: *x\n", "line 2: anchors and aliases (&, *) are not taken"),
        (b"<<: {rag_id: a}\n", "line 1: merging with << is not taken"),
        (b"? [a]\n: b\n", "line 1: expected a name before the colon"),
        (b"a: " + b"[" * 30 + b"]" * 30, "line 1: nested more than 20 levels deep"),
        (b"rag_id: \xff\n", "line 1: not UTF-8"),
        (b"rag_id: a\nx: [" + b"1," * 500_000 + b"1]", "line 2: expected at most 10,000 values in a file"),
        (b"rag_id: a\nx: \x07\n", "line 2: a character that YAML does not allow"),
        (b"rag_id: a\nx: {\n", "line 3: not valid YAML: expected the node content, but found '<stream end>'"),
        (b"invalid: yaml: content: {", "line 1: not valid YAML: mapping values are not allowed here"),
        (b"#" * 1_048_577, "the file is too large: expected at most 1,048,576 bytes"),
        (
            b"rag_id: !!python/object/apply:os.system ['true']\n",
            "rag_id = ['true']: expected 1 to 64 letters, digits or _",
        ),
        (
            b"rag_id: !!python/name:os.system\n",
            "line 1: not valid YAML: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/name:os.system'",
        ),
    ],
)  # fmt: skip
def test_a_file_that_is_no_mapping_of_plain_values_is_told_with_its_line(place, text, expected):
    place.rag(text)
    assert place.read().problems == {"faq.yaml": (expected,)}


def test_a_number_of_thousands_of_digits_is_a_mistake_and_no_crash(place):
    place.rag(f"rag_id: a\nweight: {'9' * 5000}")
    (told,) = place.read().problems["faq.yaml"]
    assert told.startswith("line 2: ")


def test_a_pipe_and_a_directory_named_like_a_file_do_not_hold_up_the_reader(place):
    os.mkfifo(place.rags / "pipe.yaml")
    (place.rags / "folder.yaml").mkdir()
    (place.rags / "loop.yaml").symlink_to("loop.yaml")
    assert place.read().problems == {
        "folder.yaml": ("not a file",),
        "loop.yaml": ("Too many levels of symbolic links",),
        "pipe.yaml": ("not a file",),
    }


def test_all_mistakes_of_a_file_are_told_at_once(place):
    place.rag("""
        rag_id: a-b
        chunking: {size: 5, overlp: 1}
        sources: {extensions: [.exe, pdf]}
    """)
    assert place.read().problems["faq.yaml"] == (
        "chunking.overlp: unknown; did you mean chunking.overlap?",
        "rag_id = 'a-b': expected 1 to 64 letters, digits or _",
        "chunking.size = 5: expected a whole number from 64 to 4096",
        f"sources.extensions = '.exe': expected one of {KNOWN}",
        "sources.extensions = 'pdf': expected a leading dot, as .pdf",
    )


def test_a_broken_rag_takes_no_other_down_and_tells_who_asks_for_it(place):
    place.rag("rag_id: good", "good.yml")
    place.rag("rag_id: bad\nweight: 0", "whatever.yaml")
    place.rag("rag_id: [", "torn.yaml")
    place.rag("rag_id: hidden", ".hidden.yaml")
    place.rag("rag_id: note", "note.txt")
    config = place.read()
    assert list(config.rags) == ["good"]
    assert config.rag("good") == RagConfig(rag_id="good")
    with pytest.raises(ConfigurationWrong) as wrong:
        config.rag("bad")
    assert wrong.value.source == str(place.rags / "whatever.yaml")
    assert wrong.value.problems == ("weight = 0: expected a whole number from 1 to 1000",)
    with pytest.raises(ConfigurationWrong, match="line 1"):
        config.rag("torn")
    with pytest.raises(RagMissing, match="there is no RAG 'other'; there are good"):
        config.rag("other")
    assert pickle.loads(pickle.dumps(wrong.value)).problems == wrong.value.problems  # noqa: S301


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ("rag_id: a", "rag_id: a", ("rag_id = 'a': expected another one than {} has",) * 2),
        (
            "rag_id: a",
            "{rag_id: b, collection: {name: a}}",
            ("collection.name = 'a': expected another one than {} has",) * 2,
        ),
        (
            "{rag_id: a, sources: {directory: same}}",
            "{rag_id: b, sources: {directory: ./same/}}",
            ("sources.directory = 'same': expected one apart from that of {} ('same')",) * 2,
        ),
        (
            "rag_id: a",
            "{rag_id: b, sources: {directory: a/incoming}}",
            (
                "sources.directory = 'a': expected one apart from that of {} ('a/incoming')",
                "sources.directory = 'a/incoming': expected one apart from that of {} ('a')",
            ),
        ),
    ],
)
def test_two_rags_that_claim_the_same_are_both_told(place, one, two, expected):
    place.rag(one, "one.yaml")
    place.rag(two, "two.yaml")
    place.rag("rag_id: other", "other.yaml")
    config = place.read()
    assert config.problems == {
        "one.yaml": (expected[0].format("two.yaml"),),
        "two.yaml": (expected[1].format("one.yaml"),),
    }
    assert list(config.rags) == ["other"]


def test_directories_are_compared_by_components(place):
    place.rag("{rag_id: a, sources: {directory: docs}}", "a.yaml")
    place.rag("{rag_id: b, sources: {directory: docs2}}", "b.yaml")
    assert sorted(place.read().rags) == ["a", "b"]


def test_extensions_may_be_in_capitals(place):
    place.rag("{rag_id: a, sources: {extensions: [.PDF, .pdf, .Md]}}")
    assert place.read().rag("a").sources.extensions == (".pdf", ".md")


def test_an_empty_section_and_an_empty_field_say_nothing(place):
    place.rag("rag_id: a\nsources:\nchunking:\n  size:\ndescription:\n")
    assert place.read().rag("a") == RagConfig(rag_id="a")


def test_a_date_is_a_text(place):
    place.rag("rag_id: a\ndescription: 2024-01-01\n")
    assert place.read().rag("a").description == "2024-01-01"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qdrnt: {url: x}", "qdrnt: unknown; did you mean qdrant?"),
        ("qdrant: {ulr: 'http://secret'}", "qdrant.ulr: unknown; did you mean qdrant.url?"),
        ("qdrant: {url: invalid-url}", "qdrant.url = 'invalid-url': expected an address, as http://host:6333"),
        ("qdrant: {url: 'http://h:99999'}", "qdrant.url = 'http://h:99999': expected an address, as http://host:6333"),
        ("qdrant: {api_key: 7}", "qdrant.api_key = …: expected a text"),
        ("qdrant: {timeout_s: 0}", "qdrant.timeout_s = 0: expected a number above 0 to 86400"),
        ("qdrant: {api_key: '${NOT_THERE}'}", "qdrant.api_key = …: expected the environment variable to be set"),
        ("monitorin: {}", "monitorin: unknown; did you mean monitoring?"),
        (
            "redis: {url: http://h}",
            "redis.url: http:// is not one of redis, rediss, unix, redis+sentinel, rediss+sentinel, "
            "redis+cluster, rediss+cluster",
        ),
        ("redis: {url: 'redis://h/1', db: 0}", "redis.db = 0: expected the database of redis.url (1), or none"),
        ("redis: {url: 'redis://h/0', db: 3}", "redis.db = 3: expected the database of redis.url (0), or none"),
        ("redis: {url: 'unix:///s?db=2', db: 3}", "redis.db = 3: expected the database of redis.url (2), or none"),
        (
            "redis: {url: 'redis+sentinel://h/main/2', db: 3}",
            "redis.db = 3: expected the database of redis.url (2), or none",
        ),
        ("redis: {url: 'redis+cluster://h', db: 3}", "redis.db = 3: expected 0: a cluster has no other"),
        ("redis: {url: 'redis://:one@h', password: two}", "redis.password = …: expected the one in redis.url, or none"),
        ("redis: {db: 1}", "redis.db = 1: expected redis.url beside it"),
        ("paths: {sources_root: ''}", "paths.sources_root = '': expected the path of a directory"),
        ("paths: {source_root: x}", "paths.source_root: unknown; did you mean paths.sources_root?"),
        ("", "the file is empty"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_client_file_is_told_in_these_words(place, text, expected):
    place.client(text)
    assert place.mistakes() == (expected,)


def test_no_mistake_shows_a_secret(place):
    place.client("""
        qdrant: {url: "qdrant://user:hunter2@h", api_key: [hunter2], apikey: hunter2}
        redis: {url: "redis://:hunter2@h:port", password: {a: hunter2}}
    """)
    told = "\n".join(place.mistakes())
    assert len(place.mistakes()) == 5
    assert "hunter2" not in told


def test_no_secret_is_shown_with_the_configuration(place):
    place.client("""
        qdrant: {url: "http://u:hunter2@h", api_key: hunter2}
        redis: {url: "redis://:hunter2@h", password: hunter2}
    """)
    assert "hunter2" not in repr(place.read())


def test_a_named_client_file_has_to_be_there(place):
    settings = Settings(
        home=str(place.home), documents=DocumentSettings(config=str(place.home / "none.yaml"))
    )
    with pytest.raises(ConfigurationWrong, match=r"none\.yaml: there is no such file"):
        read_configuration(settings, {})


def test_a_named_client_file_is_read_and_its_paths_are_relative_to_it(place, tmp_path):
    file = tmp_path / "elsewhere" / "client.yaml"
    file.parent.mkdir()
    file.write_text("paths: {sources_root: ../data, rags_config_dir: /abs/rags}")
    settings = Settings(home=str(place.home), documents=DocumentSettings(config=str(file)))
    config = read_configuration(settings, {})
    assert config.sources_root == tmp_path / "data"
    assert config.rags_dir == Path("/abs/rags")


def test_the_environment_wins_over_the_file(place):
    place.client(SEED_CLIENT)
    config = place.read(
        RAG_QDRANT_URL="https://other:6333",
        RAG_QDRANT_TIMEOUT_S="7.5",
        RAG_REDIS_DB="0",
        RAG_REDIS_PASSWORD="",
        RAG_PATHS_SOURCES_ROOT="/srv/sources",
    )
    assert config.client.qdrant.url == "https://other:6333"
    assert config.client.qdrant.timeout == 7.5
    assert config.sources_root == Path("/srv/sources")


def test_a_relative_path_in_the_environment_is_relative_to_where_we_are(place, monkeypatch):
    monkeypatch.chdir(place.home)
    assert place.read(RAG_PATHS_SOURCES_ROOT="mine").sources_root == place.home / "mine"


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("RAG_REDIS_DB", "x", "RAG_REDIS_DB = 'x': expected a whole number from 0 to 1000000"),
        ("RAG_REDIS_DB", "3", "RAG_REDIS_DB = '3': expected the database of redis.url (0), or none"),
        ("RAG_QDRANT_ULR", "x", "RAG_QDRANT_ULR: unknown; did you mean RAG_QDRANT_URL?"),
        ("RAG_QDRNAT_URL", "x", "RAG_QDRNAT_URL: unknown; did you mean RAG_QDRANT_URL?"),
        (
            "RAG_PATHS_ZZZZZZZZZZZZZ",
            "x",
            "RAG_PATHS_ZZZZZZZZZZZZZ: unknown; there are RAG_QDRANT_URL, RAG_QDRANT_API_KEY, "
            "RAG_QDRANT_TIMEOUT, RAG_REDIS_URL, RAG_REDIS_PASSWORD, RAG_REDIS_DB, "
            "RAG_PATHS_SOURCES_ROOT, RAG_PATHS_RAGS_CONFIG_DIR, RAG_QDRANT_TIMEOUT_S",
        ),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_told_in_these_words(place, variable, value, expected):
    place.client(SEED_CLIENT)
    assert place.mistakes(**{variable: value}) == (expected,)


def test_variables_of_other_parts_and_of_other_programs_do_nothing(place):
    config = place.read(
        RAG_APP_PORT="x", RAG_LLM_MODEL="y", RAG_REDIS_MAX_POOL_SIZE="3", RAG_MODEL="z"
    )
    assert config.client == place.read().client


def test_a_value_may_name_a_variable(place):
    place.client("qdrant: {url: 'http://h:6333', api_key: '${QDRANT_API_KEY}'}")
    assert place.read(QDRANT_API_KEY="hunter2").client.qdrant.api_key == "hunter2"


def test_the_servers_of_the_file_are_used_where_penstock_names_none(place):
    place.client("""
        qdrant: {url: "http://q:6333", api_key: k, timeout: 7}
        redis: {url: "redis://r:6379", password: p, db: 3}
    """)
    config = place.read()
    settings = effective_settings(place.settings, config)
    assert settings.vectors == VectorSettings(url="http://q:6333", api_key="k", answer_s=7)
    assert (settings.url, settings.password) == ("redis://r:6379/3", "p")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", "redis://h/3"),
        ("redis://h/", "redis://h/3"),
        ("redis://h/3", "redis://h/3"),
        ("unix:///run/s", "unix:///run/s?db=3"),
        ("redis+sentinel://a,b/main", "redis+sentinel://a,b/main/3"),
    ],
)
def test_a_database_beside_the_address_becomes_part_of_it(place, url, expected):
    place.client(f"redis: {{url: '{url}', db: 3}}")
    assert effective_settings(place.settings, place.read()).url == expected


def test_penstocks_own_settings_win_over_the_file(place):
    place.client("""
        qdrant: {url: "http://q:6333", api_key: k}
        redis: {url: "redis://r:6379/3", password: p}
    """)
    own = Settings(
        home=str(place.home),
        url="redis://own",
        vectors=VectorSettings(url="http://own:6333"),
    )
    assert effective_settings(own, read_configuration(own, {})) == own


def test_the_first_start_makes_a_rag_and_its_folders(place):
    config = ensure_default_rag(place.read())
    assert list(config.rags) == ["default"]
    assert not changed(config)
    for name in ("incoming", "processed", "failed"):
        assert (place.base / "sources" / "default" / name).is_dir()
    assert place.read().rags == config.rags
    assert [file.name for file in place.rags.iterdir()] == ["default.yaml"]  # and no draft
    again = ensure_default_rag(config)
    assert again.rags == config.rags


@pytest.mark.parametrize("text", ["rag_id: mine", "rag_id: ["])
def test_no_rag_is_made_beside_a_file_that_is_there(place, text):
    place.rag(text)
    ensure_default_rag(place.read())
    assert [file.name for file in place.rags.iterdir()] == ["faq.yaml"]


def test_the_umask_says_who_may_put_files_into_the_folders(tmp_path):
    before = os.umask(0o027)
    try:
        config = ensure_default_rag(read_configuration(Settings(home=str(tmp_path / "h")), {}))
    finally:
        os.umask(before)

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(config.sources_root / "default" / "incoming") == 0o750
    assert mode(config.work_dir) == 0o700
    assert mode(tmp_path / "h") == 0o700


def test_making_folders_twice_changes_nothing(place):
    place.rag("rag_id: a")
    config = place.read()
    make_folders(config)
    make_folders(config)
    assert sorted(p.name for p in (config.sources_root / "a").iterdir()) == [
        "failed",
        "incoming",
        "processed",
    ]


def test_a_written_rag_is_read_as_it_was_and_has_comments(place):
    rag = RagConfig(
        rag_id="faq",
        display_name="Häufige Fragen 🙂",
        description='"quoted": # and\nlines',
        collection=Collection(name="faq-2"),
        embeddings=Embeddings(provider="http", model="m", url="http://h/v1", dimension=8),
    )
    path = write_rag(place.read(), rag)
    assert path == place.rags / "faq.yaml"
    assert place.read().rag("faq") == rag
    assert "# most characters of a chunk" in path.read_text()


texts = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=40)


@given(
    rag=st.builds(
        RagConfig,
        rag_id=st.just("faq"),
        display_name=texts,
        description=texts,
        chunking=st.builds(Chunking, size=st.integers(200, 4096), overlap=st.integers(0, 199)),
        sources=st.builds(
            Sources,
            extensions=st.lists(st.sampled_from(list(TYPES)), min_size=1, unique=True).map(tuple),
            max_mb=st.floats(0.001, 500),
            watch=st.booleans(),
        ),
        weight=st.integers(1, 1000),
    )
)
@hypothesis_settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_whatever_is_written_reads_the_same(place, rag):
    path = write_rag(place.read(), rag)
    assert place.read().rag("faq") == rag
    assert yaml.safe_load(path.read_text())["rag_id"] == "faq"
    path.unlink()


@pytest.mark.parametrize(
    ("rag", "expected"),
    [
        (RagConfig(rag_id="there"), "rag_id = 'there': expected a new one; a.yaml has it"),
        (RagConfig(rag_id="broken"), "rag_id = 'broken': expected a new one; b.yaml has it"),
        (RagConfig(rag_id="c"), "there is such a file already"),
        (
            RagConfig(rag_id="new", collection=Collection(name="there")),
            "collection.name = 'there': expected another one than a.yaml has",
        ),
        (
            RagConfig(rag_id="new", chunking=Chunking(size=64)),
            "chunking.overlap = 128: expected less than chunking.size (64)",
        ),
        (RagConfig(rag_id="a/b"), "rag_id = 'a/b': expected 1 to 64 letters, digits or _"),
        (RagConfig(rag_id="new", description="\x7f"), "line 3: a character that YAML does not allow"),
    ],
)  # fmt: skip
def test_a_rag_that_cannot_be_written_changes_nothing(place, rag, expected):
    place.rag("rag_id: there", "a.yaml")
    place.rag("rag_id: broken\nweight: 0", "b.yaml")
    place.rag("rag_id: [", "c.yaml")
    before = sorted(place.rags.rglob("*"))
    with pytest.raises(ConfigurationWrong) as wrong:
        write_rag(place.read(), rag)
    assert wrong.value.problems == (expected,)
    assert sorted(place.rags.rglob("*")) == before


def test_a_change_of_any_file_is_noticed(place):
    config = place.read()
    assert not changed(config)

    def noticed(change) -> bool:
        nonlocal config
        change()
        seen, config = changed(config), place.read()
        assert not changed(config)
        return seen

    assert noticed(lambda: place.rag("rag_id: a", "a.yaml"))
    assert noticed(lambda: place.rag("rag_id: abc", "a.yaml"))
    assert noticed(lambda: (place.rags / "a.yaml").rename(place.rags / "b.yml"))
    assert noticed(lambda: place.client("qdrant: {timeout: 7}"))
    assert noticed((place.base / "client.yaml").unlink)
    assert noticed((place.rags / "b.yml").unlink)
    assert not noticed(lambda: (place.rags / ".b.yaml.tmp").write_text("x"))


PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "documents-configuration.md").read_text()


def shown_default(model: msgspec.Struct, name: str) -> str:
    if name == "rag_id":
        return "needed"
    value = functools.reduce(getattr, name.split("."), model)
    if value in {None, ""}:
        return "–"
    if isinstance(value, tuple):
        return "all" if value == tuple(TYPES) else str(value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def shown_range(name: str, kind: object) -> str:
    if name == "sources.extensions":
        return "some of " + " ".join(f"`{extension}`" for extension in TYPES)
    return words_for(kind)


def test_the_page_lists_every_field_of_a_rag_with_its_default_and_range():
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE)
    made = RagConfig(rag_id="")
    assert rows == [
        (name, shown_default(made, name), shown_range(name, kind))
        for name, kind in names_of(RagConfig).items()
    ]


def test_the_page_lists_every_field_of_the_client_file_with_its_variable():
    rows = re.findall(
        r"^\| `([\w.]+)` \| `(RAG_\w+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE
    )
    made = ClientConfig()
    assert rows == [
        (name, variable_of(name), shown_default(made, name), shown_range(name, kind))
        for name, kind in names_of(ClientConfig).items()
    ]


def test_the_page_lists_every_name_of_the_chatbot():
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", PAGE, re.MULTILINE)
    assert dict(rows) == CLIENT_NAMES | RAG_NAMES
    section = PAGE.partition("These do nothing here.")[2].partition("## ")[0]
    client, _, rag = section.partition("In the file of a RAG")
    assert set(re.findall(r"`([\w.]+)`", client)) - {"client.yaml"} == CLIENT_IGNORED
    assert set(re.findall(r"`([\w.]+)`", rag)) == RAG_IGNORED
    for word in [*TAKEN_IDS, *STRATEGIES, str(BUILTIN_DIMENSION), *UNFINISHED]:
        assert word in PAGE


def test_the_page_shows_mistakes_as_they_are_told(place):
    place.rag("rag_id: faq\nretrival: {top_k: 3}\nchunking: {overlap: 600}")
    with pytest.raises(ConfigurationWrong) as wrong:
        place.read().rag("faq")
    shown = re.findall(r"^```text\n(.+)\n```$", PAGE, re.MULTILINE)
    assert shown == [str(wrong.value).removeprefix(f"{place.rags}/")]
