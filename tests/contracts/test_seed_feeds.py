"""The channels that existing programs subscribe to, letter by letter, read with plain redis-py."""

import json
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis
from tests.kit.feeds import program

from penstock.coordination.stored_names import SECURITY_EVENTS, SYSTEM_STATUS, upload_progress

PROGRESS = {
    "uploaded_chunks": 5,
    "total_chunks": 10,
    "bytes_uploaded": 524288000,
    "total_bytes": 1073741824,
    "percent": 50.0,
    "status": "UPLOADING",
}
SHORT_PROGRESS = {"uploaded_chunks": 5, "total_chunks": 10, "percent": 50.0}
COMPLETED = {
    "status": "COMPLETED",
    "uploaded_chunks": 10,
    "total_chunks": 10,
    "percent": 100.0,
}
SECURITY_EVENT = {
    "type": "event",
    "data": {
        "id": 1,
        "event_id": 1,
        "batch_id": "abc123",
        "camera_id": "front_door",
        "risk_score": 75,
        "risk_level": "high",
        "summary": "Person detected at front door",
        "started_at": "2026-01-24T12:00:00.000000",
        "detection_count": 3,
    },
}
STATUS = {
    "type": "status",
    "data": {
        "timestamp": "2026-01-24T12:00:00.000000",
        "queue_depths": {"detection_queue": 5, "analysis_queue": 2},
        "gpu_utilization": 45.2,
        "cameras_online": 4,
    },
}


@asynccontextmanager
async def subscribed(server, *channels):
    """What any program does that listens."""
    async with Redis(unix_socket_path=server.socket_path, decode_responses=True) as redis:
        pubsub = redis.pubsub()
        await pubsub.subscribe(*channels)
        for _ in channels:
            assert (await pubsub.get_message(timeout=5))["type"] == "subscribe"
        try:
            yield pubsub
        finally:
            await pubsub.aclose()


async def heard(pubsub):
    message = await pubsub.get_message(timeout=5)
    assert message["type"] == "message"
    return message["channel"], message["data"]


@pytest.mark.parametrize("progress", [PROGRESS, SHORT_PROGRESS, COMPLETED])
async def test_progress_of_an_upload_is_the_bare_object(own_server, progress):
    async with (
        program(own_server.url) as opened,
        subscribed(own_server, "upload:progress:abc123") as pubsub,
    ):
        feed = opened.feed(f"upload-{progress}")
        channel = upload_progress("abc123")
        await feed.publish("progress", progress, mirror=channel, mirror_as="data")
        assert await heard(pubsub) == (
            "upload:progress:abc123",
            json.dumps(progress, separators=(",", ":")),
        )


@pytest.mark.parametrize(
    ("name", "channel", "message"),
    [
        ("security_events", SECURITY_EVENTS, SECURITY_EVENT),
        ("system_status", SYSTEM_STATUS, STATUS),
    ],
)
async def test_events_and_status_come_with_their_type(own_server, name, channel, message):
    async with program(own_server.url) as opened, subscribed(own_server, name) as pubsub:
        feed = opened.feed(name)
        await feed.publish(message["type"], message["data"], mirror=channel)
        assert await heard(pubsub) == (name, json.dumps(message, separators=(",", ":")))


async def test_one_listener_hears_several_channels_in_order(own_server):
    async with (
        program(own_server.url) as opened,
        subscribed(own_server, "security_events", "system_status") as pubsub,
    ):
        events, status = opened.feed("events"), opened.feed("status")
        for n in range(3):
            await events.publish("event", {"id": n}, mirror=SECURITY_EVENTS)
            await status.publish("status", {"cameras_online": n}, mirror=SYSTEM_STATUS)
        got = [await heard(pubsub) for _ in range(6)]
    assert [channel for channel, _ in got] == ["security_events", "system_status"] * 3
    assert [json.loads(text)["type"] for _, text in got] == ["event", "status"] * 3


async def test_a_message_is_plain_json_however_long_it_is(own_server):
    """What is stored is compressed; whoever listens knows nothing of that."""
    data = {"id": 1, "summary": "person " * 2000}
    async with (
        program(own_server.url) as opened,
        subscribed(own_server, "security_events") as pubsub,
    ):
        await opened.feed("long").publish("event", data, mirror=SECURITY_EVENTS)
        _, text = await heard(pubsub)
        assert json.loads(text) == {"type": "event", "data": data}


async def test_the_repeat_of_an_event_is_not_heard_twice(own_server):
    async with (
        program(own_server.url) as opened,
        subscribed(own_server, "security_events") as pubsub,
    ):
        feed = opened.feed("repeats")
        for event_id in ("a", "a", "b"):
            await feed.publish(
                "event", {"id": event_id}, mirror="security_events", event_id=event_id
            )
        got = [json.loads((await heard(pubsub))[1])["data"]["id"] for _ in range(2)]
    assert got == ["a", "b"]


async def test_a_namespace_stands_before_the_channel_as_before_every_key(own_server):
    async with (
        program(own_server.url, "hsi") as opened,
        subscribed(own_server, "hsi::system_status") as pubsub,
    ):
        await opened.feed("status").publish("status", {}, mirror=SYSTEM_STATUS)
        assert await heard(pubsub) == ("hsi::system_status", '{"type":"status","data":{}}')


async def test_on_a_cluster_a_listener_hears_it_on_any_node(cluster, namespace):
    async with program(cluster.url, namespace) as opened:
        for node in cluster.living[:3]:
            async with subscribed(node, f"{namespace}::security_events") as pubsub:
                await opened.feed("events").publish("event", {"id": 1}, mirror=SECURITY_EVENTS)
                assert (await heard(pubsub))[0] == f"{namespace}::security_events"


def test_ids_of_uploads_cannot_reach_into_other_channels():
    assert upload_progress("abc-123") == "upload:progress:abc-123"
    assert upload_progress("a:b*") == "upload:progress:a%3Ab%2A"
