"""The security pipeline's batches, letter by letter: its keys, and the items of `analysis_queue`.

Everything is read with redis-py alone, as its other programs do.
"""

import json
import re
import time
from datetime import datetime

import pytest

from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.window import Window
from penstock.testing.eventually import eventually

FLOAT = re.compile(r"\d{10}\.\d{6}")


def window(app, **options):
    return Window(app.redis, app.codec, "batch", to=app.queue("analysis_queue"), **options)


async def test_an_open_batch_stands_in_the_five_keys(app, stock):
    before = time.time()
    added = [await window(app).add("front_door", detection) for detection in (1, 2, 3)]
    batch = stock.get("batch:front_door:current")
    assert batch == added[0].batch_id
    assert re.fullmatch(r"batch-[0-9a-f]{16}", batch)
    assert stock.get(f"batch:{batch}:camera_id") == "front_door"
    assert stock.lrange(f"batch:{batch}:detections", 0, -1) == ["1", "2", "3"]
    for field in ("started_at", "last_activity"):
        text = stock.get(f"batch:{batch}:{field}")
        assert FLOAT.fullmatch(text)
        assert before - 1 <= float(text) <= time.time() + 1
    assert stock.get(f"batch:{batch}:last_activity") >= stock.get(f"batch:{batch}:started_at")


async def test_no_key_of_an_open_batch_ever_expires(app, stock):
    await window(app).add("front_door", 1)
    keys = stock.keys("batch:*")
    assert len(keys) == 6
    assert {stock.ttl(key) for key in keys} == {-1}


async def test_the_item_of_the_analysis_queue_has_the_fields_of_the_pipeline(app, stock):
    gather = window(app, max_age=0.05)
    for detection in (3, 1, 2):
        await gather.add("front_door", detection)
    batch = stock.get("batch:front_door:current")
    await eventually(WindowCloser(app.redis, app.codec, [gather]).look)
    assert stock.type("analysis_queue") == "list"
    # As the analysis worker takes it.
    name, text = stock.blpop(["analysis_queue"], timeout=1)
    item = json.loads(text)
    assert name == "analysis_queue"
    assert list(item)[:5] == ["batch_id", "camera_id", "detection_ids", "started_at", "ended_at"]
    assert item["batch_id"] == batch
    assert item["camera_id"] == "front_door"
    assert item["detection_ids"] == [3, 1, 2]
    started, ended = (datetime.fromisoformat(item[name]) for name in ("started_at", "ended_at"))
    assert 0.05 <= (ended - started).total_seconds() < 2
    assert round(started.timestamp() * 1000) == item["started_ms"]
    assert round(ended.timestamp() * 1000) == item["ended_ms"]


async def test_a_closed_batch_leaves_none_of_its_keys(app, stock):
    gather = window(app)
    await gather.add("front_door", 1)
    await gather.add("back_door", 2)
    await gather.close("front_door")
    batch = stock.get("batch:back_door:current")
    assert sorted(stock.keys("batch:*")) == sorted(
        [
            "batch:back_door:current",
            *(
                f"batch:{batch}:{field}"
                for field in ("camera_id", "detections", "started_at", "last_activity", "bytes")
            ),
        ]
    )


async def test_a_camera_that_is_called_as_a_batch_takes_no_key_of_it(app, stock):
    gather = window(app)
    batch = (await gather.add("front_door", 1)).batch_id
    await gather.add(batch, 2)
    await gather.add(f"{batch}:detections", 3)
    assert stock.lrange(f"batch:{batch}:detections", 0, -1) == ["1"]
    assert stock.get(f"batch:{batch}%3Adetections:current")
    assert await gather.close("front_door") == batch
    assert stock.llen("analysis_queue") == 1
    assert (await gather.batch(batch)).count == 1


async def test_500_detections_are_a_batch(app, stock):
    gather = window(app)
    for number in range(501):
        await gather.add("front_door", number)
    [item] = map(json.loads, stock.lrange("analysis_queue", 0, -1))
    assert item["detection_ids"] == list(range(500))
    assert item["reason"] == "max_size"


async def test_a_fast_detection_is_in_the_high_lane_under_its_own_name(app, stock):
    added = await window(app).add("front_door", 17, id="17", fast=True)
    assert added.batch_id == "fast_path_17"
    [item] = map(json.loads, stock.lrange("analysis_queue:high", 0, -1))
    assert (item["batch_id"], item["detection_ids"]) == ("fast_path_17", [17])
    assert item["fast_path"] is True
    assert stock.llen("analysis_queue") == 0
    assert stock.get("batch:front_door:current") is None


@pytest.mark.parametrize("stored", ["list", "text"])
@pytest.mark.parametrize("closed_by", ["the next detection", "hand"])
async def test_a_batch_that_the_old_aggregator_has_begun_is_taken_over(
    app, stock, stored, closed_by
):
    """Five keys that end after an hour; the detections a list, or JSON as it was documented."""
    gather, began = window(app), time.time()
    stock.set("batch:front_door:current", "abc12345", ex=3600)
    for field, value in (
        ("camera_id", "front_door"),
        ("started_at", str(began)),
        ("last_activity", str(began)),
    ):
        stock.set(f"batch:abc12345:{field}", value, ex=3600)
    if stored == "text":
        stock.set("batch:abc12345:detections", "[101, 102]", ex=3600)
    else:
        stock.rpush("batch:abc12345:detections", 101, 102)
        stock.expire("batch:abc12345:detections", 3600)
    if closed_by == "the next detection":
        added = await gather.add("front_door", 103)
        assert (added.batch_id, added.size) == ("abc12345", 3)
        assert {stock.ttl(key) for key in stock.keys("batch:*")} == {-1}
        assert (await gather.batch("front_door")).bytes == 12
    assert await gather.close("front_door") == "abc12345"
    [item] = map(json.loads, stock.lrange("analysis_queue", 0, -1))
    expected = [101, 102, 103] if closed_by == "the next detection" else [101, 102]
    assert item["detection_ids"] == expected
    assert abs(item["started_ms"] - began * 1000) <= 1
    assert stock.keys("batch:*") == []
