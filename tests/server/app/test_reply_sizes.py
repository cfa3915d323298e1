"""No reply grows with what is stored: where entries are large, fewer of them are read at once.

The server closes a connection to which it would have to send too much at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.kit.scripts import scripts_of

from penstock import Penstock
from penstock.coordination.cache.keys import CacheKeys
from penstock.coordination.feeds.keys import FeedKeys
from penstock.queues.worker.claimed_jobs import ClaimedJobs, WorkerCounts
from penstock.queues.worker.membership import Membership
from penstock.settings import Settings
from penstock.testing.servers import ServerProcess
from penstock.topics.storage.keys import TopicKeys

LARGE = 256 * 1024
MANY = 100
MOST = 16 * 1024 * 1024
"""All entries together have more than one and a half times as much."""

FILL = """
local text = '"' .. string.rep('x', tonumber(ARGV[3]) - 2) .. '"'
for i = 1, tonumber(ARGV[2]) do
  local job = '{"task":"t","id":"j' .. i .. '","x":' .. text .. '}'
  local name = 'j' .. i
  if ARGV[1] == 'list' then redis.call('RPUSH', KEYS[1], job)
  elseif ARGV[1] == 'claims' then redis.call('HSET', KEYS[1], i, job)
  elseif ARGV[1] == 'strings' then redis.call('SET', KEYS[1] .. i, text)
  elseif ARGV[1] == 'records' then
    redis.call('HSET', KEYS[1] .. name, 'status', 'done', 'job_id', name, 'result', text)
    redis.call('ZADD', KEYS[2], i, name)
  elseif ARGV[1] == 'delayed' then
    redis.call('ZADD', KEYS[1], i + 1e15, name)
    redis.call('HSET', KEYS[2], name, 'b\\n' .. job)
  elseif ARGV[1] == 'events' then
    redis.call('XADD', KEYS[1], i .. '-0', 'type', 'x', 'data', text, 'ms', '1')
  elseif ARGV[1] == 'letters' then
    redis.call('XADD', KEYS[1], i .. '-0', 'group', 'g', 'partitionId', '0',
      'originalMessageId', i .. '-0', 'payload', text)
  end
end
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    limit = ("--client-output-buffer-limit", f"normal {MOST} {MOST} 0")
    with ServerProcess("valkey", "--appendonly", "no", "--save", "", *limit) as running:
        yield running


@pytest.fixture
async def app(server: ServerProcess, namespace: str) -> AsyncIterator[Penstock]:
    async with Penstock(settings=Settings(url=server.unix_url, namespace=namespace)) as opened:
        yield opened
        await opened.redis.call("FLUSHALL")


async def fill(app: Penstock, kind: str, *keys: str, count: int = MANY, size: int = LARGE) -> None:
    await app.redis.call("EVAL", FILL, len(keys), *keys, kind, count, size)


async def test_what_was_claimed_without_an_answer_is_read_in_pages(app: Penstock) -> None:
    queue = app.queue("q")
    claims = ClaimedJobs(Membership(app.redis, queue.keyring, "w"), app.codec, WorkerCounts())
    await claims.membership.join()
    await fill(app, "claims", queue.keyring.claimed(claims.worker))
    claims._first, claims._doubt = MANY + 1, True
    found = await claims.claim(0)
    assert len(found) == MANY


async def test_suspects_are_looked_for_among_as_many_jobs_as_may_be_claimed(app: Penstock) -> None:
    """The answer tells little of what a script has read: its time does."""
    queue = app.queue("q")
    keys, scripts, call = queue.keyring, scripts_of(app.redis), app.redis.call
    await scripts.join_queue(keys=keys, worker="w")
    await call("HSET", keys.suspects, "~nothing", 1)
    await fill(app, "list", keys.waiting)
    await call("CONFIG", "RESETSTAT")
    reply = await scripts.claim_jobs(keys=keys, worker="w", first=1, most=MANY, done=())
    taken = [job for jobs in reply.lanes[1::2] for job in jobs]
    most = app.redis.settings.queues.prefetch_bytes
    assert 0.8 * most <= sum(map(len, taken)) <= most
    stats = await call("INFO", "commandstats")
    line = next(line for line in stats.decode().splitlines() if "cmdstat_lrange" in line)
    calls = int(line.partition("calls=")[2].partition(",")[0])
    assert calls <= 6, line
    assert await call("LLEN", keys.waiting) == MANY - len(taken)


