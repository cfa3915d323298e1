"""Administration of queues and schedules for code that does not await: see `penstock.sync`."""

from __future__ import annotations

from penstock.queues.admin import queue_admin as asynchronous_admin
from penstock.queues.dead_letters import dead_letters as asynchronous_letters
from penstock.queues.schedules import schedules as asynchronous_schedules
from penstock.sync.portal import Blocking
from penstock.sync.sibling import Application, Sibling

__all__ = ["QueueAdmin", "QueueDeadLetters", "Schedules"]


class QueueDeadLetters(Sibling[asynchronous_letters.QueueDeadLetters]):
    """`queues.QueueDeadLetters`, blocking. Made by `QueueAdmin.dead_letters`."""

    count = Blocking(asynchronous_letters.QueueDeadLetters.count)
    list = Blocking(asynchronous_letters.QueueDeadLetters.list)
    kinds = Blocking(asynchronous_letters.QueueDeadLetters.kinds)
    get = Blocking(asynchronous_letters.QueueDeadLetters.get)
    replay = Blocking(asynchronous_letters.QueueDeadLetters.replay)
    edit = Blocking(asynchronous_letters.QueueDeadLetters.edit)
    purge = Blocking(asynchronous_letters.QueueDeadLetters.purge)
    audit = Blocking(asynchronous_letters.QueueDeadLetters.audit)


class QueueAdmin(Sibling[asynchronous_admin.QueueAdmin]):
    """`queues.QueueAdmin`, blocking: `Penstock.queues`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app, lambda app: app.queues)

    list = Blocking(asynchronous_admin.QueueAdmin.list)
    facts = Blocking(asynchronous_admin.QueueAdmin.facts)
    workers = Blocking(asynchronous_admin.QueueAdmin.workers)
    claims = Blocking(asynchronous_admin.QueueAdmin.claims)
    peek = Blocking(asynchronous_admin.QueueAdmin.peek)
    job = Blocking(asynchronous_admin.QueueAdmin.job)
    jobs = Blocking(asynchronous_admin.QueueAdmin.jobs)
    cancel = Blocking(asynchronous_admin.QueueAdmin.cancel)
    replay = Blocking(asynchronous_admin.QueueAdmin.replay)
    pause = Blocking(asynchronous_admin.QueueAdmin.pause)
    resume = Blocking(asynchronous_admin.QueueAdmin.resume)
    park = Blocking(asynchronous_admin.QueueAdmin.park)
    set_weight = Blocking(asynchronous_admin.QueueAdmin.set_weight)
    set_limits = Blocking(asynchronous_admin.QueueAdmin.set_limits)
    drain = Blocking(asynchronous_admin.QueueAdmin.drain)
    purge = Blocking(asynchronous_admin.QueueAdmin.purge)
    move = Blocking(asynchronous_admin.QueueAdmin.move)
    delete = Blocking(asynchronous_admin.QueueAdmin.delete)
    audit = Blocking(asynchronous_admin.QueueAdmin.audit)
    foreign_keys = Blocking(asynchronous_admin.QueueAdmin.foreign_keys)
    rename_foreign = Blocking(asynchronous_admin.QueueAdmin.rename_foreign)
    delete_foreign = Blocking(asynchronous_admin.QueueAdmin.delete_foreign)
    relist_lanes = Blocking(asynchronous_admin.QueueAdmin.relist_lanes)

    def dead_letters(self, queue: str, *, overflow: bool = False) -> QueueDeadLetters:
        """Return the dead letters of a queue, as `queues.QueueAdmin.dead_letters`."""
        return QueueDeadLetters(
            self._app, lambda app: app.queues.dead_letters(queue, overflow=overflow)
        )


class Schedules(Sibling[asynchronous_schedules.Schedules]):
    """`queues.Schedules`, blocking: `Penstock.schedules`."""

    def __init__(self, app: Application) -> None:
        # The declarations are those of the application that a worker runs.
        super().__init__(app, lambda opened: app.twin.schedules.on(opened.redis))

    list = Blocking(asynchronous_schedules.Schedules.list)
    get = Blocking(asynchronous_schedules.Schedules.get)
    pause = Blocking(asynchronous_schedules.Schedules.pause)
    resume = Blocking(asynchronous_schedules.Schedules.resume)
    trigger = Blocking(asynchronous_schedules.Schedules.trigger)
    remove = Blocking(asynchronous_schedules.Schedules.remove)
