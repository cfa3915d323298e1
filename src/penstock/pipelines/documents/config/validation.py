"""Validation of `client.yaml` and of a RAG's file, beyond the types of fields."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from penstock.app import Penstock
from penstock.errors import AddressError, SettingError
from penstock.pipelines.documents.config.fields import (
    ConfigFields,
    ForeignNames,
    RawValue,
    names_of,
)
from penstock.pipelines.documents.config.models import (
    BUILTIN_DIMENSION,
    TAKEN_IDS,
    TYPES,
    ClientConfig,
    Embeddings,
    PathsConfig,
    QdrantConfig,
    RagConfig,
    RedisConfig,
)
from penstock.settings import Settings

__all__ = ["CLIENT_IGNORED", "CLIENT_NAMES", "RAG_IGNORED", "RAG_NAMES", "STRATEGIES"]
__all__ += ["check_client", "check_rag", "clashes", "variable_of"]

PREFIX: Final = "RAG_"
_COLLECTION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_KEY_BEGINS = ("sk-", "sk_", "gsk_", "hf_", "pk_", "AIza", "xai-", "Bearer ")
_NEEDS = {
    "builtin": (),
    "http": ("url", "model"),
    "sentence-transformers": ("model",),
    "python": ("model",),
}
_HAS_NO = {
    "builtin": ("model", "url", "api_key_env"),
    "http": (),
    "sentence-transformers": ("url", "api_key_env"),
    "python": ("url", "api_key_env"),
}
_FACTORY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_SHORTEST_KEY = 20
_KEY_DIGITS = 4
_CLOSE = 0.8


def check_client(
    found: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[ClientConfig, list[str]]:
    """Configuration of `client.yaml` and the environment, and all mistakes in it."""
    fields = ConfigFields(ClientConfig, ForeignNames(CLIENT_IGNORED, CLIENT_NAMES))
    fields.take(found)
    _take_variables(fields, environ)
    fields.resolve(environ)
    made = fields.build()
    qdrant: QdrantConfig = made["qdrant"]
    paths: PathsConfig = made["paths"]
    if qdrant.url is not None and not _is_web_address(qdrant.url):
        fields.wrong("qdrant.url", "an address, as http://host:6333")
    _check_redis(fields, made["redis"])
    for name in PathsConfig.__struct_fields__:
        if (path := getattr(paths, name)) is not None and (not path or "\0" in path):
            fields.wrong(f"paths.{name}", "the path of a directory")
    return ClientConfig(**made), fields.problems


def check_rag(found: Mapping[str, Any], sources_root: Path) -> tuple[RagConfig, list[str]]:
    """Configuration of a RAG, and all mistakes in its file; the id is `""` if it has none."""
    fields = ConfigFields(RagConfig, ForeignNames(RAG_IGNORED, RAG_NAMES))
    fields.take(found)
    _translate(fields)
    made: dict[str, Any] = {"rag_id": "", **fields.build()}
    rag = RagConfig(**made)
    if "rag_id" not in fields.given:
        fields.problems.insert(0, "rag_id: missing; every RAG has one")
    elif rag.rag_id in TAKEN_IDS:
        fields.wrong("rag_id", f"another one: {', '.join(sorted(TAKEN_IDS))} are the queue's own")
    if rag.collection.name and not _COLLECTION.fullmatch(rag.collection.name):
        fields.wrong("collection.name", "1 to 100 letters, digits, _, . or -, the first not . or -")
    _check_embeddings(fields, rag.embeddings)
    size, overlap = rag.chunking.size, rag.chunking.overlap
    if fields.right("chunking.size", "chunking.overlap") and overlap >= size:
        fields.wrong(
            "chunking.overlap", f"less than {fields.written('chunking.size')} ({size})", overlap
        )
    _check_extensions(fields, rag.sources.extensions)
    directory = rag.sources.directory
    if directory is not None and not _is_inside(directory, sources_root):
        fields.wrong("sources.directory", f"a directory within {sources_root}")
    return _with_plain_extensions(rag), fields.problems


def clashes(rags: Mapping[str, RagConfig], sources_root: Path) -> dict[str, list[str]]:
    """Mistakes, by file, of RAGs that use the same id, collection or folder as another one.

    Every file of a clash has the mistake, as the right one cannot be guessed.
    """
    problems: dict[str, list[str]] = {}

    def add(file: str, field: str, value: str, expected: str) -> None:
        problems.setdefault(file, []).append(f"{field} = {value!r}: expected {expected}")

    for file, other in _pairs({file: rag.rag_id for file, rag in rags.items()}):
        add(file, "rag_id", rags[file].rag_id, f"another one than {other} has")
    ids_apart = {file: rag for file, rag in rags.items() if file not in problems}
    for file, other in _pairs({file: rag.alias for file, rag in ids_apart.items()}):
        add(file, "collection.name", rags[file].alias, f"another one than {other} has")
    folders = {file: rag.folder_in(sources_root) for file, rag in ids_apart.items()}
    for file, other in _overlaps(folders):
        mine, its = (str(folders[each].relative_to(sources_root)) for each in (file, other))
        add(file, "sources.directory", mine, f"one apart from that of {other} ({its!r})")
    return problems


def _pairs(claims: Mapping[str, object]) -> list[tuple[str, str]]:
    """Files with the same claim as another one, each with the first such other."""
    owners: dict[object, list[str]] = {}
    for file, claim in claims.items():
        owners.setdefault(claim, []).append(file)
    return [
        (file, next(other for other in files if other != file))
        for files in owners.values()
        if len(files) > 1
        for file in files
    ]


def _overlaps(folders: Mapping[str, Path]) -> list[tuple[str, str]]:
    """As `_pairs`, for folders, of which one may be within another."""
    found = dict(_pairs(folders))
    owners = {folder: file for file, folder in folders.items()}
    for file, folder in folders.items():
        for parent in folder.parents:
            if (other := owners.get(parent)) is not None:
                found.setdefault(file, other)
                found.setdefault(other, file)
    return sorted(found.items())


def variable_of(name: str) -> str:
    """Environment variable of a field of `client.yaml`: `RAG_QDRANT_URL` for `qdrant.url`."""
    return PREFIX + name.replace(".", "_").upper()


def _take_variables(fields: ConfigFields, environ: Mapping[str, str]) -> None:
    ours = names_of(ClientConfig)
    known = {variable_of(name): name for name in ours}
    known |= {variable_of(name): our for name, our in CLIENT_NAMES.items()}
    ignored = [variable_of(name) for name in CLIENT_IGNORED]
    sections = tuple({variable_of(name.partition(".")[0]) + "_" for name in ours})
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or _is_ignored(variable, ignored):
            continue
        if variable in known:
            if text:  # an empty variable sets nothing, as `api_key:` in the file
                fields.override(known[variable], variable, text)
            continue
        close = difflib.get_close_matches(variable, known, n=1, cutoff=_CLOSE)
        # Variables with this prefix may belong to other programs.
        if close or variable.startswith(sections):
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
            fields.mistake(variable, f"{variable}: unknown{hint}")


def _is_ignored(variable: str, ignored: list[str]) -> bool:
    return any(variable == name or variable.startswith(f"{name}_") for name in ignored)


def _check_redis(fields: ConfigFields, redis: RedisConfig) -> None:
    if redis.url is None:
        for name in ("db", "password"):
            if getattr(redis, name) is not None:
                fields.wrong(f"redis.{name}", "redis.url beside it")
        return
    written = fields.written("redis.url")
    try:
        address = Penstock(settings=Settings(url=redis.url)).redis.address
    except (AddressError, SettingError) as error:
        fields.mistake("redis.url", f"{written}: {str(error).removeprefix('server address: ')}")
        return
    parts = urlsplit(redis.url)
    path = parts.path.strip("/").rpartition("/")[2] if address.service else parts.path.strip("/")
    names_one = "db=" in parts.query or (
        parts.scheme != "unix" and path not in {"", address.service}
    )
    if redis.db is not None and names_one and redis.db != address.database:
        fields.wrong("redis.db", f"the database of {written} ({address.database}), or none")
    elif redis.db and not names_one and "cluster" in parts.scheme:
        fields.wrong("redis.db", "0: a cluster has no other")
    password = address.credentials.password
    if redis.password is not None and password is not None and redis.password != password:
        fields.wrong("redis.password", f"the one in {written}, or none")


def _translate(fields: ConfigFields) -> None:
    """Translate values of fields with foreign names."""
    strategy = fields.given.get("chunking.strategy")
    if strategy and strategy.written == "chunking.splitter" and strategy.value in STRATEGIES:
        fields.given["chunking.strategy"] = RawValue(strategy.written, STRATEGIES[strategy.value])
    model = fields.given.get("embeddings.model")
    if model and model.written != "embeddings.model":
        provider = RawValue("embeddings.provider", "sentence-transformers")
        fields.given.setdefault("embeddings.provider", provider)


def _check_embeddings(fields: ConfigFields, embeddings: Embeddings) -> None:
    if embeddings.api_key_env is not None:
        _check_key_variable(fields, embeddings.api_key_env)
    if not fields.right("embeddings.provider"):
        return
    provider = embeddings.provider
    for name in _NEEDS[provider]:
        if not getattr(embeddings, name) and fields.right(f"embeddings.{name}"):
            problem = f"embeddings.{name}: missing; the provider {provider} needs it"
            fields.mistake(f"embeddings.{name}", problem)
    for name in _HAS_NO[provider]:
        if getattr(embeddings, name):
            fields.wrong(f"embeddings.{name}", f"none: the provider {provider} has no use for it")
    if provider == "builtin" and embeddings.dimension not in {None, BUILTIN_DIMENSION}:
        fields.wrong("embeddings.dimension", f"{BUILTIN_DIMENSION}, the built-in model's")
    if provider == "python" and embeddings.model and not _FACTORY.fullmatch(embeddings.model):
        fields.wrong("embeddings.model", "what makes the embedder, as package.module:factory")
    if provider == "http" and embeddings.url:
        _check_api_address(fields, embeddings.url)


def _check_api_address(fields: ConfigFields, url: str) -> None:
    if not _is_web_address(url):
        fields.wrong("embeddings.url", "an address, as https://host/v1")
    elif "@" in urlsplit(url).netloc:
        fields.wrong("embeddings.url", "no user or password; api_key_env names what has the key")


def _check_key_variable(fields: ConfigFields, name: str) -> None:
    digits = sum(letter.isdigit() for letter in name)
    random = len(name) >= _SHORTEST_KEY and digits >= _KEY_DIGITS
    if name.startswith(_KEY_BEGINS) or (random and ("_" not in name or not name.isupper())):
        fields.wrong(
            "embeddings.api_key_env",
            "the name of an environment variable; this looks like a key itself",
        )
    elif not _VARIABLE.fullmatch(name):
        fields.wrong(
            "embeddings.api_key_env",
            "the name of an environment variable, as OPENAI_API_KEY",
        )


def _check_extensions(fields: ConfigFields, extensions: tuple[str, ...]) -> None:
    if not fields.right("sources.extensions"):
        return
    if not extensions:
        fields.wrong("sources.extensions", f"at least one of {', '.join(TYPES)}")
    for extension in extensions:
        if extension.lower() in TYPES:
            continue
        if f".{extension.lower()}" in TYPES:
            wanted = f"a leading dot, as .{extension.lower()}"
        else:
            wanted = f"one of {', '.join(TYPES)}"
        fields.wrong("sources.extensions", wanted, extension)


def _with_plain_extensions(rag: RagConfig) -> RagConfig:
    plain = tuple(dict.fromkeys(extension.lower() for extension in rag.sources.extensions))
    return replace(rag, sources=replace(rag.sources, extensions=plain))


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_inside(directory: str, root: Path) -> bool:
    path = PurePath(directory)
    if "\0" in directory or ".." in path.parts or "~" in path.parts[:1]:
        return False
    whole = root / path
    return whole != root and whole.is_relative_to(root)


CLIENT_IGNORED: Final = frozenset({
    "app", "cache", "concurrency", "error_handling", "llm", "monitoring", "paths.logs_dir",
    "paths.templates_dir", "qdrant.max_retries", "redis.max_pool_size", "redis.timeout_s",
    "security", "sessions",
})  # fmt: skip
"""Sections and fields of `client.yaml` that are ignored."""
CLIENT_NAMES: Final = {"qdrant.timeout_s": "qdrant.timeout"}
"""Foreign names of fields of `client.yaml`, with Penstock's."""
RAG_IGNORED: Final = frozenset({
    "cache", "chunking.secondary_separators", "chunking.separator",
    "collection.recreation_policy", "collection.shard_number", "embeddings.normalize",
    "errors", "experimental", "llm", "metadata", "monitoring", "prompting", "rate_limit",
    "retrieval.filter_duplicates", "retrieval.max_context_chunks", "retrieval.rerank",
    "security", "sessions",
})  # fmt: skip
"""Sections and fields of a RAG's file that are ignored. An index is never cleared in place, as
`collection.recreation_policy` would: `penstock ingest reindex` builds a new one beside it."""
RAG_NAMES: Final = {
    "chunking.chunk_overlap": "chunking.overlap",
    "chunking.chunk_size": "chunking.size",
    "chunking.splitter": "chunking.strategy",
    "embeddings.batch_size": "embeddings.batch",
    "embeddings.model_name": "embeddings.model",
    "retrieval.score_threshold": "retrieval.threshold",
    "sources.allowed_extensions": "sources.extensions",
    "sources.auto_reload": "sources.watch",
    "sources.max_file_size_mb": "sources.max_mb",
}
"""Foreign names of fields of a RAG's file, with Penstock's.

`embeddings.model_name` is a model of sentence-transformers where no provider is named.
"""
STRATEGIES: Final = {"recursive_character": "recursive", "semantic": "structure"}
"""Values of `chunking.splitter`, with those of `chunking.strategy`."""