async def test_claims_are_shown_in_pages(app: Penstock) -> None:
    keys = app.queue("q").keyring
    await fill(app, "claims", keys.claimed("w"))
    shown = await app.queues.claims("q", "w", limit=MANY)
    assert [view.claim for view in shown] == [str(number) for number in range(1, MANY + 1)]


async def test_jobs_that_wait_are_shown_and_thrown_away_in_pages(app: Penstock) -> None:
    keys = app.queue("q").keyring
    await fill(app, "list", keys.waiting)
    assert len(await app.queues.peek("q", limit=MANY)) == MANY
    assert await app.queues.purge("q") == MANY


async def test_jobs_that_are_not_due_are_thrown_away_in_pages(app: Penstock) -> None:
    keys = app.queue("q").keyring
    await fill(app, "delayed", keys.delayed, keys.delayed_bodies)
    assert await app.queues.purge("q", delayed=True) == MANY


async def test_records_with_large_results_are_searched_in_pages(app: Penstock) -> None:
    keys = app.queue("q").keyring
    await fill(app, "records", keys.records, keys.jobs("done"))
    page = await app.queues.jobs("q", state="done", limit=MANY + 1)
    assert [job.job_id for job in page.jobs] == [f"j{number}" for number in range(MANY, 0, -1)]
    assert page.cursor is None


async def test_a_page_of_a_search_ends_where_results_are_too_large(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queues.admin.job_search._MOST_BYTES", 10 * LARGE)
    keys = app.queue("q").keyring
    await fill(app, "records", keys.records, keys.jobs("done"), count=30)
    seen: list[str] = []
    cursor = None
    for _ in range(30):
        page = await app.queues.jobs("q", state="done", cursor=cursor)
        seen += [job.job_id for job in page.jobs]
        assert len(page.jobs) < 30
        if (cursor := page.cursor) is None:
            break
    assert seen == [f"j{number}" for number in range(30, 0, -1)]


async def test_letters_of_a_queue_are_listed_found_and_counted_in_pages(app: Penstock) -> None:
    keys = app.queue("q").keyring
    await fill(app, "list", keys.dead_letters)
    letters = app.queues.dead_letters("q")
    assert len((await letters.list(limit=MANY)).letters) == MANY
    assert (await letters.get("j3")).job_id == "j3"
    assert (await letters.kinds()).examined == MANY


async def test_values_of_a_cache_are_read_in_pages(app: Penstock) -> None:
    cache, names = app.cache("c"), [str(number) for number in range(1, MANY + 2)]
    first = CacheKeys.of(app.redis.keys, "c", "1").value
    await fill(app, "strings", first.removesuffix("1"))
    values = await cache.get_many(names, type=str)
    assert list(map(len, values.values())) == [LARGE - 2] * MANY
    assert names[-1] not in values


async def test_events_of_a_feed_are_read_in_pages(app: Penstock) -> None:
    feed, place = app.feed("f"), FeedKeys.of(app.redis.keys, "f")
    await fill(app, "events", place.events)
    await app.redis.call("HSET", place.state, "seq", MANY)
    numbers: list[int] = []
    async for event in feed.read(after=0):
        numbers.append(event.number)
        if len(numbers) == MANY:
            break
    assert numbers == list(range(1, MANY + 1))


async def test_events_of_a_run_are_read_in_pages(app: Penstock) -> None:
    run = await app.runs.start("r", kind="x")
    await app.redis.call("DEL", run.keys.events)
    await fill(app, "events", run.keys.events)
    assert [event.number for event in await run.events(limit=MANY)] == list(range(1, MANY + 1))
    last = await run.last_events(limit=MANY)
    assert [event.number for event in last] == list(range(1, MANY + 1))


async def test_letters_of_a_topic_are_thrown_away_in_pages(app: Penstock) -> None:
    await app.topic("t").metadata()
    keys = TopicKeys.of(app.redis.keys, "t")
    await fill(app, "letters", keys.dlq)
    letters = app.topics.dead_letters("t")
    ids = [f"{number}-0" for number in range(1, MANY + 1)]
    assert await letters.purge(ids, dry_run=True) == MANY
    assert await letters.purge(ids[:50]) == 50
    assert await letters.purge(everything=True) == MANY - 50
