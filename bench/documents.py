"""Suite `documents`: taking documents in, beside LlamaIndex's IngestionPipeline.

Both get the same texts, the same stub for a model, and make as many chunks of them; both keep
vectors in Qdrant's engine on this machine. LlamaIndex is one process that has the texts in memory.
Ours is the whole way: files that are submitted, copied, queued on the embedded server, read by
child processes, written to the engine's process, moved, and entered in the ledger. It has the
machine's cores, and the processor time of both is told beside. Ratios are taken within a round, in
which all have a turn; the median of the rounds counts. What could not be measured is a figure that
is missed. --quick leaves out LlamaIndex's slower ways and the calls that take their time, and
measures the many files with fewer.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial

from arena import Arena, open_arena
from figures import Figure
from results import Results, Turn, program
from rivals import python_of

SUITE = "documents"
PACKAGES = "bench-documents"
COUNT, SIZE = 300, 5_000
SLEEP_MS, BURN_MS = 5, 5
REFERENCE_PAGES, LONG_PAGES = 60, 2_000
DISK, MEMORY, CHARACTERS = "on disk", "in memory", "in memory, counting characters"
WAYS = {
    DISK: ("disk", "tokens"),
    MEMORY: ("memory", "tokens"),
    CHARACTERS: ("memory", "characters"),
}
"""Of LlamaIndex: where its vectors are, and what its splitter counts (tokens by default)."""
OURS, THEIRS = "Penstock", "LlamaIndex"
WORKERS = (1, 2)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    ways: tuple[str, ...]
    """Of LlamaIndex."""
    sleeps_ms: tuple[int, ...]
    """Of a call of the model."""
    many: int
    """Files of a folder that has not changed."""
    share_count: int
    share_size: int
    burnt: int
    """Documents for a model that takes its time."""
    reads: int
    """Of the reference PDF."""


QUICK = Sizes(2, (MEMORY,), (0,), 1_000, share_count=30, share_size=60_000, burnt=60, reads=5)
FULL = Sizes(
    *(5, tuple(WAYS), (0, SLEEP_MS), 5_000), share_count=100, share_size=60_000, burnt=300, reads=20
)


async def figures(*, quick: bool) -> AsyncIterator[Figure]:
    sizes, results = QUICK if quick else FULL, Results(SUITE)
    # Others who compute meanwhile spoil the rest: the reader shall see it.
    yield Figure(SUITE, "load of the machine beforehand", os.getloadavg()[0], "", 0, ">=")
    async with open_arena() as arena:
        await results.play_rounds(arena, _turns(sizes), sizes.rounds)
        for name, turn in _once(sizes).items():
            await results.play(arena, name, turn)
        await results.play_rounds(arena, _models_and_pages(sizes), sizes.rounds - 1)
    for figure in (
        *_first(results, sizes),
        *_edit(results),
        *_unchanged(results, sizes.many),
        *_elsewhere(results),
        *_pages(results),
    ):
        yield figure


def _turns(sizes: Sizes) -> dict[str, Turn]:
    """First ingest, unchanged re-run and edit."""
    turns: dict[str, Turn] = {}
    # Who is compared has its turn soon after: a noisy moment shall hit both.
    for sleep_ms in sizes.sleeps_ms:
        # Where its vectors are and what it counts is known from the calls that take no time.
        for way in (MEMORY,) if sleep_ms else sizes.ways:
            turns[_theirs(way, sleep_ms)] = partial(_peer, way, sleep_ms)
        for workers in WORKERS:
            turns[_ours(workers, sleep_ms)] = partial(_ingest, workers, sleep_ms)
    return turns


def _once(sizes: Sizes) -> dict[str, Turn]:
    return {
        f"{OURS}, {sizes.many:,} files": partial(_again, sizes.many),
        f"{THEIRS}, {sizes.many:,} texts": partial(_peer_again, sizes.many),
        "memory": _memory,
    }


def _models_and_pages(sizes: Sizes) -> dict[str, Turn]:
    return {
        "built-in model": partial(_share, "builtin", sizes.share_count, sizes.share_size),
        f"model of {BURN_MS} ms a chunk": partial(_share, "stub", sizes.burnt, SIZE),
        "pages": partial(_read_pages, sizes.reads),
    }


def _first(results: Results, sizes: Sizes) -> Iterator[Figure]:
    # The bar is held against where its vectors are kept faster.
    judged = [_key(_theirs(way, 0), "rate") for way in (MEMORY, DISK) if way in sizes.ways]
    bars = dict(zip(WORKERS, (3, 0), strict=True))
    for workers, bar in bars.items():
        name = f"first ingest of {COUNT}, {workers} worker(s) / {THEIRS}"
        yield results.ratio(name, bar, _key(_ours(workers, 0), "rate"), *judged)
    for way in sizes.ways:
        name = f"first ingest of {COUNT}, 1 worker(s) / {THEIRS} {way}"
        if way != MEMORY:
            yield results.ratio(name, 0, _key(_ours(1, 0), "rate"), _key(_theirs(way, 0), "rate"))
    for sleep_ms in filter(None, sizes.sleeps_ms):
        for workers in WORKERS:
            name = f"calls of {sleep_ms} ms, {workers} worker(s) / {THEIRS} {MEMORY}"
            ours = _key(_ours(workers, sleep_ms), "rate")
            yield results.ratio(name, 0, ours, _key(_theirs(MEMORY, sleep_ms), "rate"))
    for name in (*(_ours(number, 0) for number in WORKERS), *(_theirs(w, 0) for w in sizes.ways)):
        yield results.value(_key(name, "rate"), "docs/s", 0, ">=")
        yield results.value(_key(name, "cpu"), "s of processors", 0, ">=")
        yield results.value(_key(name, "chunks"), "chunks", 0, ">=")
    # Who makes more chunks has more to do: they have to be as many.
    ours, theirs = (_key(name, "chunks") for name in (_ours(1, 0), _theirs(MEMORY, 0)))
    yield results.ratio("chunks, ours / LlamaIndex's", 0.95, ours, theirs)
    yield results.ratio("chunks, LlamaIndex's / ours", 0.95, theirs, ours)


def _edit(results: Results) -> Iterator[Figure]:
    ours, theirs = _ours(1, 0), _theirs(MEMORY, 0)
    yield results.value(f"edit 1 of {COUNT}: embedded beyond the changed chunks", "", 0, "<=")
    for key in ("edit_embedded", "edit_changed", "edit_chunks"):
        yield results.value(_key(ours, key), "chunks", 0, ">=")
    for key in ("edit_embedded", "edit_embedded_without_docstore"):
        yield results.value(_key(theirs, key), "chunks", 0, ">=")


def _unchanged(results: Results, many: int) -> Iterator[Figure]:
    yield results.value(_key(_ours(1, 0), "again"), "docs/s", 10_000, ">=")
    yield results.value(f"{OURS}, {many:,} files: again", "docs/s", 10_000, ">=")
    # From a dict in memory, with nothing to read; ours reads and hashes every file.
    yield results.value(_key(_theirs(MEMORY, 0), "again"), "docs/s", 0, ">=")
    yield results.value(f"{THEIRS}, {many:,} texts: again", "docs/s", 0, ">=")


def _elsewhere(results: Results) -> Iterator[Figure]:
    """The bar is that of the issue; the model alone is told because it flatters less."""
    for kind in ("built-in model", f"model of {BURN_MS} ms a chunk"):
        yield results.value(f"{kind}: time outside the model", "%", 15, "<=")
        yield results.value(f"{kind}: wall", "s", 0, ">=")
        yield results.value(f"{kind}: in the model", "s", 0, ">=")
        yield results.value(f"{kind}: rate", "chunks/s", 0, ">=")
    yield results.value("built-in model: alone", "s", 0, ">=")
    yield results.value("built-in model: time beyond the model alone", "%", 0, ">=")


def _pages(results: Results) -> Iterator[Figure]:
    yield results.value("PDF text, one child", "pages/s", 450, ">=")
    for kind in ("worker", "parser"):
        name = f"growth of the {kind} from page 500 to {LONG_PAGES:,}"
        yield results.value(name, "%", 10, "<=")
        yield results.value(f"{kind} at most", "MB", 0, ">=")


async def _ingest(workers: int, sleep_ms: int, arena: Arena) -> dict[str, float]:
    told = await arena.run(program("documents_ours", "ingest", workers, sleep_ms, SIZE, COUNT))
    values = {_key(_ours(workers, sleep_ms), key): value for key, value in told.items()}
    if (workers, sleep_ms) == (1, 0):
        beyond = told["edit_embedded"] - told["edit_changed"]
        values[f"edit 1 of {COUNT}: embedded beyond the changed chunks"] = abs(beyond)
    return values


async def _peer(way: str, sleep_ms: int, arena: Arena) -> dict[str, float]:
    command = [python_of(PACKAGES), "llama_peer.py", *WAYS[way], sleep_ms, SIZE, COUNT]
    told = await arena.run(command)
    return {_key(_theirs(way, sleep_ms), key): value for key, value in told.items()}


async def _again(many: int, arena: Arena) -> dict[str, float]:
    told = await arena.run(program("documents_ours", "again", SIZE, many))
    return {f"{OURS}, {many:,} files: again": told["again"]}


async def _peer_again(many: int, arena: Arena) -> dict[str, float]:
    command = [python_of(PACKAGES), "llama_peer.py", *WAYS[MEMORY], 0, SIZE, many]
    return {f"{THEIRS}, {many:,} texts: again": (await arena.run(command))["again"]}


async def _share(kind: str, count: int, size: int, arena: Arena) -> dict[str, float]:
    told = await arena.run(program("documents_ours", "share", kind, BURN_MS, size, count))
    name = "built-in model" if kind == "builtin" else f"model of {BURN_MS} ms a chunk"
    values = {
        f"{name}: wall": told["wall"],
        f"{name}: in the model": told["inside"],
        f"{name}: rate": told["rate"],
        f"{name}: time outside the model": 100 * (1 - told["inside"] / told["wall"]),
    }
    if "alone" in told:
        values[f"{name}: alone"] = told["alone"]
        values[f"{name}: time beyond the model alone"] = 100 * (1 - told["alone"] / told["wall"])
    return values


async def _read_pages(reads: int, arena: Arena) -> dict[str, float]:
    told = await arena.run(program("documents_ours", "pages", REFERENCE_PAGES, reads))
    return {"PDF text, one child": told["rate"]}


async def _memory(arena: Arena) -> dict[str, float]:
    told = await arena.run(program("documents_ours", "memory", LONG_PAGES))
    values: dict[str, float] = {}
    for kind, held in told.items():
        name = f"growth of the {kind} from page 500 to {LONG_PAGES:,}"
        values[name] = 100 * (held["most"] / held["settled"] - 1)
        values[f"{kind} at most"] = held["most"]
    return values


def _ours(workers: int, sleep_ms: int) -> str:
    return f"{OURS}, {workers} worker(s)" + (f", {sleep_ms} ms" if sleep_ms else "")


def _theirs(way: str, sleep_ms: int) -> str:
    return f"{THEIRS} {way}" + (f", {sleep_ms} ms" if sleep_ms else "")


def _key(name: str, what: str) -> str:
    return f"{name}: {what}"
