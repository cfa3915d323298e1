"""Topics for programs that do not await."""

import os
import threading

import pytest

from penstock.errors import InvalidName, TopicMismatch


def stored(app, name, partition=0):
    keys = app.settings.namespace
    return app.redis.call("XRANGE", f"{keys}::stream:topic:{name}:p:{partition}", "-", "+")


def test_a_blocking_program_sends_one_message_and_many(app):
    orders = app.topic("orders")
    first = orders.send({"n": 1}, key="k")
    rest = orders.send_batch([{"n": 2}, {"n": 3}])
    entries = stored(app, "orders")
    assert [f"0-{entry[0].decode()}" for entry in entries] == [first, *rest]
    assert [entry[1][1] for entry in entries] == [b'{"n":1}', b'{"n":2}', b'{"n":3}']


def test_threads_share_a_topic(app):
    orders = app.topic("orders", partitions=2)
    threads = [
        threading.Thread(target=lambda: [orders.send({"n": n}) for n in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stored(app, "orders", 0)) + len(stored(app, "orders", 1)) == 200


def test_what_cannot_be_is_said_as_in_the_asynchronous_one(app):
    app.topic("orders", partitions=2).send({})
    with pytest.raises(TopicMismatch):
        app.topic("orders", partitions=3).send({})
    with pytest.raises(InvalidName):
        app.topic("a:b").send({})


def test_a_forked_child_sends_over_connections_of_its_own(app):
    orders = app.topic("orders")
    orders.send({"from": "parent"})
    child = os.fork()
    if child == 0:
        try:
            orders.send({"from": "child"})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    orders.send({"from": "parent"})
    assert len(stored(app, "orders")) == 3
